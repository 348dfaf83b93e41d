"""The parameter server actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from raysync.cluster.actors.actor_spec import Role
from raysync.cluster.actors.devices import current_place, devices_of_actor
from raysync.cluster.actors.shell import Ready, Shell
from raysync.cluster.actors.threads import Threads
from raysync.cluster.monitoring import Exporter, UpdateSeconds
from raysync.engine.messages import ApplyCall, CombineCall, Message, PublishCall
from raysync.programs.building import server_program
from raysync.programs.program import Handled, Handler
from raysync.programs.run_spec import RunSpec
from raysync.training.models.initial_model import InitialModel
from raysync.training.server.apply_plan import ApplyPlan
from raysync.training.worker.device import Device


class Server(Shell):
    """The model, or a stage or shard of it."""

    def __init__(self, threads: Threads, role: Role) -> None:
        super().__init__(threads, role)
        self._exporter = Exporter()

    @override
    def begin(self, spec: RunSpec, model: InitialModel) -> Ready:
        [device] = devices_of_actor()
        index = self._role.number - spec.first_server
        program = server_program(spec, index, model, device=device)
        size, seconds = program.size, UpdateSeconds(self._exporter, spec.metric_labels)
        handler: Handler = program
        if device != "cpu":
            torch.cuda.set_device(device)
            handler = ServerOnGpu(program, device)
        measured = MeasuredServer(handler, self._threads, size, seconds)
        return Ready(program=measured, place=current_place([device]))


class ServerOnGpu:
    """A server whose vectors are on a GPU; what it is asked has been done once it answers."""

    def __init__(self, program: Handler, device: str) -> None:
        self._program, self._device = program, Device(device)

    def handle(
        self, message: Message, inputs: Sequence[Any], into: Tensor | None = None
    ) -> Handled:
        # Those of a worker on another node, or of a checkpoint, are in the memory of this process.
        if isinstance(message, ApplyCall):
            inputs = [self._device.upload(each) for each in inputs]
        try:
            return self._program.handle(message, inputs, into)
        finally:  # the driver may then let others write over the inputs
            torch.cuda.current_stream(self._device.name).synchronize()


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
