"""The worker actor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor
from typing_extensions import override

from raysync.cluster.actors.actor_spec import Role
from raysync.cluster.actors.devices import current_place, ready_devices
from raysync.cluster.actors.freed_memory import keep_freed_memory
from raysync.cluster.actors.shell import Ready, Shell
from raysync.cluster.actors.threads import Threads
from raysync.cluster.actors.warm_up import warm_up
from raysync.cluster.clock import Stopwatch, sleep_s, slept_s
from raysync.cluster.monitoring import log_ready, log_to_stderr
from raysync.cluster.run_spec import RunSpec
from raysync.cluster.transports.payloads import PulledWeights
from raysync.config import Link, WorkerGroup
from raysync.emulation.step_time import StepTime, one_way_s
from raysync.engine.messages import Message, StepCall
from raysync.engine.topology import SERVER
from raysync.programs.program import Handled
from raysync.programs.worker import WorkerProgram
from raysync.training.data.batch_reader import BatchReader
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.device import try_kernels
from raysync.training.worker.gradient import GradientComputation


class Worker(Shell):
    """Computes gradients on its device, or on several."""

    def __init__(self, threads: Threads, role: Role) -> None:
        super().__init__(threads, role)
        keep_freed_memory()
        log_to_stderr(str(role))

    @override
    def begin(self, spec: RunSpec, model: InitialModel) -> Ready:
        slot, experiment = self._role.slot, spec.experiment
        local_optimizer = experiment.local and experiment.local.optimizer.name
        group, size = spec.group(slot), experiment.batch_size_of(slot)
        devices, vector_bytes = ready_devices(group, group.devices), spec.vector_bytes[SERVER]
        warm_up(
            (model.name, *devices, group.precision, group.compile, size, local_optimizer),
            lambda: _warm_up_step(spec, slot, model, devices),
        )
        watch = Stopwatch()
        reader = BatchReader(
            model.train_set, model.task.collate, spec.batches[slot], experiment.data.loader_workers
        )
        computation = WorkerComputation(computation_of(spec, group, model, devices), experiment)
        program = WorkerProgram(computation, reader, watch.running)
        # local steps write into the weights
        may_share = devices[0] == "cpu" and experiment.local is None
        place = current_place(devices)
        log_ready(model.name, place.devices)
        return Ready(
            program=EmulatedWorker(
                program=program,
                watch=watch,
                step_time=StepTime(group, experiment.seed, slot, size),
                batch_size=size,
                link=group.link,
                vector_bytes=vector_bytes,
            ),
            place=place,
            part_sizes=program.part_sizes,
            pulled=PulledWeights(program.move_weights, vector_bytes, may_share=may_share),
            meanwhile=program.draw_ahead,
        )


class EmulatedWorker:
    """A worker that takes as long as its group's device and link; it reports its seconds.

    These include the emulated part and, on a CPU, drawing the batch unless drawn ahead, but no
    copies of vectors.
    """

    def __init__(
        self,
        *,
        program: WorkerProgram,
        watch: Stopwatch,  # runs while the program computes
        step_time: StepTime,
        batch_size: int,
        link: Link,
        vector_bytes: int,
    ) -> None:
        self._program, self._watch, self._step_time = program, watch, step_time
        self._batch_size, self._link, self._vector_bytes = batch_size, link, vector_bytes

    def handle(
        self, message: Message, inputs: Sequence[Any], into: Tensor | None = None
    ) -> Handled:
        if not isinstance(message, StepCall):
            return self._program.handle(message, inputs)
        try_kernels(message.samples == self._batch_size)
        if inputs:  # the backend emulates the gradient's upload: another step may begin meanwhile
            sleep_s(one_way_s(self._link, self._vector_bytes, message.fault))
        handled = self._program.handle(message, inputs, into)
        # On a GPU the copies of weights and gradient run beside this thread: they are no computing.
        computed_s = self._program.device_s or self._watch.seconds
        step_s = self._step_time.seconds_of_steps(
            message.batch, message.steps, message.samples, message.fault.factor, computed_s
        )
        busy_s = computed_s + slept_s(step_s - computed_s)
        return handled._replace(answer=replace(handled.answer, busy_s=busy_s))


def _warm_up_step(
    spec: RunSpec, slot: str, model: InitialModel, devices: Sequence[str]
) -> Callable[[int], torch.Tensor]:
    """Create a step function that shares no tensors with the run.

    It returns the gradient with the buffers behind it, (P + Q,), valid until the next step.
    """
    gradient = computation_of(spec, spec.group(slot), model, devices)
    computation = WorkerComputation(gradient, spec.experiment)
    reader = BatchReader(model.train_set, model.task.collate, spec.batches[slot])
    initial = gradient.model.initial().cpu()  # like pulled weights: a GPU pins memory for them
    batch_size = spec.experiment.batch_size_of(slot)

    def step(clock: int) -> torch.Tensor:
        try_kernels(True)
        gradient.read_weights([initial])
        # a step of a local optimizer, too: torch's first imports for seconds
        computation.compute(reader, clock, 1, batch_size)
        return gradient.outgoing()

    return step


def computation_of(
    spec: RunSpec, group: WorkerGroup, model: InitialModel, devices: Sequence[str]
) -> GradientComputation:
    experiment = spec.experiment
    return GradientComputation(
        module=model.build(experiment.seed),
        task=model.task,
        devices=devices,
        group=group,
        micro_batch=experiment.micro_batch,
        wire=experiment.cluster.wire.name,
        fraction=experiment.cluster.wire.fraction,
        shards=experiment.cluster.server_shards,
        draws_ahead=True,
        found=model.found,
    )
