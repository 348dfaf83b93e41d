"""The steps in flight: from a step's call until its gradient is at the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, KeysView

from msgspec.structs import replace

from raysync.engine.backend import Backend, Call, Failure
from raysync.engine.messages import StepReport
from raysync.engine.parameter_server import ParameterServer
from raysync.engine.topology import Arriving, Step, Topology, released_at


class InFlight:
    """Worker -> its step in flight, in the order of their releases.

    A step that was taken out or replaced is never reported.
    """

    def __init__(self, backend: Backend, topology: Topology) -> None:
        self._backend, self._transit, self._topology = backend, backend.transit, topology
        self._steps: dict[str, Step] = {}

    def attach(
        self, received: Callable[[Step, StepReport], None], failed: Callable[[Step, Failure], None]
    ) -> None:
        """Connect to a run.

        Args:
            received: called with a step whose gradient has arrived, and its worker's report.
            failed: called with a step whose call, or whose delivery, failed.
        """
        self._received, self._failed = received, failed

    def issue(self, step: Step) -> None:
        """Register a step whose call has been issued."""
        self._steps[step.release.worker] = step
        self._backend.watch(step.call, self._answered, step)

    def issue_again(self, server: ParameterServer, lost: Collection[Call]) -> None:
        """Reissue the steps that wait for weights which the server lost and remakes.

        `lost` has the calls that leave these weights.
        """
        for step in self:
            if step.server is not server or step.arriving is not None:  # its iteration has ended
                continue
            if (call := self._topology.issued_again(step, lost)) is not None:
                again = step.copy(call)
                held_back_s = self._backend.now - released_at(self._topology, step)
                again.report = replace(step.report, held_back_s=held_back_s)
                self.issue(again)

    def of_worker(self, worker: str) -> Step | None:
        return self._steps.get(worker)

    @property
    def workers(self) -> KeysView[str]:
        return self._steps.keys()

    def take_out(self, worker: str) -> None:
        self._steps.pop(worker, None)

    def clear(self) -> None:
        self._steps.clear()

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps, except those that are taken out or replaced meanwhile."""
        return (step for step in list(self._steps.values()) if self._is_under_way(step))

    def _is_under_way(self, step: Step) -> bool:
        return self._steps.get(step.release.worker) is step

    def _answered(self, step: Step) -> None:
        if not self._is_under_way(step):
            return
        answer = step.call.answer
        if isinstance(answer, Failure):
            self._failed(step, answer)
            return
        if self._transit.delivers and (
            parts := self._transit.deliver(step.call, step.server.actor)
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
        arriving.values.append(answer)
        arriving.parts.remove(part)
        if not arriving.parts:
            self._end(step, step.call.answer)

    def _end(self, step: Step, answer: StepReport) -> None:
        del self._steps[step.release.worker]
        self._received(step, answer)
