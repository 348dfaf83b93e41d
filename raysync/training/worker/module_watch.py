"""Notices what a module begins to change only after the trial before the run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from raysync.errors import ConfigError

FIRST_STEPS, EVERY = 8, 50  # the list of parameters is looked at in the first, then now and then


class ModuleWatch:
    """The parameters of a module as the run began.

    Versions and `requires_grad` are read in each step, which takes microseconds. A worker writes
    weights into a vector that the parameters view, so that their versions count the module's own
    changes alone.
    """

    def __init__(self, module: nn.Module, moved: Collection[str]) -> None:
        self._module, self._steps = module, 0
        named = dict(module.named_parameters())
        self._names, self._parameters = list(named), list(named.values())
        self._still = [parameter for name, parameter in named.items() if name not in moved]
        self._still_names = [name for name in named if name not in moved]
        self._required = self._read_required()
        self._versions = self._read_versions()

    def _read_required(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]

    def _read_versions(self) -> list[int]:
        return [parameter._version for parameter in self._still]

    def check(self) -> None:
        """Raise `ConfigError` with the name of a parameter that began to change in this step."""
        self._steps += 1
        if (required := self._read_required()) != self._required:
            index = _first_difference(required, self._required)
            what = "begins to require a gradient" if required[index] else "is frozen"
            raise self._error(self._names[index], what)
        if (versions := self._read_versions()) != self._versions:
            index = _first_difference(versions, self._versions)
            raise self._error(self._still_names[index], "is changed in place by the model")
        if self._steps <= FIRST_STEPS or self._steps % EVERY == 0:
            known = set(self._names)
            for name, _ in self._module.named_parameters():
                if name not in known:
                    raise self._error(name, "comes into being")

    def _error(self, name: str, what: str) -> ConfigError:
        return ConfigError(
            f"model: its parameter {name!r} {what} in training step {self._steps} of a worker:"
            " what is trained and what travels must be the same from the first step on. Do it in"
            " build_model, in __init__ or in train()."
        )


def _first_difference(now: list[Any], before: list[Any]) -> int:
    pairs = enumerate(zip(now, before, strict=True))
    return next(index for index, (one, other) in pairs if one != other)
