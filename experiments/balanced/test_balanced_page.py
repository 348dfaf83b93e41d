"""The page on batches by speed: how its goals are judged, and what its files have in common."""

from pathlib import Path

import pandas as pd
import pytest

from raysync import config
from raysync.results.statistics import Estimate, estimate


def test_the_comparison_is_that_of_its_pre_study_and_of_its_pace(tables, results):
    for cluster in tables.CLUSTERS:
        pace = results.experiment(f"pace-{cluster}")
        for task in tables.TASKS:
            experiment = results.experiment(f"{task}-{cluster}")
            assert experiment.update.lr == tables.best_lr(results, task)
            assert experiment.target.value == pytest.approx(tables.target(results, task))
            assert not set(experiment.seeds) & set(results.experiment(f"lr-{task}").seeds)
            assert experiment.paradigms == pace.paradigms
            assert (experiment.faults, experiment.network) == (pace.faults, pace.network)
        ours = results.experiment(f"fashion-{cluster}")
        assert (ours.workers, ours.batch_size) == (pace.workers, pace.batch_size)


def test_a_goal_is_met_only_by_what_was_measured(tables):
    """Below the target in one of our runs: undecided. In one of ASP's: its whole run counts."""
    rows = [("asp", 0, 10.0, 20.0), ("asp", 1, None, 20.0), ("ours", 0, 9.0, 20.0)]
    columns = ["label", "seed", tables.TIME, "seconds"]

    def time_with(reached):
        runs = pd.DataFrame([*rows, ("ours", 1, reached, 20.0)], columns=columns)
        return tables.time_to_target(runs, "ours")

    good = time_with(18.0)
    assert (good.bounded, good.ratio.mean) == (True, pytest.approx(0.9))
    near, beyond, far = (Estimate(0.0, *ends, 4, 4) for ends in ((-1, 2), (-9, 2), (5, 9)))
    pace, slow = (Estimate(low + 0.01, low, low + 0.02, 10, 10) for low in (0.96, 0.92))
    fast, late = Estimate(0.9, 0.8, 1.0, 2, 2), Estimate(1.2, 1.1, 1.3, 2, 2)
    never = Estimate(None, None, None, 0, 2)
    for judged, met in (
        ((pace, near, tables.Time(fast, bounded=True)), ("yes", "yes", "yes")),
        ((slow, beyond, time_with(None)), ("no", "undecided", "undecided")),
        ((estimate([0.97]), far, tables.Time(never, bounded=True)), ("undecided", "no", "no")),
        ((pace, near, tables.Time(late, bounded=True)), ("yes", "yes", "undecided")),
        ((pace, near, tables.Time(late, bounded=False)), ("yes", "yes", "no")),
    ):
        assert tables.met_of(*judged, 3) == met


@pytest.mark.parametrize(
    ("sizes", "factor", "settled"),
    [
        ([42, 42, 29, 15], 1.0, True),
        ([32, 32, 32, 32], 1.0, False),
        ([42, 42, 29, 15], 2.0, False),
        ([25, 50, 35, 18], 2.0, True),
        ([25, 50, 35, 18], 1.0, False),
    ],
)
def test_shares_are_settled_where_the_rule_would_leave_them(sizes, factor, settled):
    """Four workers at 1, 1, 0.7 and 0.35: 42, 42, 29 and 15 of 128 samples."""
    import timing

    experiment = config.load(Path(__file__).with_name("settle.yaml"))
    shares = dict(zip(["fast-0", "fast-1", "medium-0", "slow-0"], sizes, strict=True))
    assert timing.is_settled(experiment, shares, {"fast-0": factor}) == settled
