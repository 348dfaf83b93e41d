"""The Ray backend: an actor is a process, a call is an actor call, and a value is a reference to
each of its parts.

References and small answers pass through here, never a tensor. The *future* weights go into the
next step, so a release costs no extra round trip. Gradients and weights are return values of actor
calls, owned by the process of this backend: a gradient survives the worker that made it. Nothing is
nested in a return value, which Ray would never free (Ray 2.60, results below 100 KiB).

The one blocking call is `ray.wait` on what is watched, with a timeout at the next thing that is
scheduled, or that a report is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    RayError,
    RayTaskError,
)

from raysync.cluster.actors.actor_errors import WITH_ITS_NODE, ActorError, StartedAnew, death_reason
from raysync.cluster.clock import now_s, sleep_s
from raysync.cluster.node_watch import WorkerNodes
from raysync.cluster.object_store import full_reason, is_full
from raysync.cluster.shards import Parts, Shards, Spawns
from raysync.cluster.transports.channels import HOT, Channels, Issued, PipedCall
from raysync.cluster.transports.shared_memory import Handle, Lease
from raysync.cluster.transports.shared_vectors import SharedVectors
from raysync.core.ids import WorkerId
from raysync.engine.backend import Failure, Room
from raysync.engine.error_text import reason
from raysync.engine.evaluations import EVALUATOR
from raysync.engine.event_queue import EventQueue
from raysync.engine.messages import (
    ApplyCall,
    BackwardCall,
    Message,
    PublishCall,
    SnapshotCall,
    StepCall,
    encode,
    method_of,
)

REPORT_EVERY_S = 0.25
"""How often the session is told what happened."""
SIGN_OF_LIFE_S = 1.0
"""How often this process gives a sign of life while nothing happens: the session takes a longer
silence for a failure."""


class Place(Protocol):
    """Where an actor has come to sit: a `devices.Place`, without torch."""

    @property
    def actor_id(self) -> str:
        """Ray's id of the actor."""

    @property
    def node_id(self) -> str:
        """Ray's id of its node."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The way of a gradient from its worker."""

    worker: str
    emulated_s: float
    """The seconds that it takes at least."""


class RayCall:
    """A call of one actor, or of all shards of one."""

    __slots__ = (
        "__weakref__",
        "_backend",
        "_values",
        "is_fetched",
        "leases",
        "reads",
        "report",
        "upload",
    )

    def __init__(
        self,
        backend: RayBackend,
        report: Sequence[Any],
        *values: Parts,
        is_fetched: bool = False,
        upload: Upload | None = None,
        leases: tuple[Any, ...] = (),
        reads: tuple[Any, ...] = (),
    ) -> None:
        """
        Args:
            backend: knows whose error it is.
            report: references that are there when the call is done; the first has its answer.
            values: the parts of each value that it leaves behind.
            is_fetched: whether the call counts as done only once its answer has come to this node.
            upload: how its first value travels to a server; None: it is not a worker's.
            leases: the slots of its first value, if that is in shared memory.
            reads: those of its inputs, which are held until it is known to be done.
        """
        self.leases, self.reads = leases, reads
        self._backend, self._values = backend, values
        self.report, self.is_fetched, self.upload = report, is_fetched, upload

    @property
    def answer(self) -> Any:
        """See `Call.answer`."""
        try:
            return ray.get(list(self.report))[0]
        except RayError as error:
            return self._backend.failure_of(error)

    def value(self, index: int) -> Parts:
        """See `Call.value`."""
        return self._values[index]

    def patch(
        self, shards: Shards, report: Parts, values: Sequence[Parts], leases: tuple[Lease, ...]
    ) -> None:
        """Stand for what shards that were started anew leave behind now, in place of what those
        before them did not.
        """
        self.leases += leases
        self.report = shards.patched(tuple(self.report), report)
        self._values = tuple(map(shards.patched, self._values, values))

    @property
    def parts(self) -> Parts:
        """The parts of the value that the call stands for."""
        return self._values[0]


@dataclass(slots=True)
class _Watched:
    """What is called back when a call is done."""

    then: Callable[[Any], None]
    argument: Any
    missing: int
    """The number of references of the call that are not there yet."""
    call: RayCall


