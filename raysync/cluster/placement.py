"""The placement of a run's actors: one placement group, checked before it is requested.

Ray waits silently for resources or labels that will never come.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
ROUNDING = 1e-9  # sums of amounts may differ that much
LISTED_KINDS = 6  # kinds of nodes that a message lists, at most


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
    # The indices of the actors' bundles. The controller is with the first server, and needs no
    # resources.
    servers: tuple[int, ...]
    evaluator: int
    workers: tuple[int, ...]
    evaluator_gpus: float = 0.0  # In a worker's bundle it is taken from that worker's GPU.
    evaluator_cpus: float = 0.0  # 0 in a worker's bundle: the node may have no CPU to spare.
    server_gpus: float = 0.0  # taken from the GPU of the worker in its bundle

    def gpus(self, number: int, group: WorkerGroup) -> float:
        """Return the GPUs of the n-th worker, which is of that group."""
        bundle = self.workers[number]
        taken = self.evaluator_gpus if bundle == self.evaluator else 0.0
        taken += self.server_gpus if bundle in self.servers else 0.0
        return round(group.gpus - taken, 6)


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
    workers = [Bundle(_owner(group), _resources(group), group.label_selector) for group in groups]
    gpus = cluster.evaluator_gpus
    evaluator_host = _host_of_evaluator(groups) if gpus is None else None
    evaluators: list[Bundle] = []
    if evaluator_host is None:
        evaluators = [_bundle("the evaluator", CPU=cluster.evaluator_cpus, GPU=gpus or 0)]
    servers: list[Bundle] = []
    server_hosts = cluster.hosts(len(workers))
    for host in server_hosts:
        workers[host] = _with_cpus(workers[host], cluster.server_cpus)
    if not server_hosts:
        server = _bundle("the server", CPU=cluster.server_cpus)
        servers = [replace(server, labels=cluster.server_label_selector)] * cluster.server_shards
    first = len(servers) + len(evaluators)
    return Plan(
        bundles=(*servers, *evaluators, *workers),
        servers=tuple(range(len(servers))) or tuple(first + host for host in server_hosts),
        evaluator=len(servers) if evaluator_host is None else first + evaluator_host,
        workers=tuple(range(first, first + len(workers))),
        evaluator_gpus=(gpus or 0.0)
        if evaluator_host is None
        else min(EVALUATOR_SHARE, groups[evaluator_host].gpus / 2),
        evaluator_cpus=cluster.evaluator_cpus if evaluator_host is None else 0.0,
        server_gpus=cluster.server_gpus,
    )


def _host_of_evaluator(groups: Sequence[WorkerGroup]) -> int | None:
    """Choose the worker that shares its GPU with the evaluator by default; None: there is none.

    On a GPU, evaluations of a large model do not outlast the training. Ray cannot split several.
    """
    return next((index for index, group in enumerate(groups) if 0 < group.gpus <= 1), None)


def _with_cpus(bundle: Bundle, cpus: float) -> Bundle:
    return replace(bundle, resources=total([bundle.resources, {"CPU": cpus}]))


def _owner(group: WorkerGroup) -> str:
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


def process_count(experiment: Experiment) -> int:
    """Count the processes of a run that compute: workers, servers, and the evaluator."""
    placed = plan(experiment)
    return len(placed.workers) + len(placed.servers) + experiment.trains


def cpus(experiment: Experiment) -> float:
    """Return the least CPUs of a cluster for the experiment."""
    return total(bundle.resources for bundle in plan(experiment).bundles).get("CPU", 1)


def total(parts: Iterable[Mapping[str, float]]) -> Amounts:
    everything: Counter[str] = Counter()
    for part in parts:
        everything.update(part)
    return dict(everything)


def covers(available: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    """Whether the available resources suffice."""
    return all(available.get(name, 0) >= amount - ROUNDING for name, amount in wanted.items())


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node's labels meet a label selector; as in Ray, a missing label meets every `!`."""
    return all(_meets(labels.get(label), condition) for label, condition in selector.items())


def _meets(value: str | None, condition: str) -> bool:
    wanted = condition.removeprefix("!")
    one_of = wanted[3:-1].split(",") if wanted.startswith("in(") else [wanted]
    return (value in one_of) != condition.startswith("!")


# ---- the present cluster ----


