"""What a module and its task keep beside the tensors that travel: it belongs to one worker.

A process of Ray serves one worker. In virtual time one module serves all workers in turn, and gets
the attributes of each before its step. Only what the trial saw changing, and plain values of the
user's classes, are kept for each worker.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from raysync.training.models.attributes import attributes_of
from raysync.training.task import Task
from raysync.training.vectors.module_state import ModuleState

PLAIN = (bool, int, float, str, type(None))
# packages whose modules keep no counts of their own, and have many plain settings
LIBRARIES = ("torch", "torchvision", "timm", "transformers", "peft", "raysync")
# the attributes of an object, and the name of one
AttributePlace = tuple[MutableMapping[str, Any], str]
Values = list[Any]  # of each place


class ABSENT:
    """In place of an attribute that there is not; a copy of a class is itself."""


class OwnState:
    """The places of such attributes in the replicas of a computation, and their initial values."""

    def __init__(self, modules: Sequence[nn.Module], task: Task, found: ModuleState) -> None:
        self._places: list[AttributePlace] = []
        for module in modules:
            self._places += _places(module, found.own)
        self._places += [(vars(task), name) for name in found.of_task]
        self._places += _plain_places(task)
        self._initial = copied(self._read())

    @contextmanager
    def of(self, values: Values | None) -> Iterator[Values]:
        """Give the modules the values of a worker, if any, and return what the block leaves."""
        left: Values = []
        if not self._places:
            yield left
            return
        outside = self._read()  # an evaluation has the task's, too
        self._write(copied(self._initial) if values is None else values)
        try:
            yield left
        finally:
            left += self._read()
            self._write(outside)

    def _read(self) -> Values:
        return [attributes.get(name, ABSENT) for attributes, name in self._places]

    def _write(self, values: Values) -> None:
        for (attributes, name), value in zip(self._places, values, strict=True):
            if value is ABSENT:
                attributes.pop(name, None)
            else:
                attributes[name] = value

    def plain(self, values: Values | None) -> dict[str, Any]:
        """Return the values that a checkpoint can hold, by number of their place."""
        return {
            str(index): value.detach() if isinstance(value, Tensor) else value
            for index, value in enumerate(values or [])
            if isinstance(value, (*PLAIN, Tensor))
        }

    def from_plain(self, saved: dict[str, Any]) -> Values:
        """Return the values of a checkpoint, with initial ones for what it could not hold."""
        return [saved.get(str(index), value) for index, value in enumerate(copied(self._initial))]


def copied(values: Values) -> Values:
    """Copy the values of a worker; a hidden state is cut off from the passes that made it."""
    return [_copied(value) for value in values]


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return deepcopy(value)


def _places(module: nn.Module, own: Sequence[str]) -> Iterator[AttributePlace]:
    for path, part in module.named_modules():
        attributes, prefix = attributes_of(part), f"{path}." if path else ""
        for name in own:
            head, _, attribute = name.rpartition(".")
            if head == path:
                buffers = part._buffers
                yield (buffers if attribute in buffers else attributes), attribute
        yield from (place for place in _plain_places(part) if f"{prefix}{place[1]}" not in own)


def _plain_places(owner: object) -> Iterator[AttributePlace]:
    """Yield the plain attributes of an object of the user's class."""
    if type(owner).__module__.partition(".")[0] in LIBRARIES:
        return
    attributes = vars(owner)
    for name, value in attributes.items():
        if isinstance(value, PLAIN) and name != "training":
            yield attributes, name
