"""The settings that may change when a run is resumed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysync.config.checkpoint_settings import is_absolute
from raysync.config.experiment import Experiment
from raysync.errors import ConfigError

LONGEST_SHOWN = 100  # the most characters of a value in an error message
# the settings of where and how the rest of a run is done, not of what it trains
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
    "cluster.transport",
    "cluster.metrics",
    "cluster.dashboard",
    "workers.*.cpus",
    "workers.*.accelerator_type",
    "workers.*.label_selector",
    "workers.*.fallback_label_selectors",
    "workers.*.resources",
    "evaluation.deadline_s",
    "data.data_dir",
    "data.loader_workers",
    "track",
    "callbacks",
    "published",
)
CHANGEABLE_IN_SWEEPS = ("sweep.concurrent", "sweep.time_budget_s", "sweep.stop", "sweep.grid.seed")
ELASTIC = ("the number of workers (workers.*.count) and whole groups",)


def check_changes(
    before: Experiment, after: Experiment, *, elastic: bool = False, more: Sequence[str] = ()
) -> None:
    """Refuse changes that a resumed run cannot have.

    Args:
        elastic: whether the number of workers and whole groups may change, if the run allows it.
        more: further settings that may change.

    Raises:
        ConfigError: it has the first change that is not allowed, and the settings that may change.
    """
    old, new = before.plain(), after.plain()
    why_not = why_workers_stay(before) if elastic else ""
    if elastic and not why_not:
        old["workers"], new["workers"] = _lasting_groups(old["workers"], new["workers"])
    for path, was, is_now in _changes("", old, new):
        if not _may_change(path, (*CHANGEABLE, *more)):
            bracketed = re.sub(r"\.(\d+)", r"[\1]", path)  # as in error messages: workers[0].speed
            is_of_workers = why_not and path.startswith("workers")
            reason = f": {why_not}" if is_of_workers else ", and goes on as it began"
            may = [*(ELASTIC if elastic and not why_not else ()), *CHANGEABLE, *more]
            raise ConfigError(
                f"{bracketed}: {_short(is_now)}, but the run began with {_short(was)}"
                f"{reason}."
                f"\nWhat may change: {', '.join(may)}."
            )


def check_place(before: Experiment, after: Experiment, parent: Path | str) -> None:
    """Refuse an absolute `output` other than the record's place; records have none.

    Args:
        parent: the folder of its record, OUTPUT/NAME, or its URI.
    """
    place = after.output
    if not is_absolute(place) or place == before.output:
        return
    if (Path(place) / after.name).resolve() != Path(parent).resolve():
        raise ConfigError(
            f"output: {str(place)!r}, but a resumed run stays in its run folder, in {parent};"
            " leave it out."
        )


def why_workers_stay(experiment: Experiment) -> str:
    """Explain in a clause why a run must keep its workers; empty: it need not."""
    if experiment.engine == "virtual":
        return (
            "in virtual time a resumed run repeats the original exactly, so its workers stay the"
            " same"
        )
    return experiment.make(experiment.paradigm).why_workers_stay


def _lasting_groups(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return index -> settings, before and after, of the groups that both have, without counts."""
    former = {group["name"]: {**group, "count": None} for group in before}
    lasting = {
        str(index): {**group, "count": None}
        for index, group in enumerate(after)
        if group["name"] in former
    }
    return {index: former[group["name"]] for index, group in lasting.items()}, lasting


def check_seeds(before: Experiment, after: Experiment) -> None:
    """Refuse a resumed sweep that lacks seeds of trials that it may have run."""
    sweeps = (before.sweep, after.sweep)
    old, new = (sweep.grid.get("seed", ()) for sweep in sweeps if sweep is not None)
    if missing := [seed for seed in old if seed not in new]:
        raise ConfigError(
            f"sweep.grid.seed: {', '.join(map(str, missing))} is missing, which the sweep began"
            f" with; a resumed sweep can only have more seeds than {list(old)}."
        )


def _may_change(path: str, names: Sequence[str]) -> bool:
    general = ".".join("*" if part.isdecimal() else part for part in path.split("."))
    return any(f"{general}.".startswith(f"{name}.") for name in names)


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


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
