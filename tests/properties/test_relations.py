"""How paradigms relate to each other, over random step times and churn."""

from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from raysync.core.decisions import Apply, Drop, Hold, Release, SetTimer
from raysync.core.events import Joined, Pushed, TimerFired
from raysync.core.machine import Machine
from raysync.paradigms import make
from tests.builders.plans import schedules
from tests.builders.schedules import simulate

HUGE = 10**9


def trace(name, schedule, pushes=150, **parameters):
    step_s, churn = schedule
    return list(simulate(Machine(make(name, **parameters)), churn, step_s, pushes))


def releases(events):
    return sorted(
        (event.at, decision.worker, decision.clock)
        for event, decisions in events
        for decision in decisions
        if isinstance(decision, Release)
    )


@given(schedules())
def test_ssp_0_releases_exactly_when_bsp_does(schedule):
    assert releases(trace("ssp", schedule, staleness=0)) == releases(trace("bsp", schedule))


@given(schedules())
def test_ssp_with_a_huge_bound_decides_as_asp(schedule):
    assert trace("ssp", schedule, staleness=HUGE) == trace("asp", schedule)


@given(schedules(), st.integers(0, 6))
def test_lagtuner_without_a_range_decides_as_ssp(schedule, bound):
    """s_lower = s_upper leaves r* = 0 as the only choice."""
    lagtuner = trace("lagtuner", schedule, s_lower=bound, s_upper=bound)
    assert releases(lagtuner) == releases(trace("ssp", schedule, staleness=bound))


@settings(max_examples=2 * settings().max_examples)
@given(
    schedules(),
    st.integers(0, 3),
    st.integers(0, 5),
    st.sampled_from(["align", "wait"]),
    st.sampled_from(["push", "busy"]),
)
def test_lagtuner_hard_never_releases_above_s_upper(schedule, s_lower, width, predict, interval):
    step_s, churn = schedule
    machine = Machine(
        make(
            "lagtuner", s_lower=s_lower, s_upper=s_lower + width, predict=predict, interval=interval
        )
    )
    for _, decisions in simulate(machine, churn, step_s, 150):
        for decision in decisions:
            if isinstance(decision, Release):
                assert machine.roster.lead(decision.worker) <= s_lower + width


@given(schedules())
def test_an_update_of_bsp_holds_one_push_of_every_member(schedule):
    step_s, churn = schedule
    machine = Machine(make("bsp"))
    for event, decisions in simulate(machine, churn, step_s, 150):
        for decision in decisions:
            if isinstance(decision, Apply):
                workers = {worker for worker, _ in decision.pushes}
                assert len(workers) == len(decision.pushes)
                assert workers >= set(machine.roster.members) or not isinstance(event, Pushed)


@given(schedules())
def test_no_worker_finishes_more_iterations_than_under_asp(schedule):
    """Waiting never makes a single worker faster: at each push, ASP's count of that worker is at
    least as large.
    """
    step_s, churn = schedule
    joins_only = [event for event in churn if isinstance(event, Joined)]
    at_zero = [Joined(at=0.0, worker=event.worker) for event in joins_only]
    asp = {
        (event.worker, event.clock): event.at
        for event, _ in trace("asp", (step_s, at_zero), 300)
        if isinstance(event, Pushed)
    }
    for name, parameters in (
        ("bsp", {}),
        ("ssp", {"staleness": 2}),
        ("lagtuner", {"s_lower": 1, "s_upper": 4}),
    ):
        for event, _ in trace(name, (step_s, at_zero), 100, **parameters):
            if isinstance(event, Pushed) and (event.worker, event.clock) in asp:
                assert asp[event.worker, event.clock] <= event.at + 1e-9


@given(schedules())
def test_the_same_events_give_the_same_decisions(schedule):
    assert trace("lagtuner", schedule) == trace("lagtuner", schedule)


def updates(events):
    """(when, set of pushes, published) of every update."""
    return [
        (event.at, set(decision.pushes), decision.publish)
        for event, decisions in events
        for decision in decisions
        if isinstance(decision, Apply)
    ]


def without_holds(events):
    return [
        (event, [decision for decision in decisions if not isinstance(decision, Hold)])
        for event, decisions in events
    ]


