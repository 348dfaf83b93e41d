"""The actor of one stage of a network."""

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
from raysync.config import Link
from raysync.decoupled.pipelined_topology import PipelinedPlan
from raysync.decoupled.plan import parts_of
from raysync.decoupled.stage_computation import StageComputation
from raysync.decoupled.stage_seconds import StageSeconds
from raysync.emulation.step_time import StepTime, one_way_s
from raysync.engine.messages import BackwardCall, ForwardCall, Message
from raysync.programs.program import Handled
from raysync.programs.stage import StageProgram
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batch_structure import batch_to
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.device import Device, try_kernels


class Stage(Shell):
    """A stage executes its calls in order, which is the order of the schedule.

    Activations and their gradients are passed on as top-level references, not by the controller.
    """

    def __init__(self, threads: Threads, role: Role) -> None:
        super().__init__(threads, role)
        keep_freed_memory()
        log_to_stderr(str(role))

    @override
    def begin(self, spec: RunSpec, model: InitialModel) -> Ready:
        assert isinstance(spec.topology, PipelinedPlan), "a run without stages"
        topology, experiment, slot = spec.topology, spec.experiment, self._role.slot
        (_, stage), paradigm = topology.stage_of(slot), topology.paradigm
        group, size = topology.group(slot), experiment.batch_size
        [device] = ready_devices(group)
        try_kernels(True)  # all of its batches have one size
        computation = StageComputation(
            parts_of(model, experiment.seed, paradigm)[stage - 1].to(device),
            paradigm.weights,
            paradigm.shrink,
            group.precision,
        )
        reader = BatchReader(
            model.train_set, model.task.collate, spec.batches[slot], experiment.data.loader_workers
        )
        program = StageProgram(
            computation=computation,
            stage=stage,
            stages=paradigm.modules,
            task=model.task,
            reader=reader,
            batch_size=size,
            device=device,
        )
        warm_up(
            (model.name, device, stage, group.precision, size),
            lambda: _warm_up_step(spec, slot, model, device),
        )
        place = current_place([device])
        log_ready(f"stage {stage} of {model.name}", place.devices)
        step_time = StepTime(group, experiment.seed, slot, size)
        return Ready(
            program=EmulatedStage(
                program=program,
                seconds=StageSeconds(step_time, topology.shares[stage], size, paradigm, stage),
                link=group.link,
                output_bytes=round(topology.output_bytes[topology.stage_of(slot)] * size),
                receives={ForwardCall: stage > 1, BackwardCall: paradigm.modules > 1},
            ),
            place=place,
        )


class EmulatedStage:
    """A stage that takes as long as its group's device and link; it reports its seconds."""

    def __init__(
        self,
        *,
        program: StageProgram,
        seconds: StageSeconds,
        link: Link,
        output_bytes: int,
        receives: dict[type[Message], bool],  # whether a pass has an input of another stage
    ) -> None:
        self._program, self._seconds, self._link = program, seconds, link
        self._output_bytes, self._receives = output_bytes, receives
        self._busy_s, self._watch = 0.0, Stopwatch()  # busy since the last push

    def handle(
        self, message: Message, inputs: Sequence[Any], into: Tensor | None = None
    ) -> Handled:
        if not isinstance(message, ForwardCall | BackwardCall):
            return self._program.handle(message, inputs)
        if self._receives[type(message)]:
            sleep_s(one_way_s(self._link, self._output_bytes, message.fault))
        with self._watch.running():
            handled = self._program.handle(message, inputs)
        # As in a worker, copies on a GPU are no computing.
        computed_s = self._program.device_s or self._watch.seconds
        pass_s = sum(self._seconds.of(message, computed_s))
        self._busy_s += computed_s + slept_s(pass_s - computed_s)
        if isinstance(message, ForwardCall):
            return handled
        busy_s, self._busy_s = self._busy_s, 0.0
        return handled._replace(answer=replace(handled.answer, busy_s=busy_s))


def _warm_up_step(
    spec: RunSpec, slot: str, model: InitialModel, device: str
) -> Callable[[int], object]:
    """Create a step that runs a batch through the stages up to this one, and back through it."""
    assert isinstance(spec.topology, PipelinedPlan), "a run without stages"
    topology, experiment = spec.topology, spec.experiment
    (_, number), paradigm = topology.stage_of(slot), topology.paradigm
    parts = parts_of(model, experiment.seed, paradigm)
    *previous, stage = (part.to(device) for part in parts[:number])
    precision = topology.group(slot).precision
    computation = StageComputation(stage, paradigm.weights, paradigm.shrink, precision)
    task, upload = model.task, Device(device).upload
    reader = BatchReader(model.train_set, task.collate, spec.batches[slot])

    def step(clock: int) -> None:
        drawn = batch_to(reader.read(clock, [experiment.batch_size])[0], upload)
        x = task.inputs(drawn)
        with torch.no_grad():
            for part in previous:
                x = part(x)
        if number == paradigm.modules:
            computation.learn(clock, x, lambda output: task.criterion(output, drawn), 0)
        else:
            y = computation.forward(clock, x, 0)
            computation.backward(clock, torch.ones_like(y))

    return step
