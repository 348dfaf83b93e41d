"""Notices what a module changes in a step although it did not in the trial before the run."""

from __future__ import annotations

from collections.abc import Collection

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
        named = list(module.named_parameters())
        self._names = {name for name, _ in named}
        self._parameters = [
            (name, parameter, parameter.requires_grad, name in moved) for name, parameter in named
        ]
        self._versions = self._read()

    def _read(self) -> list[int]:
        return [
            -1 if is_moved else parameter._version for _, parameter, _, is_moved in self._parameters
        ]

    def check(self) -> None:
        """Raise `ConfigError` with the name of a parameter that began to change in this step."""
        self._steps += 1
        for name, parameter, required, _ in self._parameters:
            if parameter.requires_grad != required:
                what = "begins to require a gradient" if not required else "is frozen"
                raise self._error(name, what)
        if (versions := self._read()) != self._versions:
            index = next(i for i, version in enumerate(versions) if version != self._versions[i])
            raise self._error(self._parameters[index][0], "is changed in place by the model")
        if self._steps <= FIRST_STEPS or self._steps % EVERY == 0:
            for name, _ in self._module.named_parameters():
                if name not in self._names:
                    raise self._error(name, "comes into being")

    def _error(self, name: str, what: str) -> ConfigError:
        return ConfigError(
            f"model: its parameter {name!r} {what} in training step {self._steps} of a worker:"
            " what is trained and what travels must be the same from the first step on. Do it in"
            " build_model, in __init__ or in train()."
        )
