"""Which transport a run gets."""

from __future__ import annotations

from collections.abc import Callable

from raysync.cluster.run_spec import RunSpec
from raysync.cluster.transports.object_store import by_object_store
from raysync.cluster.transports.shared.choice import everywhere, wherever_possible
from raysync.cluster.transports.transport import Choice, ServerNode, Sites
from raysync.config import Experiment

TRANSPORTS: dict[str, Callable[[Experiment, int, Sites, ServerNode], Choice]] = {
    "object-ref": by_object_store,
    "shared-memory": everywhere,
    "auto": wherever_possible,
}
"""`cluster.transport` -> what settles the plan."""


def choose(spec: RunSpec, sites: Sites, node: ServerNode) -> Choice:
    """Return the plan of a run's transport, and what the user should know of it.

    Stages send vectors of many sizes to one another, which only the object store carries: what
    demands another transport has been refused before (`Capability.SHARE_MEMORY`).

    Raises:
        ConfigError: the experiment demands what the nodes do not allow.
    """
    experiment = spec.experiment
    settle = by_object_store if spec.is_pipelined else TRANSPORTS[experiment.cluster.transport]
    return settle(experiment, sum(spec.vector_bytes.values()), sites, node)