class RayBackend:
    """The world of one run on Ray."""

    computes = True
    delivers = True

    def __init__(
        self,
        servers: Mapping[str, Shards],
        evaluator: Any,
        evaluator_setup: Sequence[Any],
        workers: Mapping[str, Any],
        respawns: Spawns,
        nodes: WorkerNodes,
        names: Mapping[str, str],
        *,
        sites: Mapping[str, str],
        ways_s: Mapping[str, float],
        shared: SharedVectors | None = None,
        began_at: float = 0.0,
    ) -> None:
        """
        Args:
            servers: id -> its shards.
            evaluator: handle of its actor, which Ray may restart.
            evaluator_setup: references to the arguments of the evaluator's `reset`.
            workers: id -> handle of its actor.
            respawns: starts the workers and servers that come back.
            nodes: knows what becomes of the workers' nodes.
            names: Ray's id of an actor -> its id here, of workers and servers.
            sites: worker -> Ray's id of its node.
            ways_s: slot -> the seconds that a vector takes one way over its worker's emulated link.
            shared: the slots of shared memory; None: all vectors are object references.
            began_at: the time, in seconds since the run began, at which it goes on.
        """
        self._shared = shared
        self._channels = (
            Channels(self._failure_by) if shared is not None and shared.uses_pipes else None
        )
        self._sites, self._ways_s = dict(sites), ways_s
        self._servers, self._evaluator, self._evaluator_setup = servers, evaluator, evaluator_setup
        self._workers = dict(workers)
        self._respawns, self._nodes, self._names = respawns, nodes, dict(names)
        self._dead: set[str] = set()
        """Ray's ids of servers that are known to be dead."""
        self._drained: Callable[[str], None] = lambda actor: None
        self._node_lost: Callable[[str, Sequence[str]], None] = lambda node, actors: None
        self._parts = max(shards.count for shards in servers.values())
        self._methods: dict[tuple[str, str], Any] = {}
        """(worker, method) -> Ray's remote method."""
        self._pulled: dict[str, tuple[Lease, ...]] = {}
        """Worker -> the slots of its weights, which it uses where they are until it is given
        others."""
        self._watched: dict[Any, list[_Watched]] = {}
        """Reference -> the calls that wait for it, the oldest first."""
        self._queue = EventQueue()
        self._reported_s = now_s()
        self._began_s = self._reported_s - began_at

    # ---- time ----

    @property
    def now(self) -> float:
        """See `Backend.now`."""
        return now_s() - self._began_s

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        """See `Backend.schedule`."""
        self._queue.schedule(at, happens, argument)

    def wait(self) -> None:
        """See `Backend.wait`; it takes no longer than until a report is due."""
        report_at_s = self._reported_s + REPORT_EVERY_S - self._began_s
        if report_at_s <= self.now:  # nothing to report then: it is a sign of life that is due
            report_at_s = self._reported_s + SIGN_OF_LIFE_S - self._began_s
        timeout_s = max(0.0, min(self._queue.next_at, report_at_s) - self.now)
        if self._channels is not None:
            self._wait_for(self._channels, timeout_s)
        elif self._watched:
            ready, _ = ray.wait(list(self._watched), num_returns=1, timeout=timeout_s)
            for reference in ready:
                self._arrived(reference)
        else:
            sleep_s(timeout_s)  # all wait for a timer, or for one of them to come back
        self._nodes.report(self._workers, self._drained, self._node_lost)
        while self._queue.next_at <= self.now:
            self._queue.advance()

    def _wait_for(self, channels: Channels, timeout_s: float) -> None:
        """Wait for an answer over a pipe, or for a reference, and call back what is due."""
        if not channels.due:
            channels.pump(timeout_s)
        while channels.references or channels.due:
            references, channels.references = channels.references, []
            for reference in references:
                if reference in self._watched:
                    self._arrived(reference)
            due, channels.due = channels.due, []
            for then, argument in due:
                then(argument)

    def is_report_due(self, lines: int) -> bool:
        """See `Backend.is_report_due`."""
        is_due = now_s() >= self._reported_s + (REPORT_EVERY_S if lines else SIGN_OF_LIFE_S)
        if is_due:
            self._reported_s = now_s()
        return is_due

    # ---- calls ----

    def call(self, actor: str, message: Message, inputs: Sequence[Any] = ()) -> RayCall | PipedCall:
        """See `Backend.call`."""
        if self._shared is not None and isinstance(message, StepCall) and inputs:
            self._pulled[actor] = _leases_of(inputs)
        if self._channels is None or actor == EVALUATOR:
            return self._call(actor, message, inputs)
        if isinstance(message, HOT) and all(isinstance(each, PipedCall) for each in inputs):
            return self._pipe(self._channels, actor, message, inputs)
        return self._by_ray(actor, lambda: self._call(actor, message, inputs))

    def _by_ray(self, actor: str, issue: Callable[[], Issued]) -> Issued:
        """Issue a call of Ray's, in its turn if the actor is called over pipes, too."""
        channel = None if self._channels is None else self._channels.get(actor)
        return issue() if channel is None else channel.by_ray(issue)

    def _pipe(
        self, channels: Channels, actor: str, message: Message, inputs: Sequence[PipedCall]
    ) -> PipedCall:
        """Call an actor over its pipe."""
        upload = None
        if (shards := self._servers.get(actor)) is not None:
            handle, leases = shards.first, self._room_for_weights(message)
        else:
            assert isinstance(message, StepCall), f"{message} of a worker"
            assert self._shared is not None, "pipes without shared memory"
            lease = self._shared.gradient(actor, self._sites)
            assert lease is not None, "a worker on another node than the server"
            handle, leases = self._workers[actor], (lease,)
            upload = Upload(actor, self._upload_s(actor, message))
        channel = channels.channel(actor, handle)
        vectors = [part for each in inputs for part in each.parts]
        request = (message, vectors, leases[0].handle if leases else None)
        call = PipedCall(channel, request, inputs, leases, _leases_of(inputs), upload)
        channel.call(call)
        return call

    def _call(self, actor: str, message: Message, inputs: Sequence[Any]) -> RayCall:
        """Call an actor as Ray does."""
        parts = [each if isinstance(each, tuple) else each.parts for each in inputs]
        reads = _leases_of(inputs)
        if (shards := self._servers.get(actor)) is not None:
            leases = self._room_for_weights(message)
            report, *values = shards.call(message, parts, _handles(leases))
            kind = Snapshot if isinstance(message, SnapshotCall) else RayCall
            return kind(self, report, *values, leases=leases, reads=reads)
        method = method_of(message)
        remote = (
            getattr(self._evaluator, method).remote
            if actor == EVALUATOR
            else self._remote(actor, method)
        )
        arguments = (part for each in parts for part in each)
        if isinstance(message, StepCall):
            return self._step(actor, remote, message, arguments, reads)
        returned = remote(encode(message), *arguments)
        if isinstance(message, BackwardCall):
            gradient, dx, report = returned
            return RayCall(self, (report,), (gradient,), (dx,), upload=Upload(actor, 0.0))
        return RayCall(self, (returned,), (returned,), reads=reads)

    def _step(
        self,
        worker: str,
        remote: Any,
        message: StepCall,
        weights: Iterable[Any],
        reads: tuple[Lease, ...],
    ) -> RayCall:
        """Issue a step, whose gradient goes into shared memory if its worker is on that node."""
        lease = self._shared and self._shared.gradient(worker, self._sites)
        into = {"into": lease.handle} if lease else {}
        *gradient, report = remote(encode(message), *weights, **into)
        return RayCall(
            self,
            (report,),
            tuple(gradient),
            upload=Upload(worker, self._upload_s(worker, message)),
            leases=(lease,) if lease else (),
            reads=reads,
        )

    def _room_for_weights(self, message: Message) -> tuple[Lease, ...]:
        """Return the slots for what a call of the server publishes, if that is shared."""
        match message:
            case PublishCall() | ApplyCall(publishes=True) if self._shared is not None:
                return self._shared.weights()
        return ()

    def watch(self, call: RayCall | PipedCall, then: Callable[[Any], None], argument: Any) -> None:
        """See `Backend.watch`."""
        if isinstance(call, Delayed):
            self.schedule(call.at, then, argument)
            return
        if isinstance(call, PipedCall):
            call.watch(then, argument)
            return
        watched = _Watched(then, argument, len(call.report), call)
        for reference in call.report:
            self._watched.setdefault(reference, []).append(watched)
            if self._channels is not None:
                self._channels.expect(reference)

    def late_s(self, value: Any) -> float:
        """See `Backend.late_s`: what comes is not foreseen here."""
        return 0.0

    def deliver(self, value: Any, actor: str) -> tuple[RayCall, ...]:
        """See `Backend.deliver`; the time of an emulated link runs beside the real way."""
        upload = value.upload
        assert upload is not None, "only gradients are delivered"
        fetched = self._servers[actor].fetch(value.parts, self._sites.get(upload.worker))
        calls = tuple(RayCall(self, (reference,), is_fetched=True) for reference in fetched)
        if upload.emulated_s:
            return (Delayed(self, self.now + upload.emulated_s), *calls)
        return calls

    def _upload_s(self, worker: str, message: StepCall) -> float:
        """Return the seconds that the push of a step takes over an emulated link."""
        return self._ways_s.get(WorkerId(worker).slot, 0.0) + message.added_s

    def enter_phase(self, phase: str) -> None:
        """See `Backend.enter_phase`: the network is the real one."""

    def is_done(self, call: RayCall | PipedCall) -> bool:
        """See `Backend.is_done`."""
        if isinstance(call, PipedCall):
            return call.is_done
        if isinstance(call, Delayed):
            return call.at <= self.now
        references = list(call.report)
        ready, _ = ray.wait(
            references, num_returns=len(references), timeout=0, fetch_local=call.is_fetched
        )
        return len(ready) == len(references)

    def failure(self, call: RayCall | PipedCall, patience_s: float) -> Failure | None:
        """See `Backend.failure`."""
        if isinstance(call, PipedCall):
            assert self._channels is not None, "a call over pipes without any"
            self._channels.await_call(call, patience_s)
            return None if call.is_there else call.result
        try:
            ray.get(list(call.report), timeout=patience_s)
        except GetTimeoutError:
            raise
        except RayError as error:
            return self.failure_of(error)
        return None

    # ---- actors ----

    def room(self, worker: str) -> Room:
        """See `Backend.room`."""
        return self._nodes.room(worker)

    def watch_nodes(
        self, drained: Callable[[str], None], lost: Callable[[str, Sequence[str]], None]
    ) -> None:
        """See `Backend.watch_nodes`."""
        self._drained, self._node_lost = drained, lost

    def spawn(self, worker: str) -> RayCall:
        """See `Backend.spawn`."""
        next_life = WorkerId(worker)
        actor, ready = self._respawns.spawn(next_life.slot, next_life.life)
        self._workers[worker] = actor
        self._nodes.starts(worker)
        return _Spawned(self, (ready,), worker)

    def started(self, worker: str, place: Place) -> None:
        """Take note of where an actor sits that was spawned, and is ready."""
        self._names[place.actor_id] = worker
        self._sites[worker] = place.node_id
        self._nodes.started(worker)

    def end_at(self, worker: str, at: float) -> None:
        """See `Backend.end_at`."""
        self.schedule(at, self._end, worker)

    def kill(self, actor: str) -> None:
        """See `Backend.kill`; Ray then starts the evaluator anew, and no other."""
        if actor == EVALUATOR:
            ray.kill(self._evaluator, no_restart=False)
        else:
            ray.kill(self._workers.pop(actor))
            self._hang_up(actor, "it was ended")
            self._sites.pop(actor, None)
            self._pulled.pop(actor, None)
            self._nodes.lost(actor)
            if self._shared is not None:
                self._shared.forget(actor)
            for method in [key for key in self._methods if key[0] == actor]:
                del self._methods[method]

    def restart(self, actor: str, *base: RayCall, freezes: bool = False) -> RayCall:
        """See `Backend.restart`."""
        if actor == EVALUATOR:
            reset = self._evaluator.reset.options(max_task_retries=-1)  # it waits for the process
            return RayCall(self, (reset.remote(*self._evaluator_setup),))
        self._hang_up(actor, "it is started anew")
        if self._shared is not None:
            self._shared.restart()
        dead = set() if freezes else self._dead
        state = base[0].parts if base else None
        ids, ready = self._servers[actor].restart(dead, state, self._respawns)
        self._names.update(dict.fromkeys(ids, actor))
        return RayCall(self, ready)

    def can_lose(self, server: str) -> bool:
        """See `Backend.can_lose`."""
        return True

    def repeat(
        self,
        lost: RayCall | PipedCall | None,
        server: str,
        message: Message,
        inputs: Sequence[Any] = (),
    ) -> RayCall | PipedCall:
        """See `Backend.repeat`: only the shards that were started anew are called."""
        if self._channels is not None and not isinstance(lost, RayCall):
            again = self.call(server, message, inputs)
            if lost is not None:
                assert isinstance(again, PipedCall), "it has the inputs that it had"
                lost.follow(again)
            return again
        assert not isinstance(lost, PipedCall), "it was made over a pipe"
        shards = self._servers[server]
        parts = [each if isinstance(each, tuple) else each.parts for each in inputs]
        leases, reads = self._room_for_weights(message), _leases_of(inputs)
        report, *values = self._by_ray(
            server, lambda: shards.repeat(message, parts, _handles(leases))
        )
        if lost is not None:
            lost.patch(shards, report, values, leases)
        return RayCall(self, report, *values, leases=leases, reads=reads)

    def failure_of(self, error: RayError) -> Failure:
        """Say what a Ray error means, which may be that of a call whose values were waited for."""
        cause: Exception = error.cause if isinstance(error, RayTaskError) else error
        if is_full(cause):
            return Failure("other", full_reason())
        match cause:
            case ActorDiedError() | ActorUnavailableError():
                name = self._names.get(cause.actor_id or "", "")
                if name in self._servers:
                    self._dead.add(cause.actor_id)
                return Failure("died", death_reason(cause), name, WITH_ITS_NODE in str(cause))
            case StartedAnew():
                return Failure("died", reason(cause))
            case ObjectLostError():
                return Failure("lost", "what it needs was lost with the node that held it")
            case ActorError():
                return Failure("raised", cause.reason, self._names.get(cause.actor_id, ""))
        return Failure("raised" if isinstance(error, RayTaskError) else "other", reason(cause))

    def close(self) -> None:
        """Let the actors go: they are ready for the next run."""
        if self._channels is not None:
            self._channels.close()

    def _hang_up(self, actor: str, why: str) -> None:
        """Close the pipes to an actor that is about to be ended."""
        if self._channels is not None and (channel := self._channels.get(actor)) is not None:
            channel.fail(Failure("died", why, actor))

    def _failure_by(self, reference: Any) -> Failure | None:
        """Return how a reference that is there has failed; None: it has not."""
        try:
            ray.get(reference)
        except RayError as error:
            return self.failure_of(error)
        return None

    def _end(self, worker: str) -> None:
        if worker in self._workers:
            ray.kill(self._workers[worker])

    def _arrived(self, reference: Any) -> None:
        for watched in self._watched.pop(reference):
            watched.missing -= 1
            if not watched.missing:
                watched.call.reads = ()
                watched.then(watched.argument)

    def _remote(self, worker: str, method: str) -> Any:
        key = worker, method
        if key not in self._methods:
            bound = getattr(self._workers[worker], method)
            if method == "step":
                bound = bound.options(num_returns=self._parts + 1)
            self._methods[key] = bound.remote
        return self._methods[key]


