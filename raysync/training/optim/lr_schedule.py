"""Learning rate and momentum as functions of progress: equal for all paradigms at equal work."""

from __future__ import annotations

from math import cos, pi, sqrt

from raysync.config import Local, Update
from raysync.core.paradigm import AnyParadigm


def learning_rate(update: Update, progress: float, version: int) -> float:
    """Return the learning rate of one push, before the scale for the number of pushes.

    Args:
        progress: samples applied before this update / samples of the workload.
        version: updates applied before this one.
    """
    schedule, progress = update.schedule, min(progress, 1.0)
    factor = 1.0
    match schedule.name:
        case "milestones":
            factor = schedule.factor ** sum(
                progress >= milestone for milestone in schedule.milestones
            )
        case "cosine":
            begin = schedule.warmup
            factor = (1 + cos(pi * max(0.0, progress - begin) / (1 - begin))) / 2
        case "inverse-sqrt":
            factor = 1 / sqrt(version + 1)
    if progress < schedule.warmup:
        factor *= progress / schedule.warmup
    return update.lr * factor


def rate_factor(update: Update, pushes: int, workers: int) -> float:
    """Return the factor of `lr_scaling`."""
    if update.lr_scaling == "inverse-root":
        # sqrt(K) / K in the program of Liu et al. 2024, async local SGD (arXiv:2401.09135)
        return 1 / sqrt(workers)
    return pushes if update.lr_scaling == "linear" else 1


def momentum(update: Update, since: float) -> float:
    """Return the momentum at the progress `since` the phase began."""
    ramp, full = update.momentum_ramp, update.momentum
    if ramp is None or since >= ramp.over:
        return full
    fraction = since / ramp.over
    if ramp.name == "linear":
        return ramp.start + (full - ramp.start) * fraction
    return ramp.start * float((full / ramp.start) ** fraction)


def rate_in_force(update: Update, paradigm: AnyParadigm, workers: int) -> str:
    """Describe each phase's rate, such as `lr: 0.01 x 3 = 0.03 (lr_scaling: linear)`, and the
    schedule.
    """
    rates = {
        phase: _scaled_rate(
            update.in_phase(phase), paradigm.pushes_per_update(workers, phase), workers
        )
        for phase in paradigm.phases()
    }
    if len(set(rates.values())) == 1:
        rates = {"": next(iter(rates.values()))}
    parts = [f"lr in {phase}: {rate}" if phase else f"lr: {rate}" for phase, rate in rates.items()]
    if update.schedule.name != "constant":
        parts.append(f"schedule: {update.schedule.name}")
    if update.schedule.warmup:
        parts.append(f"warmup: {update.schedule.warmup:g}")
    return ", ".join(parts)


def _scaled_rate(update: Update, pushes: int | None, workers: int) -> str:
    """Describe a learning rate; `pushes` of an update: None if their number varies."""
    if update.lr_scaling == "inverse-root" and workers > 1:
        rate = update.lr * rate_factor(update, pushes or 1, workers)
        return f"{update.lr:g} / sqrt({workers}) = {rate:g} (lr_scaling: inverse-root)"
    if update.lr_scaling != "linear" or pushes == 1:
        return f"{update.lr:g}"
    if pushes is None:
        return f"{update.lr:g} x the pushes of each update, which vary (lr_scaling: linear)"
    return f"{update.lr:g} x {pushes} = {pushes * update.lr:g} (lr_scaling: linear)"


def local_rate(local: Local, most: int) -> str:
    """Describe local steps, `most` a push: `local: 8 steps of sgd at lr 0.1`."""
    steps = f"{most} steps" if most > 1 else "steps"
    schedule = "" if local.schedule.name == "constant" else f", schedule: {local.schedule.name}"
    return f"local: {steps} of {local.optimizer.name} at lr {local.lr:g}{schedule}"
