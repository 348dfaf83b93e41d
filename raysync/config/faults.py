"""The faults that a run injects: slow-downs, latency, crashes, kills.

A class has a kind's settings, its effect on a step, and its needs of an engine;
`emulation.fault_plan` schedules all kinds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import exp, log
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, model_validator
from typing_extensions import override

from raysync.config.base import Repeats, Strict
from raysync.config.workers import WorkerGroup, slots_in
from raysync.core.capability import Capability
from raysync.errors import unknown_name
from raysync.randomness import standard_normal, uniform
from raysync.step_fault import StepFault

if TYPE_CHECKING:
    from raysync.config.experiment import Experiment

Draws = Callable[[int], float]  # the number of a draw -> its value, always the same

BY_CLOCK = (None, "a window by the worker's clock is clocks: [FIRST, END]")


class _Fault(Strict):
    needs: ClassVar[tuple[Capability, ...]] = ()  # the demands on the topology
    adds_latency: ClassVar[bool] = False  # its effect lies between worker and server
    varies: ClassVar[bool] = True  # its effect changes within a window


class _Selection(_Fault):
    """The workers that a fault affects."""

    workers: tuple[str, ...] = Field(
        (), description="slots (fast-0) or groups (fast); default: all"
    )
    count: Repeats | None = Field(
        None, description="how many of these it affects, drawn by the seed; default: all"
    )

    @property
    def targets(self) -> tuple[str, ...]:
        """The slots and groups of the workers that it affects; (): all workers."""
        return self.workers


class _Windows(_Selection):
    """The windows in which a fault affects its workers: by seconds, or one by the worker's clock.

    By clock, a fault meets the same steps under every paradigm; by seconds, the same stretch of
    time. A step is affected if its Release lies in a window. Without `times` and `mean_gap_s` there
    is one window, from `start_s` on. Draws are hashed from (seed, fault, slot), so they are the
    same for every paradigm and on both engines.
    """

    gone: ClassVar = {
        "start_clock": BY_CLOCK,
        "lasts_clocks": BY_CLOCK,
        "mean_gap_clocks": (None, "windows repeat by seconds: mean_gap_s"),
        "end_clock": (None, "windows repeat by seconds: end_s"),
        "period_clocks": (None, "a drift is by seconds: period_s"),
    }

    start_s: float | None = Field(None, ge=0, description="when it begins; default: with the run")
    lasts_s: float | None = Field(
        None, gt=0, description="length of a window; default: to the end of the run"
    )
    times: Repeats | None = Field(
        None,
        description="number of windows for each worker, beginning anywhere between start and end",
    )
    mean_gap_s: float | None = Field(
        None, ge=0.001, description="windows begin as a Poisson process with this mean gap"
    )
    end_s: float | None = Field(
        None, gt=0, description="no window begins after it; needs times or mean_gap_s"
    )
    clocks: tuple[NonNegativeInt, NonNegativeInt | None] | None = Field(
        None,
        description=(
            "in place of seconds, one window by the worker's clock: `[20, 60]` for its steps 20 to"
            " 59, `[20, null]` for all from 20 on"
        ),
    )

    @model_validator(mode="after")
    def _windows_are_possible(self) -> _Windows:
        repeats = self.times is not None or self.mean_gap_s is not None
        start, end = (self.start, self.end_s) if self.clocks is None else self.clocks
        if self.clocks is not None:
            for name in ("start_s", "lasts_s", "times", "mean_gap_s", "end_s"):
                if getattr(self, name) is not None:
                    raise ValueError(f"clocks is a window of its own; leave out it or {name}")
        if self.times is not None and self.mean_gap_s is not None:
            raise ValueError("give times or mean_gap_s, not both")
        if repeats and self.lasts_s is None:
            raise ValueError("windows that repeat need lasts_s")
        if self.times is not None and self.end_s is None:
            raise ValueError("times needs end_s: windows begin anywhere between start and end")
        if self.end_s is not None and not repeats:
            raise ValueError(
                "end_s needs times or mean_gap_s; the length of a single window is lasts_s"
            )
        if end is not None and end <= start:
            raise ValueError(f"the end ({end:g}) must come after the start ({start:g})")
        return self

    @property
    def start(self) -> float:
        """The earliest beginning of a window by seconds."""
        return self.start_s or 0

    def draws(self, seed: int, purpose: str, slot: str) -> Draws:
        """Return the random values that its effect on a slot may depend on."""
        return lambda number: uniform(seed, f"{purpose} drift", slot, number)

    @abstractmethod
    def effect(self, draws: Draws, at: float) -> StepFault:
        """Return the effect on a step within a window, released `at` seconds into the run."""


class SlowDown(_Windows):
    """Make computing take longer: for ever (a slow device), for a while, or now and then (transient
    stragglers).
    """

    varies: ClassVar[bool] = False

    kind: Literal["slow-down"] = Field(description="the kind of this fault")
    factor: float = Field(ge=1, description="factor that multiplies the duration of a step")

    @override
    def effect(self, draws: Draws, at: float) -> StepFault:
        return StepFault(factor=self.factor)


class Latency(_Windows):
    """Lengthen each way between worker and server (Sync-Switch, section VI-C3: 10 ms and 30 ms)."""

    adds_latency: ClassVar[bool] = True
    varies: ClassVar[bool] = False

    kind: Literal["latency"] = Field(description="the kind of this fault")
    added_s: float = Field(gt=0, description="latency added in each direction")

    @override
    def effect(self, draws: Draws, at: float) -> StepFault:
        return StepFault(latency_s=self.added_s)


class Drift(_Windows):
    """Add a drifting latency, as in unstable networks, the first future work of LagTuner (section
    7).

    The latency of each way is interpolated linearly between uniform draws from 0 to `added_s`, one
    every `period_s`.
    """

    adds_latency: ClassVar[bool] = True

    kind: Literal["drift"] = Field(description="the kind of this fault")
    added_s: float = Field(gt=0, description="largest latency added in each direction")
    period_s: float = Field(gt=0, description="time between two draws")

    @override
    def effect(self, draws: Draws, at: float) -> StepFault:
        return StepFault(latency_s=self.added_s * _drift(draws, at / self.period_s))


class SpeedDrift(_Windows):
    """Let the speed of workers drift, as on machines that others use or that get hot.

    The logarithm of a step's factor is a random walk from 0 with a normal step every `period_s`,
    interpolated linearly, and reflected where the factor reaches `most` and 1 / `most`.
    """

    kind: Literal["speed-drift"] = Field(description="the kind of this fault")
    sigma: float = Field(
        gt=0, le=1, description="standard deviation of a step of the walk: 0.1 is about 10 %"
    )
    most: float = Field(
        2.0, gt=1, description="largest factor of a step's duration; the smallest is 1 / most"
    )
    period_s: float = Field(gt=0, description="time between two steps of the walk")

    @override
    def draws(self, seed: int, purpose: str, slot: str) -> Draws:
        """Return the walk's position after each number of steps."""
        free, limit = [0.0], log(self.most)

        def reflected(number: int) -> float:
            while len(free) <= number:  # drawn as far as it is needed
                step = standard_normal(seed, f"{purpose} walk", slot, len(free))
                free.append(free[-1] + self.sigma * step)
            # the free walk, folded at -limit and limit
            return limit - abs((free[number] + limit) % (4 * limit) - 2 * limit)

        return reflected

    @override
    def effect(self, draws: Draws, at: float) -> StepFault:
        return StepFault(factor=exp(_drift(draws, at / self.period_s)))


