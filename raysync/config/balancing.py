"""What the paradigm `balanced` needs to know of the workers: it becomes a part of the paradigm's
parameters, so that the header of a journal has all that a replay needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysync.config.workers import WorkerGroup
from raysync.paradigms.balanced import Balanced

NAMES_A_PARADIGM = ("paradigm", "first", "then", "sync")
"""The parameters by which a paradigm names another one."""
Groups = dict[str, dict[str, int | float]]


def described(groups: Sequence[WorkerGroup], batch_size: int) -> Groups:
    """Describe the worker groups: group -> its batch size, its limits, and the times that are not
    in proportion to the batch.

    Args:
        groups: of the experiment.
        batch_size: in samples, of the groups that have none of their own.
    """
    described: Groups = {}
    for group in groups:
        settings = described[group.name] = {"batch_size": group.batch_size or batch_size}
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
        parameters: as the user gave them; a `workers` of the user's own stays.
        groups: see `described`.
    """
    completed = {
        key: _informed_spec(value, groups) if key in NAMES_A_PARADIGM else value
        for key, value in parameters.items()
    }
    if name == Balanced.name:
        completed.setdefault("workers", groups)
    return completed


def _informed_spec(spec: object, groups: Groups) -> object:
    """Return what names a paradigm, or several, completed likewise."""
    if spec == Balanced.name:
        return {"name": Balanced.name, "workers": groups}
    if isinstance(spec, list | tuple):
        return [_informed_spec(each, groups) for each in spec]
    if isinstance(spec, Mapping) and isinstance(name := spec.get("name"), str):
        return informed(name, spec, groups)
    return spec
