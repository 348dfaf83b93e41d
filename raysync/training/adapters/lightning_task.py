"""`task: lightning:package.module:Class`: a LightningModule, as its documentation writes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset
from typing_extensions import override

from raysync.config import Update
from raysync.config.base import by_name
from raysync.core.metrics import OF_THE_TEST_SET
from raysync.errors import ConfigError
from raysync.paradigms.class_loading import call_checked, load_reference
from raysync.training.adapters.lightning_data import (
    BATCH_HOOKS,
    LOADERS,
    PACKAGES,
    Tagged,
    TaggedSamples,
    has_hook,
    parts_of,
    refuse_hooks,
    targets_of,
)
from raysync.training.adapters.lightning_log import logged_values, metrics_untouched, nothing_logged
from raysync.training.adapters.lightning_update import update_of
from raysync.training.adapters.packages import alike_in_all_processes, mapping_of, require
from raysync.training.task import Task, is_torchmetric
from raysync.users_code import users_code

# hooks that change a batch, a gradient or an update: without them another model is trained
REFUSED_HOOKS = (
    "backward",
    "clip_gradients",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "on_after_backward",
    "on_before_optimizer_step",
    "optimizer_step",
    "optimizer_zero_grad",
    *BATCH_HOOKS,
)
# names under which the loss of an evaluation is logged, if a step does not return it
LOSSES = ("val_loss", "valid_loss", "validation_loss", "val/loss", "test_loss", "test/loss")
MODES = {"min": False, "max": True}  # `metric.mode` -> whether higher is better


class LightningTask(Task):
    """A LightningModule and its data. Both are made in each process from their names."""

    def __init__(
        self,
        reference: str,
        /,
        *,
        module: Mapping[str, Any] | None = None,
        data: str | Mapping[str, Any] | None = None,
        metric: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            reference: `package.module:Class`, a LightningModule.
            module: the arguments of its constructor.
            data: `package.module:Class` of a LightningDataModule, or `{name: ..., argument: ...}`;
                None: the module's own loaders.
            metric: the primary metric as `{name: ..., mode: min}`, or `max`; None: the first logged
                one with a known direction.

        Raises:
            ConfigError: one of these does not exist, or is something else.
        """
        self._reference = reference
        self._arguments = mapping_of(module or {}, f"{self._where}: module", "arguments")
        self._data = mapping_of(by_name(data) or {}, f"{self._where}: data", "arguments")
        self._metric = _primary(metric, self._where)
        self._prepared = False
        self._module_class()
        if self._data:
            self._data_class()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_parts"}

    @property
    def _where(self) -> str:
        return f"task {self.name}"

    @property
    @override
    def name(self) -> str:
        return f"lightning:{self._reference}"

    @property
    @override
    def model_name(self) -> str:
        return self._reference.rpartition(":")[2]

    @property
    @override
    def data_name(self) -> str:
        return str(self._data.get("name", self._reference)).rpartition(":")[2]

    @property
    @override
    def primary(self) -> str:  # type: ignore[override]
        return self._metric[0] if self._metric else "loss"  # nothing has been logged yet

    @property
    @override
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self._metric[1] if self._metric else False

    @override
    def build_model(self) -> nn.Module:
        """Build the LightningModule itself; refuse manual optimization and hooks that change
        updates.
        """
        module: Any = self._create(self._module_class(), self._arguments, "module")
        if not has_hook(module, "training_step"):
            raise ConfigError(f"{self._where}: the module has no training_step.")
        if not module.automatic_optimization:
            raise ConfigError(
                f"{self._where}: it optimizes manually (automatic_optimization is False), but in"
                " raysync the server makes the updates."
            )
        refuse_hooks(REFUSED_HOOKS, module, self._where)
        with users_code(f"{self._where}: configure_model"):
            module.configure_model()
        if has_hook(module, "setup"):
            with users_code(f"{self._where}: setup"):
                module.setup("fit")
        return module  # type: ignore[no-any-return]

    def _module_class(self) -> type[Any]:
        return self._class_of(self._reference, "LightningModule")

    def _data_class(self) -> type[Any]:
        return self._class_of(self._data.get("name", ""), "LightningDataModule")

    def _class_of(self, reference: str, kind: str) -> type[Any]:
        require("lightning.pytorch", "lightning", self._where)
        found: Any = load_reference(reference, self._where)
        bases = found.mro() if isinstance(found, type) else []
        names = [base.__name__ for base in bases if base.__module__.startswith(PACKAGES)]
        if kind not in names:
            raise ConfigError(
                f"{self._where}: {reference} is no class that derives from lightning's {kind}."
            )
        return found  # type: ignore[no-any-return]

    def _create(self, kind: type[Any], arguments: Mapping[str, Any], what: str) -> Any:
        where = f"{self._where}: {what}"
        with users_code(where):
            return call_checked(kind, where, arguments, {})

    @override
    def remarks(self, model: nn.Module) -> Sequence[str]:
        """Name hooks that are not called, and the parts of loaders that are used."""
        source = self._reference if not self._data else str(self._data["name"])
        lines = [
            "raysync uses the data sets, samplers and collate functions of the loaders of"
            f" {source}; the experiment sets batch size and order."
        ]
        for part, samples in self._parts.items():
            if (selection := samples.selection) is not None:
                by = "" if selection.weights is None else ", drawn by their weights"
                count = f"{len(selection.indices):,} samples{by}"
                lines.append(f"The sampler of {LOADERS[part]} chooses {count}.")
        hooks = [name for name in dir(type(model)) if name.startswith("on_")]
        if unused := [hook for hook in hooks if has_hook(model, hook)]:
            lines.append(
                f"raysync does not call these hooks of {self._reference}: {', '.join(unused)}."
            )
        return lines

    @override
    def update(self, model: nn.Module, file: Update, epochs: float) -> Mapping[str, Any]:
        """Translate `configure_optimizers`; as under Lightning's Trainer, rates are not scaled."""
        given, scaling = file.model_fields_set, {"lr_scaling": "none"}
        if {"optimizer", "schedule"} <= given or not has_hook(model, "configure_optimizers"):
            return scaling
        with users_code(f"{self._where}: configure_optimizers (without a Trainer)"):
            configured = model.configure_optimizers()  # type: ignore[operator]
        return update_of(self._where, configured, model, given, epochs) | scaling

    @override
    def train_set(self) -> Dataset[Any]:
        return self._first_part("train")

    @override
    def sampler(self, samples: Dataset[Any]) -> Any:
        return self._first_part("train").selection

    @override
    def test_set(self) -> Dataset[Any]:
        """Return the test data, else the data for validation."""
        return self._first_part("test", "validation")

    @override
    def validation_set(self) -> Dataset[Any] | None:
        return self._parts.get("validation") if "test" in self._parts else None

    def _first_part(self, *names: str) -> TaggedSamples:
        for name in names:
            if name in self._parts:
                return self._parts[name]
        hooks = " or ".join(LOADERS[name] for name in names)
        raise ConfigError(
            f"{self._where}: there is no {hooks}; name a LightningDataModule: data:"
            " package.module:Class."
        )

    @cached_property
    def _parts(self) -> dict[str, TaggedSamples]:
        arguments = {name: value for name, value in self._data.items() if name != "name"}
        with alike_in_all_processes():
            source = (
                self._create(self._data_class(), arguments, "data")
                if self._data
                else self._create(self._module_class(), self._arguments, "module")
            )
            if not self._prepared:
                with users_code(f"{self._where}: prepare_data"):
                    source.prepare_data()
                self._prepared = True  # the other processes have its downloads, too
            return parts_of(source, self._where)

    @override
    def collate(self, samples: list[Tagged]) -> Tagged:
        part = samples[0].part
        return Tagged(part, self._parts[part].collate([sample.content for sample in samples]))

    @override
    def labels(self, samples: Dataset[Any]) -> Sequence[int]:
        targets = targets_of(samples)
        return super().labels(samples) if targets is None else targets

    @override
    def loss(self, model: nn.Module, batch: Tagged) -> Tensor:
        """Return the loss of `training_step`, and discard its logged values."""
        with nothing_logged(model), metrics_untouched(model):
            returned = _call_step(model, "training_step", batch)
        loss = _loss_in(returned)
        if loss is None:
            raise TypeError(
                "training_step must return a loss, or a dict with `loss`; got"
                f" {type(returned).__name__}"
            )
        return loss  # type: ignore[no-any-return]

    @override
    def metrics(self, model: nn.Module, batch: Tagged) -> Mapping[str, Any]:
        """Return the logged values and loss of `validation_step`, or the test set's `test_step`."""
        step = "test_step" if batch.part == "test" else "validation_step"
        step = step if has_hook(model, step) else "validation_step"
        if not has_hook(model, step):
            return {}
        with logged_values(model) as values:
            returned = _call_step(model, step, batch)
        if self._metric is None:
            self._metric = _first_directed(values)
        if "loss" not in values and (loss := _evaluated_loss(values, returned)) is not None:
            values["loss"] = loss
        if batch.part == "test" and "validation" in self._parts:
            return {name.removeprefix(OF_THE_TEST_SET): value for name, value in values.items()}
        return values


