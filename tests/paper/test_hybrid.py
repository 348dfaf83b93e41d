"""The hybrid parameter server (Group 8, 2020), section 3.3, and our readings of it (see the class
docstring).
"""

import pytest

from raysync.core.capability import Capability
from raysync.core.decisions import Apply, Release
from raysync.errors import ProtocolViolation
from raysync.paradigms import make
from raysync.testing.drive import Drive
from tests.builders.messages import Telling, naming
from tests.builders.schedules import applied, holds, of, released


def hybrid(*workers, **parameters):
    return Drive(make("hybrid", **parameters), *workers)


def pulls(decisions):
    return [decision.pull for decision in of(Release, decisions)]


def published(decisions):
    return [decision.publish for decision in of(Apply, decisions)]


def test_an_update_takes_k_pushes_and_exactly_their_workers_go_on():
    drive = hybrid("a#1", "b#1", "c#1", k=2, staleness_tolerance=3)
    answer = drive.push("b#1")
    assert holds(answer) == {"b#1": Telling("2 1 computing: a#1 c#1")}
    answer = drive.push("a#1")
    assert applied(answer) == [(("b#1", 0), ("a#1", 0))], "in order of arrival"
    assert released(answer) == ["b#1", "a#1"]


def test_by_default_it_is_the_synchronous_baseline():
    drive = hybrid("a#1", "b#1", "c#1")
    assert drive.machine.paradigm.parameters() == {
        "k": "all",
        "staleness_tolerance": 0,
        "pull_interval": 1,
        "snapshot": "worker",
    }
    drive.push("c#1")
    assert holds(drive.push("a#1")) == {"a#1": Telling("3 2 computing: b#1")}


def test_a_push_beyond_the_tolerance_waits_for_the_slowest():
    """Eligible: c - slow <= staleness_tolerance."""
    drive = hybrid("fast#1", "slow#1", k=1, staleness_tolerance=1)
    for clock in range(2):
        assert applied(drive.push("fast#1")) == [(("fast#1", clock),)]
    answer = drive.push("fast#1")
    assert applied(answer) == []
    assert holds(answer) == {"fast#1": Telling("2 (slow#1) 1")}
    answer = drive.push("slow#1")
    assert applied(answer) == [(("slow#1", 0),), (("fast#1", 2),)], "an update each"
    assert released(answer) == ["slow#1", "fast#1"]


def test_an_update_takes_the_smallest_clock_first_then_the_order_of_arrival():
    """And if several updates are ready, they are made one after the other."""
    drive = hybrid("a#1", "b#1", "c#1", "d#1", k=2)
    for worker in ("a#1", "b#1", "b#1", "a#1", "d#1"):
        answer = drive.push(worker)
    assert applied(answer) == []
    answer = drive.push("c#1")
    assert applied(answer) == [(("d#1", 0), ("c#1", 0)), (("b#1", 1), ("a#1", 1))]
    assert [type(one) for one in answer] == [Apply, Release, Release] * 2
    assert [one.version for one in answer] == [2, 2, 2, 3, 3, 3]


def test_without_a_bound_nobody_is_too_far_ahead():
    drive = hybrid("fast#1", "mid#1", "slow#1", k=2, staleness_tolerance="inf")
    for _ in range(50):
        drive.push("fast#1")
        answer = drive.push("mid#1")
        assert len(applied(answer)) == 1
    answer = drive.push("fast#1")
    assert holds(answer) == {"fast#1": Telling("2 1 computing: slow#1 mid#1")}


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_each_worker_pulls_at_every_pull_interval_th_of_its_own_releases(interval):
    """Section 3.3.3."""
    drive = hybrid("b#1", k=1, staleness_tolerance="inf", pull_interval=interval)
    joined = drive.join("a#1")
    drive.push("b#1")
    answers = [joined, *(drive.push("a#1") for _ in range(9))]
    seen = [pull for answer in answers for pull in pulls(answer)]
    assert seen == [release % interval == 0 for release in range(10)], "the first among them"
    versions = [one.version for answer in answers for one in answer if isinstance(one, Release)]
    newest = [0] + [release + 1 for release in range(1, 10)]  # b's push was one update
    assert versions == [newest[release - release % interval] for release in range(10)]


def test_a_new_life_pulls_first():
    drive = hybrid("a#1", "b#1", k=1, staleness_tolerance="inf", pull_interval=4)
    drive.push("a#1")
    drive.leave("a#1")
    assert pulls(drive.join("a#2")) == [True]
    assert pulls(drive.push("a#2")) == [False]
    assert list(drive.machine.paradigm.releases) == ["b#1", "a#2"], "who has left is forgotten"


def test_of_a_global_snapshot_every_pull_interval_th_update_is_published_the_first_among_them():
    """The program: workers pull at each release, what was last published."""
    drive = hybrid("a#1", "b#1", k=1, staleness_tolerance="inf", pull_interval=3, snapshot="global")
    answers = [
        drive.push(worker) for worker in ("a#1", "b#1", "a#1", "a#1", "a#1", "b#1", "b#1", "a#1")
    ]
    assert [flag for answer in answers for flag in published(answer)] == [
        True,
        False,
        False,
    ] * 2 + [True, False]
    assert all(all(pulls(answer)) for answer in answers)
    assert [answer[-1].version for answer in answers] == [1, 1, 1, 4, 4, 4, 7, 7]
    assert drive.roster.version == 8
    with pytest.raises(ProtocolViolation, match=naming("versions 7 7")):
        drive.push("a#1", base=8)


def test_the_push_of_a_leaver_that_has_arrived_joins_the_next_update_beyond_k():
    drive = hybrid("a#1", "b#1", "c#1", "d#1", k=2, staleness_tolerance="inf")
    drive.push("a#1")
    assert drive.leave("a#1") == []
    assert applied(drive.push("b#1")) == [], "one of two"
    answer = drive.push("c#1")
    assert applied(answer) == [(("a#1", 0), ("b#1", 0), ("c#1", 0))]
    assert released(answer) == ["b#1", "c#1"]
    drive.push("c#1")
    assert applied(drive.push("d#1")) == [(("d#1", 0), ("c#1", 1))], "once"


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("hybrid-sync", {"k": "all", "staleness_tolerance": 0}),
        ("hybrid-async", {"k": 1, "staleness_tolerance": "inf"}),
        ("k-async", {"k": 2, "staleness_tolerance": "inf"}),
    ],
)
def test_the_baselines_are_presets(preset, parameters):
    paradigm = make(preset)
    assert paradigm.parameters() == {"pull_interval": 1, "snapshot": "worker"} | parameters
    assert make(preset, k=3).k == 3, "with other defaults, no more"


@pytest.mark.parametrize(
    ("k", "workers", "fits"), [("all", 1, True), (4, 4, True), (5, 4, False), (2, 1, False)]
)
def test_an_update_cannot_take_more_pushes_than_there_are_workers(k, workers, fits):
    assert (make("hybrid", k=k).infeasible_reason(workers) == "") == fits


def test_a_worker_that_pulls_rarely_computes_on_the_weights_that_it_has():
    """Which its local steps would have changed."""
    rarely = make("hybrid", pull_interval=3)
    assert [what for what, _ in rarely.demands()] == [Capability.SAME_WEIGHTS]
    assert not [*make("hybrid", pull_interval=3, snapshot="global").demands()]
    assert not [*make("hybrid").demands()]
