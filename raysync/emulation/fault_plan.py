"""The faults of a run: which workers they affect and when, for all paradigms and engines alike."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf, log
from typing import Any

from raysync.config import Crash, Experiment, Kill
from raysync.config.faults import Draws, WindowedFault
from raysync.config.yaml_reading import write_yaml
from raysync.randomness import hashed_seed, uniform
from raysync.step_fault import NO_FAULT, StepFault

# Random values are hashed from (seed, fault, slot), so they depend on the fault's key (seconds or
# clock) and on no decision of a paradigm. A step is subject, from its beginning to its end, to the
# faults that hold at its Release.


class FaultPlan:
    """All faults of a run; it remembers which took effect."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        # the indices of faults without effect so far, in the order of the experiment file
        self._idle = dict.fromkeys(range(len(experiment.faults)))
        self._slot_faults: dict[str, list[_SlotFault]] = {}
        self.crashes: dict[int, Crash] = {}  # index in the experiment file -> crash
        # slot -> (clock, index) of its future crashes at a clock, the next one last
        self._clock_crashes: dict[str, list[tuple[int, int]]] = {}
        self._kills: dict[str, list[SlotKills]] = {}
        seed = experiment.seed
        for index, fault in enumerate(experiment.faults):
            # Draws are hashed from this text: another word would draw other faults than in the
            # published results.
            purpose = f"trouble {index}"
            if isinstance(fault, Crash):
                self.crashes[index] = fault
                if fault.at_clock is not None:
                    self._clock_crashes.setdefault(fault.worker, []).append((fault.at_clock, index))
                continue
            for slot in _victims(experiment, fault, purpose):
                if isinstance(fault, Kill):
                    kills = SlotKills(
                        index=index, fault=fault, purpose=purpose, seed=seed, slot=slot
                    )
                    self._kills.setdefault(slot, []).append(kills)
                    continue
                windows = FaultWindows(fault, purpose, seed, slot)
                slot_fault = _SlotFault(index, fault, windows, fault.draws(seed, purpose, slot))
                self._slot_faults.setdefault(slot, []).append(slot_fault)
        for crashes in self._clock_crashes.values():
            crashes.sort(reverse=True)

    def at_step(self, slot: str, clock: int, at: float) -> StepFault:
        """Return the effect of all faults on a step that is released now."""
        fault = NO_FAULT
        for slot_fault in self._slot_faults.get(slot, ()):
            step_fault = slot_fault.step_fault(clock, at)
            if step_fault is not None:
                self._idle.pop(slot_fault.index, None)
                fault = fault.combine(step_fault)
        return fault

    def pop_crash(self, slot: str, clock: int) -> int | None:
        """Pop the index of the crash that is due when the worker begins this iteration."""
        crashes = self._clock_crashes.get(slot)
        return crashes.pop()[1] if crashes and crashes[-1][0] <= clock else None

    def next_kill(self, slot: str, after: float) -> tuple[float, int] | None:
        """Return time and fault of the slot's next kill; `after` must not fall between calls."""
        times = [(kills.first_after(after), kills.index) for kills in self._kills.get(slot, ())]
        at, index = min(times, default=(inf, 0))
        return (at, index) if at < inf else None

    def skip_kills(self, until_s: float) -> None:
        """Skip the kills up to that time: they struck before the run resumed from a checkpoint."""
        for kills in chain.from_iterable(self._kills.values()):
            if kills.first_after(-1.0) <= until_s:  # -1: none is skipped
                kills.first_after(until_s)
                self.mark_effective(kills.index)

    def mark_effective(self, index: int) -> None:
        self._idle.pop(index, None)

    def state(self) -> dict[str, Any]:
        return {"idle": list(self._idle), "to_come": self._clock_crashes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._idle = dict.fromkeys(state["idle"])
        self._clock_crashes = {
            slot: [(clock, index) for clock, index in crashes]
            for slot, crashes in state["to_come"].items()
        }

    def description(self, index: int) -> str:
        """Return a fault as the experiment file has it."""
        settings = self._experiment.faults[index].model_dump(mode="json", exclude_defaults=True)
        return f"faults[{index}] {write_yaml(settings, width=1000, flow=True).strip()}"

    def without_effect(self) -> tuple[str, ...]:
        return tuple(self.description(index) for index in self._idle)


def _victims(experiment: Experiment, fault: WindowedFault | Kill, purpose: str) -> list[str]:
    slots = experiment.slots_of(fault.workers)
    if fault.count is None:
        return slots
    return sorted(slots, key=lambda slot: hashed_seed(experiment.seed, f"{purpose} victim", slot))[
        : fault.count
    ]


@dataclass(slots=True)
class _SlotFault:
    index: int
    fault: WindowedFault
    windows: FaultWindows
    draws: Draws

    def step_fault(self, clock: int, at: float) -> StepFault | None:
        if self.fault.clocks is None:
            is_affected = self.windows.contain(at)
        else:
            first, end = self.fault.clocks
            is_affected = first <= clock < (inf if end is None else end)
        return self.fault.effect(self.draws, at) if is_affected else None


class FaultWindows:
    """The windows by seconds of one fault on one slot, drawn lazily."""

    def __init__(self, fault: WindowedFault, purpose: str, seed: int, slot: str) -> None:
        self._lasts = fault.lasts_s or inf
        self._starts = _moments(fault, _drawer(seed, purpose, slot))
        self._past_starts: list[float] = []
        self._next_start = next(self._starts, inf)

    def contain(self, at: float) -> bool:
        while self._next_start <= at:
            self._past_starts.append(self._next_start)
            self._next_start = next(self._starts, inf)
        count = bisect_right(self._past_starts, at)
        return count > 0 and at < self._past_starts[count - 1] + self._lasts


class SlotKills:
    """The moments at which one fault kills a slot's worker, drawn lazily."""

    def __init__(self, index: int, fault: Kill, purpose: str, seed: int, slot: str) -> None:
        self.index = index  # in the experiment file
        self._times = _moments(fault, _drawer(seed, purpose, slot))
        self._next_s = next(self._times, inf)

    def first_after(self, at: float) -> float:
        """Return the first kill after `at`, or infinity; `at` must not fall between calls."""
        while self._next_s <= at:
            self._next_s = next(self._times, inf)
        return self._next_s


def _moments(fault: WindowedFault | Kill, draw: Callable[[int], float]) -> Iterator[float]:
    """Yield the times of strikes, or of windows' beginnings, in rising order."""
    start, end = fault.start, fault.end_s or inf
    if fault.times is not None:
        yield from sorted(start + (end - start) * draw(number) for number in range(fault.times))
    elif fault.mean_gap_s is not None:
        number = 0
        while (start := start - fault.mean_gap_s * log(draw(number))) < end:
            yield start
            number += 1
    else:
        yield start


def _drawer(seed: int, purpose: str, slot: str) -> Callable[[int], float]:
    return lambda number: uniform(seed, purpose, slot, number)
