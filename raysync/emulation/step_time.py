"""The computing and link times of an emulated worker, the same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from math import exp, log
from statistics import fmean

from raysync.config import Experiment, Jitter, Link, WorkerGroup
from raysync.config.durations import steps_of
from raysync.core.ids import Slot
from raysync.randomness import hash_prefix, standard_normal_at, uniform_at
from raysync.step_fault import NO_FAULT, StepFault

SHORTEST = 0.05  # the least factor of a normal jitter
Factor = Callable[[int], float]  # number of a batch -> the factor on the duration of its step


class StepTime:
    """The durations of one worker's steps on the device that its group describes."""

    def __init__(self, group: WorkerGroup, seed: int, slot: str, batch_size: int) -> None:
        """
        Args:
            group: its `flops_per_s` has already become `step_s` (`raysync.training.preparation`).
            batch_size: the worker's own, for which `step_s` and `trace` hold.
        """
        self._step_s, self._speed = group.step_s, group.speed
        self._fixed_s, self._floor_s = group.fixed_s, group.floor_s
        self._per_sample_s, self._batch_size = group.per_sample_s, batch_size
        self._trace, self._offset = steps_of(group.trace, Slot(slot).number, group.count)
        self._jitter = jitter_of(group.jitter, seed, slot)
        is_steady = self._step_s is not None or self._per_sample_s is not None
        # the base duration for `batch_size` samples; None: it depends on more than their number
        self._steady_s = self._base_s(0, batch_size, 0.0) if is_steady else None

    def seconds(self, batch: int, size: int, factor: float = 1.0, computed_s: float = 0.0) -> float:
        """Return the seconds of a step of `size` samples: one of these / `speed` x faults x jitter.

        max(floor_s, fixed_s + per_sample_s x size)     of a device that is described so
        step_s x size / batch_size                      in proportion, or by `trace`
        computed_s                                      of a device that is not emulated
        """
        base_s = self._steady_s
        if base_s is None or size != self._batch_size:
            base_s = self._base_s(batch, size, computed_s)
        jitter = self._jitter  # a call of `self._jitter` would first search for a method
        return base_s * factor * jitter(batch)

    def seconds_of_steps(
        self, batch: int, steps: int, size: int, factor: float = 1.0, computed_s: float = 0.0
    ) -> float:
        """Return the seconds of successive steps, of which `computed_s` is the measured sum."""
        if steps == 1:
            return self.seconds(batch, size, factor, computed_s)
        step_s = computed_s / steps
        return sum(
            self.seconds(number, size, factor, step_s) for number in range(batch, batch + steps)
        )

    def _base_s(self, batch: int, size: int, computed_s: float) -> float:
        """Return the duration of a step without faults and jitter."""
        device_s = computed_s
        if self._step_s is not None:
            device_s = self._step_s * (size / self._batch_size)
        elif self._per_sample_s is not None:
            device_s = max(self._floor_s, self._fixed_s + self._per_sample_s * size)
        elif self._trace:
            device_s = self._trace[(self._offset + batch) % len(self._trace)] * (
                size / self._batch_size
            )
        return device_s / self._speed


class KnownSteps:
    """The least seconds of each step, by the experiment's devices, links and faults."""

    def __init__(
        self,
        groups: Mapping[str, WorkerGroup],  # by slot
        experiment: Experiment,
        fault_at: Callable[[str, int, float], StepFault],  # `FaultPlan.at_step`
        vector_bytes: float = 0.0,  # of a push, and of a pull
    ) -> None:
        self._groups, self._experiment, self._fault_at = groups, experiment, fault_at
        self._vector_bytes = int(vector_bytes)
        self._step_times: dict[str, StepTime] = {}

    def seconds(
        self, slot: str, clock: int, *, batch: int, steps: int, size: int, at: float
    ) -> float:
        """Return the seconds of an iteration released at `at`, with both its transfers.

        Args:
            batch: the number of its first batch.
            size: the samples of a batch.
        """
        group, experiment = self._groups[slot], self._experiment
        step_time = self._step_times.get(slot)
        if step_time is None:
            own_size = group.batch_size or experiment.batch_size
            step_time = StepTime(group, experiment.seed, slot, own_size)
            self._step_times[slot] = step_time
        fault = self._fault_at(slot, clock, at)
        ways_s = one_way_s(group.link, self._vector_bytes, fault)
        ways_s += one_way_s(experiment.network.link, self._vector_bytes)
        return step_time.seconds_of_steps(batch, steps, size, fault.factor) + 2 * ways_s


def one_way_s(link: Link, size_bytes: int, fault: StepFault = NO_FAULT) -> float:
    """Return the seconds of a vector's transfer over a link without other traffic."""
    rate = link.bandwidth_bytes_per_s
    return fault.way_s(link.latency_s, size_bytes / rate if rate else 0.0)


def jitter_of(jitter: Jitter, seed: int, slot: str) -> Factor:
    """Return a slot's jitter, with mean 1 (a normal one is cut at `SHORTEST`)."""
    begun = hash_prefix(seed, "jitter", slot)
    if jitter.distribution == "exponential":
        return _exponential(begun)
    if jitter.distribution == "pareto":
        return _pareto(begun, jitter.tail)
    if jitter.distribution == "empirical":
        mean = fmean(jitter.samples)
        return _empirical(begun, [sample / mean for sample in jitter.samples])
    sigma = jitter.sigma
    if jitter.distribution == "none" or sigma == 0:
        return lambda batch: 1.0
    if jitter.distribution == "lognormal":
        return _lognormal(begun, sigma)
    return _normal(begun, sigma)


# These return functions of the batch alone, which are faster than a `partial`.


def _exponential(begun: blake2b) -> Factor:
    return lambda batch: -log(uniform_at(begun, batch))


def _pareto(begun: blake2b, tail: float) -> Factor:
    # 1 - (m / x)**tail for x >= m = (tail - 1) / tail: its mean is 1
    return lambda batch: (tail - 1) / tail * exp(-log(uniform_at(begun, batch)) / tail)


def _empirical(begun: blake2b, factors: Sequence[float]) -> Factor:
    return lambda batch: factors[int(uniform_at(begun, batch) * len(factors))]


def _lognormal(begun: blake2b, sigma: float) -> Factor:
    return lambda batch: exp(sigma * standard_normal_at(begun, batch) - sigma**2 / 2)


def _normal(begun: blake2b, sigma: float) -> Factor:
    return lambda batch: max(SHORTEST, 1 + sigma * standard_normal_at(begun, batch))
