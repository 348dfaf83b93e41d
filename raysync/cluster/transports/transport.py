"""What a transport is: how the gradients and weights of a run travel between its actors.

    plan        what the session settles once it knows where the actors sit; it goes to the driver
    transport   the driver's side: it lends memory to write vectors into, and may carry calls itself
    remote      the actor's side: what is passed on in place of a vector that lies elsewhere

A vector is returned by the actor that makes it, which is the object store's way, or it is written
into a remote that the driver lends for it; then the remote is what the actor returns. A further
transport is a file with these three, and a line in `choose.TRANSPORTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from raysync.config import Experiment
from raysync.engine.backend import Call, Failure
from raysync.engine.messages import Message
from raysync.engine.server_log import MAX_UPDATES

if TYPE_CHECKING:
    from torch import Tensor


class InPlace(Protocol):
    """Weights that a worker uses where they are, in place of a copy."""

    @property
    def vector(self) -> Tensor:
        """What the worker may read and write, at an address that stays the same: (P + Q,)."""

    def show(self, weights: Sequence[object]) -> bool:
        """Let `vector` be weights that have arrived, until the next call.

        Args:
            weights: their parts, as they have travelled.

        Returns:
            Whether that can be; otherwise they have to be copied there.
        """

    def check(self) -> None:
        """Check, after a step on them, that they were not overwritten meanwhile."""


class Remote(Protocol):
    """A vector, or a part of one, that is not in the message. It can be pickled."""

    def read(self) -> Tensor:
        """Return it, for reading only."""

    def written(self) -> AbstractContextManager[Tensor]:
        """Give the room for it; it is there when the `with` block ends."""

    def parts(self, sizes: Sequence[int]) -> Sequence[Remote]:
        """Return parts of these sizes, in floats, one behind the other."""

    def in_place(self, vector_bytes: int) -> InPlace | None:
        """Return what shows weights of that size where they are; None: they have to be copied."""


class Lease(Protocol):
    """The right of one call to write a remote; it ends when nothing refers to it."""

    @property
    def handle(self) -> Remote:
        """What may be written."""


class Service(Protocol):
    """Calls that reach an actor by another way than Ray's."""

    def run(self, actor: object, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Carry them out until the driver says to leave, or is gone.

        Args:
            actor: has the methods.
            meanwhile: what to do after each answer, before the next call is waited for.
        """


MIB = 2**20
INLINE_BYTES = 100 * 1024
"""The size up to which Ray keeps a result out of its object store."""
TURNS = 2
"""The gradients of a worker under way at once: one is written while the one before is read."""
BETWEEN_RUNS: list[Callable[[], None]] = []
"""What an actor's process does before a run begins: transports that hold memory add to it."""


class IssuedCall(Call, Protocol):
    """A call on Ray, whichever way it has taken."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """The parts of the value that the call stands for: references of Ray's, or remotes."""

    @property
    def leases(self) -> tuple[Lease, ...]:
        """What its value is in, if the driver lent that."""

    @property
    def upload(self) -> Upload | None:
        """How its value travels to a server; None: it is not a worker's."""

    @property
    def is_done(self) -> bool: ...

    def watch(self, then: Callable[[Any], None], argument: Any) -> None: ...

    def failure_within(self, patience_s: float) -> Failure | None: ...

    def follow(self, again: IssuedCall, patched: Patch) -> None:
        """Replace what restarted shards have not left behind by what `again` does.

        Args:
            again: the same call, of these shards only.
            patched: puts their parts in the place of those before.
        """


Patch = Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
"""See `Shards.patched`."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The way of a gradient from its worker."""

    worker: str
    emulated_s: float
    """The seconds that it takes at least."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call that is about to be issued."""

    actor: str
    handle: Any
    """Ray's handle of the actor, or of the first shard."""
    message: Message
    inputs: Sequence[Any]
    """The calls that make its inputs, or the parts of those."""
    leases: tuple[Lease, ...]
    """What its vector is to be written into, a part a shard; none: it is returned."""
    upload: Upload | None
    """How its gradient travels; None: it is not a worker's."""

    @property
    def reads(self) -> tuple[Lease, ...]:
        """What its inputs are in, which must not be written meanwhile."""
        made = (each for each in self.inputs if not isinstance(each, tuple))
        return tuple(lease for each in made for lease in each.leases)


class Transport(Protocol):
    """The vectors of one run, in the process that drives it."""

    @property
    def held_bytes(self) -> int:
        """The memory of this node that it holds, also once the run is over."""

    def attach(self, failure_of: Callable[[Any], Failure | None]) -> None:
        """Begin the run.

        Args:
            failure_of: says how a reference of Ray's that is there has failed; None: it has not.
        """

    def room(self, actor: str, message: Message, node: str | None) -> tuple[Lease, ...]:
        """Return what a call's vector is to be written into, a part a shard; none: it is returned.

        Args:
            actor: its id.
            message: what it is called for.
            node: Ray's id of a worker's node; None: it is no worker, or not known.
        """

    def call(self, request: CallRequest, by_ray: Callable[[], IssuedCall]) -> IssuedCall:
        """Issue a call by a way of its own, or by Ray's, in its turn."""

    def expect(self, reference: Any) -> None:
        """Take note of a reference of Ray's that the driver waits for."""

    def arrived(self, references: Collection[Any], timeout_s: float) -> Iterable[Any]:
        """Wait until something is there, and yield the references of Ray's that are."""

    def forget(self, actor: str, why: str) -> None:
        """Forget a worker that was ended; its gradients stay as long as they are held."""

    def restart(self, server: str, why: str) -> None:
        """Take in that a server is started anew; weights stay as long as they are held."""

    def close(self) -> None:
        """Let the actors go: the run is over."""


@dataclass(frozen=True, slots=True)
class Writers:
    """The actors that begin a run, and the vectors that they write."""

    vector_bytes: int
    """The size of the weights."""
    push_bytes: int
    """The size of a gradient."""
    workers: Mapping[str, str]
    """Worker -> Ray's id of its actor."""
    servers: Sequence[str]
    """Ray's id of each shard, which has a part of the weights."""


class TransportPlan(Protocol):
    """What the session has settled. It can be pickled."""

    @property
    def shown(self) -> Mapping[str, str]:
        """Slot, server or evaluator -> the transport that its record names, if not the default."""

    def begin(self, writers: Writers, before: Transport | None) -> Transport:
        """Return the transport of a run.

        Args:
            writers: its actors.
            before: that of the run before, of which it may take memory over.
        """


@dataclass(frozen=True, slots=True)
class Sites:
    """Ray's ids of the nodes of a run's actors."""

    servers: Mapping[str, str]
    """server-0 -> the node of that actor. The controller is with the first."""
    evaluator: str
    workers: Mapping[str, str]
    """Slot -> the node of its worker."""


@dataclass(frozen=True, slots=True)
class ServerNode:
    """The node of the first server, which is asked only if that matters."""

    run: Callable[[Callable[[], Any]], Any]
    """Runs a function there, and returns what it returns."""
    held_bytes: Callable[[], int]
    """The memory that the run before holds there, which this one may take over."""
    store_bytes: Callable[[], float]
    """The size of its object store."""


Choice = tuple[TransportPlan, list[str]]
"""A plan, and what the user should know of it; empty sentences say nothing."""


def needed_bytes(experiment: Experiment, vector_bytes: int) -> int:
    """Return about how much memory the vectors of a run need at most.

    That is two gradients for each worker, the weights that each has pulled, those that are being
    made and those of an evaluation, and the log of the server.
    """
    cluster, workers = experiment.cluster, experiment.worker_count
    logged = min(cluster.server_log_bytes, MAX_UPDATES * workers * vector_bytes)
    log = logged if cluster.restarts.attempts else 0
    return (TURNS * workers + workers + 2) * vector_bytes + log
