"""Check an experiment's network against its workers and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from raysync.config.network import Network, Regions
from raysync.config.workers import WorkerGroup, select_slots, slots_in
from raysync.errors import unknown_name

if TYPE_CHECKING:
    from raysync.config.experiment import Experiment

Groups = Sequence[WorkerGroup]


def check_network(experiment: Experiment) -> None:
    """Refuse nodes, regions and sizes that do not fit the workers and servers."""
    network, groups, hosts = experiment.network, experiment.workers, experiment.server_hosts()
    if experiment.engine == "virtual":
        _check_vector_bytes(network, groups, trains=experiment.trains)
    _check_nodes(network, groups)
    for group in groups:
        if group.region is not None and network.regions is None:
            raise ValueError(
                f"workers: {group.name}: region: {group.region}, but there are no network.regions"
            )
    if network.regions is not None:
        _check_groups(groups, network.regions)
        _check_servers(hosts, network.regions)
        _check_links(groups, hosts, network.regions)


def _check_vector_bytes(network: Network, groups: Groups, *, trains: bool) -> None:
    if network.vector_bytes is None:
        return
    where = f"network.vector_bytes: {network.vector_bytes}"
    if trains:
        raise ValueError(
            f"{where} needs timing: only; a run that trains takes the size from its model"
        )
    for group in groups:
        if not group.emulates_steps or group.flops_per_s:
            raise ValueError(
                f"{where}: no model is built then, so group {group.name!r} must say how long a"
                " step takes: step_s, per_sample_s or trace"
            )


def _check_nodes(network: Network, groups: Groups) -> None:
    allowed = set(slots_in(groups)) | {group.name for group in groups}
    node_of: dict[str, str] = {}
    for index, node in enumerate(network.nodes):
        where = f"network.nodes[{index}]"
        for name in node.workers:
            if name not in allowed:
                raise unknown_name("worker", name, allowed, where=where)
        for slot in select_slots(groups, node.workers):
            if slot in node_of:
                raise ValueError(f"{where}: {slot} is on node {node_of[slot]!r} already")
            node_of[slot] = node.name


def _check_groups(groups: Groups, regions: Regions) -> None:
    for group in groups:
        where = f"workers: {group.name}: region"
        if group.region is None:
            names = ", ".join(regions.names)
            raise ValueError(f"{where}: must be one of network.regions: {names}")
        regions.index(group.region, where)


def _check_servers(hosts: Mapping[str, WorkerGroup], regions: Regions) -> None:
    if hosts:
        if regions.server is not None:
            raise ValueError(
                "network.regions.server: servers that are placed with workers are in the workers'"
                " regions; leave it out"
            )
        if len(found := {group.region for group in hosts.values()}) > 1:
            raise ValueError(
                f"network.regions: the servers would be in {len(found)} regions, with their"
                " workers, but they must share one: set fewer servers, or server_placement: apart"
            )
    elif regions.server is None:
        raise ValueError(
            f"network.regions.server: must be one of {', '.join(regions.names)}; the servers"
            " are placed apart from workers"
        )


def _check_links(groups: Groups, hosts: Mapping[str, WorkerGroup], regions: Regions) -> None:
    home = next((group.region for group in hosts.values()), regions.server)
    assert home is not None, "servers without a region"
    for group in groups:
        assert group.region is not None, "a group without a region"
        for source, target in ((group.region, home), (home, group.region)):
            if regions.between(source, target) is None:
                raise ValueError(
                    f"network.regions: there is no link from {source!r} to {target!r}, between"
                    f" group {group.name!r} and the servers; give bandwidth_bytes_per_s a"
                    f" number in row {source!r}, column {target!r}"
                )