@given(schedules())
def test_the_synchronous_hybrid_applies_as_bsp(schedule):
    """hybrid(all, 0, 1), under churn: the same pushes in each update, the same releases."""
    hybrid, bsp = (
        trace("hybrid", schedule, k="all", staleness_tolerance=0, pull_interval=1),
        trace("bsp", schedule),
    )
    assert updates(hybrid) == updates(bsp)
    assert releases(hybrid) == releases(bsp)


@given(schedules())
def test_the_asynchronous_hybrid_decides_as_asp(schedule):
    assert trace("hybrid", schedule, k=1, staleness_tolerance="inf", pull_interval=1) == trace(
        "asp", schedule
    )


@given(schedules(), st.integers(0, 4))
def test_one_push_an_update_within_a_tolerance_releases_as_ssp(schedule, tolerance):
    """But what waits is applied only then."""
    hybrid = trace("hybrid", schedule, k=1, staleness_tolerance=tolerance, pull_interval=1)
    assert releases(hybrid) == releases(trace("ssp", schedule, staleness=tolerance + 1))


@given(schedules(), st.sampled_from(["worker", "global"]))
def test_what_is_pulled_decides_nothing(schedule, snapshot):
    """Who waits for whom is k's and the tolerance's alone."""
    every, third = (
        {"k": 2, "staleness_tolerance": 1, "pull_interval": interval} for interval in (1, 3)
    )
    assert releases(trace("hybrid", schedule, **every)) == releases(
        trace("hybrid", schedule, **third, snapshot=snapshot)
    )


@given(schedules())
def test_backup_workers_without_any_decide_as_bsp(schedule):
    """Under churn, too."""
    bsp = without_holds(trace("bsp", schedule))
    assert without_holds(trace("backup-workers", schedule, backups=0)) == bsp
    assert without_holds(trace("k-sync", schedule, k=HUGE)) == bsp, "k of all"


@given(schedules(), st.integers(0, 5))
def test_backup_workers_are_k_sync_with_k_of_the_others(schedule, backups):
    step_s, churn = schedule
    everybody = [
        Joined(at=0.0, worker=event.worker) for event in churn if isinstance(event, Joined)
    ]
    k = max(1, len(everybody) - backups)
    there = [
        trace(name, (step_s, everybody), **parameters)[len(everybody) :]
        for name, parameters in (("backup-workers", {"backups": backups}), ("k-sync", {"k": k}))
    ]
    assert there[0] == there[1]


@given(schedules())
def test_one_batch_an_update_decides_as_asp(schedule):
    assert trace("k-batch-async", schedule, k=1) == trace("asp", schedule)


@given(
    schedules(), st.sampled_from(["k-sync", "backup-workers", "k-batch-sync"]), st.integers(1, 7)
)
def test_a_synchronous_update_holds_gradients_of_the_newest_model_alone(schedule, name, size):
    bases = {}
    for event, decisions in trace(
        name, schedule, **{"backups" if name == "backup-workers" else "k": size}
    ):
        if isinstance(event, Pushed):
            bases[event.worker, event.clock] = event.base
        for decision in decisions:
            if isinstance(decision, Apply):
                assert {bases[push] for push in decision.pushes} == {decision.version - 1}
                assert name != "k-batch-sync" or len(decision.pushes) == size
            if isinstance(decision, Drop) and decision.why.startswith("late"):
                assert bases[decision.push] < max(
                    one.version for one in decisions if isinstance(one, Release)
                )


@given(schedules(), st.sampled_from(["next", "drop"]), st.sampled_from([0.0, 1.5]))
def test_a_quorum_of_all_decides_as_bsp(schedule, late, grace_s):
    """Under churn, too, and whatever happens to late pushes, of which there are none."""
    bsp = without_holds(trace("bsp", schedule))
    for k in (HUGE, len(schedule[1])):
        quorum = trace("quorum", schedule, k=k, late=late, grace_s=grace_s)
        assert without_holds(quorum) == bsp


@given(schedules())
def test_a_quorum_of_one_decides_as_asp(schedule):
    assert trace("quorum", schedule, k=1) == trace("asp", schedule)


@given(schedules(), st.integers(1, 7))
def test_a_quorum_that_drops_what_is_late_decides_as_k_sync(schedule, k):
    quorum = without_holds(trace("quorum", schedule, k=k, late="drop"))
    assert quorum == without_holds(trace("k-sync", schedule, k=k))


