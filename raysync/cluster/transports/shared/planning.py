"""The choice of what travels in shared memory, by the settings and by the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

import psutil

from raysync.cluster.transports.object_store import ObjectStorePlan, store_notice
from raysync.cluster.transports.shared.device_memory import offer
from raysync.cluster.transports.shared.segments import is_supported
from raysync.cluster.transports.shared.shared_memory import SharedPlan
from raysync.cluster.transports.transport import MIB, Choice, ServerNode, Sites, needed_bytes
from raysync.config import Experiment
from raysync.errors import ConfigError

CGROUP = Path("/sys/fs/cgroup")  # the limits of this process, if it has any
NAME, ON_GPU = "shared-memory", "device-memory"
ALL_SHARED = "Gradients and weights travel in shared memory: all actors are on one node."
ALL_ON_GPU = "Gradients and weights stay in the memory of the server's GPU."


@dataclass(frozen=True, slots=True)
class Memory:
    is_shared: bool  # whether processes can share memory as in `segments`
    available_bytes: float


def memory_here(cgroup: Path = CGROUP) -> Memory:
    """Measure this node's memory, within the limits of its container."""
    available = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no limit is `max`
        limit = int((cgroup / "memory.max").read_text())
        available = min(available, limit - int((cgroup / "memory.current").read_text()))
    return Memory(is_supported(), available)


def automatic(experiment: Experiment, vector_bytes: int, sites: Sites, node: ServerNode) -> Choice:
    """Choose shared memory where possible, and the object store elsewhere."""
    plan, why, gpu_why = _plan(experiment, vector_bytes, sites, node)
    on_cpu = f"Gradients and weights do not stay on the server's GPU: {gpu_why}." if gpu_why else ""
    if plan is None:
        notice = store_notice(experiment, vector_bytes, node.store_bytes())
        why = f"All vectors travel as object references: {why}."
        return ObjectStorePlan(), [on_cpu, why, notice]
    if plan.gpu:
        return plan, [ALL_ON_GPU]
    why = f"Some vectors travel as object references: {why}." if why else ALL_SHARED
    return plan, [on_cpu, why]


def by_shared_memory(
    experiment: Experiment, vector_bytes: int, sites: Sites, node: ServerNode
) -> Choice:
    """Choose shared memory for everything.

    Raises:
        ConfigError: something cannot be shared.
    """
    plan, why, gpu_why = _plan(experiment, vector_bytes, sites, node)
    if plan is None or why or gpu_why:
        otherwise = "as object references" if plan is None or why else "in shared memory"
        raise ConfigError(
            f"cluster.transport: {NAME}: {why or gpu_why}. With `auto`, vectors that cannot be"
            f" shared travel {otherwise}."
        )
    return plan, [ALL_ON_GPU] if plan.gpu else []


def _plan(
    experiment: Experiment, vector_bytes: int, sites: Sites, node: ServerNode
) -> tuple[SharedPlan | None, str, str]:
    """Plan, with the reasons why not all is shared, and why not on the server's GPU."""
    memory, gpu_why = _memory_of(node), ""
    if experiment.cluster.server_gpus:
        unlimited = replace(memory, available_bytes=inf)
        plan, gpu_why = shared_plan(experiment, vector_bytes, sites, unlimited)
        if plan is not None and not gpu_why:
            gpu, gpu_why = _lent_gpu(needed_bytes(experiment, vector_bytes), sites, node)
            if not gpu_why:
                transports = dict.fromkeys(plan.transports, ON_GPU)
                return replace(plan, transports=transports, gpu=gpu), "", ""
    return *shared_plan(experiment, vector_bytes, sites, memory), gpu_why


def _lent_gpu(needed: int, sites: Sites, node: ServerNode) -> tuple[bytes, str]:
    """Return the GPU of the server, if its memory can be lent; else the reason why not."""
    # imported here: the driver does without torch
    from raysync.cluster.transports.shared.device_vector import gpu_here, tried

    gpu = node.run(gpu_here)
    if isinstance(gpu, str):
        return b"", f"the server: {gpu}"
    offered = node.run(partial(offer, gpu, needed), "controller")
    if isinstance(offered, str):
        return b"", offered
    [server] = sites.servers
    for actor in (server, "evaluator", *sites.workers):
        if why := node.run(partial(tried, offered, writes=actor == server), actor):
            return b"", f"{actor}: {why}"
    return gpu, ""


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
