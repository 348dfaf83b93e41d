"""What the summary of a run tells of lost workers, servers and evaluators: what no fault of the
experiment did, and nobody announced.
"""

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st

from raysync import config
from raysync.core.events import Left
from raysync.core.journal import Ended, Remark, decode, encode
from raysync.errors import RunLost
from raysync.record.measures import Measures
from raysync.training.preparation import prepare
from tests.builders.virtual import DATA, TIMING, deep, entries
from tests.engine.world import Incidents, driver_in, run_in

WORKERS = [{"name": "w", "count": 3, "step_s": 1.0}]
PIPELINE = {
    "workers": [{"name": "w", "count": 2, "step_s": 1.0}],
    "paradigm": {"name": "decoupled", "modules": 2, "groups": 1},
    "checkpoint": {"every_s": 0.5},
}
NOTHING = (0, 0.0, 0, 0.0, 0)


def task_of(**given):
    defaults = {"workers": WORKERS, "workload": {"samples": 24}, "evaluation": {"marks": 1}}
    return prepare(config.validate(TIMING | defaults | given), deep, DATA)


def summary_of(training, lines):
    """As a reader of the journal's text has it."""
    measures = Measures(training.workload_samples)
    measures.feed([decode(encode(line)) for line in lines])
    return measures.summary()


def told(*incidents, **given):
    """Workers and their seconds, servers and theirs, evaluators."""
    training = task_of(**given)
    _, lines = run_in(training, training.experiment.paradigm.make(), *incidents)
    keys = "lost_workers", "worker_away_s", "lost_servers", "server_away_s", "lost_evaluators"
    summary = summary_of(training, lines)
    return tuple(summary[key] for key in keys)


@pytest.mark.parametrize("paradigm", ["bsp", "asp"])
def test_nothing_is_lost_where_only_the_experiment_or_a_drain_takes_workers_away(paradigm):
    faults = [
        {"kind": "crash", "worker": "w-0", "at_clock": 2, "rejoin_after_s": 1.0},
        {"kind": "crash", "worker": "w-2", "at_s": 5.5},
        {"kind": "kill", "workers": ["w-1"], "at_s": 1.5},
    ]
    assert told(paradigm=paradigm) == NOTHING
    assert told(paradigm=paradigm, faults=faults) == NOTHING
    assert told("the node of w-1#1 is drained at 1.5", paradigm=paradigm) == NOTHING
    assert told(**PIPELINE) == NOTHING


def crash(slot, at_s, rejoin_after_s):
    return {"kind": "crash", "worker": slot, "at_s": at_s, "rejoin_after_s": rejoin_after_s}


TWO = {"workers": [{"name": "w", "count": 2, "step_s": 1.0}], "paradigm": "asp"}


@pytest.mark.parametrize(
    ("incidents", "given", "losses"),
    [
        (["w-1#1 dies at 1.5", "w-1#2 takes 2 s to start"], {}, (1, 3.0, 0, 0.0, 0)),
        (["w-1#1 dies at 1.5"], {"cluster": {"restarts": {"attempts": 0}}}, (1, 10.5, 0, 0.0, 0)),
        (["w-1#1 dies at 1.5"], {"faults": [crash("w-0", 1.5, 5.0)]}, (1, 1.0, 0, 0.0, 0)),
        (["w-1#1 dies at 1.5"], {"faults": [crash("w-1", 3.0, 2.0)]}, (1, 1.0, 0, 0.0, 0)),
        (["server dies at 3.1"], TWO | {"network": {"update_s": 0.25}}, (0, 0.0, 1, 2.5, 0)),
        (["server dies at 2.1", "server dies at 5.1"], {"paradigm": "asp"}, (0, 0.0, 2, 2.0, 0)),
    ],
    ids=[
        "1 s of waiting and 2 s of starting",
        "away to the end",
        "of two empty slots one was planned",
        "who follows may crash",
        "a server waits for 1 s and repeats six updates",
        "a server, twice",
    ],
)
def test_what_is_lost_is_away_until_another_has_its_place(incidents, given, losses):
    assert told(*incidents, **given) == losses


@pytest.mark.parametrize("count", [1, 3])
def test_an_evaluator_counts_each_time(count):
    assert told(*["evaluator dies at 0"] * count)[4] == count


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 2), st.floats(0.1, 8), st.booleans()),
        max_size=4,
        unique_by=lambda victim: victim[:2],
    ),
    st.sampled_from(["bsp", "asp", "ssp"]),
)
def test_of_any_deaths_those_count_that_no_kill_of_the_experiment_was(deaths, paradigm):
    """A victim's first life may be killed by a fault, its second by chance."""
    incidents, faults = [], []
    for slot, life, at, by_fault in deaths:
        if by_fault and life == 1:
            faults.append({"kind": "kill", "workers": [f"w-{slot}"], "at_s": at})
        else:
            incidents.append(f"w-{slot}#{life} dies at {at}")
    training = task_of(paradigm=paradigm, faults=faults)
    _, lines = run_in(training, training.experiment.paradigm.make(), *incidents)
    victims = {text.partition(" ")[0] for text in incidents}
    left = {entry.event.worker for entry in entries(lines, Left)}
    assert summary_of(training, lines)["lost_workers"] == len(left & victims)


@pytest.mark.parametrize(
    ("incidents", "faults", "lost"),
    [
        (["m1/w-0#1 dies at 2"], [], {"worker": 1}),
        (["server of stage 2 dies at 2"], [], {"server": 1}),
        ([], [{"kind": "kill", "workers": ["w-0"], "at_s": 2.0}], {}),
    ],
)
def test_what_a_pipeline_cannot_go_on_without_stands_where_its_journal_stops(
    incidents, faults, lost
):
    """The journal then continues from a checkpoint: see tests/unit/test_checkpoints.py."""
    training = task_of(**PIPELINE, faults=faults)
    driver = driver_in(training, training.experiment.paradigm.make(), Incidents(incidents))
    lines = []
    with suppress(RunLost):
        for report in driver.run():
            lines += report
    assert not isinstance(lines[-1], Ended)
    assert Counter(line.lost for line in lines if isinstance(line, Remark) and line.lost) == lost
