"""When troubles befall whom: the same for every paradigm and on both engines.

What is random is hashed from (seed, trouble, slot), so it depends on the key (seconds or clock) that the trouble names and
on nothing that a paradigm does. A step suffers what holds at its Release, from its beginning to its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, log

import yaml

from raysync.config import Crash, Drift, Experiment, Latency, SlowDown
from raysync.randomness import hashed_seed, uniform

Spelled = SlowDown | Latency | Drift


@dataclass(frozen=True, slots=True)
class Hardship:
    """What a step suffers."""

    factor: float = 1.0
    """Its duration is multiplied by it."""
    latency_s: float = 0.0
    """Added to each way between worker and server."""


UNHARMED = Hardship()


class Spells:
    """The spells of one trouble on one slot, drawn as far as they are asked for."""

    def __init__(self, trouble: Spelled, purpose: str, seed: int, slot: str) -> None:
        self._lasts = inf if trouble.lasts is None else trouble.lasts
        self._coming = _beginnings(trouble, lambda number: uniform(seed, purpose, slot, number))
        self._begun: list[float] = []
        self._next = next(self._coming, inf)

    def hold_at(self, key: float) -> bool:
        """Whether that moment (seconds or clock) lies in a spell."""
        while self._next <= key:
            self._begun.append(self._next)
            self._next = next(self._coming, inf)
        past = bisect_right(self._begun, key)
        return past > 0 and key < self._begun[past - 1] + self._lasts


def _beginnings(trouble: Spelled, draw: Callable[[int], float]) -> Iterator[float]:
    """When spells begin, rising."""
    start, end = trouble.start, inf if trouble.end is None else trouble.end
    if trouble.times is not None:
        yield from sorted(start + (end - start) * draw(number) for number in range(trouble.times))
    elif trouble.mean_gap is not None:
        number = 0
        while (start := start - trouble.mean_gap * log(draw(number))) < end:
            yield start
            number += 1
    else:
        yield start


@dataclass(slots=True)
class _Suffering:
    """One trouble on one slot."""

    index: int
    trouble: Spelled
    spells: Spells
    drift: Callable[[int], float]
    """Number of the draw -> uniform."""

    def hardship(self, clock: int, at: float) -> Hardship | None:
        trouble = self.trouble
        if not self.spells.hold_at(clock if trouble.by_clock else at):
            return None
        if isinstance(trouble, SlowDown):
            return Hardship(factor=trouble.factor)
        if isinstance(trouble, Latency):
            return Hardship(latency_s=trouble.added_s)
        return Hardship(latency_s=trouble.added_s * self._wandered(trouble, clock, at))

    def _wandered(self, trouble: Drift, clock: int, at: float) -> float:
        key = at / trouble.period_s if trouble.period_s is not None else clock / (trouble.period_clocks or 1)
        number = int(key)
        here, there = self.drift(number), self.drift(number + 1)
        return here + (there - here) * (key - number)


class Troubles:
    """All troubles of a run; remembers which took effect."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._idle = dict.fromkeys(range(len(experiment.troubles)))
        self._sufferings: dict[str, list[_Suffering]] = {}
        self.crashes: dict[int, Crash] = {}
        """Index in the experiment file -> crash."""
        self._to_come: dict[str, list[tuple[int, int]]] = {}
        """Slot -> (clock, index) of its crashes at a clock, the next one last."""
        seed = experiment.seed
        for index, trouble in enumerate(experiment.troubles):
            purpose = f"trouble {index}"
            if isinstance(trouble, Crash):
                self.crashes[index] = trouble
                if trouble.at_clock is not None:
                    self._to_come.setdefault(trouble.worker, []).append((trouble.at_clock, index))
                continue
            for slot in _victims(experiment, trouble, purpose):
                drift = _drawer(seed, f"{purpose} drift", slot)
                suffering = _Suffering(index, trouble, Spells(trouble, purpose, seed, slot), drift)
                self._sufferings.setdefault(slot, []).append(suffering)
        for crashes in self._to_come.values():
            crashes.sort(reverse=True)

    def befall(self, slot: str, clock: int, at: float) -> Hardship:
        """What a step suffers that is released now.

        Args:
            slot: of the worker.
            clock: the iteration.
            at: seconds since the run began.
        """
        factor, latency_s = 1.0, 0.0
        for suffering in self._sufferings.get(slot, ()):
            hardship = suffering.hardship(clock, at)
            if hardship is not None:
                self._idle.pop(suffering.index, None)
                factor *= hardship.factor
                latency_s += hardship.latency_s
        return Hardship(factor, latency_s) if factor != 1.0 or latency_s else UNHARMED

    def crash_at_clock(self, slot: str, clock: int) -> int | None:
        """The index of the crash that the worker meets as it begins this iteration, if there is one; each comes once."""
        to_come = self._to_come.get(slot)
        return to_come.pop()[1] if to_come and to_come[-1][0] <= clock else None

    def took_effect(self, index: int) -> None:
        """That crash met somebody."""
        self._idle.pop(index, None)

    def described(self, index: int) -> str:
        """A trouble as the experiment file has it."""
        given = self._experiment.troubles[index].model_dump(mode="json", exclude_defaults=True)
        return f"troubles[{index}] {yaml.safe_dump(given, default_flow_style=True, sort_keys=False, width=1000).strip()}"

    def without_effect(self) -> tuple[str, ...]:
        """The troubles that nobody has met so far."""
        return tuple(self.described(index) for index in self._idle)


def _victims(experiment: Experiment, trouble: Spelled, purpose: str) -> list[str]:
    slots = experiment.slots_of(trouble.workers)
    if trouble.count is None:
        return slots
    return sorted(slots, key=lambda slot: hashed_seed(experiment.seed, f"{purpose} victim", slot))[: trouble.count]


def _drawer(seed: int, purpose: str, slot: str) -> Callable[[int], float]:
    return lambda number: uniform(seed, purpose, slot, number)
