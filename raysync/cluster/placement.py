"""The placement of a run's actors: one placement group, checked before it is requested.

Ray waits silently for resources or labels that will never come.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from raysync.cluster.clock import ANSWER_S, within
from raysync.config import Experiment, WorkerGroup
from raysync.errors import ConfigError

Amounts = dict[str, float]  # resource -> its amount
Labels = dict[str, str]

# how long Ray may take to place something where nothing else runs: it takes milliseconds
VERDICT_S = 2.0
EVALUATOR_SHARE = 0.1  # the evaluator's default share of a worker's GPU
# resources that cannot be requested: names of nodes, and of other placement groups
RAYS_OWN = re.compile(r"node:|.*_group_([0-9]+_)?[0-9a-f]{36}$")
# the least amount: no bundle may be empty, and an accelerator type is requested by a trace of it
LEAST = 0.001


@dataclass(frozen=True)
class Bundle:
    """Resources requested as one piece, on one node."""

    owner: str
    resources: Amounts
    labels: Labels = field(default_factory=dict)  # the label selector


@dataclass(frozen=True)
class Plan:
    """The bundles of a run, and the bundle of each actor."""

    bundles: tuple[Bundle, ...]
    # Indices of bundles, as of all actors. The controller is with the first server, and needs no
    # resources.
    servers: tuple[int, ...]
    evaluator: int
    workers: tuple[int, ...]
    evaluator_gpus: float = 0.0  # In a worker's bundle it is taken from that worker's GPU.
    evaluator_cpus: float = 0.0  # 0 in a worker's bundle: the node may have no CPU to spare.

    def gpus(self, number: int, group: WorkerGroup) -> float:
        """Return the GPUs of the n-th worker, which is of that group."""
        is_shared = self.workers[number] == self.evaluator
        return round(group.gpus - self.evaluator_gpus, 6) if is_shared else group.gpus


@dataclass(frozen=True)
class ClusterNode:
    """A node's total resources."""

    resources: Amounts
    labels: Labels

    def holds(self, bundle: Bundle) -> bool:
        """Whether the bundle fits on the empty node."""
        return covers(self.resources, bundle.resources) and matches(self.labels, bundle.labels)


def plan(experiment: Experiment) -> Plan:
    """Return the bundles of an experiment, with the first label selector of each group."""
    cluster, groups = experiment.cluster, list(experiment.slots().values())
    workers = [Bundle(_of(group), _resources(group), group.label_selector) for group in groups]
    gpus = cluster.evaluator_gpus
    host = _host_of_evaluator(groups) if gpus is None else None
    evaluators: list[Bundle] = []
    if host is None:
        evaluators = [_bundle("the evaluator", CPU=cluster.evaluator_cpus, GPU=gpus or 0)]
    servers: list[Bundle] = []
    hosts = cluster.hosts(len(workers))
    for place in hosts:
        workers[place] = _with(workers[place], cluster.server_cpus)
    if not hosts:
        server = _bundle("the server", CPU=cluster.server_cpus)
        servers = [replace(server, labels=cluster.server_label_selector)] * cluster.server_shards
    first = len(servers) + len(evaluators)
    return Plan(
        bundles=(*servers, *evaluators, *workers),
        servers=tuple(range(len(servers))) if servers else tuple(first + place for place in hosts),
        evaluator=len(servers) if host is None else first + host,
        workers=tuple(range(first, first + len(workers))),
        evaluator_gpus=(gpus or 0.0)
        if host is None
        else min(EVALUATOR_SHARE, groups[host].gpus / 2),
        evaluator_cpus=cluster.evaluator_cpus if host is None else 0.0,
    )


def _host_of_evaluator(groups: Sequence[WorkerGroup]) -> int | None:
    """Choose the worker that shares its GPU with the evaluator by default; None: there is none.

    So evaluations of a large model do not outlast the training. Ray cannot split several GPUs.
    """
    return next((index for index, group in enumerate(groups) if 0 < group.gpus <= 1), None)


def _with(bundle: Bundle, cpus: float) -> Bundle:
    return replace(bundle, resources=total([bundle.resources, {"CPU": cpus}]))


def _of(group: WorkerGroup) -> str:
    return f"worker group {group.name!r}"


def _resources(group: WorkerGroup) -> Amounts:
    kind = (
        {}
        if group.accelerator_type is None
        else {f"accelerator_type:{group.accelerator_type}": LEAST}
    )
    return _bundle("", CPU=group.cpus, GPU=group.gpus).resources | kind | group.resources


def _bundle(owner: str, **resources: float) -> Bundle:
    return Bundle(
        owner, {name: amount for name, amount in resources.items() if amount} or {"CPU": LEAST}
    )


