"""Journals of a machine that nothing but a clock drives."""

from raysync.core.events import Left, Pushed
from raysync.core.journal import NO_REPORT, Entry, Report
from raysync.core.machine import Machine
from raysync.paradigms import make
from tests.builders.schedules import joins, simulate

FAST, SLOW = "fast-0#1", "slow-0#1"


def driven(
    name, pushes, churn=(), workers=(FAST, SLOW), workload=None, slow_s=3.0, loss=1.0, **parameters
):
    """The machine, and its entries one by one: the slow worker takes 3 s, others take 1 s."""
    machine = Machine(make(name, **parameters), workload)
    events = simulate(
        machine,
        [*joins(*workers), *churn],
        lambda worker, _: slow_s if worker == SLOW else 1.0,
        pushes,
    )
    reports = {Left: Report(why="its actor died"), Pushed: Report(loss=loss)}
    for event, decisions in events:
        yield machine, Entry(event, tuple(decisions), reports.get(type(event), NO_REPORT))


def journal(*arguments, **parameters):
    return [entry for _, entry in driven(*arguments, **parameters)]