def reserve(experiment: Experiment, name: str) -> tuple[Plan, PlacementGroup]:
    """Return the plan of an experiment on the present cluster, and its ready placement group.

    Raises:
        ConfigError: the cluster cannot hold it, or has no place for it within the placement
            deadline.
        TimeoutError: Ray is stuck.
    """
    final = within(ANSWER_S, lambda: feasible_plan(experiment))
    group = within(ANSWER_S, lambda: placement_group(**placement_request(final), name=name))
    deadline_s = experiment.cluster.placement_deadline_s
    try:
        within(deadline_s + ANSWER_S, lambda: ray.get(group.ready(), timeout=deadline_s))
    except BaseException as error:
        within(ANSWER_S, lambda: remove_placement_group(group))
        if not isinstance(error, GetTimeoutError):
            raise
        raise ConfigError(_late_text(final.bundles, _nodes(), deadline_s)) from None
    return final, group


def feasible_plan(experiment: Experiment) -> Plan:
    """Return the plan of an experiment on the present cluster.

    Raises:
        ConfigError: the cluster certainly cannot hold it.
    """
    nodes = _nodes()
    final = choose_selectors(experiment, nodes)
    if owner := infeasible_reason(final.bundles, nodes):
        raise ConfigError(
            f"cluster: {owner} does not fit. Requested: {_count_bundles(final.bundles)}.\n"
            f"{_offer(nodes)}.{_hint(experiment, owner, nodes)}"
        )
    return final


def choose_selectors(experiment: Experiment, nodes: Sequence[ClusterNode]) -> Plan:
    """Return the plan with the label selectors that the cluster can meet.

    A group, in order, gets its first selector with which all bundles so far can be placed, by the
    nodes' total resources, not the free ones: Ray's placement groups have no fallback.
    """
    requested = plan(experiment)
    bundles = list(requested.bundles)
    for group in experiment.workers:
        indices = [index for index, bundle in enumerate(bundles) if bundle.owner == _owner(group)]
        settled = [bundle for bundle in bundles[: indices[-1] + 1] if bundle.owner != _owner(group)]
        for labels in (group.label_selector, *group.fallback_label_selectors):
            tried = [replace(bundles[index], labels=labels) for index in indices]
            if infeasible_reason([*settled, *tried], nodes) is None:
                for index, bundle in zip(indices, tried, strict=True):
                    bundles[index] = bundle
                break
    return replace(requested, bundles=tuple(bundles))


def infeasible_reason(bundles: Sequence[Bundle], nodes: Sequence[ClusterNode]) -> str | None:
    """Name what certainly cannot be placed; None: nothing is certain.

    That is a bundle that no node holds, or one with which the bundles restricted to certain nodes
    exceed those nodes' total. None is no proof: only Ray decides how bundles share nodes.
    """
    holders = [
        frozenset(index for index, node in enumerate(nodes) if node.holds(bundle))
        for bundle in bundles
    ]
    # set of nodes -> the sum of the bundles that only they can hold, and what they have
    demand: dict[frozenset[int], Counter[str]] = {able: Counter() for able in holders}
    supply = {able: total(nodes[index].resources for index in able) for able in demand}
    for bundle, able in zip(bundles, holders, strict=True):
        for superset, requested in demand.items():
            if able <= superset:
                requested.update(bundle.resources)
                if not able or not covers(supply[superset], requested):
                    return bundle.owner
    return None


def _nodes() -> list[ClusterNode]:
    return [ClusterNode(node["Resources"], node["Labels"]) for node in ray.nodes() if node["Alive"]]


def placement_request(final: Plan) -> dict[str, Any]:
    return {
        "bundles": [bundle.resources for bundle in final.bundles],
        "strategy": "PACK",
        "bundle_label_selector": [bundle.labels for bundle in final.bundles],
    }


def fallbacks(requested: Plan, final: Plan) -> dict[str, str]:
    """Return the owners of bundles with a fallback label selector -> that selector, as text."""
    return {
        final_bundle.owner: _show_labels(final_bundle.labels)
        for bundle, final_bundle in zip(requested.bundles, final.bundles, strict=True)
        if bundle.labels != final_bundle.labels
    }


def infeasible_together(final: Plan) -> str | None:
    """Explain why Ray cannot place the plan though nothing else runs; None: it can.

    `feasible_plan` does not detect this.
    """
    group = placement_group(**placement_request(final))
    try:
        ready, _ = ray.wait([group.ready()], timeout=VERDICT_S)
        nodes = _nodes()
        is_refused = not ready and _is_free(final.bundles, nodes)
        return _crowded_text(final.bundles, nodes) if is_refused else None
    finally:
        remove_placement_group(group)


