"""The choice of a run's transport."""

from __future__ import annotations

from collections.abc import Callable

from raysync.cluster.transports.object_store import by_object_store
from raysync.cluster.transports.shared.planning import automatic, by_shared_memory
from raysync.cluster.transports.transport import Choice, ServerNode, Sites
from raysync.config import Experiment
from raysync.engine.server_log import log_notice
from raysync.programs.run_spec import RunSpec

# `cluster.transport` -> its planner
TRANSPORTS: dict[str, Callable[[Experiment, int, Sites, ServerNode], Choice]] = {
    "object-ref": by_object_store,
    "shared-memory": by_shared_memory,
    "auto": automatic,
}


def choose(spec: RunSpec, sites: Sites, node: ServerNode) -> Choice:
    """Return the transport plan of a run, and notices for the user.

    Raises:
        ConfigError: the nodes do not allow the transport that the experiment demands.
    """
    experiment, vector_bytes = spec.experiment, sum(spec.vector_bytes.values())
    # Stages exchange vectors of many sizes, which only the object store carries; settings that
    # demand another transport have been refused before (`Capability.SHARE_MEMORY`).
    planner = by_object_store if spec.is_pipelined else TRANSPORTS[experiment.cluster.transport]
    plan, notices = planner(experiment, vector_bytes, sites, node)
    return plan, notices if spec.is_pipelined else [*notices, log_notice(experiment, vector_bytes)]
