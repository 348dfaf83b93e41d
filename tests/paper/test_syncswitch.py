"""Sync-Switch: Li et al. 2021, section IV, sentence by sentence."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from raysync.core.decisions import Apply, Drop, Note, Release, Restore, SetTimer, Suspend, Switch
from raysync.core.events import Pushed
from raysync.core.machine import Machine
from raysync.errors import ConfigError, IllegalDecision
from raysync.paradigms import make
from raysync.paradigms.bsp import BSP
from raysync.paradigms.syncswitch import DETECT
from raysync.testing.drive import SAMPLES, Drive
from tests.builders.messages import Telling, naming, tells
from tests.builders.paradigms import GLOBAL, Simple
from tests.builders.schedules import (
    applied,
    batch_sizes,
    dropped,
    holds,
    joins,
    of,
    released,
    simulate,
)

QUICK = {"window": 1, "windows": 1}
A, B, C, D = "a#1", "b#1", "c#1", "d#1"
SIX = [f"w-{n}#1" for n in range(6)]
RARELY_PUBLISHED = GLOBAL | {"k": 1, "pull_interval": 100}


def drive_of(*workers, pushes=100, **parameters):
    """With a workload of so many pushes."""
    return Drive(make("sync-switch", **parameters), *workers, workload_samples=pushes * SAMPLES)


def round_of(drive, *workers, at=None):
    """All answers of a push of each."""
    return [each for worker in workers for each in drive.push(worker, at=at)]


def notes(decisions):
    """Of the stragglers: what is noted, and who is suspended and restored."""
    kinds = {Suspend: "suspended", Restore: "restored"}
    return [
        (kinds.get(type(each)) or each.kind, each.worker)
        for each in of((Note, Suspend, Restore), decisions)
    ]


def phases(decisions):
    return [each.phase for each in of(Apply, decisions)]


def stuck(online, *workers, count=1, pushes=100, **parameters):
    """The last workers are stuck in the second round, and the first window has just ended."""
    drive = drive_of(*workers, pushes=pushes, online=online, **{**QUICK, **parameters})
    round_of(drive, *workers, at=1.0)
    round_of(drive, *workers[:-count], at=2.0)
    drive.now = 4.0
    return drive, drive.tick(DETECT)


def schedule(drive):
    return drive.machine.paradigm.schedule


# ---- phase and timing policy ----


def test_start_the_training_with_bsp_and_then_switch_to_asp():
    """ "we should start the training with BSP and then switch to ASP" (IV-A), by the share done
    under BSP (IV-B1).
    """
    drive = drive_of(A, B, pushes=8, fraction=0.5)
    assert phases(round_of(drive, A, B)) == ["bsp"]
    answer = round_of(drive, A, B)
    assert of(Switch, answer) == [Switch("asp", Telling("bsp 50"))]
    assert released(answer) == [A, B]
    assert phases(round_of(drive, A, A, B)) == ["asp"] * 3
    assert drive.roster.lead(A) == 1


def test_with_lists_there_are_several_switches():
    """ "then: [asp, bsp], fraction: [0.25, 0.5]": a quarter, a half, the rest."""
    drive = drive_of(A, B, pushes=8, then=["asp", "bsp"], fraction=[0.25, 0.5])
    seen = [round_of(drive, A, B) for _ in range(4)]
    assert [phases(answer) for answer in seen] == [["bsp"], ["asp"] * 2, ["asp"] * 2, ["bsp"]]
    assert [each.to for answer in seen for each in of(Switch, answer)] == ["asp", "bsp"]


def test_a_share_of_0_is_passed_over_and_shares_of_1_leave_nothing():
    assert schedule(drive_of(A, fraction=0)).index == 1
    drive = drive_of(A, pushes=4, then=["ssp", "asp", "bsp"], fraction=[0.5, 0, 0.5])
    seen = [each for _ in range(6) for each in drive.push(A)]
    assert [each.to for each in of(Switch, seen)] == ["asp"]
    drive = drive_of(A, pushes=4, fraction=1)
    assert of(Switch, [each for _ in range(6) for each in drive.push(A)]) == []


def test_without_a_workload_no_switch_comes():
    drive = Drive(make("sync-switch", fraction=0.01), A)
    assert of(Switch, [each for _ in range(50) for each in drive.push(A)]) == []


def test_shares_are_not_whole_samples():
    """0.3 of 10 pushes of 32 samples are done with 96, though 0.1 + 0.2 is not 0.3."""
    drive = drive_of(A, pushes=10, first="asp", then=["ssp", "bsp"], fraction=[0.1, 0.2])
    seen = [each for _ in range(10) for each in drive.push(A)]
    assert phases(seen) == ["asp"] + ["ssp"] * 2 + ["bsp"] * 7


# ---- a switch ----


def test_at_a_switch_what_is_buffered_is_one_update_and_leads_are_0():
    """Here in the midst of a round."""
    drive, answer = stuck("greedy", A, B, C)
    assert applied(answer) == [((A, 1), (B, 1))]
    assert phases(answer) == ["bsp"]
    assert of(Switch, answer) == [Switch("asp", "straggler: c#1")]
    assert released(answer) == [A, B]
    assert {drive.roster.lead(worker) for worker in (A, B, C)} == {0}
    assert drive.roster.clock(A) == 2


def test_steps_under_way_go_on_and_their_pushes_are_the_new_rules():
    drive = drive_of(A, B, C, pushes=10, first="asp", then="bsp", fraction=0.2)
    round_of(drive, A, A)
    assert schedule(drive).index == 1
    assert applied(drive.push(A)) == []
    assert holds(drive.push(B)) == {B: Telling("c#1 pushed")}
    assert applied(drive.push(C)) == [((A, 2), (B, 0), (C, 0))]


def test_a_return_to_bsp_does_not_stall_and_the_new_rule_begins_afresh():
    """ASP let a run 5 clocks ahead; SSP(0) counts from the switch."""
    drive = drive_of(
        A, B, pushes=10, first="asp", then={"name": "ssp", "staleness": 0}, fraction=0.5
    )
    for _ in range(5):
        answer = drive.push(A)
    assert released(answer) == [A]
    assert holds(drive.push(A)) == {A: Telling("1 slowest (b#1) 0")}
    assert released(drive.push(B)) == [A, B]


def test_what_was_decided_behind_the_update_that_completes_the_share_is_the_new_rules():
    """Hybrid would release a and b itself."""
    first = {"name": "hybrid", "k": 2, "staleness_tolerance": 0}
    drive = drive_of(A, B, C, pushes=20, first=first, then="asp", fraction=0.05)
    drive.push(A)
    answer = drive.push(B)
    assert applied(answer) == [((A, 0), (B, 0))]
    assert [type(each) for each in answer] == [Apply, Switch, Release, Release], (
        "it is released by ASP, not twice"
    )


@dataclass
class Hasty(Simple):
    """Of three pushes the first and the last are updates of their own, with much between them."""

    name: ClassVar[str] = "hasty"

    def on_push(self, roster, push):
        if len(roster.buffered) < 3:
            return [SetTimer("hasty", roster.now + 9), Release(push[0])]
        one, two, three = roster.buffered
        return [
            Apply((one,)),
            SetTimer("later", 99.0),
            Note("half", push[0]),
            Drop(two, why="hasty"),
            Release(push[0]),
            Apply((three,)),
        ]

    def on_timer(self, roster, key):
        return []


def test_a_share_completed_in_the_midst_of_several_decisions():
    drive = drive_of(A, B, C, pushes=20, first=f"{__name__}:Hasty", then="bsp", fraction=0.05)
    round_of(drive, A, A, at=1.0)
    assert set(drive.machine.timers) == {"hasty"}
    answer = drive.push(B)
    assert applied(answer) == [((A, 0),), ((B, 0),)]
    assert dropped(answer) == [(A, 1)]
    assert phases(answer) == ["Hasty", "Hasty"]
    assert notes(answer) == [("half", B)]
    assert of(SetTimer, answer) == [SetTimer("hasty", None)], (
        "its timers are off, and those that it wanted are not set"
    )
    assert drive.machine.timers == {}
    assert of(Switch, answer) == [Switch("bsp", Telling("Hasty 5"))]


def test_the_timers_of_the_phase_in_force_reach_it():
    drive = drive_of(A, pushes=20, first=f"{__name__}:Hasty", then="bsp")
    drive.push(A, at=1.0)
    assert drive.tick("hasty") == []
    drive.push(A)
    assert drive.machine.timers == {"hasty": 19.0}


def test_the_next_phase_begins_with_the_newest_weights():
    """Of a phase that publishes every hundredth update; K-sync would call everything late that
    is based on less.
    """
    k_sync = {"name": "k-sync", "k": 2}
    drive = drive_of(A, B, pushes=10, first=RARELY_PUBLISHED, then=k_sync, fraction=0.5)
    for _ in range(5):
        answer = drive.push(A)
    assert [each.version for each in of(Release, answer)] == [5]
    drive = drive_of(A, B, C, first=RARELY_PUBLISHED, then=k_sync, online="greedy", **QUICK)
    for at in (1.0, 2.0, 3.0):
        round_of(drive, A, B, at=at)
    drive.tick(DETECT)
    assert schedule(drive).standing_in
    assert [len(pushes) for _ in range(2) for pushes in applied(round_of(drive, A, B))] == [2, 2]


# ---- greedy ----


def test_greedy_switches_to_asp_when_a_straggler_is_detected_and_back():
    """ "simply switches to ASP when a straggler is detected; once the cluster is free of any
    stragglers and the aggregate BSP training has not been satisfied, it will switch back to
    training with BSP" (IV-B2)."""
    drive, answer = stuck("greedy", A, B, C)
    assert notes(answer) == [("straggler", C)]
    round_of(drive, A, B, C, at=5.0)
    round_of(drive, A, B, C, at=6.0)
    assert of(Switch, drive.tick(DETECT)) == [], "c took 4 s in this window"
    round_of(drive, A, B, C, at=7.0)
    answer = drive.tick(DETECT)
    assert notes(answer) == [("recovered", C)]
    assert of(Switch, answer) == [Switch("bsp", Telling("straggler"))]


