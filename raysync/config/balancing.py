"""The worker groups as parameters of a paradigm that sizes batches.

So the header of a journal has all that a replay needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysync.config.workers import WorkerGroup
from raysync.errors import unknown_name
from raysync.paradigms.registry import SPEC_PARAMETERS, WORKERS_PARAMETER, has_workers_parameter

Groups = dict[str, dict[str, int | float]]


def describe_groups(
    groups: Sequence[WorkerGroup], batch_size: int, smallest_batch: int = 1
) -> Groups:
    """Describe groups by batch size, limits, and the times that a batch does not lengthen.

    Args:
        batch_size: the default of groups without their own.
        smallest_batch: the fewest samples that a device can compute at once.
    """
    described: Groups = {}
    for group in groups:
        settings = described[group.name] = {"batch_size": group.batch_size or batch_size}
        if smallest_batch > 1:
            settings["min_batch"] = smallest_batch
        if group.max_batch is not None:
            settings["max_batch"] = group.max_batch
        if group.devices > 1:
            settings["devices"] = group.devices
        if group.per_sample_s is not None:
            settings |= {"fixed_s": group.fixed_s, "per_sample_s": group.per_sample_s}
            settings["floor_s"] = group.floor_s
    return described


def with_groups(name: str, parameters: Mapping[str, Any], groups: Groups) -> dict[str, Any]:
    """Add the worker groups to the parameters of a paradigm, or of one inside, that has `workers`.

    Args:
        parameters: the user's; what its `workers` says of a group takes precedence.
        groups: see `describe_groups`.

    Raises:
        ConfigError: a `workers` of the user's own names an unknown group.
    """
    completed = {
        key: _spec_with_groups(value, groups) if key in SPEC_PARAMETERS else value
        for key, value in parameters.items()
    }
    if has_workers_parameter(name):
        where = f"{name}: {WORKERS_PARAMETER}"
        given = completed.get(WORKERS_PARAMETER, {})
        completed[WORKERS_PARAMETER] = _completed(given, groups, where)
    return completed


def _spec_with_groups(spec: object, groups: Groups) -> object:
    if isinstance(spec, str):
        return {"name": spec, WORKERS_PARAMETER: groups} if has_workers_parameter(spec) else spec
    if isinstance(spec, list | tuple):
        return [_spec_with_groups(inner, groups) for inner in spec]
    if isinstance(spec, Mapping) and isinstance(name := spec.get("name"), str):
        return with_groups(name, spec, groups)
    return spec


def _completed(given: object, groups: Groups, where: str) -> object:
    if not isinstance(given, Mapping) or not all(
        isinstance(group, Mapping) for group in given.values()
    ):
        return given  # the paradigm refuses it
    for group in given:
        if group not in groups:
            raise unknown_name("worker group", group, groups, where=where)
    return {group: {**settings, **given.get(group, {})} for group, settings in groups.items()}
