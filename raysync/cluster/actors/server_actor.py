"""The parameter server actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from raysync.cluster.actors.actor_spec import Role
from raysync.cluster.actors.devices import current_place
from raysync.cluster.actors.shell import Ready, Shell
from raysync.cluster.actors.threads import Threads
from raysync.cluster.monitoring import Exporter, UpdateSeconds
from raysync.engine.messages import ApplyCall, CombineCall, Message, PublishCall
from raysync.programs.building import server_program
from raysync.programs.program import Handled, Handler
from raysync.programs.run_spec import RunSpec
from raysync.training.models.initial_model import InitialModel
from raysync.training.server.apply_plan import ApplyPlan


class Server(Shell):
    """The model, or a stage or shard of it."""

    def __init__(self, threads: Threads, role: Role) -> None:
        super().__init__(threads, role)
        self._exporter = Exporter()

    @override
    def begin(self, spec: RunSpec, model: InitialModel) -> Ready:
        program = server_program(spec, self._role.number - spec.first_server, model)
        seconds = UpdateSeconds(self._exporter, spec.metric_labels)
        measured = MeasuredServer(program, self._threads, program.size, seconds)
        return Ready(program=measured, place=current_place(["cpu"]))


class MeasuredServer:
    """A server whose updates have the threads that they are worth, and are measured."""

    def __init__(
        self,
        program: Handler,
        threads: Threads,
        size: int,  # of its vectors, in numbers
        seconds: UpdateSeconds,
    ) -> None:
        self._program, self._threads, self._size, self._seconds = program, threads, size, seconds

    def handle(
        self, message: Message, inputs: Sequence[Any], into: Tensor | None = None
    ) -> Handled:
        if isinstance(message, PublishCall):
            self._seconds.flush()
        if not isinstance(message, ApplyCall | CombineCall) or message.plan is None:
            return self._program.handle(message, inputs)
        self._use_threads_for(message.plan)
        with self._seconds.timed():
            return self._program.handle(message, inputs)

    def _use_threads_for(self, plan: ApplyPlan) -> None:
        torch.set_num_threads(self._threads.update_count(len(plan.samples), self._size))