def test_what_is_applied_in_between_counts_as_progress_not_as_bsps_share():
    drive, _ = stuck("greedy", A, B, C, pushes=20)
    assert schedule(drive).samples == 5 * SAMPLES, "the round, and what had come of the next one"
    round_of(drive, A, B, A, B)
    assert drive.roster.progress == 9 / 20
    assert schedule(drive).samples == 5 * SAMPLES


def test_greedy_does_nothing_when_a_second_straggler_is_found():
    """ "(if it is not already using ASP, which can happen if two stragglers overlap)"."""
    drive, _ = stuck("greedy", *SIX)
    seen = []
    for at in range(5, 15):
        seen += [*round_of(drive, *SIX[:4], at=float(at)), *drive.tick(DETECT)]
    assert ("straggler", SIX[4]) in notes(seen)
    assert drive.machine.paradigm.detector.stragglers == [SIX[5], SIX[4]], "the slowest first"
    assert of(Switch, seen) == []


def test_an_update_of_what_was_there_may_complete_the_share():
    """Then ASP does not stand in: it is its turn, and nobody looks for stragglers any more."""
    drive, answer = stuck("greedy", A, B, C, pushes=10)
    assert of(Switch, answer) == [Switch("asp", Telling("bsp 50"))]
    assert (schedule(drive).index, schedule(drive).standing_in) == (1, False)
    assert drive.machine.timers == {}