def _call_step(model: nn.Module, name: str, batch: Tagged) -> Any:
    """Call a step, with 0 for the number of the batch if it has that parameter."""
    step: Callable[..., Any] = getattr(model, name)
    count = step.__code__.co_argcount - 1 if hasattr(step, "__code__") else 2
    return step(batch.content) if count == 1 else step(batch.content, 0)


def _loss_in(returned: Any) -> Any:
    return returned.get("loss") if isinstance(returned, Mapping) else returned


def _evaluated_loss(values: Mapping[str, Any], returned: Any) -> Any:
    logged = (values[name] for name in LOSSES if name in values)
    loss = _loss_in(returned)
    return next(logged, None) if loss is None else loss


def _first_directed(values: Mapping[str, Any]) -> tuple[str, bool] | None:
    """Return the first metric with a known direction, from torchmetrics or of a loss."""
    for name, value in values.items():
        direction = getattr(value, "higher_is_better", None) if is_torchmetric(value) else None
        if direction is None and "loss" in name.lower():
            direction = False
        if direction is not None:
            return name, direction
    return None


def _primary(metric: object, where: str) -> tuple[str, bool] | None:
    if metric is None:
        return None
    if not isinstance(metric, Mapping) or set(metric) != {"name", "mode"}:
        raise ConfigError(f"{where}: metric: write {{name: NAME, mode: min}}, or max.")
    if metric["mode"] not in MODES:
        raise ConfigError(f"{where}: metric: mode: must be min or max, got {metric['mode']!r:.80}.")
    return str(metric["name"]), MODES[metric["mode"]]
