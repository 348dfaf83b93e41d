"""Create the trackers that an experiment names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from raysync.config import Experiment, Named
from raysync.config.experiment import TRACKERS
from raysync.errors import ConfigError, unknown_name
from raysync.tracking.library import COMMON_ARGUMENTS, LibraryRun
from raysync.tracking.process import LibraryProcess
from raysync.tracking.rows import Sink
from raysync.tracking.tracker import Tracker


def check_trackers(experiment: Experiment) -> None:
    """Refuse trackers whose package is not installed or whose arguments do not exist."""
    for index, choice in enumerate(experiment.track):
        where = f"track[{index}] {choice.name}"
        kind = _class_of(choice)
        if not issubclass(kind, LibraryRun):
            if choice.parameters:
                raise ConfigError(
                    f"{where}: it takes no arguments, got {', '.join(choice.parameters)}."
                )
            continue
        if not _is_installed(choice.name):
            raise ConfigError(
                f"{where}: the package {choice.name} is not installed: pip install"
                f" 'raysync[{choice.name}]'."
            )
        for name in COMMON_ARGUMENTS:
            if not isinstance(choice.parameters.get(name, True), bool):
                raise ConfigError(f"{where}: {name} must be true or false.")
        unknown = [name for name in choice.parameters if name not in COMMON_ARGUMENTS]
        allowed = (*kind.argument_names(), *COMMON_ARGUMENTS) if unknown else ()
        for name in unknown:
            if name not in allowed:
                raise unknown_name("argument", name, allowed, where=where)


def _class_of(choice: Named) -> type[Any]:
    module, _, name = TRACKERS[choice.name].partition(":")
    kind: type[Any] = getattr(import_module(module), name)
    return kind


def _is_installed(package: str) -> bool:
    spec = find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


def trackers_of(experiment: Experiment, notify: Callable[[str], None]) -> list[Tracker]:
    """Create the trackers of a run; raise `ConfigError` like `check_trackers`."""
    check_trackers(experiment)
    return [_tracker(choice, notify) for choice in experiment.track]


def _tracker(choice: Named, notify: Callable[[str], None]) -> Tracker:
    kind = _class_of(choice)
    if issubclass(kind, LibraryRun):
        sink: Sink = LibraryProcess(TRACKERS[choice.name], choice.parameters, notify)
    else:
        sink = kind()
    return Tracker(choice.name, sink)