def test_when_the_straggler_leaves_bsp_comes_back_after_the_window():
    drive, _ = stuck("greedy", A, B, C)
    drive.leave(C)
    answer = drive.tick(DETECT)
    assert notes(answer) == [], "it has not recovered"
    assert of(Switch, answer) == [Switch("bsp", Telling("straggler"))]


def test_the_next_phase_that_has_a_share_stands_in():
    _, answer = stuck("greedy", A, B, C, then=["ssp", "asp"], fraction=[0.5, 0])
    assert of(Switch, answer)[0].to == "asp"


# ---- elastic ----


def test_elastic_removes_any_detected_stragglers_and_goes_on():
    """ "removes any detected stragglers from the current cluster so as to complete the specified
    amount of BSP training free of stragglers" (IV-B2)."""
    drive, answer = stuck("elastic", A, B, C)
    assert notes(answer) == [("straggler", C), ("suspended", C)]
    assert applied(answer) == [((A, 1), (B, 1))]
    assert released(answer) == [A, B]
    for _ in range(3):
        assert released(round_of(drive, A, B)) == [A, B], "rounds of two"


def test_the_others_times_are_measured_as_before():
    """A rule that looks at intervals, as LagTuner does, goes on doing so."""
    drive, _ = stuck("elastic", A, B, C, first={"name": "lagtuner", "s_lower": 0, "s_upper": 3})
    drive.push(A, at=6.0)
    drive.push(B, at=7.5)
    assert C not in drive.roster.members
    assert [drive.roster.telemetry(worker).interval_s for worker in (A, B)] == [4.0, 5.5]


