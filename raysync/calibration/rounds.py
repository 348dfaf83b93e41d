"""Measure what each push costs the coordinator, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from raysync.calibration.links import MESSAGE_BYTES, STEP_S, Links, best_of, run_of
from raysync.calibration.updates import update_s
from raysync.config import Experiment, Update, WorkerGroup
from raysync.running.engines import Engine

ROUNDS = 60
WARM = 10  # first rounds, left out: connections are new


def push_s_of(engine: Engine, experiment: Experiment, links: Mapping[str, Links]) -> float:
    """Measure how much longer a round lasts with each further worker.

    Under BSP workers with equal steps push all at once. What their round lasts longer than that of
    a single one is the time of the further pushes and of a larger update. The releases that go out
    one after another are in it, too; the virtual engine has no queue of these.

    Args:
        links: group -> the link of one of its workers alone. Only groups with the lowest latency
            take part: the pushes of others come later, and wait for nobody.

    Returns:
        The seconds of a push (`network.push_s`); 0 where there is only one worker.
    """
    best = best_of(links.values())
    groups = [group for group in experiment.workers if not links[group.name].has_more_latency(best)]
    count = sum(group.count for group in groups)
    if count < 2:
        return 0.0
    alone_s = _round_s(engine, experiment, [(groups[0], 1)])
    together_s = _round_s(engine, experiment, [(group, group.count) for group in groups])
    updates_s = [update_s(MESSAGE_BYTES, pushes, Update()) for pushes in (1, count)]
    further_s = (together_s - updates_s[1]) - (alone_s - updates_s[0])
    return max(0.0, further_s / (count - 1))


def _round_s(
    engine: Engine, experiment: Experiment, workers: Sequence[tuple[WorkerGroup, int]]
) -> float:
    """Measure the median seconds of a round beside computing."""
    with run_of(
        engine, experiment, workers, MESSAGE_BYTES, ROUNDS, paradigm="bsp", step_s=STEP_S
    ) as record:
        rounds = record.pushes.groupby("clock")
    lasted_s = rounds.pushed_at_s.max() - rounds.released_at_s.min() - rounds.busy_s.max()
    return float(median(lasted_s[WARM:]))
