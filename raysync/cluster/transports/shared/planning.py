"""The choice of what travels in shared memory, by the settings and by the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from raysync.cluster.transports.object_store import ObjectStorePlan, store_notice
from raysync.cluster.transports.shared.segments import is_supported
from raysync.cluster.transports.shared.shared_memory import SharedPlan
from raysync.cluster.transports.transport import MIB, Choice, ServerNode, Sites, needed_bytes
from raysync.config import Experiment
from raysync.errors import ConfigError

CGROUP = Path("/sys/fs/cgroup")  # the limits of this process, if it has any
NAME = "shared-memory"
ALL_SHARED = "Gradients and weights travel in shared memory: all actors are on one node."


@dataclass(frozen=True, slots=True)
class Memory:
    is_shared: bool  # whether processes can share memory as in `segments`
    available_bytes: int


def memory_here(cgroup: Path = CGROUP) -> Memory:
    """Measure this node's memory, within the limits of its container."""
    available = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no limit is `max`
        limit = int((cgroup / "memory.max").read_text())
        available = min(available, limit - int((cgroup / "memory.current").read_text()))
    return Memory(is_supported(), available)


def automatic(experiment: Experiment, vector_bytes: int, sites: Sites, node: ServerNode) -> Choice:
    """Choose shared memory where possible, and the object store elsewhere."""
    plan, why = shared_plan(experiment, vector_bytes, sites, _memory_of(node))
    if plan is None:
        notice = store_notice(experiment, vector_bytes, node.store_bytes())
        return ObjectStorePlan(), [f"All vectors travel as object references: {why}.", notice]
    return plan, [f"Some vectors travel as object references: {why}." if why else ALL_SHARED]


def by_shared_memory(
    experiment: Experiment, vector_bytes: int, sites: Sites, node: ServerNode
) -> Choice:
    """Choose shared memory for everything.

    Raises:
        ConfigError: something cannot be shared.
    """
    plan, why = shared_plan(experiment, vector_bytes, sites, _memory_of(node))
    if plan is None or why:
        raise ConfigError(
            f"cluster.transport: {NAME}: {why}. With `auto`, vectors that cannot be shared travel"
            " as object references."
        )
    return plan, []


def _memory_of(node: ServerNode) -> Memory:
    memory: Memory = node.run(memory_here)
    # The previous run's memory is reused, or returned.
    return replace(memory, available_bytes=memory.available_bytes + node.held_bytes())


def shared_plan(
    experiment: Experiment, vector_bytes: int, sites: Sites, memory: Memory
) -> tuple[SharedPlan | None, str]:
    """Plan what can travel in shared memory, with the reason why not everything can, or ""."""
    home = next(iter(sites.servers.values()))
    elsewhere = [slot for slot, node in sites.workers.items() if node != home]
    needed = needed_bytes(experiment, vector_bytes)
    if experiment.cluster.task_events:
        return None, "calls over pipes are none of Ray's tasks (cluster.task_events: true)"
    if not memory.is_shared:
        return None, "it needs Linux, with memfd_create and /proc"
    if any(node != home for node in sites.servers.values()):
        return None, "the shards of the server sit on several nodes"
    if needed > memory.available_bytes:
        return None, (
            f"up to {needed / MIB:,.0f} MiB of shared memory are needed, and"
            f" {max(0, memory.available_bytes) / MIB:,.0f} MiB are available on the server's node"
            " (a smaller cluster.server_log_bytes needs less)"
        )
    why = ""
    if elsewhere:
        why = f"these workers are on other nodes than the server: {_list_slots(elsewhere)}"
    elif sites.evaluator != home:
        why = "the evaluator is on another node than the server"
    if len(elsewhere) == len(sites.workers):
        return None, why
    sharing = [slot for slot in sites.workers if slot not in elsewhere]
    if not why:
        sharing += [*sites.servers, "evaluator"]
    return SharedPlan(home, shares_weights=not why, transports=dict.fromkeys(sharing, NAME)), why


def _list_slots(slots: Sequence[str]) -> str:
    return ", ".join(slots[:3]) + (f" and {len(slots) - 3} more" if len(slots) > 3 else "")