def test_a_phase_may_drop_pushes_while_somebody_is_suspended():
    """K-sync: c is late. And a snapshot holds what it sees."""
    drive, answer = stuck("elastic", A, B, C, D, first={"name": "k-sync", "k": 2})
    assert ("suspended", D) in notes(answer)
    answer = round_of(drive, A, B, C, at=5.0)
    assert applied(answer) == [((A, 2), (B, 2))]
    assert dropped(answer) == [(C, 2)]
    fresh = make("sync-switch", **drive.machine.paradigm.parameters())
    restored = Machine.restore(drive.machine.snapshot(), fresh)
    assert restored.snapshot() == drive.machine.snapshot()
    assert set(restored.roster.members) == {A, B, C}


def test_the_push_of_a_suspended_worker_is_dropped_and_it_is_told_why_it_waits():
    drive, _ = stuck("elastic", A, B, C)
    answer = drive.push(C, at=7.0)
    assert dropped(answer) == [(C, 1)]
    assert holds(answer) == {C: Telling("suspended straggler bsp")}
    assert holds(drive.push(A)) == {A: Telling("b#1 pushed")}, "c is not waited for"


def test_once_bsp_is_fulfilled_the_cluster_is_restored():
    """ "Once the designated BSP workload is fulfilled, it will then restore the cluster size and
    train the remaining workload with ASP"."""
    drive, _ = stuck("elastic", A, B, C, pushes=14)
    drive.push(C, at=5.0)
    answer = round_of(drive, A, B, at=6.0)
    assert notes(answer) == [("restored", C)]
    assert of(Switch, answer)[0].to == "asp"
    assert set(released(answer)) == {A, B, C}
    assert drive.machine.timers == {}, "nobody looks for stragglers any more"
    assert applied(drive.push(C)) == [((C, 2),)]


def test_a_step_from_before_its_restoration_is_dropped_once():
    drive, _ = stuck("elastic", A, B, C, pushes=14)
    round_of(drive, A, B, at=5.0)
    drive.push(A)
    answer = drive.push(C)
    assert dropped(answer) == [(C, 1)]
    assert released(answer) == [C], "it is a newcomer to ASP"
    assert applied(drive.push(C)) == [((C, 2),)]


def test_a_step_from_before_its_restoration_may_outlast_the_next_switch():
    drive, _ = stuck("elastic", A, B, C, pushes=14, then=["bsp", "asp"], fraction=[0.5, 0.2])
    switches = of(Switch, [each for _ in range(3) for each in round_of(drive, A, B)])
    assert [each.to for each in switches] == ["bsp", "asp"]
    assert dropped(drive.push(C, at=9.0)) == [(C, 1)]


def test_nobody_waits_for_a_restored_worker_before_it_has_come():
    """SSP(0) after BSP: c is neither the slowest while it is at its old step nor ahead after it."""
    drive, _ = stuck("elastic", A, B, C, pushes=14, then={"name": "ssp", "staleness": 0})
    round_of(drive, A, B, at=5.0)
    for _ in range(3):
        assert released(round_of(drive, A, B)) == [A, B]
    drive.push(A)
    assert released(drive.push(C)) == [C], "it has come, at b's clock"
    assert holds(drive.push(B)) == {B: Telling("1 slowest (c#1) 0")}
    assert set(released(drive.push(C))) == {A, B, C}


def test_a_restored_worker_may_leave_before_it_has_come_and_come_back_as_another():
    drive, _ = stuck("elastic", A, B, C, pushes=14, then=["bsp", "asp"], fraction=[0.5, 0.4])
    round_of(drive, A, B, at=5.0)
    assert list(drive.roster.outdated) == [C]
    assert drive.leave(C) == []
    assert not drive.roster.outdated
    assert dropped(drive.push(C, clock=1, base=1)) == [(C, 1)]
    assert released(drive.join("c#2")) == ["c#2"]
    assert applied(round_of(drive, A, B, "c#2")) != []


def test_a_suspended_worker_that_crashes_comes_back_as_a_newcomer():
    drive, _ = stuck("elastic", A, B, C)
    assert drive.leave(C) == []
    assert not drive.roster.suspended
    assert released(drive.join("c#2")) == ["c#2"], "that is another worker"
    assert tells(holds(drive.push(A))[A], "b#1 c#2 pushed")


def test_two_workers_always_stay():
    drive, answer = stuck("elastic", A, B)
    assert notes(answer) == [("straggler", B)]
    assert released(drive.join(C)) == [C]
    drive.now = 40.0
    answer = drive.tick(DETECT)
    assert ("suspended", B) in notes(answer) or drive.machine.paradigm.detector.stragglers


