"""LagTuner (Kamma 2026), Algorithms 1 and 2, and our readings of them (see the class docstring)."""

import pytest

from raysync.core.decisions import Apply, Hold, Note, Release
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.testing.drive import SAMPLES, Drive
from tests.builders.schedules import holds, joins, of, released, simulate

FAST, SLOW = "fast#1", "slow#1"


def warm(fast_s=1.0, slow_s=2.0, lead=3, **options):
    """Two workers with two pushes each, then the fast one up to a lead (all at its own
    interval).
    """
    drive = Drive(make("lagtuner", **options), FAST, SLOW)
    drive.push(SLOW, at=0.0)
    drive.push(SLOW, at=slow_s)
    drive.push(FAST, at=slow_s)
    while drive.roster.members[FAST].pace < 2 + lead:
        drive.push(FAST, at=drive.now + fast_s)
    return drive


def notes(decisions, kind):
    return [note.values for note in of(Note, decisions) if note.kind == kind]


GRANT = ((SLOW, 0.0), (FAST, 0.0), (SLOW, 4.0), (FAST, 4.0), (FAST, 5.0))
"""At 5 s the slow worker's next push is at 8 s: the fast one gets three more iterations of 1 s."""


def fed(pushes, **options):
    """After these pushes: the drive, and the last answer."""
    drive = Drive(make("lagtuner", **options), FAST, SLOW)
    for worker, at in pushes:
        answer = drive.push(worker, at=at)
    return drive, answer


def run(fast_s, slow_s, pushes, **options):
    """The machine after so many pushes of two workers of constant speed, and all decisions."""
    machine, step_s = Machine(make("lagtuner", **options)), {FAST: fast_s, SLOW: slow_s}
    events = simulate(machine, joins(FAST, SLOW), lambda worker, _: step_s[worker], pushes)
    return machine, [each for _, decisions in events for each in decisions]


def test_every_push_updates_the_server_at_once():
    """Algorithm 1, line 11."""
    drive = Drive(make("lagtuner"), FAST, SLOW)
    for clock in range(4):
        assert drive.push(FAST, at=clock)[0] == Apply(
            ((FAST, clock),), version=clock + 1, samples_before=clock * SAMPLES
        )


def test_within_s_lower_the_worker_immediately_receives_permission():
    """Algorithm 1, lines 15 and 16."""
    drive = Drive(make("lagtuner", s_lower=2), FAST, SLOW)
    for at in range(2):
        answer = drive.push(FAST, at=at)
        assert released(answer) == [FAST]
        assert not notes(answer, "controller")


def test_beyond_s_lower_the_controller_is_asked_for_the_fastest_only():
    """ "If the bound is exceeded and the worker is currently the fastest, the synchronization
    controller is invoked" (section 3.3)."""
    drive = Drive(make("lagtuner", s_lower=1, s_upper=5), "a#1", "b#1", SLOW)
    for worker, at in (
        (SLOW, 0.0),
        ("a#1", 1.0),
        ("b#1", 1.0),
        ("a#1", 2.0),
        ("b#1", 2.0),
        (SLOW, 4.0),
        ("a#1", 5.0),
    ):
        assert not notes(drive.push(worker, at=at), "controller")
    drive.push("b#1", at=5.5)
    answer = drive.push("a#1", at=6.0)  # clock 4, the slowest has 2 and pushes next at 8
    assert [values["extra"] for values in notes(answer, "controller")] == [2]
    drive.push("a#1", at=7.0)
    behind = drive.push("b#1", at=7.5)
    assert drive.roster.lead("b#1") == 2
    assert not notes(behind, "controller"), "a is further"
    assert list(holds(behind)) == ["b#1"]


def test_the_controller_aligns_a_push_of_p_with_a_push_of_n():
    """Algorithm 2 in the original's form: r* minimises |S_n[k] - S_p[r]|.

    At 5.0 the fast worker (every 1 s) leads by 4; the slow one (every 3 s, last at 3.0) pushes next
    at 6.0: r* = 1.
    """
    pushes = [(SLOW, 0.0), *((FAST, at) for at in (0.5, 1.0, 2.0)), (SLOW, 3.0)]
    pushes += [(FAST, at) for at in (3.0, 4.0, 5.0)]  # six pushes against two
    _, answer = fed(pushes, s_lower=3, s_upper=15)
    assert notes(answer, "controller") == [
        {
            "slowest": SLOW,
            "lead": 4,
            "extra": 1,
            "interval_s": 1.0,
            "slowest_interval_s": 3.0,
            "distance_s": 0.0,
            "predicted_wait_s": 3.0,
        }
    ], "after one more iteration, at 6.0, the lead is 5: two pushes of the slow one, at 6 and 9"
    assert released(answer) == [FAST]


