"""The Ray backend: an actor is a process, and a value is a reference to each of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
    RayError,
    RayTaskError,
)

from raysync.cluster.actor_errors import WITH_ITS_NODE, ActorError, ProcessRestarted, death_reason
from raysync.cluster.actors.actor_spec import Place
from raysync.cluster.calls import Delayed, FilesCall, RayCall, Spawned
from raysync.cluster.clock import now_s
from raysync.cluster.full_object_store import full_reason, is_full
from raysync.cluster.node_watch import WorkerNodes
from raysync.cluster.shards import Parts, ShardCall, Shards, Spawns
from raysync.cluster.transports.transport import CallRequest, IssuedCall, Transport, Upload
from raysync.core.ids import WorkerId
from raysync.engine.backend import Availability, Failure
from raysync.engine.error_text import reason
from raysync.engine.evaluations import EVALUATOR
from raysync.engine.event_queue import EventQueue
from raysync.engine.messages import (
    BackwardCall,
    Message,
    SnapshotCall,
    StepCall,
    WorkerStateCall,
    encode,
    method_of,
)
from raysync.step_fault import StepFault

REPORT_EVERY_S = 0.25  # how often events are reported to the session
# how often an idle process reports: the session takes a longer silence for a failure
SIGN_OF_LIFE_S = 1.0


@dataclass(slots=True)
class _Watched:
    """A callback for the end of a call."""

    then: Callable[[Any], None]
    argument: Any
    missing: int  # how many of the call's references are not ready yet
    call: RayCall


class RayBackend:
    """The world of one run on Ray. Only references and small answers pass through it.

    The *future* weights go into the next step, so a release costs no round trip. Gradients and
    weights are return values owned by this process: a gradient survives its worker. They are not
    nested in others, which Ray would never free (Ray 2.60, results below 100 KiB).
    """

    computes = True
    delivers = True

    def __init__(
        self,
        servers: Mapping[str, Shards],  # id -> its shards
        evaluator: Any,  # its handle; Ray may restart it
        evaluator_setup: Sequence[Any],  # references to the arguments of its `reset`
        workers: Mapping[str, Any],  # id -> handle
        respawns: Spawns,
        nodes: WorkerNodes,
        names: Mapping[str, str],  # Ray's id of an actor -> the id of the worker or server
        *,
        sites: Mapping[str, str],  # worker -> Ray's id of its node
        # the seconds of a slot's gradient over its emulated link
        upload_s: Callable[[str, StepFault], float],
        transport: Transport,
        began_at: float = 0.0,  # the run's time at which it resumes, in seconds
    ) -> None:
        self._transport = transport
        transport.attach(self._failure_by)
        self._sites, self._upload_s = dict(sites), upload_s
        self._servers, self._evaluator, self._evaluator_setup = servers, evaluator, evaluator_setup
        self._workers = dict(workers)
        self._respawns, self._nodes, self._names = respawns, nodes, dict(names)
        self._dead: set[str] = set()  # Ray's ids of dead servers
        self._drained: Callable[[str], None] = lambda actor: None
        self._node_lost: Callable[[str, Sequence[str]], None] = lambda node, actors: None
        self._gradient_parts = max(shards.count for shards in servers.values())
        self._methods: dict[tuple[str, str], Any] = {}  # (worker, method) -> Ray's remote method
        # reference -> the calls that wait for it, the oldest first
        self._watched: dict[Any, list[_Watched]] = {}
        self._queue = EventQueue()
        self._reported_s = now_s()
        self._began_s = self._reported_s - began_at

    # ---- time ----

    @property
    def now(self) -> float:
        return now_s() - self._began_s

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        self._queue.schedule(at, happens, argument)

    schedule_deadline = schedule

    def wait(self) -> None:
        # no longer than until a report is due, or a sign of life if there was nothing to report
        report_at_s = self._reported_s + REPORT_EVERY_S - self._began_s
        if report_at_s <= self.now:
            report_at_s = self._reported_s + SIGN_OF_LIFE_S - self._began_s
        timeout_s = max(0.0, min(self._queue.next_at, report_at_s) - self.now)
        for reference in self._transport.await_ready(self._watched, timeout_s):
            self._arrived(reference)
        self._nodes.report(self._workers, self._drained, self._node_lost)
        while self._queue.next_at <= self.now:
            self._queue.advance()

    def is_report_due(self, lines: int) -> bool:
        is_due = now_s() >= self._reported_s + (REPORT_EVERY_S if lines else SIGN_OF_LIFE_S)
        if is_due:
            self._reported_s = now_s()
        return is_due

    # ---- calls ----

    def call(self, actor: str, message: Message, inputs: Sequence[Any] = ()) -> IssuedCall:
        request = self._request(actor, message, inputs)
        if (shards := self._servers.get(actor)) is not None:
            return self._transport.call(request, lambda: self._call_shards(request, shards.call))
        return self._transport.call(request, lambda: self._call_actor(request))

    def _request(self, actor: str, message: Message, inputs: Sequence[Any]) -> CallRequest:
        shards = self._servers.get(actor)
        handle = self._workers.get(actor) if shards is None else shards.first
        leases = self._transport.reserve(actor, message, self._sites.get(actor))
        upload = None
        if isinstance(message, StepCall):
            upload = Upload(actor, self._upload_s(WorkerId(actor).slot, message.fault))
        elif isinstance(message, BackwardCall):
            upload = Upload(actor, 0.0)
        return CallRequest(actor, handle, message, inputs, leases, upload)

    def _call_shards(self, request: CallRequest, call: ShardCall) -> RayCall:
        into = [lease.handle for lease in request.leases]
        report, *values = call(request.message, _input_parts(request), into)
        kind = FilesCall if isinstance(request.message, SnapshotCall) else RayCall
        return kind(self, report, *values, leases=request.leases, reads=request.reads)

    def _call_actor(self, request: CallRequest) -> RayCall:
        method = method_of(request.message)
        remote = (
            getattr(self._evaluator, method).remote
            if request.actor == EVALUATOR
            else self._remote(request.actor, method)
        )
        arguments = (part for each in _input_parts(request) for part in each)
        into = {"into": request.leases[0].handle} if request.leases else {}
        returned = remote(encode(request.message), *arguments, **into)
        match request.message:
            case StepCall():
                *gradient, report = returned
                values = [tuple(gradient)]
            case WorkerStateCall():
                data, report = returned
                values = [(data,)]
            case BackwardCall():
                gradient, dx, report = returned
                values = [(gradient,), (dx,)]
            case _:
                report, values = returned, [(returned,)]
        kind = FilesCall if isinstance(request.message, WorkerStateCall) else RayCall
        return kind(
            self,
            (report,),
            *values,
            upload=request.upload,
            leases=request.leases,
            reads=request.reads,
        )

    def watch(self, call: IssuedCall, then: Callable[[Any], None], argument: Any) -> None:
        call.watch(then, argument)

    def watch_references(self, call: RayCall, then: Callable[[Any], None], argument: Any) -> None:
        watched = _Watched(then, argument, len(call.report), call)
        for reference in call.report:
            self._watched.setdefault(reference, []).append(watched)
            self._transport.expect(reference)

    def late_s(self, value: Any) -> float:
        return 0.0

    def deliver(self, value: Any, actor: str) -> tuple[RayCall, ...]:
        # an emulated link runs in parallel to the real transfer
        upload = value.upload
        assert upload is not None, "only gradients are delivered"
        fetched = self._servers[actor].fetch(value.parts, self._sites.get(upload.worker))
        calls = tuple(RayCall(self, (reference,)) for reference in fetched)
        if upload.emulated_s:
            return (Delayed(self, self.now + upload.emulated_s), *calls)
        return calls

    def enter_phase(self, phase: str) -> None: ...

    def is_done(self, call: IssuedCall) -> bool:
        return call.is_done

    def failure(self, call: IssuedCall, patience_s: float) -> Failure | None:
        return call.failure_within(patience_s)

    # ---- actors ----

    def availability(self, worker: str) -> Availability:
        return self._nodes.availability(worker)

    def watch_nodes(
        self, drained: Callable[[str], None], lost: Callable[[str, Sequence[str]], None]
    ) -> None:
        self._drained, self._node_lost = drained, lost

    def spawn(self, worker: str) -> RayCall:
        next_life = WorkerId(worker)
        actor, ready = self._respawns.spawn(next_life.slot, next_life.life)
        self._workers[worker] = actor
        self._nodes.starting(worker)
        return Spawned(self, (ready,), worker)

    def started(self, worker: str, place: Place) -> None:
        self._names[place.actor_id] = worker
        self._sites[worker] = place.node_id
        self._nodes.started(worker)

    def end_at(self, worker: str, at: float) -> None:
        self.schedule(at, self._end, worker)

    def kill(self, actor: str) -> None:
        # Ray restarts the evaluator by itself, and no other actor
        if actor == EVALUATOR:
            ray.kill(self._evaluator, no_restart=False)
        else:
            ray.kill(self._workers.pop(actor))
            self._transport.forget(actor, "it was ended")
            self._sites.pop(actor, None)
            self._nodes.lost(actor)
            for method in [key for key in self._methods if key[0] == actor]:
                del self._methods[method]

    def restart(self, actor: str, *base: RayCall, freezes: bool = False) -> RayCall:
        if actor == EVALUATOR:
            reset = self._evaluator.reset.options(max_task_retries=-1)  # it waits for the process
            return RayCall(self, (reset.remote(*self._evaluator_setup),))
        self._transport.restart(actor, "it is restarted")
        dead = set() if freezes else self._dead
        state = base[0].parts if base else None
        ids, ready = self._servers[actor].restart(dead, state, self._respawns)
        self._names.update(dict.fromkeys(ids, actor))
        return RayCall(self, ready)

    def can_lose(self, server: str) -> bool:
        return True

    def repeat(
        self, lost: IssuedCall | None, server: str, message: Message, inputs: Sequence[Any] = ()
    ) -> IssuedCall:
        # only restarted shards are called
        shards, request = self._servers[server], self._request(server, message, inputs)
        again = self._transport.call(request, lambda: self._call_shards(request, shards.repeat))
        if request.reads:
            # They are held until it is done, also if another shard is lost meanwhile, and the
            # driver holds only the calls that are repeated for that one.
            again.watch(_nothing, None)
        if lost is not None:
            lost.follow(again, shards.patched)
        return again

    def failure_of(self, error: RayError) -> Failure:
        """Convert a Ray error, perhaps of an earlier call, and note if a server died."""
        cause: Exception = error.cause if isinstance(error, RayTaskError) else error
        if is_full(cause):
            return Failure("other", full_reason())
        match cause:
            case ActorDiedError() | ActorUnavailableError():
                name = self._names.get(cause.actor_id or "", "")
                if name in self._servers:
                    self._dead.add(cause.actor_id)
                return Failure("died", death_reason(cause), name, WITH_ITS_NODE in str(cause))
            case ProcessRestarted():
                return Failure("died", reason(cause))
            case ObjectLostError():
                return Failure("lost", "what it needs was lost with the node that held it")
            case ActorError():
                return Failure("raised", cause.reason, self._names.get(cause.actor_id, ""))
        return Failure("raised" if isinstance(error, RayTaskError) else "other", reason(cause))

    def close(self) -> None:
        self._transport.close()

    def _failure_by(self, reference: Any) -> Failure | None:
        try:
            ray.get(reference)
        except RayError as error:
            return self.failure_of(error)
        return None

    def _end(self, worker: str) -> None:
        if worker in self._workers:
            ray.kill(self._workers[worker])

    def _arrived(self, reference: Any) -> None:
        for watched in self._watched.pop(reference, ()):
            watched.missing -= 1
            if not watched.missing:
                watched.call.reads = ()  # the memory of its inputs may be written again
                watched.then(watched.argument)

    def _remote(self, worker: str, method: str) -> Any:
        key = worker, method
        if key not in self._methods:
            bound = getattr(self._workers[worker], method)
            if method == "step":
                bound = bound.options(num_returns=self._gradient_parts + 1)
            self._methods[key] = bound.remote
        return self._methods[key]


def _nothing(_: None) -> None:
    pass


def _input_parts(request: CallRequest) -> list[Parts]:
    return [each if isinstance(each, tuple) else each.parts for each in request.inputs]
