"""How paradigms relate to each other, over random step times and churn."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raysync.core.decisions import Apply, Release
from raysync.core.events import Joined, Left, Pushed
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.randomness import uniform
from tests.driving import simulate

HUGE = 10**9


@st.composite
def schedules(draw):
    """Step times and churn: (step_s, events)."""
    seed = draw(st.integers(0, 10**6))
    workers = [f"w-{i}#1" for i in range(draw(st.integers(1, 6)))]
    spread = draw(st.sampled_from([0.0, 0.2, 0.9]))
    speed = {worker: draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])) for worker in workers}
    churn = [Joined(at=draw(st.sampled_from([0.0, 0.0, 2.5])), worker=worker) for worker in workers]
    churn += [Left(at=draw(st.floats(3, 30)), worker=worker) for worker in workers[1:] if draw(st.integers(0, 3)) == 0]

    def step_s(worker, clock):
        return speed[worker] * (1 + spread * (uniform(seed, "step", worker, clock) - 0.5))

    return step_s, churn


def trace(name, schedule, pushes=150, **parameters):
    step_s, churn = schedule
    return list(simulate(Machine(make(name, **parameters)), churn, step_s, pushes))


def releases(events):
    return sorted((event.at, decision.worker, decision.clock)
                  for event, decisions in events for decision in decisions if isinstance(decision, Release))


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
@given(schedules(), st.integers(0, 3), st.integers(0, 5), st.sampled_from(["align", "wait"]),
       st.sampled_from(["push", "busy"]))
def test_lagtuner_hard_never_releases_above_s_upper(schedule, s_lower, width, predict, interval):
    step_s, churn = schedule
    machine = Machine(make("lagtuner", s_lower=s_lower, s_upper=s_lower + width, predict=predict, interval=interval))
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
    """Waiting never makes a single worker faster: at each push, ASP's count of that worker is at least as large."""
    step_s, churn = schedule
    joins_only = [event for event in churn if isinstance(event, Joined)]
    at_zero = [Joined(at=0.0, worker=event.worker) for event in joins_only]
    asp = {(event.worker, event.clock): event.at for event, _ in trace("asp", (step_s, at_zero), 300)
           if isinstance(event, Pushed)}
    for name, parameters in (("bsp", {}), ("ssp", {"staleness": 2}), ("lagtuner", {"s_lower": 1, "s_upper": 4})):
        for event, _ in trace(name, (step_s, at_zero), 100, **parameters):
            if isinstance(event, Pushed) and (event.worker, event.clock) in asp:
                assert asp[event.worker, event.clock] <= event.at + 1e-9


@given(schedules())
def test_the_same_events_give_the_same_decisions(schedule):
    assert trace("lagtuner", schedule) == trace("lagtuner", schedule)
