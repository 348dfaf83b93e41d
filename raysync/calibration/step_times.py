"""Measure what a group's worker takes for a batch, at several sizes: in its own place, on its own
device, in its own precision.

    seconds(b) = max(floor_s, fixed_s + per_sample_s b)

The line is fitted to the medians by least squares of relative errors, with coefficients that are
not negative (`scipy.optimize.nnls`). A GPU takes the same time for all small batches: as many of
the smallest sizes are taken for the floor as makes the fit better by a half, if any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from tempfile import TemporaryDirectory

import numpy as np
from scipy.optimize import nnls

from raysync.config import Experiment, Jitter, ParadigmChoice, WorkerGroup
from raysync.config.update import EvaluationPlan, Workload
from raysync.errors import ConfigError, RunFailed
from raysync.running.engines import Engine
from raysync.running.run import run_in
from raysync.training.preparation import TrainingPlan, prepare

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The batch sizes that are measured, in that of the group."""
WARM, STEPS = 3, 17
"""The first steps, which do not count, and those that do."""
BETTER = 0.5
"""A floor must leave at most this share of the error of the line alone."""
TOLERATED = 0.02
"""The relative error of the line alone that needs no floor."""
OUT_OF_MEMORY = "out of memory"
CLOSE = 1.1
"""The search for the most samples ends where the least that failed is at most this many times the
most that did not."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a worker takes for a batch."""

    seconds: Mapping[int, float]
    """Batch size -> the median of its steps."""
    fixed_s: float
    per_sample_s: float
    floor_s: float
    sigma: float
    """The spread: the standard deviation of the logarithm of a step's time."""
    max_batch: int | None = None
    """The largest batch whose step did not fail for want of memory; None: it was not looked for."""

    def at(self, size: int) -> float:
        """Return the fitted seconds of a batch."""
        return max(self.floor_s, self.fixed_s + self.per_sample_s * size)


def fitted(steps: Mapping[int, Sequence[float]], max_batch: int | None = None) -> StepTimes:
    """Fit what a worker takes to the seconds of its steps, by batch size."""
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
    """Fit the fixed time and that of a sample to the rising sizes; the floor is that of the flat
    ones.
    """
    seconds = np.array([medians[size] for size in rising])
    matrix = np.stack([np.ones(len(rising)), np.array(rising)], axis=1) / seconds[:, None]
    (fixed_s, per_sample_s), _ = nnls(matrix, np.ones(len(rising)))
    floor_s = mean(medians[size] for size in flat) if flat else 0.0
    return float(fixed_s), float(per_sample_s), floor_s


def _error(
    medians: Mapping[int, float], fixed_s: float, per_sample_s: float, floor_s: float
) -> float:
    """Return the sum of squares of relative errors."""
    return sum(
        (max(floor_s, fixed_s + per_sample_s * size) / seconds - 1) ** 2
        for size, seconds in medians.items()
    )


def sizes_of(batch_size: int, group: WorkerGroup, train_samples: int) -> list[int]:
    """Return the batch sizes to measure, rising: about five around that of the group."""
    most = min(train_samples, group.max_batch or train_samples)
    sizes = {max(group.devices, min(most, round(batch_size * factor))) for factor in FACTORS}
    return sorted(sizes)


def step_times(engine: Engine, training: TrainingPlan, group: WorkerGroup) -> StepTimes:
    """Measure a group's steps.

    Raises:
        ConfigError: it has GPUs, and this torch sees none; or no batch fits into its memory.
    """
    samples = sum(len(shard) for shard in training.shards.values())
    batch_size = group.batch_size or training.experiment.batch_size
    sizes = sizes_of(batch_size, group, samples)
    steps, failed = {}, None
    for size in sizes:
        seconds = _steps(engine, training.experiment, group, size)
        if seconds is None:
            failed = size
            break
        steps[size] = seconds
    if not steps:
        raise ConfigError(
            f"workers: {group.name}: a batch of {sizes[0]} does not fit into its memory; give the"
            " group a smaller batch_size."
        )
    most = None
    if group.gpus or failed is not None:
        most = _most(engine, training.experiment, group, max(steps), failed, samples)
    return fitted(steps, most)


def _most(
    engine: Engine,
    experiment: Experiment,
    group: WorkerGroup,
    fits: int,
    failed: int | None,
    samples: int,
) -> int:
    """Find the largest batch that fits, by doubling and halving; the whole training set is the
    most that is tried.
    """
    while failed is None and fits < samples:
        size = min(2 * fits, samples)
        if _steps(engine, experiment, group, size, count=1) is None:
            failed = size
        else:
            fits = size
    while failed is not None and failed > CLOSE * fits and failed - fits > 1:
        size = (fits + failed) // 2
        if _steps(engine, experiment, group, size, count=1) is None:
            failed = size
        else:
            fits = size
    return fits


def _steps(
    engine: Engine, experiment: Experiment, group: WorkerGroup, size: int, count: int = STEPS
) -> list[float] | None:
    """Return the seconds of the steps of one worker of a group; None if its memory is too small."""
    with TemporaryDirectory() as folder:
        described = _alone(experiment, group, size, WARM + count, folder)
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
            f" ({place.address}) sees no GPU: the times would be those of the CPU. Install a build"
            " of torch for its GPUs there."
        )


def _alone(
    experiment: Experiment, group: WorkerGroup, size: int, iterations: int, folder: str
) -> Experiment:
    """Return the experiment with one worker of a group, which emulates nothing."""
    silent = {
        "step_s": None,
        "per_sample_s": None,
        "fixed_s": 0.0,
        "floor_s": 0.0,
        "flops_per_s": None,
        "trace": (),
        "speed": 1.0,
        "jitter": Jitter(),
    }
    worker = group.model_copy(update={**silent, "count": 1, "batch_size": size})
    plain = {
        "workers": (worker,),
        "paradigm": ParadigmChoice(name="asp"),
        "batch_size": size,
        "workload": Workload(iterations_per_worker=iterations),
        "evaluation": EvaluationPlan(marks=1, samples=size),
        "cluster": experiment.cluster.model_copy(update={"min_workers": 1, "metrics": False}),
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
    return experiment.model_copy(update=plain)


def describe(name: str, times: StepTimes) -> Iterator[str]:
    """Yield what a person should read of a group's steps."""
    measured = ", ".join(f"{size}: {1000 * s:.3g}" for size, s in times.seconds.items())
    floor = f", at least {1000 * times.floor_s:.3g} ms" if times.floor_s else ""
    yield (
        f"{name}: a step takes {1000 * times.fixed_s:.3g} ms + {1000 * times.per_sample_s:.3g} ms a"
        f" sample{floor} (ms by batch size: {measured}); it varies by {100 * times.sigma:.2g} %"
    )
    if times.max_batch is not None:
        yield f"{name}: the largest batch that fits has {times.max_batch} samples"