@pytest.mark.parametrize("bound", ["hard", "literal"])
def test_ties_take_the_smallest_r(bound):
    drive = warm(fast_s=1.0, slow_s=1.0, bound=bound)
    answer = drive.push(FAST, at=drive.now + 1.0)
    assert drive.roster.lead(FAST) == 4
    assert holds(answer), "equal rates: every r aligns as well, so r* = 0, and the worker waits"


def test_a_grant_of_r_gives_exactly_r_releases_under_the_hard_bound():
    """Our reading: "how many additional iterations the worker may complete" (section 3.3) is r*,
    not r* + 1.
    """
    drive, answer = fed(GRANT, s_lower=0, s_upper=10)
    assert notes(answer, "controller")[0]["extra"] == 3, (
        "pushes at 5, 6, 7, 8 meet the slow one's at 8"
    )
    more = []
    while FAST in drive.roster.computing:
        more.append(drive.push(FAST, at=drive.now + 1.0))
        if notes(more[-1], "controller"):
            break
    assert len(more) == 3, "three iterations, then it must ask or wait"


@pytest.mark.parametrize(("bound", "granted"), [("hard", 3), ("literal", 4)])
def test_literal_grants_r_plus_1_releases(bound, granted):
    """Algorithm 1, lines 12-14 and 21-22 word for word: line 22 sends OK without spending the
    credit.
    """
    drive, _ = fed(GRANT, s_lower=0, s_upper=10, bound=bound)
    assert 1 + drive.machine.paradigm.credit[FAST] == granted


@pytest.mark.parametrize("predict", ["align", "wait"])
@pytest.mark.parametrize("interval", ["push", "busy"])
def test_the_guarantee_of_section_4_2_holds_under_the_hard_bound(predict, interval):
    """ "the system guarantees |t_i - t_j| <= s_U at all times" (section 4.2), for iterations that
    are started.
    """
    options = {"s_lower": 3, "s_upper": 15, "predict": predict, "interval": interval}
    _, decisions = run(1.0, 2.9, 2000, **options)
    most = max(release.lead for release in of(Release, decisions))
    assert most <= 15
    assert predict == "wait" or most > 3, "the controller grants something"


def test_literal_does_not_bound_the_lead():
    """The contradiction between Algorithm 1 and section 4.2: grants repeat while p is the fastest.

    Two workers with constant times in the ratio 1.9: the lead grows as under ASP, and nobody waits.
    """
    machine, decisions = run(1.0, 1.9, 4000, bound="literal")
    assert machine.roster.lead(FAST) > 1000
    assert len(of(Hold, decisions)) < 10


@pytest.mark.parametrize("bound", ["hard", "literal"])
def test_without_two_pushes_of_each_nothing_is_granted(bound):
    drive = Drive(make("lagtuner", s_lower=0, s_upper=5, bound=bound), FAST, SLOW)
    answer = drive.push(FAST, at=1.0)
    assert list(holds(answer)) == [FAST]
    assert notes(answer, "controller") == [
        {
            "slowest": SLOW,
            "lead": 1,
            "extra": 0,
            "interval_s": None,
            "slowest_interval_s": None,
            "distance_s": None,
            "predicted_wait_s": None,
        }
    ]
    answer = drive.push(SLOW, at=2.0)
    assert released(answer) == [FAST, SLOW]
    assert notes(answer, "waited") == [{"predicted_wait_s": None, "actual_wait_s": 1.0}]


