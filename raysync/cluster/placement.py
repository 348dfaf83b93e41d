"""Where the actors of a run go: one placement group, checked before it is asked for.

Ray itself waits silently for resources that will never come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from raysync.config import Experiment
from raysync.errors import ConfigError

Bundle = dict[str, float]

SERVER, EVALUATOR, FIRST_WORKER = 0, 1, 2
"""Indices of the bundles; the controller needs no resources of its own and sits with the server."""


def bundles(experiment: Experiment) -> list[tuple[str, Bundle]]:
    """What is asked of the cluster: (who asks, resources) for the server, the evaluator and each worker."""
    cluster = experiment.cluster
    asked = [("the server", {"CPU": cluster.server_cpus}), ("the evaluator", {"CPU": cluster.evaluator_cpus})]
    for group in experiment.slots().values():
        asked.append((f"worker group {group.name!r}", {"CPU": group.cpus, "GPU": group.gpus}))
    return [(who, {name: amount for name, amount in bundle.items() if amount} or {"CPU": 0.001}) for who, bundle in asked]


def total(parts: Iterable[Mapping[str, float]]) -> Bundle:
    """The sum of resources."""
    everything: Counter[str] = Counter()
    for part in parts:
        everything.update(part)
    return dict(everything)


def misfit(asked: list[tuple[str, Bundle]], nodes: list[Bundle]) -> str | None:
    """Who can certainly not be placed: a bundle that no node holds, or who brings the total above the cluster's; or None.

    A None is no proof: how bundles share nodes is for Ray to find out.
    """
    there, so_far = total(nodes), Counter[str]()
    for who, bundle in asked:
        so_far.update(bundle)
        alone = any(_holds(node, bundle) for node in nodes)
        if not alone or not _holds(there, so_far):
            return who
    return None


def _holds(node: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(node.get(name, 0) >= amount for name, amount in bundle.items())


def reserve(experiment: Experiment) -> PlacementGroup:
    """The placement group of an experiment, ready.

    Raises:
        ConfigError: the cluster cannot hold it, or has no place for it within the placement deadline.
    """
    asked = bundles(experiment)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    who = misfit(asked, nodes)
    if who:
        gpus = any(bundle.get("GPU") for _, bundle in asked) and not any(node.get("GPU") for node in nodes)
        hint = " There is no GPU: set gpus: 0 and emulate with speed or step_s." if gpus else ""
        raise ConfigError(f"cluster: {who} does not fit. Asked: {_counted(asked)}.\n"
                          f"The cluster has {len(nodes)} node(s): {'; '.join(_show(node) for node in nodes[:3])}.{hint}")
    group = placement_group([bundle for _, bundle in asked], strategy="PACK")
    deadline_s = experiment.cluster.placement_deadline_s
    try:
        ray.get(group.ready(), timeout=deadline_s)
    except BaseException as error:
        remove_placement_group(group)
        if not isinstance(error, GetTimeoutError):
            raise
        free = ray.available_resources()
        who = misfit(asked, [free]) or "the whole"  # on several nodes the free resources may be there, but too scattered
        raise ConfigError(f"cluster: {who} found no free resources within {deadline_s:g} s; others use them.\n"
                          f"Asked: {_counted(asked)}. Free now: {_show(free)}.") from None
    return group


def _counted(asked: list[tuple[str, Bundle]]) -> str:
    bundle_of, counts = dict(asked), Counter(who for who, _ in asked)
    return ", ".join(f"{count} x {who} of {_show(bundle_of[who])}" for who, count in counts.items())


def _show(resources: Mapping[str, Any]) -> str:
    known = {name: resources.get(name, 0) for name in ("CPU", "GPU")}
    return ", ".join(f"{amount:g} {name}" for name, amount in known.items() if amount or name == "CPU")
