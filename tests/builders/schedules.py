"""Schedules for a machine without an engine, and the decisions of one kind in an answer."""

from heapq import heappop, heappush
from itertools import count

from msgspec.structs import replace

from raysync.core.decisions import Apply, Drop, Hold, Release, SetTimer
from raysync.core.events import Joined, Left, Pushed, TimerFired
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.testing.drive import SAMPLES


def of(kind, decisions):
    return [decision for decision in decisions if isinstance(decision, kind)]


def released(decisions):
    return [decision.worker for decision in of(Release, decisions)]


def batch_sizes(decisions):
    """Of the releases."""
    return [decision.batch_size for decision in of(Release, decisions)]


def applied(decisions):
    return [decision.pushes for decision in of(Apply, decisions)]


def dropped(decisions):
    return [decision.push for decision in of(Drop, decisions)]


def holds(decisions):
    return {decision.worker: decision.why for decision in of(Hold, decisions)}


def without(decisions, **fields):
    """The decisions with these values of the fields, where they have them."""
    return [
        replace(one, **{name: value for name, value in fields.items() if hasattr(one, name)})
        for one in decisions
    ]


def trace(name, schedule, pushes=150, **parameters):
    """All events and decisions of a paradigm over a schedule of `tests.builders.plans`."""
    step_s, churn = schedule
    return list(simulate(Machine(make(name, **parameters)), churn, step_s, pushes))


def simulate(machine, churn, step_s, pushes):
    """Run a machine on a virtual clock, ties in the order in which they were scheduled; yields
    (event, decisions).

    Args:
        churn: Joined and Left events.
        step_s: (worker, clock) -> seconds of each step.
        pushes: stop after that many.
    """
    tie, queue = count(), []
    for event in churn:
        heappush(queue, (event.at, next(tie), event))
    while queue and pushes:
        now, _, event = heappop(queue)
        if isinstance(event, Left) and event.worker not in machine.roster.live:
            continue
        if isinstance(event, TimerFired) and machine.timers.get(event.key) != event.at:
            continue
        pushes -= isinstance(event, Pushed)
        decisions = machine.handle(event)
        yield event, decisions
        for decision in decisions:
            if isinstance(decision, Release):
                worker, clock, steps = decision.worker, decision.clock, decision.steps or 1
                seconds = steps * step_s(worker, clock)
                push = Pushed(
                    at=now + seconds,
                    worker=worker,
                    clock=clock,
                    base=decision.version,
                    samples=steps * (decision.batch_size or SAMPLES),
                    busy_s=seconds,
                    steps=steps,
                )
                heappush(queue, (push.at, next(tie), push))
            elif isinstance(decision, SetTimer) and decision.at is not None:
                heappush(
                    queue, (decision.at, next(tie), TimerFired(at=decision.at, key=decision.key))
                )


def joins(*workers):
    return [Joined(at=0.0, worker=worker) for worker in workers]
