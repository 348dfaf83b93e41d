"""Imports optional packages, and calls a user's code that makes data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

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
