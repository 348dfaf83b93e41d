"""The interfaces of a transport: how gradients and weights travel between the actors of a run.

    plan        chosen by the session once actors are placed; sent to the driver
    transport   the driver's side: lends memory for vectors, and may carry calls itself
    remote      the actor's side: the handle of a vector outside the message

A further transport is a file with these three, and a line in `choose.TRANSPORTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from raysync.config import Experiment
from raysync.engine.backend import Call, Failure
from raysync.engine.messages import Message
from raysync.engine.server_log import MAX_UPDATES, log_bytes

if TYPE_CHECKING:
    from torch import Tensor


class InPlace(Protocol):
    """Weights that a worker uses in place, without a copy."""

    @property
    def vector(self) -> Tensor:
        """A tensor (P + Q,) to read and write, at a fixed address."""

    def show(self, weights: Sequence[object]) -> bool:
        """Let `vector` show arrived weights until the next call; False: copy them there."""

    def check(self) -> None:
        """Check, after a step, that the weights were not overwritten meanwhile."""


class Remote(Protocol):
    """A picklable handle of a vector, or of a part of one, outside the message."""

    def read(self) -> Tensor:
        """Return the vector, read-only."""

    def writing(self) -> AbstractContextManager[Tensor]:
        """Yield the memory for the vector, which is published when the `with` block ends."""

    def parts(self, sizes: Sequence[int]) -> Sequence[Remote]:
        """Split into consecutive parts of these sizes, in floats."""

    def in_place(self, vector_bytes: int) -> InPlace | None:
        """Return a view of weights of that size in place; None: they have to be copied."""


class Lease(Protocol):
    """The right of one call to write a remote; it ends when nothing refers to it."""

    @property
    def handle(self) -> Remote: ...


class Service(Protocol):
    """Calls that reach an actor by another way than Ray's."""

    def run(self, actor: object, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Execute calls until the driver says to leave; `meanwhile` is called after each answer."""


MIB = 2**20
INLINE_BYTES = 100 * 1024  # the size up to which Ray keeps a result out of its object store
GRADIENTS_PER_WORKER = 2  # one is written while the one before is read
WAITING_BYTES = 256 * MIB  # of weights that wait for their evaluation, or of two vectors, if more
# called in an actor's process before each run; transports that hold memory register here
BETWEEN_RUNS: list[Callable[[], None]] = []


class IssuedCall(Call, Protocol):
    """A call issued by Ray or by a transport."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """The parts of its first value: Ray references, or remotes."""

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases of the memory that its value is in, if the driver lent any."""

    @property
    def upload(self) -> Upload | None:
        """The upload of its value to a server; None: it is not a worker's."""

    @property
    def is_done(self) -> bool: ...

    def watch(self, then: Callable[[Any], None], argument: Any) -> None: ...

    def failure_within(self, patience_s: float) -> Failure | None: ...

    def follow(self, retry: IssuedCall, patched: Patch) -> None:
        """Take over the results of a retry, which calls only restarted shards."""


Patch = Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]  # `Shards.patched`


@dataclass(frozen=True, slots=True)
class Upload:
    """The upload of a gradient from its worker."""

    worker: str
    emulated_s: float  # the least duration


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call that is about to be issued."""

    actor: str
    handle: Any  # Ray's handle of the actor, or of the first shard
    message: Message
    inputs: Sequence[Any]  # the calls that make its inputs, or the parts of inputs
    # memory for its vector, one lease a shard; none: the vector is returned
    leases: tuple[Lease, ...]
    upload: Upload | None  # None: it is not a worker's gradient

    @property
    def reads(self) -> tuple[Lease, ...]:
        """The leases of its inputs, which must not be written meanwhile."""
        calls = (each for each in self.inputs if not isinstance(each, tuple))
        return tuple(lease for call in calls for lease in call.leases)


class Transport(Protocol):
    """The driver's side of a run's transport."""

    @property
    def held_bytes(self) -> int:
        """The memory of this node that it holds, also once the run is over."""

    def attach(self, failure_of: Callable[[Any], Failure | None]) -> None:
        """Begin the run; `failure_of` returns the failure of a ready Ray reference, if any."""

    def reserve(self, actor: str, message: Message, node: str | None) -> tuple[Lease, ...]:
        """Lend memory for a call's vector, one lease a shard; none: the vector is returned.

        `node` is Ray's id of a worker's node; None: it is no worker, or not known.
        """

    def call(self, request: CallRequest) -> IssuedCall | None:
        """Issue a call; None: Ray is to carry it, now, in the actor's order."""

    def expect(self, reference: Any) -> None:
        """Note a Ray reference that the driver waits for."""

    def await_ready(self, references: Collection[Any], timeout_s: float) -> Iterable[Any]:
        """Wait for an event, and yield the Ray references that are ready."""

    def forget(self, actor: str, why: str) -> None:
        """Release a killed worker; its gradients stay as long as they are leased."""

    def restart(self, server: str, why: str) -> None:
        """Prepare for a server's restart; weights stay as long as they are leased."""

    def close(self) -> None:
        """Release the actors at the end of the run."""


@dataclass(frozen=True, slots=True)
class Writers:
    """The actors that begin a run, and the sizes of their vectors."""

    vector_bytes: int  # of the weights
    push_bytes: int  # of a gradient
    workers: Mapping[str, str]  # worker -> Ray's id of its actor
    servers: Sequence[str]  # Ray's id of each shard, which has a part of the weights


class TransportPlan(Protocol):
    """A picklable plan, chosen by the session."""

    @property
    def transports(self) -> Mapping[str, str]:
        """Slot, server or evaluator -> the transport that its record names, if not the default."""

    def begin(self, writers: Writers, previous: Transport | None) -> Transport:
        """Create the transport of a run, which may reuse the memory of the previous one."""


@dataclass(frozen=True, slots=True)
class Sites:
    """Ray's node ids of a run's actors."""

    # name of a server actor -> its node; the controller is with the first
    servers: Mapping[str, str]
    evaluator: str
    workers: Mapping[str, str]  # slot -> node


@dataclass(frozen=True, slots=True)
class ServerNode:
    """Functions that query the node of the first server, called only if needed."""

    # runs a function in the process of the first server, or of another actor by its name in
    # `Sites` or as "controller", and returns its result
    run: Callable[..., Any]
    # returns the memory that the previous run holds there, which this one may reuse
    held_bytes: Callable[[], int]
    store_bytes: Callable[[], float]  # returns the size of its object store


Choice = tuple[TransportPlan, list[str]]  # a plan, and notices for the user; empty ones are skipped


def needed_bytes(experiment: Experiment, vector_bytes: int) -> int:
    """Estimate the peak memory of a run's vectors.

    These are the gradients and pulled weights of each worker, the weights that an update writes,
    those of an evaluation, those that wait for one, and the server's log.
    """
    workers, marks = experiment.worker_count, len(experiment.evaluation.progress_marks())
    log = min(log_bytes(experiment, vector_bytes), MAX_UPDATES * workers * vector_bytes)
    waiting = min(most_waiting(vector_bytes), marks) * vector_bytes
    return (GRADIENTS_PER_WORKER * workers + workers + 2) * vector_bytes + waiting + log


def most_waiting(vector_bytes: int) -> int:
    """Return how many weights may wait for their evaluation in shared memory.

    More wait in the object store, which moves them to disk when it is full.
    """
    return max(2, WAITING_BYTES // vector_bytes)
