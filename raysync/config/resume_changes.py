"""What may change in an experiment when its run is resumed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from raysync.config.experiment import Experiment
from raysync.errors import ConfigError

LONGEST_SHOWN = 100
"""The most characters of a value that an error message shows."""
CHANGEABLE = (
    "stop",
    "checkpoint",
    "cluster.address",
    "cluster.server_cpus",
    "cluster.server_placement",
    "cluster.server_label_selector",
    "cluster.evaluator_cpus",
    "cluster.evaluator_gpus",
    "cluster.step_deadline_s",
    "cluster.restarts",
    "cluster.placement_deadline_s",
    "cluster.task_events",
    "cluster.metrics",
    "cluster.dashboard",
    "workers.*.cpus",
    "workers.*.accelerator_type",
    "workers.*.label_selector",
    "workers.*.fallback_label_selectors",
    "workers.*.resources",
    "evaluation.deadline_s",
    "evaluation.threads",
    "data.data_dir",
    "data.loader_workers",
    "track",
    "callbacks",
    "published",
)
"""Settings that say where and how the rest of the run is done, and not what it trains."""

PERTURBABLE = (
    "update.lr",
    "update.momentum",
    "update.weight_decay",
    "update.betas",
    "update.clip_norm",
    "update.lr_scaling",
    "update.schedule",
    "update.phases",
)
"""Settings that a clone of a trial may have others of than the trial: they are read at each update,
and change neither what a checkpoint holds nor which calls a run makes."""


def is_perturbable(setting: str) -> bool:
    """Say whether a clone may have another value of a setting."""
    return any(f"{setting}.".startswith(f"{name}.") for name in PERTURBABLE)


def changes_between(before: Experiment, after: Experiment) -> Iterator[str]:
    """Yield in words each setting that differs."""
    for path, old, new in _changes("", before.plain(), after.plain()):
        yield f"{_setting(path)}: {_short(new)} in place of {_short(old)}"


def check_changes(before: Experiment, after: Experiment) -> None:
    """Refuse what cannot change in a run that goes on from a checkpoint.

    Args:
        before: the experiment of its record.
        after: the experiment that it is to go on with.

    Raises:
        ConfigError: the message has the first setting that changed, from what to what, and those
            that may change.
    """
    for path, old, new in _changes("", before.plain(), after.plain()):
        if not _may_change(path):
            allowed = ", ".join(CHANGEABLE)
            raise ConfigError(
                f"{_setting(path)}: {_short(new)}, but the run began with {_short(old)}, and goes"
                f" on as it began.\nWhat may change: {allowed}."
            )


def _may_change(path: str) -> bool:
    general = ".".join("*" if part.isdecimal() else part for part in path.split("."))
    return any(f"{general}.".startswith(f"{name}.") for name in CHANGEABLE)


def _changes(path: str, old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the path of each setting that differs, and both of its values in words."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            yield from _changes(f"{path}.{key}".lstrip("."), old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{path}.{index}", before, after)
    elif isinstance(old, list) and isinstance(new, list):
        yield path, f"{len(old)} of them", f"{len(new)} of them"
    elif old != new:
        yield path, repr(old), repr(new)


def _setting(path: str) -> str:
    """Write a path as the messages about experiment files do: `workers[0].count`."""
    return re.sub(r"\.(\d+)", r"[\1]", path)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
