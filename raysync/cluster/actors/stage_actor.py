"""A stage of a network is an actor that computes its part of each pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from typing_extensions import override

from raysync.cluster.actors.devices import current_place, ready_devices
from raysync.cluster.actors.emulated_device import EmulatedDevice
from raysync.cluster.actors.freed_memory import keep_freed_memory
from raysync.cluster.actors.shell import Ready, Shell
from raysync.cluster.actors.warm_up import warm_up
from raysync.cluster.clock import Stopwatch
from raysync.cluster.monitoring import log_ready
from raysync.decoupled.pipelined_topology import PipelinedPlan
from raysync.decoupled.plan import parts_of
from raysync.engine.messages import BackwardCall, ForwardCall
from raysync.programs.building import reader_of, stage_program, stage_seconds_of
from raysync.programs.run_spec import RunSpec
from raysync.training.data.batch_structure import batch_to
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.device import Device, try_kernels


class Stage(Shell):
    """A stage executes its calls in order, which is the order of the schedule.

    Activations and their gradients are passed on as top-level references, not by the controller.
    """

    @override
    def begin(self, spec: RunSpec, model: InitialModel) -> Ready:
        assert isinstance(spec.topology, PipelinedPlan), "a run without stages"
        topology, experiment, slot = spec.topology, spec.experiment, self._role.slot
        _, stage = topology.stage_of(slot)
        group, size = topology.group(slot), experiment.batch_size
        keep_freed_memory()
        [device] = ready_devices(group)
        try_kernels(True)  # all of its batches have one size
        watch, loaders = Stopwatch(), experiment.data.loader_workers
        program = stage_program(spec, slot, model, device, loaders, watch.running)
        warm_up(
            (model.name, device, stage, group.precision, size),
            lambda: _warm_up_step(spec, slot, model, device),
        )
        place = current_place([device])
        log_ready(f"stage {stage} of {model.name}", place.devices)
        return Ready(
            program=EmulatedDevice(
                program=program,
                watch=watch,
                seconds_of=stage_seconds_of(spec, slot).whole,
                link=group.link,
                # links are not emulated between stages: see `Capability.EMULATE_LINKS`
                input_bytes={ForwardCall: 0, BackwardCall: 0},
            ),
            place=place,
        )


def _warm_up_step(
    spec: RunSpec, slot: str, model: InitialModel, device: str
) -> Callable[[int], object]:
    """Create a step that runs a batch through the stages up to this one, and back through it."""
    assert isinstance(spec.topology, PipelinedPlan), "a run without stages"
    topology, experiment = spec.topology, spec.experiment
    (_, number), paradigm = topology.stage_of(slot), topology.paradigm
    parts = parts_of(model, experiment.seed, paradigm)
    previous = [part.to(device) for part in parts[: number - 1]]
    program, reader = stage_program(spec, slot, model, device), reader_of(spec, slot, model)
    upload = Device(device).upload

    def step(clock: int) -> None:
        inputs: list[torch.Tensor] = []
        if previous:
            drawn = reader.read(clock, [experiment.batch_size])[0]
            x = model.task.inputs(batch_to(drawn, upload))
            with torch.no_grad():
                for part in previous:
                    x = part(x)
            inputs = [x]
        if number < paradigm.modules:
            (y,), *_ = program.handle(ForwardCall(clock + 1), inputs)
            inputs = [torch.ones_like(y)]
        program.handle(BackwardCall(clock + 1), inputs)

    return step