def _drift(draws: Draws, passed: float) -> float:
    """Return the value between two draws, by the periods that have passed."""
    number = int(passed)
    before, after = draws(number), draws(number + 1)
    return before + (after - before) * (passed - number)


class Crash(_Fault):
    """Remove a worker at the beginning of an iteration or at a time; it comes back if and when the
    fault says so. Not under `decoupled`, which needs every stage.
    """

    needs: ClassVar[tuple[Capability, ...]] = (Capability.LEAVE,)

    kind: Literal["crash"] = Field(description="the kind of this fault")
    worker: str = Field(description="its slot: fast-0")
    at_s: float | None = Field(None, ge=0, description="seconds since the run began")
    at_clock: int | None = Field(
        None, ge=0, description="it dies as it begins this iteration, or the first after it"
    )
    rejoin_after_s: float | None = Field(
        None,
        ge=0,
        description="seconds until it rejoins; default: never; on Ray, a start takes longer",
    )

    @model_validator(mode="after")
    def _has_one_moment(self) -> Crash:
        if (self.at_s is None) == (self.at_clock is None):
            raise ValueError("give one of at_s and at_clock")
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        """The slot of its worker."""
        return (self.worker,)


class Kill(_Selection):
    """Kill the process of a worker, which the run notices as any other death. The worker comes back
    by `cluster.restarts`, or stays gone.

    A worker that is absent at that moment is spared. Under `decoupled` the run resumes its newest
    checkpoint, and repeats no kill. Draws are hashed as for windows.
    """

    kind: Literal["kill"] = Field(description="the kind of this fault")
    at_s: float | None = Field(None, ge=0, description="once, these seconds after the run began")
    mean_gap_s: float | None = Field(
        None,
        ge=0.001,
        description=(
            "again and again, after exponential gaps with this mean: the mean time between the"
            " failures of each worker"
        ),
    )
    times: Repeats | None = Field(
        None, description="number of kills of each worker, anywhere between start_s and end_s"
    )
    start_s: float | None = Field(
        None, ge=0, description="no kill comes before it; default: the beginning of the run"
    )
    end_s: float | None = Field(
        None, gt=0, description="no kill comes after it; default: the end of the run"
    )

    @model_validator(mode="after")
    def _times_are_possible(self) -> Kill:
        ways = ("at_s", "mean_gap_s", "times")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "give one of at_s, mean_gap_s and times; got " + (" and ".join(given) or "none")
            )
        if self.at_s is not None and (self.start_s is not None or self.end_s is not None):
            raise ValueError("start_s and end_s go with mean_gap_s or times; at_s is one moment")
        if self.times is not None and self.end_s is None:
            raise ValueError("times needs end_s: the kills lie anywhere between start_s and end_s")
        if self.end_s is not None and self.end_s <= self.start:
            raise ValueError(f"the end ({self.end_s:g}) must come after the start ({self.start:g})")
        return self

    @property
    def start(self) -> float:
        """The earliest second of a kill, since the run began."""
        return self.at_s or self.start_s or 0


WindowedFault = SlowDown | Latency | Drift | SpeedDrift
Fault = Annotated[WindowedFault | Crash | Kill, Field(discriminator="kind")]


def check_fault_targets(experiment: Experiment) -> None:
    """Refuse faults of workers that do not exist."""
    for index, fault in enumerate(experiment.faults):
        where = f"faults[{index}]"
        _check_workers(experiment.workers, fault, where)
        most = len(experiment.slots_of(fault.targets))
        if not isinstance(fault, Crash) and (fault.count or 0) > most:
            raise ValueError(f"{where}: count: {fault.count} of {most} worker{'s' * (most > 1)}")


def _check_workers(groups: Sequence[WorkerGroup], fault: Fault, where: str) -> None:
    counts = {group.name: group.count for group in groups}
    allowed = set(slots_in(groups)) | (set() if isinstance(fault, Crash) else set(counts))
    for name in fault.targets:
        if name not in allowed:
            slots = [
                f"{group}-0 to {group}-{count - 1}" if count > 1 else f"{group}-0"
                for group, count in counts.items()
            ]
            raise unknown_name("worker", name, allowed, where=where, listed=slots)
