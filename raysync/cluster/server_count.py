"""How many servers share a model where `cluster.server_shards` is `auto`.

    busy     pushes that the workers would make in a second x seconds of an update by one server
    servers  the fewest with  busy / servers <= BUSY

but no more than there are cores for, and none whose part of the model is so small that it is the
call which takes time. Both figures are measured before the run, on the nodes where it runs, with
the threads that a server has. Each push counts as an update of its own, which is so under
asynchronous paradigms. A barrier makes one update of several pushes, and reads as many gradients
for it: that takes a little less. So the number does not depend on the paradigm, and all runs of a
comparison have the same servers.

An update works elementwise, so n servers make it in the n-th part of the time. What does not work
elementwise, or goes over a pipe to one server, keeps one server: see `reason_for_one`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from raysync.config import Experiment

BUSY = 0.5
"""The share of its time that a server may be busy. At half of it a push that comes at any moment
waits for half an update, in the mean (M/D/1: busy / (2 (1 - busy)) updates); at 0.9 for 4.5."""
LEAST_BYTES = 4 * 2**20
"""The least part of a model that is worth a server of its own: its update takes about as long as
the calls that a further server costs, half a millisecond."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a worker would go on if it never waited."""

    node: str
    """Ray's id of its node."""
    cycle_s: float
    """The seconds from one push to the next."""
    core_s: float
    """The seconds of a core that are computed for a push; 0 if a GPU computes."""


@dataclass(frozen=True, slots=True)
class UpdatePace:
    """How fast one server is."""

    update_s: float
    """The seconds of an update of the whole model with one gradient, and of publishing it."""
    threads: int
    """The cores that it takes meanwhile."""


@dataclass(frozen=True, slots=True)
class ServerCount:
    """The number of servers of a run, and why it is that."""

    servers: int
    why: str
    """The reason, as a clause."""
    update_s: float | None = None
    """See `UpdatePace.update_s`; None: it was not measured."""
    pushes_per_s: float | None = None
    """The pushes of all workers in a second, if none waits; None: it was not measured."""
    busy: float | None = None
    """The share of its time that one server would be busy; above 1 it would hold workers up."""

    @property
    def sentence(self) -> str:
        """What the user should read of it."""
        who = "One server has" if self.servers == 1 else f"{self.servers} servers share"
        return f"{who} the model: {self.why}."


def reason_for_one(experiment: Experiment) -> str:
    """Say why a run by Ray keeps one server, whatever an update takes; "": it does not have to."""
    update, transport = experiment.update, experiment.cluster.transport
    if update.project_radius is not None:
        return "update.project_radius needs the norm of the whole model after each update"
    if update.clips:
        return (
            "with update.clip_norm servers would have to tell each other the norms of their parts"
            " in the middle of each update, and round them differently"
        )
    if transport != "object-ref":
        return f"with cluster.transport: {transport} steps and updates go over pipes to one server"
    return ""


def most_servers(vector_bytes: int) -> int:
    """Return how many servers a vector is large enough for, at least one."""
    return max(1, vector_bytes // LEAST_BYTES)


def pushes_per_s(
    paces: Iterable[Pace], cores: Mapping[str, int], update_core_s: float = 0.0
) -> float:
    """Return how often workers push in a second if none of them waits for the server.

    Where those of a node, with the updates that they cause, compute more than its cores can, all of
    them are slower by that.

    Args:
        paces: those of all workers.
        cores: node -> how many it has.
        update_core_s: the seconds of a core that an update takes.
    """
    by_node: dict[str, list[Pace]] = {}
    for pace in paces:
        by_node.setdefault(pace.node, []).append(pace)
    total = 0.0
    for node, its in by_node.items():
        rate = sum(1 / pace.cycle_s for pace in its)
        used = sum(pace.core_s / pace.cycle_s for pace in its) + rate * update_core_s
        total += rate * min(1.0, cores[node] / max(used, 1e-9))
    return total


def room_for(threads: int, nodes: Iterable[str], cores: Mapping[str, int]) -> int:
    """Return how many servers have cores of their own while all make an update; at least one.

    Args:
        threads: those of each.
        nodes: where servers can run.
        cores: node -> how many it has.
    """
    return max(1, sum(cores[node] // threads for node in set(nodes)))


def choose(
    update: UpdatePace, paces: Sequence[Pace], vector_bytes: int, cores: Mapping[str, int]
) -> ServerCount:
    """Return the number of servers for what was measured.

    Args:
        update: how fast one server is.
        paces: how fast each worker is.
        vector_bytes: the size of a gradient.
        cores: node -> how many it has; of all nodes where workers are.
    """
    rate = pushes_per_s(paces, cores, update.update_s * update.threads)
    busy = rate * update.update_s
    wanted = _wanted(busy)
    room = room_for(update.threads, (pace.node for pace in paces), cores)
    large = most_servers(vector_bytes)
    servers = min(wanted, room, large)
    why = (
        f"one alone would be busy {100 * busy:.3g} % of the time, as an update takes"
        f" {1000 * update.update_s:.3g} ms and {_workers(len(paces))} at most {rate:.3g} times a"
        " second"
    )
    if servers < wanted:
        short = (
            f"the cores of the workers' nodes are enough for {room}"
            if room <= large
            else f"a part below {LEAST_BYTES // 2**20} MiB is not worth a server"
        )
        why += f"; {wanted} would be needed for {100 * BUSY:g} %, but {short}"
    return ServerCount(servers, why, update.update_s, rate, busy)


def settled(experiment: Experiment, servers: int) -> Experiment:
    """Return an experiment by Ray with that number of servers, and where they are, in place of
    `auto`. Several of them are beside workers, unless labels say where they are to be.
    """
    cluster = experiment.cluster
    changed: dict[str, object] = {"server_shards": servers}
    is_free = cluster.server_placement == "apart" and not cluster.server_label_selector
    if servers > 1 and is_free:
        changed["server_placement"] = "spread"
    return experiment.model_copy(update={"cluster": cluster.model_copy(update=changed)})


def _wanted(busy: float) -> int:
    """Return the fewest servers that are not too busy."""
    return max(1, ceil(busy / BUSY))


def _workers(count: int) -> str:
    return "1 worker pushes" if count == 1 else f"{count} workers push"
