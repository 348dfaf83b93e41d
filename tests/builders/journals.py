"""Journals of a machine that nothing but a clock drives."""

from raysync.core.events import Pushed
from raysync.core.journal import NO_REPORT, Entry, Report
from raysync.core.machine import Machine
from raysync.paradigms import make
from tests.builders.schedules import joins, simulate

FAST, SLOW = "fast-0#1", "slow-0#1"


def journal(name, pushes, slow_s=3.0, churn=(), workload=None, **parameters):
    """Two workers that take 1 s and 3 s."""
    machine = Machine(make(name, **parameters), workload)
    step_s = {FAST: 1.0, SLOW: slow_s}
    events = simulate(
        machine, [*joins(FAST, SLOW), *churn], lambda worker, _: step_s[worker], pushes
    )
    return [
        Entry(event, tuple(decisions), Report(loss=1.0) if isinstance(event, Pushed) else NO_REPORT)
        for event, decisions in events
    ]
