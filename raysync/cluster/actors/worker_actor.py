"""A worker is an actor that computes gradients of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from typing_extensions import override

from raysync.cluster.actors.devices import current_place, ready_devices
from raysync.cluster.actors.emulated_device import EmulatedDevice
from raysync.cluster.actors.freed_memory import keep_freed_memory
from raysync.cluster.actors.shell import Ready, Shell
from raysync.cluster.actors.warm_up import warm_up
from raysync.cluster.clock import Stopwatch
from raysync.cluster.monitoring import log_ready
from raysync.cluster.transports.payloads import PulledWeights
from raysync.engine.messages import StepCall
from raysync.engine.topology import SERVER
from raysync.programs.building import gradient_of, step_time_of, worker_program
from raysync.programs.run_spec import RunSpec
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.gradient import GradientComputation


class Worker(Shell):
    """Computes gradients on its device, or on several."""

    @override
    def begin(self, spec: RunSpec, model: InitialModel) -> Ready:
        keep_freed_memory()
        slot, experiment = self._role.slot, spec.experiment
        local_optimizer = experiment.local and experiment.local.optimizer.name
        group, size = spec.group(slot), experiment.batch_size_of(slot)
        devices, vector_bytes = ready_devices(group, group.devices), spec.vector_bytes[SERVER]
        gradient = partial(gradient_of, spec, group, model, devices, draws_ahead=True)
        warm_up(
            (model.name, *devices, group.precision, group.compile, size, local_optimizer),
            lambda: _warm_up_step(spec, slot, model, gradient()),
        )
        watch, step_time = Stopwatch(), step_time_of(spec, slot)
        program = worker_program(
            spec,
            slot,
            model,
            gradient(),
            can_lose_servers=True,
            tries_kernels=True,
            loader_workers=experiment.data.loader_workers,
            computing=watch.running,
        )

        def seconds_of(step: StepCall, computed_s: float) -> float:
            work = step.batch, step.steps, step.samples
            return step_time.seconds_of_steps(*work, step.fault.factor, computed_s)

        # local steps write into the weights
        may_share = devices[0] == "cpu" and experiment.local is None
        place = current_place(devices)
        log_ready(model.name, place.devices)
        return Ready(
            program=EmulatedDevice(
                program=program,
                watch=watch,
                seconds_of=seconds_of,
                link=group.link,
                input_bytes={StepCall: vector_bytes},
            ),
            place=place,
            part_sizes=program.part_sizes,
            pulled=PulledWeights(program.move_weights, vector_bytes, may_share=may_share),
            meanwhile=program.draw_ahead,
        )


def _warm_up_step(
    spec: RunSpec, slot: str, model: InitialModel, gradient: GradientComputation
) -> Callable[[int], object]:
    """Create a step that shares no tensors with the run."""
    program = worker_program(spec, slot, model, gradient, can_lose_servers=True, tries_kernels=True)
    initial = program.initial().cpu()  # like pulled weights: a GPU pins memory for them
    size = spec.experiment.batch_size_of(slot)
    # a step of a local optimizer, too: torch's first imports for seconds
    return lambda clock: program.handle(StepCall(clock, size), [initial])
