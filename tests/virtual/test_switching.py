"""Sync-Switch in whole virtual runs: when it switches, and what its online policies gain from a
transient straggler.
"""

import pytest

from raysync.config import ParadigmChoice
from raysync.core.decisions import Apply, Note, Restore, Suspend, Switch
from raysync.core.journal import Ended
from tests.builders.virtual import decided, replayed, run, timed

FOUR = [{"name": "w", "count": 4, "step_s": 1}]
SLOW = {"kind": "slow-down", "factor": 6, "workers": ["w-0"], "start_s": 9.5, "lasts_s": 60}
FAR = {"kind": "latency", "added_s": 2, "workers": ["w-0"], "start_s": 9.5, "lasts_s": 60}


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