@given(schedules(), st.integers(1, 7), st.sampled_from([0.4, 3.0]))
def test_in_a_grace_period_an_update_takes_all_that_comes(schedule, k, grace_s):
    """Every push is in the next update, which is made at the end, or when all have pushed."""
    came, ends_at, machine = [], None, Machine(make("quorum", k=k, grace_s=grace_s))
    for event, decisions in simulate(machine, schedule[1], schedule[0], 150):
        if isinstance(event, Pushed) and event.worker in machine.roster.members:
            came.append((event.worker, event.clock))
        for decision in decisions:
            match decision:
                case SetTimer(at=None):
                    ends_at = None
                case SetTimer(at=at):
                    assert (ends_at, at) == (None, event.at + grace_s)
                    assert len(machine.roster.held) >= min(k, len(machine.roster.members))
                    ends_at = at
                case Apply(pushes=pushes):
                    assert pushes == tuple(came)
                    all_pushed = {*machine.roster.members} <= {worker for worker, _ in came}
                    assert event.at == ends_at if isinstance(event, TimerFired) else all_pushed
                    came, ends_at = [], None


@given(
    schedules(),
    st.sampled_from(["bsp", "asp", "k-sync", "lagtuner", "quorum", "ringmaster"]),
    st.integers(1, 6),
)
def test_local_steps_change_nothing_else(schedule, name, steps):
    """What the inner paradigm decides about iterations that take as long is the same."""
    step_s, churn = schedule
    inner = trace(name, (lambda worker, clock: steps * step_s(worker, clock), churn))
    local = trace("local", schedule, paradigm=name, steps=steps)
    for (event, expected), (other, decisions) in zip(inner, local, strict=True):
        assert (type(event), event.at) == (type(other), other.at)
        assert [_without_steps(each) for each in decisions] == [
            _without_steps(each) for each in expected
        ]
        assert {each.steps for each in decisions if isinstance(each, Release)} <= {steps}


def _without_steps(decision):
    """Return a decision without what the steps of an iteration change."""
    if isinstance(decision, Release):
        return replace(decision, steps=None)
    return replace(decision, samples_before=0) if isinstance(decision, Apply) else decision


@given(schedules(), st.sampled_from(["bsp", "asp", "quorum"]), st.integers(1, 9), st.data())
def test_steps_by_speed_are_within_their_bounds_and_in_the_order_of_speeds(
    schedule, name, steps, data
):
    floor = data.draw(st.integers(1, steps))
    machine = Machine(make("local", paradigm=name, steps=steps, by="speed", floor=floor))
    local = machine.paradigm
    for _, decisions in simulate(machine, schedule[1], schedule[0], 150):
        given_steps = {
            local.step_s.get(each.worker.partition("#")[0], 0.0): each.steps
            for each in decisions
            if isinstance(each, Release)
        }
        assert all(floor <= each <= steps for each in given_steps.values())
        in_order = [given_steps[step_s] for step_s in sorted(given_steps)]
        assert in_order == sorted(in_order, reverse=True), "the slower, the fewer"


@given(
    schedules(),
    st.sampled_from(
        [
            ("asp", {}),
            ("bsp", {}),
            ("ssp", {"staleness": 1}),
            ("lagtuner", {"s_lower": 1, "s_upper": 4}),
            ("hybrid", {"k": 2, "staleness_tolerance": 1, "pull_interval": 2}),
            ("k-sync", {"k": 2}),
            ("k-batch-sync", {"k": 3}),
        ]
    ),
)
def test_ringmaster_with_a_huge_bound_is_the_inner_rule(schedule, inner):
    name, parameters = inner
    wrapped = trace("ringmaster", schedule, paradigm={"name": name, **parameters}, staleness=HUGE)
    assert wrapped == trace(name, schedule, **parameters)


@given(schedules(), st.integers(0, 5))
def test_bsp_has_nothing_for_ringmaster_to_drop(schedule, staleness):
    assert trace("ringmaster", schedule, paradigm="bsp", staleness=staleness) == trace(
        "bsp", schedule
    )


@given(schedules(), st.integers(0, 5))
def test_ringmaster_applies_nothing_staler_than_its_bound(schedule, staleness):
    """And drops nothing that is not."""
    version = 0
    for event, decisions in trace("ringmaster", schedule, paradigm="asp", staleness=staleness):
        if isinstance(event, Pushed):
            stale = version - event.base > staleness
            assert [type(one) for one in decisions[:1]] == (
                [Drop] if stale else [Apply]
            ) or "had left" in decisions[0].why
        version += sum(isinstance(one, Apply) for one in decisions)