def _leases_of(inputs: Iterable[Any]) -> tuple[Any, ...]:
    """Return the slots that the inputs of a call are in, which must not be written meanwhile."""
    return tuple(lease for each in inputs if not isinstance(each, tuple) for lease in each.leases)


def _handles(leases: Iterable[Lease]) -> list[Handle]:
    return [lease.handle for lease in leases]


class Delayed(RayCall):
    """The time that a value takes over an emulated link: nothing is called."""

    __slots__ = ("at",)

    def __init__(self, backend: RayBackend, at: float) -> None:
        super().__init__(backend, ())
        self.at = at

    @property
    def answer(self) -> None:
        """See `Call.answer`."""
        return None


class Snapshot(RayCall):
    """The snapshot of a server; its answer is the list of what its shards returned."""

    __slots__ = ()

    @property
    def answer(self) -> Any:
        """See `Call.answer`."""
        try:
            return ray.get(list(self.parts))
        except RayError as error:
            return self._backend.failure_of(error)


class _Spawned(RayCall):
    """The start of a worker; its answer, the `Place`, has Ray's id of its actor."""

    __slots__ = ("_worker",)

    def __init__(self, backend: RayBackend, report: Sequence[Any], worker: str) -> None:
        super().__init__(backend, report)
        self._worker = worker

    @property
    def answer(self) -> Any:
        """See `Call.answer`."""
        place = super().answer
        if not isinstance(place, Failure):
            self._backend.started(self._worker, place)
        return place
