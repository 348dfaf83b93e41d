"""Which transport each worker gets: what `cluster.transport` asks for, and what the nodes allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from raysync.cluster.transports.shared_memory import is_supported
from raysync.cluster.transports.shared_vectors import SharedPlan
from raysync.config import Experiment
from raysync.engine.server_log import MAX_UPDATES
from raysync.errors import ConfigError

CGROUP = Path("/sys/fs/cgroup")
"""Where the limits of this process are, if it has any."""
MIB = 2**20
TURNS = 2
"""The gradients of a worker under way at once: one is written while the one before is read."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a node offers."""

    is_shared: bool
    """Whether its processes can share memory as `shared_memory` does it."""
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Sites:
    """Ray's ids of the nodes of a run's actors."""

    servers: Sequence[str]
    """The controller is with the first."""
    evaluator: str
    workers: Mapping[str, str]
    """Slot -> the node of its worker."""


def memory_here(cgroup: Path = CGROUP) -> Memory:
    """Return what the node of this process offers, within the limits of its container."""
    available = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no limit is `max`
        limit = int((cgroup / "memory.max").read_text())
        available = min(available, limit - int((cgroup / "memory.current").read_text()))
    return Memory(is_supported(), available)


def store_notice(experiment: Experiment, vector_bytes: int, store_bytes: float) -> str:
    """Return what a user should know of a run whose vectors may fill Ray's object store, on the
    node of its server; "" if there is room for them.

    Args:
        experiment: its vectors are object references.
        vector_bytes: the size of a gradient, and of the weights.
        store_bytes: the size of the store on that node.
    """
    needed = needed_bytes(experiment, vector_bytes)
    if needed <= store_bytes:
        return ""
    return (
        f"Gradients and weights take up to {needed / MIB:,.0f} MiB of the object store on the"
        f" server's node, which has {store_bytes / MIB:,.0f} MiB: Ray then moves some to disk,"
        " which is slow. A smaller cluster.server_log_bytes needs less; `ray start"
        " --object-store-memory` gives more."
    )


def needed_bytes(experiment: Experiment, vector_bytes: int) -> int:
    """Return about how much memory the vectors of a run need at most.

    That is two gradients for each worker, the weights that each has pulled, those that are being
    made and those of an evaluation, and the log of the server.
    """
    cluster, workers = experiment.cluster, experiment.worker_count
    logged = min(cluster.server_log_bytes, MAX_UPDATES * workers * vector_bytes)
    log = logged if cluster.restarts.attempts else 0
    return (TURNS * workers + workers + 2) * vector_bytes + log


def choose(
    experiment: Experiment, vector_bytes: int, sites: Sites, memory: Memory
) -> tuple[SharedPlan | None, str]:
    """Return what travels in shared memory, and why not everything does; "" if it does.

    Args:
        experiment: with `cluster.transport: shared-memory` or `auto`.
        vector_bytes: the size of a gradient, and of the weights.
        sites: where its actors sit.
        memory: what the node of the first server offers.

    Raises:
        ConfigError: it demands `shared-memory`, and cannot have it for everything.
    """
    home = sites.servers[0]
    elsewhere = [slot for slot, node in sites.workers.items() if node != home]
    needed, shares_weights = needed_bytes(experiment, vector_bytes), False
    plan: SharedPlan | None = None
    if not memory.is_shared:
        why = "it needs Linux, with memfd_create and /proc"
    elif any(node != home for node in sites.servers):
        why = "the shards of the server sit on several nodes"
    elif needed > memory.available_bytes:
        why = (
            f"up to {needed / MIB:,.0f} MiB of shared memory are needed, and"
            f" {max(0, memory.available_bytes) / MIB:,.0f} MiB are available on the server's node"
            " (a smaller cluster.server_log_bytes needs less)"
        )
    else:
        if elsewhere:
            why = f"these workers are on other nodes than the server: {_named(elsewhere)}"
        elif sites.evaluator != home:
            why = "the evaluator is on another node than the server"
        else:
            why, shares_weights = "", True
        if len(elsewhere) < len(sites.workers):
            plan = SharedPlan(home, shares_weights)
    if why and experiment.cluster.transport == "shared-memory":
        raise ConfigError(
            f"cluster.transport: shared-memory: {why}. With `auto` what cannot be shared travels as"
            " object references."
        )
    return plan, why


def _named(slots: Sequence[str]) -> str:
    return ", ".join(slots[:3]) + (f" and {len(slots) - 3} more" if len(slots) > 3 else "")
