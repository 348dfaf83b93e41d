"""What one decision costs: pushes per second of `Machine.handle`, at 8 and at 10,000 workers.

    python experiments/benchmarks/machine.py            prints the table
    python experiments/benchmarks/machine.py --write    and writes results/machine.md

The events are recorded first, from unequal workers (speeds 1 to 3, lognormal jitter of 30 %) on a
virtual clock; then a fresh machine handles them, and only that is timed. There are five rounds; in
each the two sizes run one after the other, so that their ratio is of one moment.
"""

import gc
import time
from collections.abc import Iterable
from heapq import heappop, heappush
from math import exp
from statistics import median

from report import interval, main, measured_on, tabulate

from raysync.core.decisions import Release
from raysync.core.events import Event, Joined, Pushed
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.randomness import standard_normal, uniform

SMALL, LARGE, PUSHES, ROUNDS = 8, 10_000, 200_000, 5
PARADIGMS = {
    "bsp": {},
    "asp": {},
    "ssp": {"staleness": 3},
    "lagtuner": {"bound": "hard"},
    "lagtuner ": {"bound": "literal"},
}


def recorded(name: str, parameters: dict, workers: int) -> list[Event]:
    """Return the events of a run."""
    machine, queue, events = Machine(make(name, **parameters)), [], []
    ids = [f"w-{index}#1" for index in range(workers)]
    slowness = {worker: 1 + 2 * uniform(0, "speed", worker) for worker in ids}
    todo: list[Event] = [Joined(at=0.0, worker=worker) for worker in reversed(ids)]
    pushes = 0
    while pushes < PUSHES:
        event = todo.pop() if todo else heappop(queue)[1]
        events.append(event)
        pushes += isinstance(event, Pushed)
        for decision in machine.handle(event):
            if isinstance(decision, Release):
                worker, clock = decision.worker, decision.clock
                at = event.at + slowness[worker] * exp(
                    0.3 * standard_normal(0, "jitter", worker, clock)
                )
                push = Pushed(
                    at=at, worker=worker, clock=clock, base=decision.version, samples=32, busy_s=1.0
                )
                heappush(queue, ((at, worker), push))
    return events


def pushes_per_s(name: str, parameters: dict, events: Iterable[Event]) -> float:
    """Return the pushes per second of a fresh machine."""
    handle = Machine(make(name, **parameters)).handle
    gc.collect()
    began = time.perf_counter()
    for event in events:
        handle(event)
    return PUSHES / (time.perf_counter() - began)


def measure() -> str:
    """Measure, and return the table."""
    rows = []
    for label, parameters in PARADIGMS.items():
        name = label.strip()
        sizes = {workers: recorded(name, parameters, workers) for workers in (SMALL, LARGE)}
        rates: dict[int, list[float]] = {SMALL: [], LARGE: []}
        for _ in range(ROUNDS):
            for workers, events in sizes.items():
                rates[workers].append(pushes_per_s(name, parameters, events))
        ratios = [small / large for small, large in zip(rates[SMALL], rates[LARGE], strict=True)]
        settings = ", ".join(f"{key}={value}" for key, value in parameters.items())
        rows.append(
            {
                "paradigm": f"{name}({settings})" if settings else name,
                f"{SMALL} workers, pushes/s": f"{median(rates[SMALL]):,.0f}",
                f"{LARGE:,} workers, pushes/s": f"{median(rates[LARGE]):,.0f}",
                "ratio": interval(ratios),
            }
        )
    return f"{tabulate(rows)}\n\n{PUSHES:,} pushes, {ROUNDS} rounds. {measured_on()}"


if __name__ == "__main__":
    main(__file__, __doc__, measure)
