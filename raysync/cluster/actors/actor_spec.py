"""What an actor is called, where it sits, and what it is started anew with.

The names are those of the Ray dashboard, of logs, and of `ray.get_actor`:

    raysync:unequal-3f2a91:controller         raysync:unequal-3f2a91:worker-3 (gtx1060-0)
    raysync:unequal-3f2a91:server-0           raysync:unequal-3f2a91:worker-3 (gtx1060-0) #2

The last is a worker that came back, in its second life; servers are named likewise. The middle
names the actor group: the experiment (of a trial its sweep too, `SWEEP/00003`) and an id. It does
not name a record, since Ray names an actor once, when it is made, and a session keeps its actors
for all runs of a comparison; which run they are at is a line of the controller's log. The id keeps
actor groups apart that share a namespace: those of two jobs that join one, for example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import ray


def actor_group_name(experiment: str) -> str:
    """Return a new name, `raysync:NAME-ID`."""
    return f"raysync:{experiment}-{uuid4().hex[:6]}"


@dataclass(frozen=True, slots=True)
class Role:
    """What an actor is in its group."""

    kind: str
    """controller, evaluator, server-0, worker-3."""
    slot: str = ""
    """The slot of a worker, as the journal calls it."""
    life: int = 1

    @property
    def number(self) -> int:
        """The number of a server: 3 of `server-3`."""
        return int(self.kind.rpartition("-")[2])

    def name(self, actor_group: str) -> str:
        """Return the actor's name for Ray, which is unique in its namespace."""
        slot = f" ({self.slot})" if self.slot not in ("", self.kind) else ""
        return f"{actor_group}:{self.kind}{slot}{self._again}"

    def __str__(self) -> str:
        """Return the name for logs."""
        slot = f" {self.slot}" if self.slot not in ("", self.kind) else ""
        return f"{self.kind}{slot}{self._again}"

    @property
    def _again(self) -> str:
        return f" #{self.life}" if self.life > 1 else ""


def server_role(number: int) -> Role:
    """Return the role of the server of that number."""
    return Role(f"server-{number}")


def worker_roles(slots: Sequence[str]) -> list[Role]:
    """Return the roles of the workers in those slots."""
    return [Role(f"worker-{number}", slot) for number, slot in enumerate(slots)]


@dataclass(frozen=True)
class Place:
    """Where an actor has come to sit."""

    actor_id: str
    node_id: str
    address: str
    gpus: tuple[str, ...]
    """Ray's numbers of the GPUs it may use."""
    devices: tuple[str, ...]
    """The torch devices that it computes on; of GPUs also what they are."""
    transport: str = "object-ref"
    """How vectors travel: a worker's gradients, the weights of a server, and to the evaluator."""


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """All that it takes to start an actor in the place of one that is gone."""

    cls: type
    options: dict[str, Any]
    """Ray's options of the actor: its bundle, and its share of that."""
    threads: tuple[int, ...]
    """A `threads.Threads`, without torch."""
    setup: tuple[Any, Any]
    """References to the `RunSpec` and the model."""
    actor_group: str
    role: Role
    """The role of its first life."""
    state: tuple[Any, ...] = ()
    """A reference to the state that a server began the run with, if it went on from a
    checkpoint."""

    def spawn(self, life: int, *state: Any) -> tuple[Any, Any]:
        """Start the actor's next life.

        Args:
            life: its number.
            state: a reference to the state that a server begins with, in place of its first.

        Returns:
            Its handle, and a reference to its `Place`, which is there when it is ready.
        """
        role = replace(self.role, life=life)
        options = self.options | {"name": role.name(self.actor_group)}
        actor = ray.remote(self.cls).options(**options).remote(self.threads, role)
        return actor, actor.reset.remote(*self.setup, *(state or self.state))


class ActorSpecs:
    """The specs of a run's workers and servers, which are fetched when the first is needed.

    They hold the class of the actors, and whoever fetches them imports torch, which takes seconds
    and 200 MB: a controller that loses nothing does without.
    """

    def __init__(self, reference: Any) -> None:
        """
        Args:
            reference: to a mapping, slot of a worker, or kind of a server -> `ActorSpec`.
        """
        self._reference = reference
        self._specs: Mapping[str, ActorSpec] | None = None

    def fetch(self) -> Mapping[str, ActorSpec]:
        """Return slot or kind -> what starts the actor anew."""
        if self._specs is None:
            self._specs = ray.get(self._reference)
        assert self._specs is not None, "no specs"
        return self._specs

    def spawn(self, name: str, life: int, *state: Any) -> tuple[Any, Any]:
        """Start a further life of a slot, or of a server; see `ActorSpec.spawn`."""
        return self.fetch()[name].spawn(life, *state)
