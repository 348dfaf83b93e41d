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


def first_misfit(asked: list[tuple[str, Bundle]], nodes: list[Bundle]) -> str | None:
    """Who does not fit when the bundles are laid into the nodes, the largest first; None if all do."""
    free = [dict(node) for node in nodes]
    for who, bundle in sorted(asked, key=lambda one: (-one[1].get("GPU", 0), -one[1].get("CPU", 0))):
        for node in free:
            if all(node.get(name, 0) >= amount for name, amount in bundle.items()):
                for name, amount in bundle.items():
                    node[name] -= amount
                break
        else:
            return who
    return None


def reserve(experiment: Experiment) -> PlacementGroup:
    """The placement group of an experiment, ready.

    Raises:
        ConfigError: the cluster cannot hold it, or others use the resources for longer than the placement deadline.
    """
    asked = bundles(experiment)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    misfit = first_misfit(asked, nodes)
    if misfit:
        raise ConfigError(_too_small(misfit, asked, nodes))
    group = placement_group([bundle for _, bundle in asked], strategy="PACK")
    deadline_s = experiment.cluster.placement_deadline_s
    try:
        ray.get(group.ready(), timeout=deadline_s)
    except GetTimeoutError:
        remove_placement_group(group)
        free = ray.available_resources()
        misfit = first_misfit(asked, [free]) or "some worker"
        raise ConfigError(f"cluster: {misfit} found no free resources within {deadline_s:g} s; others use them.\n"
                          f"Asked: {_show(total(b for _, b in asked))}. Free now: {_show(free)}.") from None
    return group


def _too_small(misfit: str, asked: list[tuple[str, Bundle]], nodes: list[Bundle]) -> str:
    gpus = any(bundle.get("GPU") for _, bundle in asked) and not any(node.get("GPU") for node in nodes)
    hint = " There is no GPU: set gpus: 0 and emulate with speed or step_s." if gpus else ""
    counts = ", ".join(f"{count} x {who} of {_show(bundle)}" for who, bundle, count in _counted(asked))
    return (f"cluster: {misfit} does not fit. Asked: {counts}.\n"
            f"The cluster has {len(nodes)} node(s): {'; '.join(_show(node) for node in nodes[:3])}.{hint}")


def _counted(asked: list[tuple[str, Bundle]]) -> list[tuple[str, Bundle, int]]:
    counts = Counter(who for who, _ in asked)
    bundle_of = dict(asked)
    return [(who, bundle_of[who], count) for who, count in counts.items()]


def _show(resources: Mapping[str, Any]) -> str:
    known = {name: resources.get(name, 0) for name in ("CPU", "GPU")}
    return ", ".join(f"{amount:g} {name}" for name, amount in known.items() if amount or name == "CPU")
