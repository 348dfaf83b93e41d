"""The processes of a run's actors on Ray: who is where, who has died, and who comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
    RayError,
    RayTaskError,
)

from raysync.cluster.actor_errors import WITH_ITS_NODE, ActorError, ProcessRestarted, death_reason
from raysync.cluster.actors.actor_spec import ActorSpecs, Place
from raysync.cluster.calls import RayCall, Spawned
from raysync.cluster.full_object_store import full_reason, is_full
from raysync.cluster.node_watch import WorkerNodes
from raysync.cluster.shards import RunningActor, Shards
from raysync.core.ids import WorkerId
from raysync.engine.backend import Availability, Failure
from raysync.engine.error_text import reason
from raysync.engine.evaluations import EVALUATOR

if TYPE_CHECKING:
    from raysync.cluster.ray_backend import RayBackend


class RayProcesses:
    """The processes of one run, as `ActorProcesses` of its backend."""

    def __init__(
        self,
        backend: RayBackend,
        servers: Mapping[str, Shards],  # id -> its shards
        evaluator: Any,  # its handle; Ray may restart it
        evaluator_setup: Sequence[Any],  # references to the arguments of its `reset`
        workers: Mapping[str, Any],  # id -> handle
        respawns: ActorSpecs,
        nodes: WorkerNodes,
        names: Mapping[str, str],  # Ray's id of an actor -> the id of the worker or server
        sites: Mapping[str, str],  # worker -> Ray's id of its node
    ) -> None:
        self._backend, self.servers = backend, servers
        self._evaluator, self._evaluator_setup = RunningActor(evaluator), evaluator_setup
        self.workers = {worker: RunningActor(handle) for worker, handle in workers.items()}
        self.sites = dict(sites)
        self._respawns, self._nodes, self._names = respawns, nodes, dict(names)
        self._dead: set[str] = set()  # Ray's ids of dead servers
        self._drained: Callable[[str], None] = lambda actor: None
        self._node_lost: Callable[[str, Sequence[str]], None] = lambda node, actors: None
        self.schedule_deadline = backend.schedule  # any actor may fall silent

    def actor(self, name: str) -> RunningActor:
        """Return a worker, or the evaluator."""
        return self._evaluator if name == EVALUATOR else self.workers[name]

    # ---- nodes ----

    def availability(self, worker: str) -> Availability:
        return self._nodes.availability(worker)

    def watch_nodes(
        self, drained: Callable[[str], None], lost: Callable[[str, Sequence[str]], None]
    ) -> None:
        self._drained, self._node_lost = drained, lost

    def report_nodes(self) -> None:
        """Report what has happened to nodes."""
        self._nodes.report(self.workers, self._drained, self._node_lost)

    # ---- who begins and ends ----

    def spawn(self, worker: str) -> RayCall:
        next_life = WorkerId(worker)
        actor, ready = self._respawns.spawn(next_life.slot, next_life.life)
        self.workers[worker] = RunningActor(actor)
        self._nodes.starting(worker)
        return Spawned(self._backend, (ready,), worker)

    def started(self, worker: str, place: Place) -> None:
        self._names[place.actor_id] = worker
        self.sites[worker] = place.node_id
        self._nodes.started(worker)

    def end_at(self, worker: str, at: float) -> None:
        self._backend.schedule(at, self._end, worker)

    def _end(self, worker: str) -> None:
        if worker in self.workers:
            ray.kill(self.workers[worker].handle)

    def kill(self, actor: str) -> None:
        # Ray restarts the evaluator by itself, and no other actor
        if actor == EVALUATOR:
            ray.kill(self._evaluator.handle, no_restart=False)
            return
        ray.kill(self.workers.pop(actor).handle)
        self._backend.transport.forget(actor, "it was ended")
        self.sites.pop(actor, None)
        self._nodes.lost(actor)

    def restart(self, actor: str, *base: RayCall, freezes: bool = False) -> RayCall:
        if actor == EVALUATOR:
            reset = self._evaluator.handle.reset.options(
                max_task_retries=-1
            )  # it waits for the process
            return RayCall(self._backend, (reset.remote(*self._evaluator_setup),))
        self._backend.transport.restart(actor, "it is restarted")
        dead = set() if freezes else self._dead
        state = base[0].parts if base else None
        ids, ready = self.servers[actor].restart(dead, state, self._respawns)
        self._names.update(dict.fromkeys(ids, actor))
        return RayCall(self._backend, ready)

    def can_lose(self, server: str) -> bool:
        return True

    def failure_of(self, error: RayError) -> Failure:
        """Convert a Ray error, perhaps of an earlier call, and note if a server died."""
        cause: Exception = error.cause if isinstance(error, RayTaskError) else error
        if is_full(cause):
            return Failure("other", full_reason())
        match cause:
            case ActorDiedError() | ActorUnavailableError():
                name = self._names.get(cause.actor_id or "", "")
                if name in self.servers:
                    self._dead.add(cause.actor_id)
                return Failure("died", death_reason(cause), name, WITH_ITS_NODE in str(cause))
            case ProcessRestarted():
                return Failure("died", reason(cause))
            case ObjectLostError():
                return Failure("lost", "what it needs was lost with the node that held it")
            case ActorError():
                return Failure("raised", cause.reason, self._names.get(cause.actor_id, ""))
        return Failure("raised" if isinstance(error, RayTaskError) else "other", reason(cause))
