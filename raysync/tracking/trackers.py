"""Make the trackers that an experiment names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from raysync.config import Experiment, Named
from raysync.errors import ConfigError, unknown_name
from raysync.tracking.library import OURS
from raysync.tracking.mlflow_run import ARGUMENTS as OF_MLFLOW
from raysync.tracking.process import LibraryProcess
from raysync.tracking.tracker import Tracker

OF_TENSORBOARD = "tensorboard"
OF_RUN = ("config",)
"""Arguments of a library's `init` that a run sets."""


def check_trackers(experiment: Experiment) -> None:
    """Refuse trackers that cannot work.

    Raises:
        ConfigError: a package is not installed, or an argument does not exist.
    """
    for index, choice in enumerate(experiment.track):
        where = f"track[{index}] {choice.name}"
        if choice.name != OF_TENSORBOARD and not _is_installed(choice.name):
            raise ConfigError(
                f"{where}: the package {choice.name} is not installed: pip install"
                f" 'raysync[{choice.name}]'."
            )
        for name in OURS:
            if not isinstance(choice.parameters.get(name, True), bool):
                raise ConfigError(f"{where}: {name} must be true or false.")
        unknown = [name for name in choice.parameters if name not in OURS]
        if choice.name == OF_TENSORBOARD and choice.parameters:
            raise ConfigError(
                f"{where}: it takes no arguments, got {', '.join(choice.parameters)}."
            )
        if not unknown:
            continue
        allowed = _arguments(choice)
        for name in unknown:
            if name not in allowed:
                raise unknown_name("argument", name, allowed, where=where)


def _is_installed(package: str) -> bool:
    spec = find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


def _arguments(choice: Named) -> tuple[str, ...]:
    if choice.name == "mlflow":
        return (*OF_MLFLOW, *OURS)
    names = inspect.signature(import_module(choice.name).init).parameters
    return tuple(name for name in (*names, *OURS) if name not in OF_RUN)


def trackers_of(experiment: Experiment, notify: Callable[[str], None]) -> list[Tracker]:
    """Make the trackers of a run.

    Args:
        experiment: names them.
        notify: receives sentences that the user should read.

    Raises:
        ConfigError: see `check_trackers`.
    """
    check_trackers(experiment)
    return [_tracker(choice, notify) for choice in experiment.track]


def _tracker(choice: Named, notify: Callable[[str], None]) -> Tracker:
    if choice.name != OF_TENSORBOARD:
        return Tracker(choice.name, LibraryProcess(choice.name, choice.parameters, notify))
    from raysync.tracking.tensorboard import EventFile  # tensorboardX is slow to import

    return Tracker(choice.name, EventFile())
