"""Sync-Switch in whole virtual runs: when it switches, and what its online policies gain from a
transient straggler.
"""

import pytest
from hypothesis import event, given, settings, strategies as st

from raysync.config import ParadigmChoice
from raysync.core.decisions import Apply, Note, Restore, Suspend, Switch
from raysync.core.journal import Ended, Entry
from tests.builders.paradigms import SWITCHES
from tests.builders.plans import plans
from tests.builders.virtual import replayed, run, timed

FOUR = [{"name": "w", "count": 4, "step_s": 1}]
SLOW = {"kind": "slow-down", "factor": 6, "workers": ["w-0"], "start_s": 9.5, "lasts_s": 60}
FAR = {"kind": "latency", "added_s": 2, "workers": ["w-0"], "start_s": 9.5, "lasts_s": 60}


def decided(lines, kind):
    """(when, decision)."""
    return [
        (line.event.at, each)
        for line in lines
        if isinstance(line, Entry)
        for each in line.decisions
        if isinstance(each, kind)
    ]


def switched(faults, online, fraction=0.5, **parameters):
    """The lines of a run, and when BSP had done its share."""
    training = timed(workers=FOUR, workload={"samples": 400}, faults=faults)
    choice = ParadigmChoice(name="sync-switch", fraction=fraction, online=online, **parameters)
    lines = run(training, choice)
    assert replayed(training, lines, choice).difference is None
    [done] = [at for at, switch in decided(lines, Switch) if switch.why.startswith("bsp has done")]
    assert isinstance(lines[-1], Ended)
    return lines, done


def test_the_switch_comes_with_the_share_and_takes_no_time():
    """Rounds of 4 pushes a second until 200 are done, then 4 pushes a second."""
    lines, done = switched([], "none")
    assert done == 50
    assert lines[-1].at == 100
    assert {each.phase for at, each in decided(lines, Apply) if at <= 50} == {"bsp"}
    assert {each.phase for at, each in decided(lines, Apply) if at > 50} == {"asp"}
    assert min(at for at, _ in decided(lines, Apply) if at > 50) == 51, (
        "a step later: there is no restart"
    )


@pytest.mark.parametrize("fault", [SLOW, FAR], ids=["slow-down", "latency"])
def test_elastic_finishes_bsps_share_before_none_does(fault):
    _, none = switched([fault], "none")
    lines, elastic = switched([fault], "elastic")
    [(found, _)] = decided(lines, Suspend)
    assert 9.5 < found < 9.5 + 4 * 3 * 5, "within three windows"
    assert {(note.kind, note.worker) for _, note in decided(lines, Note)} == {
        ("straggler", "w-0#1")
    }
    assert {each.worker for _, each in decided(lines, Suspend | Restore)} == {"w-0#1"}
    rounds = [each for at, each in decided(lines, Apply) if found < at < elastic]
    assert {len(each.pushes) for each in rounds} == {3}
    assert elastic < none - 10


def test_none_waits_for_every_late_step():
    """Nine rounds, the one that begins at 9 s, ten of 6 s until 70 s, and 30 more."""
    _, none = switched([SLOW], "none")
    assert none == 10 + 10 * 6 + 30


def test_greedy_ends_the_run_before_none_does():
    """Under ASP three go on at full speed; BSP's share comes later."""
    none, _ = switched([SLOW], "none")
    greedy, _ = switched([SLOW], "greedy")
    assert [switch.to for _, switch in decided(greedy, Switch)] == ["asp", "bsp", "asp"]
    assert greedy[-1].at < none[-1].at - 10


def test_a_worker_that_never_comes_back_is_found_and_left_behind():
    """Its step takes ten days; the rest of the work is done without it."""
    lines, done = switched([SLOW | {"factor": 864000}], "elastic")
    assert done < 9.5 + 60 + 50
    assert lines[-1].at < 200


@settings(max_examples=40)
@given(plans(), st.sampled_from(list(SWITCHES)), st.integers(1, 150))
def test_every_run_ends_whatever_happens(plan, name, pushes):
    """Random clusters and faults: it finishes unless every slot was taken away, and its journal
    replays.
    """
    training, choice = (
        timed(**plan, workload={"samples": pushes}),
        ParadigmChoice(name="sync-switch", **SWITCHES[name]),
    )
    lines = run(training, choice)
    again = replayed(training, lines, choice)
    assert again.difference is None
    for kind in {note.kind for _, note in decided(lines, Note)} | {
        each.to for _, each in decided(lines, Switch)
    }:
        event(kind)
    if lines[-1].status == "finished":
        assert again.machine.roster.samples_applied >= pushes
    else:
        assert lines[-1].error.startswith("every worker is gone")
