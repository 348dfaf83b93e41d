"""Imports optional packages, and reads settings and calls code of the tasks that use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from raysync.errors import ConfigError
from raysync.randomness import hashed_seed
from raysync.training.data.batch_reader import generators_restored, seed_generators


def require(module: str, extra: str, where: str) -> ModuleType:
    """Import a module of an optional package, or raise a ConfigError that names the extra."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise  # a package that it needs is missing: its own message says more
        raise ConfigError(
            f"{where}: the package {package} is not installed: pip install 'raysync[{extra}]'."
        ) from error


@contextmanager
def alike_in_all_processes() -> Iterator[None]:
    """Seed the global generators within the block, so that random splits agree in all processes."""
    with generators_restored():
        seed_generators(hashed_seed(0, "data of a task"))
        yield


def mapping_of(value: object, where: str, what: str = "settings") -> dict[str, Any]:
    """Return `{name: value, ...}` in a task's settings as a dict; refuse all but it and None."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{where}: must be {what}, {{name: value, ...}}; got {value!r:.80}.")
    return dict(value or {})
