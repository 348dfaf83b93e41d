"""Collects a LightningModule's logged values and torchmetrics objects, without a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from raysync.training.task import Average, is_torchmetric

MEANS = ("mean", "avg")


@contextmanager
def logged_values(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Collect values for `Task.metrics` that a LightningModule logs, except of single steps."""
    values: dict[str, Any] = {}

    def log(
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        *_: Any,
        batch_size: int | None = None,
        **__: Any,
    ) -> None:
        if on_epoch is not False:
            values[name] = _metric(name, value, reduce_fx, batch_size)

    with _replaced_log(module, log):
        yield values


@contextmanager
def nothing_logged(module: nn.Module) -> Iterator[None]:
    with _replaced_log(module, lambda *_, **__: None):
        yield


@contextmanager
def _replaced_log(module: nn.Module, log: Callable[..., None]) -> Iterator[None]:
    """Give a module, and those inside it, another `log` within the block."""
    # lightning's `log` would warn, and do nothing, without a Trainer; `log_dict` calls `log`
    loggers = [part for part in module.modules() if hasattr(part, "log_dict")]
    for logger in loggers:
        logger.__dict__["log"] = log
    try:
        yield
    finally:
        for logger in loggers:
            del logger.__dict__["log"]


def _metric(name: str, value: Any, reduction: Any, batch_size: int | None) -> Any:
    """Return a value as `Task.metrics` does: weighted by samples, or by `batch_size`."""
    if is_torchmetric(value):
        return value
    if str(getattr(reduction, "__name__", reduction)).lower() not in MEANS:
        raise ValueError(
            f"self.log({name!r}, reduce_fx={reduction!r}): only means are taken over; log an object"
            " of torchmetrics, such as SumMetric, instead"
        )
    number = float(value)
    return number if batch_size is None else Average(number * batch_size, batch_size)


@contextmanager
def metrics_untouched(module: nn.Module) -> Iterator[None]:
    """Restore the torchmetrics objects of a module after the block."""
    # the values that `training_step` adds would grow without end, and count in evaluations
    metrics = [part for part in module.modules() if hasattr(part, "metric_state")]
    before = [_copied(metric.metric_state) for metric in metrics]
    try:
        yield
    finally:
        for metric, state in zip(metrics, before, strict=True):
            for name, value in state.items():
                setattr(metric, name, value)


def _copied(state: Any) -> Mapping[str, Any]:
    return {
        name: value.clone() if isinstance(value, Tensor) else list(value)
        for name, value in state.items()
    }
