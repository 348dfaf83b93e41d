"""What the paradigm `balanced` needs to know of the workers: it becomes a part of the paradigm's
parameters, so that the header of a journal has all that a replay needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysync.config.workers import WorkerGroup
from raysync.errors import unknown_name
from raysync.paradigms.balanced import Balanced

NAMES_A_PARADIGM = ("paradigm", "first", "then", "sync")
"""The parameters by which a paradigm names another one."""
Groups = dict[str, dict[str, int | float]]


def described(groups: Sequence[WorkerGroup], batch_size: int, smallest_batch: int = 1) -> Groups:
    """Describe the worker groups: group -> its batch size, its limits, and the times that are not
    in proportion to the batch.

    Args:
        groups: of the experiment.
        batch_size: in samples, of the groups that have none of their own.
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


def informed(name: str, parameters: Mapping[str, Any], groups: Groups) -> dict[str, Any]:
    """Return the parameters of a paradigm, completed with the worker groups where it is `balanced`,
    or where one that it names is.

    Args:
        name: the name of the paradigm.
        parameters: as the user gave them; what a `workers` of the user's own says of a group
            counts, the rest is completed.
        groups: see `described`.

    Raises:
        ConfigError: a `workers` of the user's own names a group that is not there.
    """
    completed = {
        key: _informed_spec(value, groups) if key in NAMES_A_PARADIGM else value
        for key, value in parameters.items()
    }
    if name == Balanced.name:
        completed["workers"] = _completed(completed.get("workers", {}), groups)
    return completed


def balanced_spec(
    name: str, parameters: Mapping[str, Any], micro_batch: int | None
) -> dict[str, Any]:
    """Return `balanced` around a paradigm, as an experiment file has it; with micro-batches it
    divides whole ones.
    """
    spec: dict[str, Any] = {"name": Balanced.name}
    if name != "bsp" or parameters:
        spec["paradigm"] = {"name": name, **parameters}
    return spec if micro_batch is None else {**spec, "multiple": micro_batch}


def _completed(own: object, groups: Groups) -> object:
    """Return the groups as the experiment describes them, and as the user does where `balanced` is
    told about them.
    """
    if not isinstance(own, Mapping) or not all(isinstance(each, Mapping) for each in own.values()):
        return own  # for the paradigm to refuse
    for group in own:
        if group not in groups:
            raise unknown_name("worker group", group, groups, where=f"{Balanced.name}: workers")
    return {group: {**settings, **own.get(group, {})} for group, settings in groups.items()}


def _informed_spec(spec: object, groups: Groups) -> object:
    """Return what names a paradigm, or several, completed likewise."""
    if spec == Balanced.name:
        return {"name": Balanced.name, "workers": groups}
    if isinstance(spec, list | tuple):
        return [_informed_spec(each, groups) for each in spec]
    if isinstance(spec, Mapping) and isinstance(name := spec.get("name"), str):
        return informed(name, spec, groups)
    return spec