@pytest.mark.parametrize(("bound", "distance_s"), [("hard", 0.0), ("literal", 1.0)])
def test_predicted_pushes_of_the_slowest_are_never_in_the_past_under_the_hard_bound(
    bound, distance_s
):
    """The slow worker pushed at 0 and 1 and then stalls: at time 11 its "next" push would have been
    at 2. Literal: S_n reaches 2 + 8, 1 s before p's push.
    """
    pushes = [(SLOW, 0.0), (SLOW, 1.0), *((FAST, at) for at in (2.0, 5.0, 8.0, 11.0))]
    _, answer = fed(pushes, s_lower=1, s_upper=9, bound=bound)
    [values] = notes(answer, "controller")
    assert (values["extra"], values["distance_s"]) == (0, distance_s)


def test_pushes_at_the_same_time_have_an_interval_of_0():
    """Nothing to divide by: n's every push is predicted for the same moment."""
    pushes = ((FAST, 0.0), (SLOW, 0.0), (FAST, 0.0), (SLOW, 0.0), (FAST, 1.0))
    [values] = notes(fed(pushes, s_lower=0, s_upper=5)[1], "controller")
    assert values["slowest_interval_s"] == values["extra"] == values["predicted_wait_s"] == 0


def test_predict_wait_chooses_to_wait_for_a_slower_worker():
    """predict="wait": each extra iteration of p moves the release rule one iteration of n further
    away.
    """
    drive = warm(fast_s=1.0, slow_s=3.0, lead=3, predict="wait")
    answer = drive.push(FAST, at=drive.now + 1.0)
    values = notes(answer, "controller")[0]
    assert values["extra"] == 0
    slow_next_s = max(3.0 + 3.0, drive.now)
    assert values["predicted_wait_s"] == slow_next_s - drive.now, (
        "one push of n brings the lead back to s_lower"
    )


@pytest.mark.parametrize(("interval", "seconds"), [("push", 4.0), ("busy", 1.0)])
def test_interval_busy_leaves_the_workers_own_waiting_out(interval, seconds):
    """The fast worker pushes at 1, waits until the slow one's push at 4, and pushes again at 5."""
    pushes = [(SLOW, 0.0), (FAST, 0.0), (FAST, 1.0)]
    drive, answer = fed(pushes, s_lower=0, s_upper=5, interval=interval)
    assert holds(answer), "the slow one has one push: nothing is granted"
    drive.push(SLOW, at=4.0)
    assert notes(drive.push(FAST, at=5.0), "controller")[0]["interval_s"] == seconds


def test_predicted_and_actual_wait_are_noted():
    drive = warm(fast_s=1.0, slow_s=1.0)
    drive.push(FAST, at=drive.now + 1.0)
    held_at = drive.now
    seen = []
    while not seen:
        seen = notes(drive.push(SLOW, at=drive.now + 0.5), "waited")
    assert seen[0]["actual_wait_s"] == drive.now - held_at
    assert seen[0]["predicted_wait_s"] >= 0


def test_a_grant_that_is_used_up_without_waiting_has_an_actual_wait_of_0():
    waits = notes(run(1.0, 1.9, 200, bound="literal")[1], "waited")
    assert {wait["actual_wait_s"] for wait in waits} == {0.0}


def test_a_leaver_takes_its_credit_along():
    drive, _ = fed(GRANT, s_lower=0, s_upper=10)
    paradigm = drive.machine.paradigm
    assert (paradigm.credit, list(paradigm.predicted_s)) == ({FAST: 2}, [FAST])
    drive.leave(FAST, at=5.5)
    assert (paradigm.credit, paradigm.predicted_s) == ({}, {})


def test_a_leaver_frees_the_held():
    drive = Drive(make("lagtuner", s_lower=0, s_upper=4), "a#1", "b#1", SLOW)
    drive.push("a#1", at=1.0)
    assert released(drive.leave(SLOW, at=2.0)) == []
    assert released(drive.leave("b#1", at=3.0)) == ["a#1"]


def test_a_worker_that_was_caught_up_with_spends_its_grant_all_the_same():
    """It is released once, though its lead alone would release it as well."""
    pushes = (*GRANT, (SLOW, 5.5), (SLOW, 6.0), (FAST, 7.0))
    drive, answer = fed(pushes, s_lower=0, s_upper=10)
    assert released(answer).count(FAST) == 1
    assert drive.roster.lead(FAST) == 0
    assert drive.machine.paradigm.credit == {FAST: 1}
