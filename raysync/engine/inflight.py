"""The steps under way: from the call of a step until its gradient is at the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, KeysView

from msgspec.structs import replace

from raysync.engine.backend import Backend, Call, Failure
from raysync.engine.messages import StepReport
from raysync.engine.parameter_server import ParameterServer
from raysync.engine.topology import Arriving, Step, Topology, released_at


class InFlight:
    """Worker -> its step under way, in the order of their releases.

    A step that is taken out, as of a worker that leaves, or replaced, is not heard of any more.
    """

    def __init__(
        self,
        backend: Backend,
        topology: Topology,
        received: Callable[[Step, StepReport], None],
        failed: Callable[[Step, Failure], None],
    ) -> None:
        """
        Args:
            backend: has the calls.
            topology: issues steps again.
            received: called with a step whose gradient has arrived, and what its worker reports; it
                is under way no more.
            failed: called with a step that is under way, and how its call, or the delivery of its
                gradient, has failed.
        """
        self._backend, self._topology = backend, topology
        self._received, self._failed = received, failed
        self._steps: dict[str, Step] = {}

    def issue(self, step: Step) -> None:
        """Take in a step whose call has been issued."""
        self._steps[step.release.worker] = step
        self._backend.watch(step.call, self._answered, step)

    def issue_again(self, server: ParameterServer, lost: Collection[Call]) -> None:
        """Issue the steps again that wait for weights of a server which are being made again.

        Args:
            server: it has lost them.
            lost: the calls that leave them.
        """
        for step in self:
            if step.server is not server or step.arriving is not None:  # it has ended
                continue
            if (call := self._topology.issued_again(step, lost)) is not None:
                again = step.copy(call)
                held_back_s = self._backend.now - released_at(self._topology, step)
                again.report = replace(step.report, held_back_s=held_back_s)
                self.issue(again)

    def of_worker(self, worker: str) -> Step | None:
        """Return the step of a worker; None: it has none."""
        return self._steps.get(worker)

    @property
    def workers(self) -> KeysView[str]:
        """The workers that have a step."""
        return self._steps.keys()

    def take_out(self, worker: str) -> None:
        """Forget the step of a worker that leaves, if it has one."""
        self._steps.pop(worker, None)

    def clear(self) -> None:
        """Forget all steps: the run is over."""
        self._steps.clear()

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps; those that are taken out, or replaced, meanwhile are left out."""
        return (step for step in list(self._steps.values()) if self._is_under_way(step))

    def _is_under_way(self, step: Step) -> bool:
        return self._steps.get(step.release.worker) is step

    def _answered(self, step: Step) -> None:
        """Take in that a worker has answered, or that its call has failed."""
        if not self._is_under_way(step):
            return
        answer = step.call.answer
        if isinstance(answer, Failure):
            self._failed(step, answer)
            return
        if self._backend.delivers and (
            parts := self._backend.deliver(step.call, step.server.actor)
        ):
            self._await(step, parts)
        else:
            self._end(step, answer)

    def _await(self, step: Step, parts: Iterable[Call]) -> None:
        missing = list(parts)
        step.arriving = Arriving(self._backend.now, missing[0], missing)
        for part in list(missing):
            self._backend.watch(part, self._part_arrived, (step, part))

    def _part_arrived(self, step_and_part: tuple[Step, Call]) -> None:
        step, part = step_and_part
        if not self._is_under_way(step):
            return
        answer, arriving = part.answer, step.arriving
        if isinstance(answer, Failure):
            self._failed(step, answer)
            return
        assert arriving is not None, "a part of a gradient that nothing waits for"
        arriving.held.append(answer)
        arriving.parts.remove(part)
        if not arriving.parts:
            self._end(step, step.call.answer)

    def _end(self, step: Step, answer: StepReport) -> None:
        del self._steps[step.release.worker]
        self._received(step, answer)
