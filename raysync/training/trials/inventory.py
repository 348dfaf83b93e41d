"""An inventory of a module and its task, to see what training steps change in them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysync.errors import ConfigError
from raysync.training.models.attributes import attributes_of
from raysync.training.task import Task, is_torchmetric
from raysync.training.vectors.buffers import check_buffers, persistent_buffers
from raysync.training.vectors.module_state import ModuleState

INTERNAL = ("_parameters", "_buffers", "_modules", "training")


class Inventory:
    """Every tensor, parameter, flag and attribute of a module, and the attributes of its task."""

    def __init__(self, module: nn.Module, task: Task) -> None:
        self._module, self._task = module, task
        self._parameters = named = dict(module.named_parameters())
        self._required = {name: parameter.requires_grad for name, parameter in named.items()}
        self._versions = {name: parameter._version for name, parameter in named.items()}
        self._values = {name: parameter.detach().clone() for name, parameter in named.items()}
        self._moved: dict[str, None] = {}
        self._buffers = list(persistent_buffers(module))
        travelling = {each.name for each in self._buffers}
        self._local_buffers = {
            name: buffer.clone()
            for name, buffer in module.named_buffers()
            if name not in travelling and isinstance(buffer, Tensor)
        }
        self._attributes = _copied(_attributes(module))
        self._of_task = _copied(_attributes_of(task))

    def refuse_foreign(self, loss: Tensor) -> None:
        """Refuse a loss with trainable weights that do not belong to the model."""
        # a model that is cut into stages may have parts in `sequence` alone
        parts = [self._module, *getattr(self._module, "sequence", ())]
        modules = [part for part in parts if isinstance(part, nn.Module)]
        own = {id(each) for module in modules for each in module.parameters()}
        for leaf in _leaves(loss):
            if isinstance(leaf, nn.Parameter) and id(leaf) not in own:
                where = _place_in(self._task, leaf) or f"a parameter of shape {tuple(leaf.shape)}"
                raise ConfigError(
                    f"task {self._task.name}: the loss has trainable weights that are not the"
                    f" model's: {where}. They would not be trained: make them a part of the module"
                    " that build_model returns, or set their requires_grad to False."
                )

    def take_weights(self) -> None:
        """Count the present values of trained parameters as their values before the next step."""
        for name, parameter in self._parameters.items():
            if self._required[name]:
                self._values[name] = parameter.detach().clone()

    @property
    def found(self) -> ModuleState:
        """What belongs to the state of the model, of a worker and of its task."""
        own, of_task = self._own(), self._changed_of_task()
        return ModuleState(moved=tuple(self._moved), own=tuple(own), of_task=tuple(of_task))

    def restore_task(self) -> None:
        """Give the task the attributes back that the steps have changed."""
        attributes = vars(self._task)
        for name in [*self._changed_of_task()]:
            if name in self._of_task:
                attributes[name] = self._of_task[name]
            else:
                del attributes[name]

    def compare(self) -> None:
        """Note which parameters a step has moved; refuse what cannot be carried, by name."""
        check_buffers(self._module, self._buffers)
        now = dict(self._module.named_parameters())
        for name, parameter in now.items():
            if name not in self._parameters:
                raise _refusal(name, "comes into being in a forward pass", "build it in __init__")
            if parameter is not self._parameters[name]:
                raise _refusal(name, "is replaced in a training step", "change its data instead")
            if parameter.requires_grad != self._required[name]:
                what = "begins" if parameter.requires_grad else "ceases"
                raise _refusal(
                    name, f"{what} to require a gradient in a step", "do so in __init__ or train()"
                )
        if missing := self._parameters.keys() - now.keys():
            raise _refusal(min(missing), "is removed in a training step", "keep it")
        changed = [name for name in now if self._is_changed(name)]
        for name in changed:
            if self._required[name]:
                raise _refusal(
                    name,
                    "is changed by the training step itself (an embedding's max_norm, an average,"
                    " or an optimizer in a hook)",
                    "only the server changes what is trained; change a copy in the forward pass",
                )
        self._moved |= dict.fromkeys(changed)

    def _is_changed(self, name: str) -> bool:
        parameter = self._parameters[name]
        is_written = parameter._version != self._versions[name]
        return is_written or not is_equal(parameter.detach(), self._values[name])

    def _own(self) -> Iterator[str]:
        """Yield the attributes, and the buffers that do not travel, that steps have changed."""
        for name, buffer in self._module.named_buffers():
            before = self._local_buffers.get(name)
            if before is not None and not is_equal(buffer, before):
                yield name
        yield from _changes(self._attributes, dict(_attributes(self._module)))

    def _changed_of_task(self) -> Iterator[str]:
        yield from _changes(self._of_task, dict(_attributes_of(self._task)))


def _refusal(name: str, what: str, instead: str) -> ConfigError:
    return ConfigError(f"model: its parameter {name!r} {what}, which cannot be carried: {instead}.")


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, part in module.named_modules():
        if is_torchmetric(part):
            continue
        for name, value in attributes_of(part).items():
            if name not in INTERNAL and not name.endswith("_hooks"):
                yield (f"{path}.{name}" if path else name), value


def _attributes_of(task: Task) -> Iterator[tuple[str, Any]]:
    for name, value in vars(task).items():
        if not isinstance(value, nn.Module):
            yield name, value


def _copied(attributes: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Copy what can be compared later; large and foreign objects count by their identity."""
    copied = {}
    for name, value in attributes:
        try:
            copied[name] = deepcopy(value) if _is_data(value) else value
        except Exception:  # an object of the user's that cannot be copied
            copied[name] = value
    return copied


def _is_data(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        return all(map(_is_data, value))
    if isinstance(value, dict):
        return all(map(_is_data, value.values()))
    return isinstance(value, (bool, int, float, str, bytes, Tensor, type(None))) and not isinstance(
        value, nn.Parameter
    )


def _changes(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name, value in now.items():
        if name not in before or not is_equal(value, before[name]):
            yield name


def is_equal(one: Any, other: Any) -> bool:
    """Compare data of tensors, arrays, numbers and texts; other objects by `==`."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return one is other or bool(torch.equal(one, other)) or _equal_with_nan(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    try:
        return one is other or bool(np.all(one == other))
    except Exception:  # objects that do not compare
        return False


def _equal_with_nan(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return False
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the tensors whose gradients a backward pass would accumulate."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            yield variable
        waiting += [inner for inner, _ in node.next_functions]


def _place_in(task: Task, parameter: nn.Parameter) -> str:
    """Name an attribute of the task that has a parameter; "": none has."""
    for attribute, value in vars(task).items():
        if value is parameter:
            return attribute
        if isinstance(value, nn.Module):
            for name, candidate in value.named_parameters():
                if candidate is parameter:
                    return f"{attribute}.{name}"
    return ""
