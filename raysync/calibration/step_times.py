"""Measure a worker's steps at several batch sizes, in its place and on its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from tempfile import TemporaryDirectory

import numpy as np
from scipy.optimize import nnls

from raysync.config import Experiment, Jitter, ParadigmChoice, WorkerGroup
from raysync.config.cluster_settings import Metrics
from raysync.config.update import EvaluationPlan, Workload
from raysync.errors import ConfigError, RunFailed
from raysync.running.engines import Engine
from raysync.running.run import run_in
from raysync.training.preparation import TrainingPlan, prepare

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # batch sizes to measure, as multiples of the group's
WARM, STEPS = 3, 17  # steps left out, steps that count
BETTER = 0.5  # a floor must leave at most this share of the line's error
TOLERATED = 0.02  # a line with a smaller relative error needs no floor
OUT_OF_MEMORY = "out of memory"
# the search for the largest batch ends when the smallest failure is this close, as a ratio
CLOSE = 1.1


@dataclass(frozen=True, slots=True)
class StepTimes:
    seconds: Mapping[int, float]  # batch size -> the median of its steps
    fixed_s: float
    per_sample_s: float
    floor_s: float
    sigma: float  # the standard deviation of the logarithm of a step's time
    max_batch: int | None = None  # the largest batch that fits into memory; None: not searched

    def at(self, size: int) -> float:
        return max(self.floor_s, self.fixed_s + self.per_sample_s * size)


def step_times(engine: Engine, training: TrainingPlan, group: WorkerGroup) -> StepTimes:
    """Measure the steps of a group's worker at several batch sizes.

    Raises:
        ConfigError: it has GPUs and this torch sees none, or no batch fits into its memory.
    """
    samples = sum(len(shard) for shard in training.shards.values())
    batch_size = group.batch_size or training.experiment.batch_size
    sizes = sizes_of(batch_size, group, samples)
    steps, failed = {}, None
    for size in sizes:
        seconds = _steps_s(engine, training.experiment, group, size)
        if seconds is None:
            failed = size
            break
        steps[size] = seconds
    if not steps:
        raise ConfigError(
            f"workers: {group.name}: a batch of {sizes[0]} does not fit into its memory; give the"
            " group a smaller batch_size."
        )
    max_batch = None
    if group.gpus or failed is not None:
        max_batch = _largest_batch(engine, training.experiment, group, max(steps), failed, samples)
    return fitted(steps, max_batch)


def sizes_of(batch_size: int, group: WorkerGroup, train_samples: int) -> list[int]:
    most = min(train_samples, group.max_batch or train_samples)
    sizes = {max(group.devices, min(most, round(batch_size * factor))) for factor in FACTORS}
    return sorted(sizes)


def _largest_batch(
    engine: Engine,
    experiment: Experiment,
    group: WorkerGroup,
    fits: int,
    failed: int | None,
    samples: int,
) -> int:
    """Find the largest batch that fits, at most the training set, by doubling and bisection."""
    while fits < samples if failed is None else failed > max(CLOSE * fits, fits + 1):
        size = min(2 * fits, samples) if failed is None else (fits + failed) // 2
        if _steps_s(engine, experiment, group, size, count=1) is None:
            failed = size
        else:
            fits = size
    return fits


def _steps_s(
    engine: Engine, experiment: Experiment, group: WorkerGroup, size: int, count: int = STEPS
) -> list[float] | None:
    """Return the seconds of the steps of one worker, or None if its memory is too small."""
    with TemporaryDirectory() as folder:
        described = _single_worker(experiment, group, size, WARM + count, folder)
        try:
            record = run_in(engine, prepare(described), described.paradigm)
        except RunFailed as failure:
            if OUT_OF_MEMORY in str(failure).lower():
                return None
            raise
        pushes = record.pushes
    _check_device(engine, group)
    return list(pushes.busy_s[pushes.clock >= WARM])


def _check_device(engine: Engine, group: WorkerGroup) -> None:
    place = engine.places.get(f"{group.name}-0")
    if group.gpus and place is not None and "cpu" in place.devices:
        raise ConfigError(
            f"workers: {group.name}: gpus: {group.gpus:g}, but the torch on its node"
            f" ({place.address}) sees no GPU and would time the CPU. Install a build of torch for"
            " the GPUs of that node."
        )


def _single_worker(
    experiment: Experiment, group: WorkerGroup, size: int, iterations: int, folder: str
) -> Experiment:
    """Reduce the experiment to one worker of a group that emulates nothing."""
    no_emulation = {
        "step_s": None,
        "per_sample_s": None,
        "fixed_s": 0.0,
        "floor_s": 0.0,
        "flops_per_s": None,
        "trace": (),
        "speed": 1.0,
        "jitter": Jitter(),
    }
    worker = group.model_copy(update={**no_emulation, "count": 1, "batch_size": size})
    changes = {
        "workers": (worker,),
        "paradigm": ParadigmChoice(name="asp"),
        "batch_size": size,
        "workload": Workload(iterations_per_worker=iterations),
        "evaluation": EvaluationPlan(marks=1, samples=size),
        "cluster": experiment.cluster.model_copy(
            update={"min_workers": 1, "metrics": Metrics(published=False)}
        ),
        "faults": (),
        "target": None,
        "stop": None,
        "checkpoint": None,
        "track": (),
        "callbacks": (),
        "keep": "none",
        "output": folder,
        "name": "calibration",
    }
    return experiment.model_copy(update=changes)


def fitted(steps: Mapping[int, Sequence[float]], max_batch: int | None = None) -> StepTimes:
    """Fit `max(floor_s, fixed_s + per_sample_s * batch)` to the seconds of steps, by batch size.

    The line minimises squared relative errors of the medians, with coefficients that are not
    negative. A GPU takes the same time for all small batches: the floor covers the number of
    smallest sizes that fits best, if that halves the error.
    """
    sizes = sorted(steps)
    medians = {size: median(steps[size]) for size in sizes}
    tolerated = len(sizes) * TOLERATED**2
    lines = [_line(medians, sizes[flat:], sizes[:flat]) for flat in range(max(1, len(sizes) - 1))]
    errors = [_error(medians, *line) for line in lines]
    best = min(range(len(lines)), key=lambda flat: errors[flat])
    is_flat = errors[0] > tolerated and errors[best] <= BETTER * errors[0]
    fixed_s, per_sample_s, floor_s = lines[best if is_flat else 0]
    spread = [
        np.log(np.asarray(seconds) / medians[size]) for size, seconds in steps.items() if seconds
    ]
    sigma = float(np.sqrt(np.mean(np.concatenate(spread) ** 2)))
    return StepTimes(
        seconds=medians,
        fixed_s=fixed_s,
        per_sample_s=per_sample_s,
        floor_s=floor_s,
        sigma=sigma,
        max_batch=max_batch,
    )


def _line(
    medians: Mapping[int, float], rising: Sequence[int], flat: Sequence[int]
) -> tuple[float, float, float]:
    """Fit a line to the rising sizes; the floor is the mean of the flat ones."""
    seconds = np.array([medians[size] for size in rising])
    matrix = np.stack([np.ones(len(rising)), np.array(rising)], axis=1) / seconds[:, None]
    (fixed_s, per_sample_s), _ = nnls(matrix, np.ones(len(rising)))
    floor_s = mean(medians[size] for size in flat) if flat else 0.0
    return float(fixed_s), float(per_sample_s), floor_s


def _error(
    medians: Mapping[int, float], fixed_s: float, per_sample_s: float, floor_s: float
) -> float:
    return sum(
        (max(floor_s, fixed_s + per_sample_s * size) / seconds - 1) ** 2
        for size, seconds in medians.items()
    )


def describe(name: str, times: StepTimes) -> Iterator[str]:
    measured = ", ".join(f"{size}: {1000 * s:.3g}" for size, s in times.seconds.items())
    floor = f", at least {1000 * times.floor_s:.3g} ms" if times.floor_s else ""
    yield (
        f"{name}: a step takes {1000 * times.fixed_s:.3g} ms + {1000 * times.per_sample_s:.3g} ms a"
        f" sample{floor} (ms by batch size: {measured}); it varies by {100 * times.sigma:.2g} %"
    )
    if times.max_batch is not None:
        yield f"{name}: the largest batch that fits has {times.max_batch} samples"
