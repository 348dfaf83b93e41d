"""The shell of the virtual clock: the costs of messages, around the programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from raysync.config import Network
from raysync.decoupled.stage_seconds import StageSeconds
from raysync.emulation.step_time import StepTime
from raysync.engine.messages import (
    ApplyCall,
    BackwardCall,
    ForwardCall,
    Message,
    StepCall,
    StepReport,
)
from raysync.step_fault import NO_FAULT
from raysync.virtual.all_reduce import AllReduce
from raysync.virtual.virtual_processes import Cost

if TYPE_CHECKING:  # a run that only takes time needs no torch
    from raysync.programs.program import Program
    from raysync.training.formats.state_file import State

NO_COST: Cost = (0.0, 0.0, NO_FAULT, NO_FAULT, None)
CostOf = Callable[[Message, Sequence[Any]], Cost]  # what each message costs an actor
AT_ONCE: Cost = (0.0, 0.0, None, NO_FAULT, None)  # a checkpoint's: not even inputs take time


class VirtualActor:
    """A program at a place of the network."""

    __slots__ = ("_program", "cost", "site")

    def __init__(
        self,
        site: str,
        cost: CostOf,
        program: Program | None,  # None: calls only take time
    ) -> None:
        self.site, self.cost, self._program = site, cost, program

    def compute(
        self, message: Message, inputs: list[Any], answer: Any
    ) -> tuple[Sequence[Any], Any]:
        handled = self.program.handle(message, inputs)
        values, said = handled.kept, handled.answer
        if message.row.is_file:
            return values, list(values)
        if isinstance(said, StepReport):
            said = StepReport(said.loss, answer.busy_s, said.not_finite)
        return values, said

    @property
    def program(self) -> Program:
        assert self._program is not None, "nothing to train with"
        return self._program

    def state(self) -> State:
        return self.program.state()

    def load_state(self, state: State) -> None:
        self.program.load_state(state)


class WorkerCosts:
    """A worker's steps take as long as on the device that its group describes."""

    __slots__ = ("_step_time",)

    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time

    def cost(self, message: Message, inputs: Sequence[Any]) -> Cost:
        if not isinstance(message, StepCall):
            return AT_ONCE
        busy_s = self._step_time.seconds_of_steps(
            message.batch, message.steps, message.samples, message.fault.factor
        )
        return busy_s, 0.0, message.fault, message.fault, StepReport(None, busy_s)


class StageCosts:
    """A stage reports the seconds of all passes since its last push."""

    def __init__(self, seconds: StageSeconds) -> None:
        self._seconds, self._busy_s = seconds, 0.0

    def cost(self, message: Message, inputs: Sequence[Any]) -> Cost:
        assert isinstance(message, ForwardCall | BackwardCall), f"no call of a stage: {message}"
        forward_s, backward_s = self._seconds.of(message)
        self._busy_s += forward_s
        self._busy_s += backward_s
        answer = None
        if isinstance(message, BackwardCall):
            answer, self._busy_s = StepReport(None, self._busy_s), 0.0
        return forward_s, backward_s, NO_FAULT, message.fault, answer


class ServerCosts:
    """Only updates take time: in a server, or in equal ones that carry the bytes in parallel.

    Under a collective it stands for the update that every worker makes after the all-reduce.
    """

    def __init__(
        self,
        vectors: int,  # in a push: a gradient, and perhaps the weights that it was computed on
        # the workers' exchange of gradients before each update; None: the server gets gradients
        exchange: AllReduce | None = None,
    ) -> None:
        self._vectors, self._exchange = vectors, exchange
        # the seconds of an update without reading gradients, and of reading one
        self._update_s = self._reading_s = 0.0

    def enter_phase(self, network: Network, read_bytes: float) -> None:
        """Take the times of a phase's network; `read_bytes` is the size of a gradient."""
        self._update_s = network.update_s
        self._reading_s = read_bytes / (network.update_bytes_per_s or inf)

    def cost(self, message: Message, inputs: Sequence[Any]) -> Cost:
        if not inputs:
            return NO_COST
        if not isinstance(message, ApplyCall):
            return AT_ONCE
        update_s, reading_s, count = self._update_s, self._reading_s, len(inputs) // self._vectors
        if self._exchange is not None:
            exchange_s = self._exchange.seconds(inputs[:count])
            return exchange_s, update_s + reading_s, NO_FAULT, NO_FAULT, None
        return update_s, count * reading_s, NO_FAULT, NO_FAULT, None


def no_cost(message: Message, inputs: Sequence[Any]) -> Cost:
    """Return the cost of an evaluation: on Ray, training never waits for one either."""
    return NO_COST
