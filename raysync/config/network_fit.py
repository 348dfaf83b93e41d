"""What must hold between the network of an experiment, its workers and its servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysync.config.network import Regions
from raysync.errors import unknown_name

if TYPE_CHECKING:
    from raysync.config.experiment import Experiment


def check_network(experiment: Experiment) -> None:
    """Check that the nodes, regions and sizes of a network go with the rest of its experiment.

    Raises:
        ValueError: it names the setting.
    """
    network = experiment.network
    if network.vector_bytes is not None and experiment.engine == "virtual":
        _check_vector_bytes(experiment)
    _check_nodes(experiment)
    for group in experiment.workers:
        if group.region is not None and network.regions is None:
            raise ValueError(
                f"workers: {group.name}: region: {group.region}, but there are no network.regions"
            )
    if network.regions is not None:
        _check_groups(experiment, network.regions)
        _check_servers(experiment, network.regions)
        _check_links(experiment, network.regions)


def _check_vector_bytes(experiment: Experiment) -> None:
    where = f"network.vector_bytes: {experiment.network.vector_bytes}"
    if experiment.trains:
        raise ValueError(
            f"{where} needs timing: only; where something is trained, the model says how large"
            " its gradients are"
        )
    for group in experiment.workers:
        if not group.emulates_steps or group.flops_per_s:
            raise ValueError(
                f"{where}: no model is built then, so group {group.name!r} must say how long a"
                " step takes: step_s, per_sample_s or trace"
            )


def _check_nodes(experiment: Experiment) -> None:
    allowed = set(experiment.slots()) | {group.name for group in experiment.workers}
    node_of: dict[str, str] = {}
    for index, node in enumerate(experiment.network.nodes):
        where = f"network.nodes[{index}]"
        for name in node.workers:
            if name not in allowed:
                raise unknown_name("worker", name, allowed, where=where)
        for slot in experiment.slots_of(node.workers):
            if slot in node_of:
                raise ValueError(f"{where}: {slot} is on node {node_of[slot]!r} already")
            node_of[slot] = node.name


def _check_groups(experiment: Experiment, regions: Regions) -> None:
    for group in experiment.workers:
        where = f"workers: {group.name}: region"
        if group.region is None:
            names = ", ".join(regions.names)
            raise ValueError(f"{where}: must be one of network.regions: {names}")
        regions.index(group.region, where)


def _check_servers(experiment: Experiment, regions: Regions) -> None:
    if experiment.cluster.server_placement != "apart":
        if regions.server is not None:
            raise ValueError(
                "network.regions.server: servers that are placed with workers are where those"
                " are; leave it out"
            )
        if len(found := {group.region for group in experiment.server_hosts().values()}) > 1:
            raise ValueError(
                f"network.regions: the servers would be in {len(found)} regions, with their"
                " workers; they must be in one: fewer of them, or server_placement: apart"
            )
    elif regions.server is None:
        raise ValueError(
            f"network.regions.server: must be one of {', '.join(regions.names)}; the servers"
            " are placed apart from workers"
        )


def _check_links(experiment: Experiment, regions: Regions) -> None:
    home = experiment.server_region
    assert home is not None, "servers without a region"
    for group in experiment.workers:
        assert group.region is not None, "a group without a region"
        for source, target in ((group.region, home), (home, group.region)):
            if regions.between(source, target) is None:
                raise ValueError(
                    f"network.regions: there is no link from {source!r} to {target!r}, between"
                    f" group {group.name!r} and the servers; give bandwidth_bytes_per_s a"
                    f" number in row {source!r}, column {target!r}"
                )
