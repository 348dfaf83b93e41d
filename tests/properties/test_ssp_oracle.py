"""SSP against a deliberately dumb second implementation that recounts the whole history after every
event.
"""

from hypothesis import given, strategies as st

from raysync.core.events import Joined, Left, Pushed
from raysync.core.machine import Machine
from raysync.paradigms import make
from tests.builders.plans import schedules
from tests.builders.schedules import simulate


def computing_by_the_rule(history, staleness):
    """Who must be computing after a history of events: replays it with lists and a full scan at
    each step.
    """
    clocks, held = {}, []
    for event in history:
        match event:
            case Joined(worker=worker):
                clocks[worker] = min(clocks.values(), default=0)
                held.append(worker)
            case Left(worker=worker):
                clocks.pop(worker)
                held = [other for other in held if other != worker]
            case Pushed(worker=worker) if worker in clocks:
                clocks[worker] += 1
                held.append(worker)
        held = [worker for worker in held if clocks[worker] - min(clocks.values()) > staleness]
    return set(clocks) - set(held)


@given(schedules(), st.integers(0, 4))
def test_ssp_agrees_with_the_oracle(schedule, staleness):
    step_s, churn = schedule
    machine, history = Machine(make("ssp", staleness=staleness)), []
    for event, _ in simulate(machine, churn, step_s, 60):
        history.append(event)
        assert set(machine.roster.computing) == computing_by_the_rule(history, staleness)
