"""The Ray backend: an actor is a process, and a value is a reference to each of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import ray
from ray.exceptions import RayError

from raysync.cluster.actors.actor_spec import ActorSpecs
from raysync.cluster.calls import Delayed, RayCall
from raysync.cluster.clock import now_s
from raysync.cluster.node_watch import WorkerNodes
from raysync.cluster.ray_processes import RayProcesses
from raysync.cluster.shards import Parts, Shards
from raysync.cluster.transports.transport import CallRequest, IssuedCall, Remote, Transport, Upload
from raysync.core.ids import WorkerId
from raysync.engine.backend import Failure
from raysync.engine.event_queue import EventQueue
from raysync.engine.messages import Message, encode
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


class RayTransit:
    """Gradients on their way from workers' nodes to servers' nodes."""

    delivers = True

    def __init__(self, backend: RayBackend, processes: RayProcesses) -> None:
        self._backend, self._processes = backend, processes

    def late_s(self, value: Any) -> float:
        return 0.0

    def deliver(self, value: Any, actor: str) -> tuple[RayCall, ...]:
        # an emulated link runs in parallel to the real transfer
        backend, upload = self._backend, value.upload
        assert upload is not None, "only gradients are delivered"
        node = self._processes.sites.get(upload.worker)
        fetched = self._processes.servers[actor].fetch(value.parts, node)
        calls = tuple(RayCall(backend, (reference,)) for reference in fetched)
        if upload.emulated_s:
            return (Delayed(backend, backend.now + upload.emulated_s), *calls)
        return calls

    def enter_phase(self, phase: str) -> None: ...


class RayBackend:
    """The world of one run on Ray. Only references and small answers pass through it.

    The *future* weights go into the next step, so a release costs no round trip. Gradients and
    weights are return values owned by this process: a gradient survives its worker. They are not
    nested in others, which Ray would never free (Ray 2.60, results below 100 KiB).
    """

    computes = True

    def __init__(
        self,
        servers: Mapping[str, Shards],  # id -> its shards
        evaluator: Any,  # its handle; Ray may restart it
        evaluator_setup: Sequence[Any],  # references to the arguments of its `reset`
        workers: Mapping[str, Any],  # id -> handle
        respawns: ActorSpecs,
        nodes: WorkerNodes,
        names: Mapping[str, str],  # Ray's id of an actor -> the id of the worker or server
        *,
        sites: Mapping[str, str],  # worker -> Ray's id of its node
        # the seconds of a slot's gradient over its emulated link
        upload_s: Callable[[str, StepFault], float],
        transport: Transport,
        began_at: float = 0.0,  # the run's time at which it resumes, in seconds
    ) -> None:
        self.transport, self._upload_s = transport, upload_s
        transport.attach(self._failure_by)
        processes = self.processes = RayProcesses(
            backend=self,
            servers=servers,
            evaluator=evaluator,
            evaluator_setup=evaluator_setup,
            workers=workers,
            respawns=respawns,
            nodes=nodes,
            names=names,
            sites=sites,
        )
        self.transit = RayTransit(self, processes)
        self._servers = servers
        self._gradient_parts = max(shards.count for shards in servers.values())
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

    def wait(self) -> None:
        # no longer than until a report is due, or a sign of life if there was nothing to report
        report_at_s = self._reported_s + REPORT_EVERY_S - self._began_s
        if report_at_s <= self.now:
            report_at_s = self._reported_s + SIGN_OF_LIFE_S - self._began_s
        timeout_s = max(0.0, min(self._queue.next_at, report_at_s) - self.now)
        for reference in self.transport.await_ready(self._watched, timeout_s):
            self._arrived(reference)
        self.processes.report_nodes()
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
        return self.transport.call(request) or self._by_ray(request)

    def _request(self, actor: str, message: Message, inputs: Sequence[Any]) -> CallRequest:
        shards = self._servers.get(actor)
        running = self.processes.workers.get(actor) if shards is None else shards.first
        leases = self.transport.reserve(actor, message, self.processes.sites.get(actor))
        upload = None
        if message.row.is_push:
            fault: StepFault = message.fault  # type: ignore[attr-defined]  # as every push has
            upload = Upload(actor, self._upload_s(WorkerId(actor).slot, fault))
        return CallRequest(actor, running and running.handle, message, inputs, leases, upload)

    def _by_ray(self, request: CallRequest, *, again: bool = False) -> RayCall:
        """Let Ray carry a call; `again`: of a server, by its restarted shards alone."""
        shards, message = self._servers.get(request.actor), request.message
        into, inputs = [lease.handle for lease in request.leases], _input_parts(request)
        if shards is None:
            report, *values = self._call_actor(request.actor, message, inputs, into)
        else:
            report, *values = shards.call(message, inputs, into, again=again)
        return RayCall(
            self,
            report,
            *values,
            is_file=message.row.is_file,
            upload=request.upload,
            leases=request.leases,
            reads=request.reads,
        )

    def _call_actor(
        self, actor: str, message: Message, inputs: Sequence[Parts], into: Sequence[Remote]
    ) -> list[Parts]:
        """Call a worker or the evaluator; returns as `Shards.call` does."""
        counts = [1] * message.value_count
        if message.row.is_push:
            counts[0] = self._gradient_parts
        method = self.processes.actor(actor).method(message, sum(counts))
        options = {"into": into[0]} if into else {}
        parts = (part for each in inputs for part in each)
        returned = method(encode(message), *parts, **options)
        if not counts:
            return [(returned,)]
        *values, report = returned
        following = iter(values)
        return [(report,), *(tuple(islice(following, count)) for count in counts)]

    def watch(self, call: IssuedCall, then: Callable[[Any], None], argument: Any) -> None:
        call.watch(then, argument)

    def watch_references(self, call: RayCall, then: Callable[[Any], None], argument: Any) -> None:
        watched = _Watched(then, argument, len(call.report), call)
        for reference in call.report:
            self._watched.setdefault(reference, []).append(watched)
            self.transport.expect(reference)

    def is_done(self, call: IssuedCall) -> bool:
        return call.is_done

    def failure(self, call: IssuedCall, patience_s: float) -> Failure | None:
        return call.failure_within(patience_s)

    def repeat(
        self, lost: IssuedCall | None, server: str, message: Message, inputs: Sequence[Any] = ()
    ) -> IssuedCall:
        # only restarted shards are called
        shards, request = self._servers[server], self._request(server, message, inputs)
        again = self.transport.call(request) or self._by_ray(request, again=True)
        if request.reads:
            # They are held until it is done, also if another shard is lost meanwhile, and the
            # driver holds only the calls that are repeated for that one.
            again.watch(_nothing, None)
        if lost is not None:
            lost.follow(again, shards.patched)
        return again

    def close(self) -> None:
        self.transport.close()

    def _failure_by(self, reference: Any) -> Failure | None:
        try:
            ray.get(reference)
        except RayError as error:
            return self.processes.failure_of(error)
        return None

    def _arrived(self, reference: Any) -> None:
        for watched in self._watched.pop(reference, ()):
            watched.missing -= 1
            if not watched.missing:
                watched.call.reads = ()  # the memory of its inputs may be written again
                watched.then(watched.argument)


def _nothing(_: None) -> None:
    pass


def _input_parts(request: CallRequest) -> list[Parts]:
    return [each if isinstance(each, tuple) else each.parts for each in request.inputs]
