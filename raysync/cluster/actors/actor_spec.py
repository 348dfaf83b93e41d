"""The name, role, place and restart specification of an actor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import ray


def actor_group_name(experiment: str) -> str:
    """Return a new unique name, `raysync:NAME-ID`, for an experiment (of a trial SWEEP/00003)."""
    # It names no record: a session keeps its actors for all runs of a comparison. The id keeps
    # groups apart that share a namespace, such as those of two jobs.
    return f"raysync:{experiment}-{uuid4().hex[:6]}"


@dataclass(frozen=True, slots=True)
class Role:
    """An actor's role in its group."""

    kind: str  # controller, evaluator, server-0, worker-3
    slot: str = ""  # of a worker, as the journal calls it
    life: int = 1

    @property
    def number(self) -> int:
        """The number of a server: 3 of `server-3`."""
        return int(self.kind.rpartition("-")[2])

    def name(self, actor_group: str) -> str:
        """Return the actor's Ray name, unique in its namespace.

            raysync:unequal-3f2a91:controller         raysync:unequal-3f2a91:worker-3 (gtx1060-0)
            raysync:unequal-3f2a91:server-0           raysync:unequal-3f2a91:worker-3 (gtx1060-0) #2

        The last is restarted, in its second life.
        """
        slot = f" ({self.slot})" if self.slot not in ("", self.kind) else ""
        return f"{actor_group}:{self.kind}{slot}{self._life_suffix}"

    def __str__(self) -> str:
        slot = f" {self.slot}" if self.slot not in ("", self.kind) else ""
        return f"{self.kind}{slot}{self._life_suffix}"

    @property
    def _life_suffix(self) -> str:
        return f" #{self.life}" if self.life > 1 else ""


def server_role(number: int) -> Role:
    return Role(f"server-{number}")


@dataclass(frozen=True)
class Place:
    """The place of a running actor."""

    actor_id: str
    node_id: str
    address: str
    gpus: tuple[str, ...]  # Ray's numbers of its GPUs
    devices: tuple[str, ...]  # its torch devices; of GPUs also the model
    # how its vectors travel: a worker's gradients, a server's weights, the weights to the evaluator
    transport: str = "object-ref"
    host: str = ""  # its machine, and the cores of that
    cores: int = 0


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """The specification that an actor is started from, and restarted from once lost."""

    cls: type
    options: dict[str, Any]  # Ray's options: its bundle, and its share of that
    threads: tuple[int, ...]  # a `threads.Threads`, without importing torch
    actor_group: str
    role: Role  # of its first life
    setup: tuple[Any, ...] = ()  # references to the `RunSpec` and the model of the present run
    # a reference to a server's state in the checkpoint that the run was resumed from, if any
    state: tuple[Any, ...] = ()

    def start(self, life: int = 1) -> Any:
        role = replace(self.role, life=life)
        options = self.options | {"name": role.name(self.actor_group)}
        return ray.remote(self.cls).options(**options).remote(self.threads, role)

    def spawn(self, life: int, *state: Any) -> tuple[Any, Any]:
        """Start the actor's next life; return its handle, and a reference to its `Place` once
        ready.

        `state` refers to the state that a server begins with, instead of its first.
        """
        actor = self.start(life)
        return actor, actor.reset.remote(*self.setup, *(state or self.state))


class ActorSpecs:
    """The specs of a run's workers and servers, fetched when first needed.

    Fetching imports torch, for the actors' classes: a controller that loses no actor avoids that.
    """

    def __init__(self, reference: Any) -> None:
        self._reference = reference
        self._specs: Mapping[str, ActorSpec] | None = None

    def fetch(self) -> Mapping[str, ActorSpec]:
        if self._specs is None:
            self._specs = ray.get(self._reference)
        assert self._specs is not None, "no specs"
        return self._specs

    def spawn(self, name: str, life: int, *state: Any) -> tuple[Any, Any]:
        return self.fetch()[name].spawn(life, *state)
