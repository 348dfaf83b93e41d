"""How a worker is started anew in the middle of a run, in the place of one that crashed.

Its plan has the class of the actor: a controller whose run has such comebacks imports torch before
the run begins, and any other does without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ray

from raysync.cluster.names import Role


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker slot: where its actor sits, and what it is told."""

    cls: type
    """The class of the actor."""
    options: dict[str, Any]
    """Ray's, of the actor: its bundle, and its share of that."""
    threads: int
    plan: Any
    """What its `reset` takes, with the data."""
    data: Any
    """Reference to the data set."""
    actor_group: str
    role: Role
    """Of its first life."""

    def spawn(self, life: int) -> tuple[Any, Any]:
        """Start a worker; returns its handle, and a reference to its `Place`, which is there when
        it is ready.
        """
        role = replace(self.role, life=life)
        worker = (
            ray.remote(self.cls)
            .options(**self.options | {"name": role.name(self.actor_group)})
            .remote(self.threads, role)
        )
        return worker, worker.reset.remote(self.plan, self.data)