def test_two_suspensions_in_one_window():
    """Of six two are stuck, and go together: no update and no release comes between."""
    _, answer = stuck("elastic", *SIX, count=2)
    assert [worker for kind, worker in notes(answer) if kind == "suspended"] == SIX[4:]
    assert applied(answer) == [tuple((worker, 1) for worker in SIX[:4])]
    assert released(answer) == SIX[:4]


def test_when_crashes_leave_fewer_than_two_everybody_is_restored_at_once():
    drive, _ = stuck("elastic", A, B, C)
    drive.push(C, at=5.0)
    drive.push(A)
    answer = drive.leave(B)
    assert notes(answer) == [("restored", C)]
    assert of(Switch, answer) == [Switch("bsp", Telling("bsp"))]
    assert applied(answer) == [((A, 2),)]
    assert set(released(answer)) == {A, C} or C in released(answer)
    assert applied(round_of(drive, A, C)) == [((A, 3), (C, 2))]


def test_everyone_but_the_suspended_leaves():
    drive, _ = stuck("elastic", A, B, C)
    drive.leave(A)
    drive.leave(B)
    assert list(drive.roster.outdated) == [C]
    assert dropped(drive.push(C, at=9.0)) == [(C, 1)]
    assert applied(drive.push(C)) == [((C, 2),)]


def test_a_buffered_push_of_who_is_suspended_is_dropped():
    """K-batch-async: c has pushed once and is stuck in its second step."""
    drive = drive_of(A, B, C, first={"name": "k-batch-async", "k": 100}, online="elastic", **QUICK)
    round_of(drive, A, B, C, at=1.0)
    drive.push(A, at=2.0)
    drive.push(B, at=2.0)
    drive.now = 4.0
    answer = drive.tick(DETECT)
    assert notes(answer)[-1] == ("suspended", C)
    assert dropped(answer) == [(C, 0)]


def test_a_suspension_may_complete_the_share_and_so_restore():
    """The round that ends without c is the last one of BSP."""
    drive, answer = stuck("elastic", A, B, C, pushes=10)
    assert notes(answer) == [("straggler", C), ("suspended", C), ("restored", C)]
    assert of(Switch, answer) == [Switch("asp", Telling("bsp 50"))]
    assert dropped(drive.push(C, at=9.0)) == [(C, 1)]


def test_the_first_of_two_suspensions_may_complete_the_share():
    """Both are restored, and the second one's leaving is no business of the new paradigm."""
    drive, answer = stuck("elastic", *SIX, count=2, pushes=20)
    kinds = ["straggler", "straggler", "suspended", "suspended", "restored", "restored"]
    assert [kind for kind, _ in notes(answer)] == kinds
    assert released(answer) == SIX[:4]
    assert list(drive.roster.outdated) == SIX[4:]


def test_who_was_suspended_is_not_held_against_it():
    """Restored before the next window ends, it needs as many windows as anybody to be found
    again.
    """
    drive, _ = stuck(
        "elastic", A, B, C, pushes=14, then=["bsp", "asp"], fraction=[0.5, 0.4], windows=2
    )
    drive.tick(DETECT)
    assert list(drive.roster.suspended) == [C]
    drive.push(C)
    round_of(drive, A, B)
    assert schedule(drive).index == 1
    assert notes(drive.tick(DETECT)) == []


@dataclass
class Attached(BSP):
    """A user's rule that releases whomever it has ever seen."""

    name: ClassVar[str] = "attached"

    def on_push(self, roster, push):
        if roster.computing:
            return []
        return [Apply(tuple(roster.buffered)), *map(Release, sorted(roster.live))]


@dataclass
class Inventive(BSP):
    """A user's rule that applies what has not come."""

    name: ClassVar[str] = "inventive"

    def on_push(self, roster, push):
        return [] if roster.computing else [Apply((*roster.buffered, ("x#1", 3)))]


@pytest.mark.parametrize(
    ("paradigm", "says"), [("Attached", "'c#1' suspended"), ("Inventive", "'x#1' 3 buffered")]
)
def test_what_a_users_own_rule_must_not_do_is_told(paradigm, says):
    """Under whichever policy: the machine looks at its decisions, and says what is wrong."""
    with pytest.raises(IllegalDecision, match=naming(says)):
        round_of(stuck("elastic", A, B, C, first=f"{__name__}:{paradigm}")[0], A, B, at=5.0)


# ---- none, and the configuration policy ----


def test_none_looks_for_nobody():
    drive = drive_of(A, B, C)
    round_of(drive, A, B, C, at=1.0)
    assert drive.machine.timers == {}


