"""The shell of Ray: an actor that brings messages and values to its program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from raysync.cluster.actor_errors import ProcessRestarted, signed
from raysync.cluster.actors.actor_spec import Place, Role
from raysync.cluster.actors.freed_memory import give_back_freed_memory
from raysync.cluster.actors.threads import Threads, use_threads
from raysync.cluster.monitoring import log_to_stderr
from raysync.cluster.transports.payloads import (
    Payload,
    PulledWeights,
    forget_run,
    incoming,
    outgoing,
)
from raysync.cluster.transports.transport import Remote, Service
from raysync.engine.messages import LoadServerStateCall, Message, decode
from raysync.programs.program import Handler
from raysync.programs.run_spec import RunSpec
from raysync.training.models.initial_model import InitialModel


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A program that is ready for a run."""

    program: Handler  # with what surrounds it on Ray
    place: Place
    part_sizes: Sequence[int] = ()  # of a push, a part for each shard; none: one part
    pulled: PulledWeights | None = None  # of a worker
    meanwhile: Callable[[], None] = lambda: None  # what it does while others compute


class Shell(ABC):
    """An actor. Its subclasses say with what it begins a run, and name it on Ray's dashboard.

    It executes its calls in order. An error of its own code has its signature.
    """

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        log_to_stderr(str(role))
        self._threads, self._role = threads, role
        self._ready: Ready | None = None

    def __repr__(self) -> str:
        return str(self._role)

    @abstractmethod
    def begin(self, spec: RunSpec, model: InitialModel) -> Ready:
        """Return the program of a run, in this process."""

    def reset(self, spec: RunSpec, model: InitialModel, *state: Any) -> Place:
        """Begin or resume a run; `state` is a server's file of a `SnapshotCall`, if any."""
        self._ready = None
        give_back_freed_memory()  # of the previous run, whose model may have been large
        forget_run()
        ready = self.begin(spec, model)
        for data in state:
            ready.program.handle(LoadServerStateCall(), [data.tobytes()])
        self._ready = ready
        return ready.place

    def call(self, data: bytes, *payloads: Payload, into: Remote | None = None) -> Any:
        """Execute an encoded message of the driver.

        Args:
            payloads: the parts of its inputs.
            into: memory for its first value; None: that is returned.

        Returns:
            Its values in their parts, or the handles of these parts, and its answer.
        """
        values, answer = self.execute(decode(data), payloads, into)
        return (*values, answer) if values else answer

    def execute(
        self, message: Message, payloads: Sequence[Payload], into: Remote | None = None
    ) -> tuple[Sequence[Payload], Any]:
        """Execute a message; see `call`."""
        with signed():
            ready = self._ready
            if ready is None:  # Ray has restarted the process since `reset`
                raise ProcessRestarted
            pulls, pulled = message.row.is_push and payloads, ready.pulled
            inputs = incoming(*payloads) if pulled is None or not pulls else pulled.read(payloads)
            with nullcontext() if into is None else into.writing() as slot:
                values, answer, _ = ready.program.handle(message, inputs, slot)
                if slot is not None and values[0] is not slot:
                    slot.copy_(values[0])
                if pulled is not None:
                    pulled.check()
            sizes = ready.part_sizes if message.row.is_push else ()
            return _parts_of(values, sizes, into), answer

    def serve(self, service: Service) -> None:
        """Execute the calls of a transport."""
        assert self._ready is not None, "serving before reset"
        service.run(self, self._ready.meanwhile)


def _parts_of(values: Sequence[Any], sizes: Sequence[int], into: Remote | None) -> list[Payload]:
    if not values:
        return []
    first, *others = values
    parts = outgoing(first, sizes) if into is None else into.parts(sizes or [len(first)])
    return [*parts, *(part for each in others for part in outgoing(each))]