def _is_free(bundles: Sequence[Bundle], nodes: Sequence[ClusterNode]) -> bool:
    """Whether all resources that the bundles request are free."""
    whole, free = total(node.resources for node in nodes), ray.available_resources()
    return all(
        free.get(name, 0) >= whole.get(name, 0) for bundle in bundles for name in bundle.resources
    )


# ---- messages for the user ----


def _hint(experiment: Experiment, owner: str, nodes: Sequence[ClusterNode]) -> str:
    """Return the likely mistake behind a bundle that does not fit."""
    if owner == "the evaluator" and experiment.cluster.evaluator_gpus and not _has(nodes, "GPU"):
        return " There is no GPU: leave evaluator_gpus out."
    for group in experiment.workers:
        if owner != _owner(group):
            continue
        if group.gpus and not _has(nodes, "GPU"):
            return " There is no GPU: set gpus and server_gpus to 0; emulate with speed or step_s."
        if group.accelerator_type and not _has(nodes, f"accelerator_type:{group.accelerator_type}"):
            return f" No node has accelerator_type:{group.accelerator_type} among its resources."
        selectors = (group.label_selector, *group.fallback_label_selectors)
        if group.label_selector and not any(
            matches(node.labels, labels) for node in nodes for labels in selectors
        ):
            return f" No node has {' or '.join(map(_show_labels, selectors))}."
    return ""


def _has(nodes: Sequence[ClusterNode], resource: str) -> bool:
    return any(node.resources.get(resource) for node in nodes)


def _late_text(bundles: Sequence[Bundle], nodes: Sequence[ClusterNode], deadline_s: float) -> str:
    free = ray.available_resources()
    if _is_free(bundles, nodes):
        return _crowded_text(bundles, nodes)
    owner = (
        infeasible_reason(bundles, [ClusterNode(free, {})])
        if not any(bundle.labels for bundle in bundles)
        else None
    )
    return (
        f"cluster: {owner or 'the run'} got no resources within {deadline_s:g} s; other jobs use"
        f" them.\nRequested: {_count_bundles(bundles)}. Free now: {_show_amounts(free)}."
    )


def _crowded_text(bundles: Sequence[Bundle], nodes: Sequence[ClusterNode]) -> str:
    return (
        "cluster: the run does not fit, although nothing else runs: the nodes cannot hold these"
        f" together, each on one node. Requested: {_count_bundles(bundles)}.\n{_offer(nodes)}."
    )


def _count_bundles(bundles: Sequence[Bundle]) -> str:
    alike = Counter(
        f"{bundle.owner} of {_show_amounts(bundle.resources)}"
        + (f" where {_show_labels(bundle.labels)}" if bundle.labels else "")
        for bundle in bundles
    )
    return ", ".join(f"{count} x {each}" for each, count in alike.items())


def _offer(nodes: Sequence[ClusterNode]) -> str:
    """List the nodes' resources; equal nodes are counted."""
    kinds = Counter(f"{_show_amounts(node.resources)}{_node_labels(node.labels)}" for node in nodes)
    listed = kinds.most_common(LISTED_KINDS)
    offers = [f"{count} x {kind}" if count > 1 else kind for kind, count in listed]
    others = len(kinds) - LISTED_KINDS
    more = f"; and {others} other kinds" if others > 0 else ""
    return f"The cluster has {len(nodes)} node(s): {'; '.join(offers)}{more}"


def _node_labels(labels: Labels) -> str:
    listed = {label: value for label, value in labels.items() if label != "ray.io/node-id"}
    return f" ({_show_labels(listed)})" if listed else ""


def _show_labels(labels: Labels) -> str:
    return ", ".join(f"{label}={value}" for label, value in sorted(labels.items()))


def _show_amounts(resources: Mapping[str, Any]) -> str:
    texts = [f"{resources.get('CPU', 0):g} CPU"]
    for name, amount in sorted(resources.items()):
        if name.startswith("accelerator_type:"):
            texts.append(name.partition(":")[2])
        elif (
            name not in ("CPU", "memory", "object_store_memory")
            and not RAYS_OWN.match(name)
            and amount
        ):
            texts.append(f"{amount:g} {name}")
    return ", ".join(texts)
