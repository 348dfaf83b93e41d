"""Translates a LightningModule's `configure_optimizers` to settings of `update`."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable
from math import isclose
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from raysync.config import Update
from raysync.errors import ConfigError
from raysync.training.optim.optimizers import SETTINGS

# arguments that choose another implementation of the same computation
SAME_RESULT = ("foreach", "fused", "capturable", "differentiable")
EPOCHS_TOLERANCE = 1e-6  # relative: a workload in samples or iterations makes a fraction of epochs


def update_of(
    where: str, configured: Any, model: nn.Module, given: Collection[str], epochs: float
) -> dict[str, Any]:
    """Translate the result of `configure_optimizers`.

    Args:
        where: the task, for errors.
        configured: an optimizer; a list with one; both with schedulers, as a tuple or a dict.
        model: its trainable parameters must all be in the optimizer.
        given: the settings of `update` in the experiment file; `optimizer` and `schedule` among
            them are not translated.
        epochs: the passes over the training set in the workload, for schedules.

    Raises:
        ConfigError: something has no equivalent; the message names the setting that replaces it.
    """
    optimizers, schedulers = _parts(configured)
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer):
        got = f"{len(optimizers)} optimizers" if optimizers else f"{configured!r:.80}"
        raise ConfigError(
            f"{where}: configure_optimizers must return one optimizer, got {got}: the server makes"
            " one update of all parameters."
        )
    settings: dict[str, Any] = {}
    if "optimizer" not in given:
        settings |= _optimizer(where, optimizers[0], model)
    if "schedule" not in given and schedulers:
        settings |= {"schedule": _schedule(where, schedulers, epochs)}
    return settings


def _parts(configured: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return optimizers, and schedulers as dicts, in the forms that Lightning documents."""
    if isinstance(configured, dict):
        configured = [configured]
    if isinstance(configured, Optimizer):
        return [configured], []
    if not isinstance(configured, list | tuple):
        return [], []
    if len(configured) == 2 and isinstance(configured[0], list):
        optimizers, schedulers = configured
        schedulers = schedulers if isinstance(schedulers, list) else [schedulers]
    elif configured and all(isinstance(part, dict) for part in configured):
        optimizers = [part.get("optimizer") for part in configured]
        schedulers = [part["lr_scheduler"] for part in configured if "lr_scheduler" in part]
    else:
        optimizers, schedulers = list(configured), []
    return optimizers, [
        scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}
        for scheduler in schedulers
    ]


def _optimizer(where: str, optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    _check_parameters(where, optimizer, model)
    kind = type(optimizer)
    instead = "Name update.optimizer in the experiment file to train with that one instead."
    first, *others = [_arguments(group) for group in optimizer.param_groups]
    if any(other != first for other in others):
        raise ConfigError(
            f"{where}: the parameter groups of configure_optimizers have different settings."
            f" {instead}"
        )
    defaults = inspect.signature(kind).parameters
    settings, arguments = {}, {}
    for name, value in first.items():  # without those that are the default here, too
        class_default = defaults[name].default if name in defaults else None
        if name not in SETTINGS:
            if name in defaults and value != class_default:
                arguments[name] = value
            continue
        own_default = Update.model_fields[name].default
        if name == "lr" or value != (class_default if own_default is None else own_default):
            settings[name] = value
    name = _name_of(kind)
    return {"optimizer": {"name": name, **arguments} if arguments else name, **settings}


def _check_parameters(where: str, optimizer: Optimizer, model: nn.Module) -> None:
    """Raise a `ConfigError` if an optimizer leaves out trainable parameters of a model."""
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if left := [name for name, p in trainable.items() if id(p) not in optimized]:
        raise ConfigError(
            f"{where}: configure_optimizers leaves out {len(left)} of {len(trainable)} trainable"
            f" parameters ({left[0]}, ...); set their requires_grad to False."
        )


def _name_of(kind: type[Optimizer]) -> str:
    """Return the name of a class in `update.optimizer`."""
    is_of_torch = getattr(torch.optim, kind.__name__, None) is kind
    return kind.__name__.lower() if is_of_torch else f"{kind.__module__}:{kind.__qualname__}"


def _arguments(group: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a parameter group, with the learning rate before any schedule."""
    lr = {"lr": float(group.get("initial_lr", group["lr"]))}
    return {
        name: value
        for name, value in (group | lr).items()
        if name not in ("params", "initial_lr", *SAME_RESULT)
    }


def _schedule(where: str, schedulers: list[dict[str, Any]], epochs: float) -> dict[str, Any]:
    first = schedulers[0]
    name = type(first.get("scheduler")).__name__
    instead = "Name update.schedule in the experiment file to train with that one instead."
    if len(schedulers) > 1:
        raise ConfigError(f"{where}: it has {len(schedulers)} learning-rate schedulers. {instead}")
    interval, frequency = first.get("interval", "epoch"), first.get("frequency", 1)
    if interval != "epoch" or frequency != 1:
        every = interval if frequency == 1 else f"{frequency} {interval}s"
        raise ConfigError(
            f"{where}: {name} changes the learning rate every {every}; only a change every epoch"
            f" has an equivalent, since the number of updates depends on the paradigm. {instead}"
        )
    scheduler: Any = first.get("scheduler")
    kind = type(scheduler)  # a class derived from one of these may do something else
    if kind is lr_scheduler.MultiStepLR:
        return _milestones(sorted(scheduler.milestones.elements()), scheduler.gamma, epochs)
    if kind is lr_scheduler.StepLR:
        size = scheduler.step_size
        return _milestones(range(size, int(epochs) + 1, size), scheduler.gamma, epochs)
    if kind is lr_scheduler.CosineAnnealingLR:
        if scheduler.eta_min == 0 and isclose(scheduler.T_max, epochs, rel_tol=EPOCHS_TOLERANCE):
            return {"name": "cosine"}
        raise ConfigError(
            f"{where}: CosineAnnealingLR(T_max={scheduler.T_max}, eta_min={scheduler.eta_min}) has"
            f" an equivalent if T_max is the workload's {epochs:g} epochs and eta_min is 0."
            f" {instead}"
        )
    raise ConfigError(
        f"{where}: {name} has no equivalent; MultiStepLR, StepLR and CosineAnnealingLR have one."
        f" {instead}"
    )


def _milestones(at: Iterable[int], factor: float, epochs: float) -> dict[str, Any]:
    reached = [epoch / epochs for epoch in at if epoch <= epochs]
    return {"name": "milestones", "milestones": reached, "factor": factor}