def total(parts: Iterable[Mapping[str, float]]) -> Amounts:
    everything: Counter[str] = Counter()
    for part in parts:
        everything.update(part)
    return dict(everything)


def covers(available: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    """Whether the available resources suffice."""
    return all(available.get(name, 0) >= amount - 1e-9 for name, amount in wanted.items())


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node's labels meet a label selector; as in Ray, a missing label meets every `!`."""
    return all(_meets(labels.get(label), condition) for label, condition in selector.items())


def _meets(value: str | None, condition: str) -> bool:
    wanted = condition.removeprefix("!")
    one_of = wanted[3:-1].split(",") if wanted.startswith("in(") else [wanted]
    return (value in one_of) != condition.startswith("!")


def infeasible_reason(bundles: Sequence[Bundle], nodes: Sequence[ClusterNode]) -> str | None:
    """Name what certainly cannot be placed; None: nothing is certain.

    That is a bundle that no node holds, or one with which the bundles restricted to certain nodes
    exceed those nodes' total. None is no proof: only Ray decides how bundles share nodes.
    """
    holders = [
        frozenset(index for index, node in enumerate(nodes) if node.holds(bundle))
        for bundle in bundles
    ]
    demand: dict[frozenset[int], Counter[str]] = {held: Counter() for held in holders}
    there = {held: total(nodes[index].resources for index in held) for held in demand}
    for bundle, held in zip(bundles, holders, strict=True):
        for nodes_there, so_far in demand.items():
            if held <= nodes_there:
                so_far.update(bundle.resources)
                if not held or not covers(there[nodes_there], so_far):
                    return bundle.owner
    return None


def chosen(experiment: Experiment, nodes: Sequence[ClusterNode]) -> Plan:
    """Return the plan with the label selectors that the cluster can meet.

    A group, in order, gets its first selector with which all bundles so far can be placed, by the
    nodes' total resources, not the free ones: Ray's placement groups have no fallback.
    """
    whole = plan(experiment)
    bundles = list(whole.bundles)
    for group in experiment.workers:
        indices = [index for index, bundle in enumerate(bundles) if bundle.owner == _of(group)]
        settled = [bundle for bundle in bundles[: indices[-1] + 1] if bundle.owner != _of(group)]
        for labels in (group.label_selector, *group.fallback_label_selectors):
            tried = [replace(bundles[index], labels=labels) for index in indices]
            if infeasible_reason([*settled, *tried], nodes) is None:
                for index, bundle in zip(indices, tried, strict=True):
                    bundles[index] = bundle
                break
    return replace(whole, bundles=tuple(bundles))


def fallbacks(requested: Plan, final: Plan) -> dict[str, str]:
    """Return the owners of bundles with a fallback label selector -> that selector, as text."""
    return {
        final_bundle.owner: _show_labels(final_bundle.labels)
        for bundle, final_bundle in zip(requested.bundles, final.bundles, strict=True)
        if bundle.labels != final_bundle.labels
    }


def placed(experiment: Experiment) -> Plan:
    """Return the plan of an experiment on the present cluster.

    Raises:
        ConfigError: the cluster certainly cannot hold it.
    """
    nodes = _nodes()
    final = chosen(experiment, nodes)
    if owner := infeasible_reason(final.bundles, nodes):
        raise ConfigError(
            f"cluster: {owner} does not fit. Requested: {_counted(final.bundles)}.\n"
            f"{_offer(nodes)}.{_hint(experiment, owner, nodes)}"
        )
    return final


def asked_of_ray(final: Plan) -> dict[str, Any]:
    return {
        "bundles": [bundle.resources for bundle in final.bundles],
        "strategy": "PACK",
        "bundle_label_selector": [bundle.labels for bundle in final.bundles],
    }


def infeasible_together(final: Plan) -> str | None:
    """Explain why Ray cannot place the plan though nothing else runs; None: it can.

    `placed` does not detect this.
    """
    group = placement_group(**asked_of_ray(final))
    try:
        ready, _ = ray.wait([group.ready()], timeout=VERDICT_S)
        nodes = _nodes()
        return (
            _together(final.bundles, nodes) if not ready and _idle(final.bundles, nodes) else None
        )
    finally:
        remove_placement_group(group)


def _idle(bundles: Sequence[Bundle], nodes: Sequence[ClusterNode]) -> bool:
    """Whether all resources that the bundles request are free."""
    there, free = total(node.resources for node in nodes), ray.available_resources()
    return all(
        free.get(name, 0) >= there.get(name, 0) for bundle in bundles for name in bundle.resources
    )


def cpus(experiment: Experiment) -> float:
    """Return the least CPUs of a cluster for the experiment."""
    return total(bundle.resources for bundle in plan(experiment).bundles).get("CPU", 1)


def _nodes() -> list[ClusterNode]:
    return [ClusterNode(node["Resources"], node["Labels"]) for node in ray.nodes() if node["Alive"]]


def reserve(experiment: Experiment, name: str) -> tuple[Plan, PlacementGroup]:
    """Return the plan of an experiment on the present cluster, and its ready placement group.

    Raises:
        ConfigError: the cluster cannot hold it, or has no place for it within the placement
            deadline.
        TimeoutError: Ray is stuck.
    """
    final = within(ANSWER_S, lambda: placed(experiment))
    group = within(ANSWER_S, lambda: placement_group(**asked_of_ray(final), name=name))
    deadline_s = experiment.cluster.placement_deadline_s
    try:
        within(deadline_s + ANSWER_S, lambda: ray.get(group.ready(), timeout=deadline_s))
    except BaseException as error:
        within(ANSWER_S, lambda: remove_placement_group(group))
        if not isinstance(error, GetTimeoutError):
            raise
        raise ConfigError(_late(final.bundles, _nodes(), deadline_s)) from None
    return final, group


# ---- messages for the user ----


def _hint(experiment: Experiment, owner: str, nodes: Sequence[ClusterNode]) -> str:
    """Return the likely mistake behind a bundle that does not fit."""
    if owner == "the evaluator" and experiment.cluster.evaluator_gpus and not _any(nodes, "GPU"):
        return " There is no GPU: leave evaluator_gpus out."
    for group in experiment.workers:
        if owner != _of(group):
            continue
        if group.gpus and not _any(nodes, "GPU"):
            return " There is no GPU: set gpus: 0 and emulate with speed or step_s."
        if group.accelerator_type and not _any(nodes, f"accelerator_type:{group.accelerator_type}"):
            return f" No node has accelerator_type:{group.accelerator_type} among its resources."
        selectors = (group.label_selector, *group.fallback_label_selectors)
        if group.label_selector and not any(
            matches(node.labels, labels) for node in nodes for labels in selectors
        ):
            return f" No node has {' or '.join(map(_show_labels, selectors))}."
    return ""


def _any(nodes: Sequence[ClusterNode], resource: str) -> bool:
    return any(node.resources.get(resource) for node in nodes)


def _late(bundles: Sequence[Bundle], nodes: Sequence[ClusterNode], deadline_s: float) -> str:
    free = ray.available_resources()
    if _idle(bundles, nodes):
        return _together(bundles, nodes)
    owner = (
        infeasible_reason(bundles, [ClusterNode(free, {})])
        if not any(bundle.labels for bundle in bundles)
        else None
    )
    return (
        f"cluster: {owner or 'the run'} got no resources within {deadline_s:g} s; other jobs use"
        " them.\n"
        f"Requested: {_counted(bundles)}. Free now: {_show(free)}."
    )


def _together(bundles: Sequence[Bundle], nodes: Sequence[ClusterNode]) -> str:
    return (
        "cluster: the run does not fit, although nothing else runs: each of these must fit on one"
        f" node. Requested: {_counted(bundles)}.\n"
        f"{_offer(nodes)}."
    )


def _counted(bundles: Sequence[Bundle]) -> str:
    alike = Counter(
        f"{bundle.owner} of {_show(bundle.resources)}"
        + (f" where {_show_labels(bundle.labels)}" if bundle.labels else "")
        for bundle in bundles
    )
    return ", ".join(f"{count} x {each}" for each, count in alike.items())


def _offer(nodes: Sequence[ClusterNode]) -> str:
    """List the nodes' resources; equal nodes are counted."""
    kinds = Counter(f"{_show(node.resources)}{_own(node.labels)}" for node in nodes)
    offers = [f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.most_common(6)]
    more = f"; and {len(kinds) - 6} other kinds" if len(kinds) > 6 else ""
    return f"The cluster has {len(nodes)} node(s): {'; '.join(offers)}{more}"


def _own(labels: Labels) -> str:
    own_labels = {label: value for label, value in labels.items() if label != "ray.io/node-id"}
    return f" ({_show_labels(own_labels)})" if own_labels else ""


def _show_labels(labels: Labels) -> str:
    return ", ".join(f"{label}={value}" for label, value in sorted(labels.items()))


def _show(resources: Mapping[str, Any]) -> str:
    return ", ".join(_amounts(resources))


def _amounts(resources: Mapping[str, Any]) -> Iterator[str]:
    yield f"{resources.get('CPU', 0):g} CPU"
    for name, amount in sorted(resources.items()):
        if name.startswith("accelerator_type:"):
            yield name.partition(":")[2]
        elif (
            name not in ("CPU", "memory", "object_store_memory")
            and not RAYS_OWN.match(name)
            and amount
        ):
            yield f"{amount:g} {name}"
