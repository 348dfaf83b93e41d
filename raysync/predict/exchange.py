"""What carries gradients: their size, the links of the ranks, and servers or an all-reduce."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ByteSize, TypeAdapter, ValidationError

from raysync import config
from raysync.config import Experiment, Link, Network, ParadigmChoice
from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError, unknown_name
from raysync.training.data.data_set import data_set
from raysync.training.preparation import prepare

COLLECTIVES = ("ring", "tree")
MOST_SERVERS = 1024
LIBRARIES = ("torchvision:", "timm:")
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
TIME = re.compile(r"(\d+(?:\.\d+)?) ?(s|ms|us)")
RATES = "100mbit, 1gbit, 10Gb/s, or in bytes 1.2GB/s"
SERVER_LINK = "server_bandwidth_bytes_per_s"
# settings of `network` in a profile: what a push and an update cost beside the links
CALLS = {"push_s", "update_s", "update_bytes_per_s", "share_sigma", "pull_round_trips"}
_SIZE = TypeAdapter(ByteSize)


@dataclass(frozen=True)
class Exchange:
    """Says how gradients travel."""

    vector_bytes: int
    link: Link  # the link of each rank, or of each node, and of each server
    # rank -> a link of its own, where it differs
    of_ranks: Mapping[str, Link] = field(default_factory=dict)
    # the number of machines whose ranks share a link; None: each rank is on one of its own
    nodes: int | None = None
    servers: tuple[int, ...] = (1,)  # the numbers of servers to compare; none: only all-reduces
    collectives: tuple[str, ...] = ("ring",)  # the all-reduces to compare with them
    # settings of `network` from a profile; see `CALLS`
    calls: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_servers(self) -> int:
        return self.servers[0] if self.servers else 1

    def with_rate(self, bytes_per_s: float) -> Exchange:
        """Return it with links of another rate; links of single ranks stay."""
        link = self.link.model_copy(update={"bandwidth_bytes_per_s": bytes_per_s})
        calls = {name: value for name, value in self.calls.items() if name != SERVER_LINK}
        return replace(self, link=link, calls=calls)

    def network(self, slots: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings `network` of an experiment.

        Args:
            slots: rank -> the slot of its worker.
        """
        server = {SERVER_LINK: self.link.bandwidth_bytes_per_s}
        common = {"vector_bytes": self.vector_bytes, **server, **self.calls}
        if self.nodes is None and not self.of_ranks:
            return {**common, "link": self.link.model_dump()}
        return {**common, "nodes": list(self._nodes(slots))}

    def _nodes(self, slots: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the machines; what is on one of them does not use its link."""
        for rank, link in self.of_ranks.items():
            if rank in slots:
                name = f"of {rank}"
                yield {"name": name, "workers": [slots[rank]], "link": link.model_dump()}
        others = [slot for rank, slot in slots.items() if rank not in self.of_ranks]
        count = min(self.nodes or len(others), len(others))
        for number in range(count):
            begin, end = (len(others) * edge // count for edge in (number, number + 1))
            workers = others[begin:end]
            yield {"name": f"node {number}", "workers": workers, "link": self.link.model_dump()}


def slowest_link(experiment: Experiment) -> Experiment:
    """Return an experiment for an all-reduce, which knows no nodes: all have the slowest link.

    A ring that goes from node to node crosses each node's link once, each way, however many
    workers the node has.
    """
    network = experiment.network
    if not network.nodes:
        return experiment
    links = [network.link, *(node.link for node in network.nodes)]
    latency_s = max(link.latency_s for link in links)
    rates = [link.bandwidth_bytes_per_s for link in links if link.bandwidth_bytes_per_s]
    slowest = Link(latency_s=latency_s, bandwidth_bytes_per_s=min(rates, default=None))
    changed = network.model_copy(update={"nodes": (), "link": slowest})
    return experiment.model_copy(update={"network": changed})


def collective_of(choice: ParadigmChoice, collective: str) -> ParadigmChoice | None:
    """Return a paradigm with an all-reduce in place of the server; None: it needs a server."""
    spec = {"name": choice.name, **choice.parameters}
    if choice.name == "balanced" and "paradigm" not in spec:
        spec["paradigm"] = {"name": "bsp", "exchange": collective}
    elif choice.name == "bsp" and "exchange" not in spec:
        spec["exchange"] = collective
    else:
        return None
    return ParadigmChoice.model_validate(spec)


def is_collective(choice: ParadigmChoice) -> bool:
    """Return whether workers exchange gradients among themselves."""
    paradigm = choice.make()
    return isinstance(paradigm, Paradigm) and bool(paradigm.collective)


def exchange_of(
    *,
    model_bytes: int | None,
    links: Sequence[str],
    nodes: int | None,
    exchanges: Sequence[str],
    ranks: Sequence[str],
    profile: str | None = None,
) -> Exchange | None:
    """Combine the options that say how gradients travel; None: in no time.

    Args:
        model_bytes: the size of a gradient, from whatever source; None or 0: it is not known.
        links: `RATE`, `RATE,LATENCY`, or either for one rank: `RANK=RATE`.
        nodes: the number of machines.
        exchanges: `servers:N`, `ring` or `tree`; none: one server, and a ring.
        ranks: the names of the ranks.
        profile: of a calibrated cluster. Its latency, pushes and updates count in each exchange,
            also where `links` replace its links.

    Raises:
        ConfigError: one of them is missing, or is not what it should be.
    """
    if profile is None and not links:
        if nodes is not None or exchanges:
            option = "--nodes" if nodes is not None else "--exchange"
            raise ConfigError(f"{option}: needs --link, such as --link 1gbit ({RATES}).")
        return None
    network = Network() if profile is None else _network_of(profile)
    if not model_bytes:
        raise ConfigError(
            f"{'--link' if links else '--profile'}: needs the size of a gradient, which the sources"
            " do not have; add --model-bytes 98MB."
        )
    common, of_ranks = None if profile is None else network.link, {}
    latency_s = network.link.latency_s
    for text in links:
        rank, equals, link = text.rpartition("=")
        if not equals:
            common = _link(link, text, latency_s)
        elif rank not in ranks:
            raise unknown_name("rank", rank, ranks, where=f"--link {text}")
        else:
            of_ranks[rank] = _link(link, text, latency_s)
    if common is None:
        raise ConfigError(
            f"--link {links[0]}: this is the link of one; add the link of all others: --link 1gbit."
        )
    servers, collectives = _servers_and_collectives(exchanges or ([] if links else ["servers:1"]))
    # another link is that of the server, too
    calls = CALLS | {SERVER_LINK} if common is network.link else CALLS
    return Exchange(
        vector_bytes=model_bytes,
        link=common,
        of_ranks=of_ranks,
        nodes=nodes,
        servers=servers,
        collectives=collectives,
        calls={} if profile is None else network.model_dump(include=calls),
    )


def _network_of(profile: str) -> Network:
    """Return the network of a profile.

    Raises:
        ConfigError: there is no such profile, or its groups have links of their own.
    """
    experiment = config.validate({"profile": profile, "engine": "virtual"}, source="--profile")
    network = experiment.network
    own = next((group for group in experiment.workers if group.link != Link()), None)
    if own is not None or network.nodes or network.regions:
        of = "nodes or regions" if own is None else f"group {own.name}"
        raise ConfigError(
            f"--profile {profile}: {of} have links of their own, and ranks are in no groups; use"
            " `raysync advise`, which knows them."
        )
    return network


def _servers_and_collectives(exchanges: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if not exchanges:
        return (1,), ("ring",)
    servers, collectives = [], []
    for text in exchanges:
        kind, _, count = text.partition(":")
        if text in COLLECTIVES:
            collectives.append(text)
        elif kind == "servers" and count.isascii() and count.isdecimal():
            if not 1 <= int(count[:9]) <= MOST_SERVERS:
                raise ConfigError(f"--exchange {text}: from 1 to {MOST_SERVERS} servers.")
            servers.append(int(count))
        else:
            raise ConfigError(f"--exchange {text}: allowed: servers:N, ring, tree.")
    return tuple(dict.fromkeys(servers)), tuple(dict.fromkeys(collectives))


def _link(text: str, where: str, more_latency_s: float) -> Link:
    rate, comma, latency = text.partition(",")
    match = TIME.fullmatch(latency.strip())
    if comma and match is None:
        raise ConfigError(f"--link {where}: {latency!r} is no latency, as 0.5ms or 100us is.")
    return Link(
        latency_s=more_latency_s + (float(match[1]) * SECONDS[match[2]] if match else 0.0),
        bandwidth_bytes_per_s=bytes_per_s(rate, f"--link {where}"),
    )


def bytes_per_s(text: str, where: str) -> float:
    """Return the rate that a text names. A small b is a bit, as in Gb/s.

    Raises:
        ConfigError: it is none, or has no unit.
    """
    size = re.sub(r"(/s|ps)$", "", text.strip())
    found = _bytes(size + "it" if size.endswith("b") else size)
    if not found:
        raise ConfigError(f"{where}: {text!r} is no rate; say it with its unit: {RATES}.")
    return float(found)


def size_of(text: str, where: str) -> int:
    """Return the bytes that a text names.

    Raises:
        ConfigError: it names none, or has no unit.
    """
    found = _bytes(text)
    if not found:
        raise ConfigError(f"{where}: {text!r} is no size; say it with its unit: 98MB, 400kB, 1GiB.")
    return found


def model_bytes_of(name: str) -> int:
    """Return the bytes of a model's gradient: of a library's model, or of an experiment file's.

    Raises:
        ConfigError: there is no such model.
    """
    if name.endswith((".yaml", ".yml")):
        return prepare(config.load(Path(name))).vector_bytes
    if not name.startswith(LIBRARIES):
        raise ConfigError(
            f"--model {name}: allowed: torchvision:NAME, timm:NAME, or the experiment file (.yaml)"
            " that has the model and its data."
        )
    # two images with the shape and the classes of ImageNet: a model's size depends on these
    images = np.zeros((2, 3, 224, 224), np.float32), np.array([0, 1])
    data = data_set("images", images, images, classes=1000)
    settings = {"model": name, "batch_size": 1, "workers": [{"count": 1}]}
    return prepare(config.validate(settings, source="--model"), data=data).vector_bytes


def _bytes(text: str) -> int:
    try:
        return 0 if text[-1:].isdecimal() else int(_SIZE.validate_python(text))
    except ValidationError:
        return 0
