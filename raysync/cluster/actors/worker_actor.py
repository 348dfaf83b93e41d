"""The worker actor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

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
from raysync.programs.building import gradient_of, reader_of, step_time_of
from raysync.programs.run_spec import RunSpec
from raysync.programs.worker import WorkerProgram
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.computation import WorkerComputation


class Worker(Shell):
    """Computes gradients on its device, or on several."""

    @override
    def begin(self, spec: RunSpec, model: InitialModel) -> Ready:
        keep_freed_memory()
        slot, experiment = self._role.slot, spec.experiment
        local_optimizer = experiment.local and experiment.local.optimizer.name
        group, size = spec.group(slot), experiment.batch_size_of(slot)
        devices, vector_bytes = ready_devices(group, group.devices), spec.vector_bytes[SERVER]
        warm_up(
            (model.name, *devices, group.precision, group.compile, size, local_optimizer),
            lambda: _warm_up_step(spec, slot, model, devices),
        )
        watch, step_time = Stopwatch(), step_time_of(spec, slot)
        loaders = experiment.data.loader_workers
        program = program_of(spec, slot, model, devices, loaders, watch.running)

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
    spec: RunSpec, slot: str, model: InitialModel, devices: Sequence[str]
) -> Callable[[int], object]:
    """Create a step that shares no tensors with the run."""
    program = program_of(spec, slot, model, devices)
    initial = program.initial().cpu()  # like pulled weights: a GPU pins memory for them
    size = spec.experiment.batch_size_of(slot)
    # a step of a local optimizer, too: torch's first imports for seconds
    return lambda clock: program.handle(StepCall(clock, size), [initial])


def program_of(
    spec: RunSpec,
    slot: str,
    model: InitialModel,
    devices: Sequence[str],
    loader_workers: int = 0,
    computing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> WorkerProgram:
    """Create the program of a worker, as its group and the cluster say."""
    gradient = gradient_of(spec, spec.group(slot), model, devices, draws_ahead=True)
    return WorkerProgram(
        WorkerComputation(gradient, spec.experiment),
        reader_of(spec, slot, model, loader_workers),
        spec.experiment.batch_size_of(slot),
        computing,
    )