def test_batch_sizes_by_phase():
    """IV-C: here each worker keeps its B, unless it is told otherwise."""
    drive = drive_of(A, pushes=4, batch_sizes={"asp": 16})
    sizes = [size for _ in range(4) for size in batch_sizes(drive.push(A))]
    assert sizes == [None, 16, 16, 16]


def test_the_phases_of_its_updates_are_the_phases_names():
    assert make(
        "sync-switch", then=["hybrid-async", "bsp", f"{__name__}:Hasty"], fraction=[0.1] * 3
    ).phases() == ("bsp", "hybrid-async", "Hasty")


def test_an_infeasible_phase_is_refused():
    assert tells(
        make("sync-switch", then={"name": "k-sync", "k": 9}).infeasible_reason(4),
        "k-sync: k: 9 4 1 4",
    )
    assert make("sync-switch").infeasible_reason(4) == ""


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"fraction": -0.1}, "sync-switch: fraction: 0"),
        ({"fraction": 1.5}, "1"),
        ({"fraction": [0.5, 0.2]}, "fraction: 2 1"),
        ({"then": ["asp", "bsp"]}, "fraction: 1 2"),
        ({"then": ["asp", "bsp"], "fraction": [0.7, 0.6]}, "fraction: 0.7 0.6 1"),
        ({"then": ["asp", "bsp"], "fraction": [0.7, -0.6]}, "fraction"),
        ({"then": []}, "sync-switch: then:"),
        ({"online": "elastik"}, ("online: 'none' 'greedy' 'elastic' 'elastik' 'elastic'")),
        ({"online": "qq"}, "online: 'none' 'greedy' 'elastic' 'qq'"),
        ({"first": "bps"}, "sync-switch: first: 'bps' 'bsp'"),
        ({"then": ["asp", "spp"], "fraction": [0.1, 0.1]}, "sync-switch: then[1]: 'spp' 'ssp'"),
        ({"then": {"name": "ssp", "stalenes": 3}}, "then: ssp: 'stalenes'"),
        ({"then": {"name": "ssp", "staleness": -3}}, "then: ssp: staleness:"),
        ({"first": {"staleness": 3}}, "first: {'staleness': 3} {name: staleness: 3}"),
        ({"first": 3}, "first:"),
        ({"first": "sync-switch"}, ("sync-switch: first: sync-switch sync-switch `then:")),
        ({"then": {"name": "raysync.paradigms.syncswitch:SyncSwitch"}}, "then:"),
        (
            {"then": {"name": "balanced", "paradigm": {"name": "sync-switch", "first": "asp"}}},
            "then: sync-switch sync-switch",
        ),
        ({"batch_sizes": {"ssp": 3}}, "sync-switch: batch_sizes: 'ssp'"),
        ({"batch_sizes": {"bsp": 0}}, "batch_sizes.bsp: 1"),
        ({"window": 0}, "window"),
        ({"windows": 0}, "windows"),
        ({"margin": 1}, "margin"),
        ({"widow": 3}, "'widow' 'window'"),
    ],
)
def test_what_cannot_be_is_told_in_two_lines(parameters, says):
    with pytest.raises(ConfigError) as raised:
        make("sync-switch", **parameters)
    assert tells(str(raised.value).replace("\n", " "), says)
    assert len(str(raised.value).splitlines()) <= 2


# ---- whole runs ----


@pytest.mark.parametrize(
    ("online", "episode"),
    [("greedy", ["straggler", "recovered"]), ("elastic", ["straggler", "suspended", "restored"])],
)
def test_episodes_come_and_go(online, episode):
    """A transient straggler of four, twice: at clocks 10 to 14 and 40 to 44."""

    def step_s(worker, clock):
        return 6.0 if worker == SIX[3] and (10 <= clock < 14 or 40 <= clock < 44) else 1.0

    paradigm = make("sync-switch", online=online, then=["bsp", "asp"], fraction=[0.3, 0.3])
    events = list(simulate(Machine(paradigm, 800 * SAMPLES), joins(*SIX[:4]), step_s, 800))
    assert [kind for _, decisions in events for kind, _ in notes(decisions)] == episode * 2
    assert sum(isinstance(event, Pushed) for event, _ in events) == 800


def test_the_phases_of_a_run_share_a_server():
    with pytest.raises(ConfigError, match=naming("then: bsp: exchange: ring:")):
        make("sync-switch", first="asp", then={"name": "bsp", "exchange": "ring"})
