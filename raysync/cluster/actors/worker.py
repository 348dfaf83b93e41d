"""The worker actor: weights in, gradient out; it knows no paradigm and no other worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import ray
import torch

from raysync.cluster.actor_errors import answers
from raysync.cluster.actors.actor_spec import Place, Role
from raysync.cluster.actors.devices import current_place, ready_devices
from raysync.cluster.actors.freed_memory import give_back_freed_memory, keep_freed_memory
from raysync.cluster.actors.threads import Threads, use_threads
from raysync.cluster.actors.warm_up import warm_up
from raysync.cluster.clock import now_s, sleep_s
from raysync.cluster.monitoring import log_ready, log_to_stderr
from raysync.cluster.run_spec import RunSpec
from raysync.cluster.transports.payloads import (
    Payload,
    PulledWeights,
    forget_run,
    incoming,
    outgoing,
)
from raysync.cluster.transports.transport import Remote, Service
from raysync.config import WorkerGroup
from raysync.emulation.step_time import StepTime, one_way_s
from raysync.engine.messages import (
    LoadWorkerStateCall,
    RestoreCall,
    StepCall,
    StepReport,
    WorkerStateCall,
)
from raysync.engine.topology import SERVER
from raysync.training.data.batch_reader import BatchReader
from raysync.training.files.state_file import decode, encode
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.device import try_kernels
from raysync.training.worker.gradient import GradientComputation


class Worker:
    """Computes gradients on its device, or on several."""

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        keep_freed_memory()
        self._role = role
        log_to_stderr(str(role))
        self._computation: WorkerComputation | None = None
        self._reader: BatchReader | None = None
        self._pulled: PulledWeights | None = None

    def __repr__(self) -> str:
        return str(self._role)

    def serve(self, service: Service) -> None:
        """Execute the calls of a transport."""
        service.run(self, meanwhile=self._draw_ahead)

    def _draw_ahead(self) -> None:
        """Draw the next batch while the server updates."""
        computation, reader = self._computation, self._reader
        assert computation is not None, "drawing before reset"
        assert reader is not None, "drawing before reset"
        # Other samples are left to loader processes: reading takes long, and must show in a step.
        if reader.is_in_memory:
            computation.gradient.draw_ahead(reader)

    def reset(self, spec: RunSpec, model: InitialModel) -> Place:
        self._computation = self._pulled = self._reader = None
        give_back_freed_memory()  # of the previous run, whose model may have been large
        slot, experiment = self._role.slot, spec.experiment
        local_optimizer = experiment.local and experiment.local.optimizer.name
        group, size = spec.group(slot), experiment.batch_size_of(slot)
        devices = ready_devices(group, group.devices)
        forget_run()
        self._link, self._batch_size = group.link, size
        self._vector_bytes = spec.vector_bytes[SERVER]
        self._step_time = StepTime(group, experiment.seed, slot, size)
        warm_up(
            (model.name, *devices, group.precision, group.compile, size, local_optimizer),
            lambda: _warm_up_step(spec, slot, model, devices),
        )
        gradient = _gradient_computation(spec, group, model, devices)
        self._computation = WorkerComputation(gradient, experiment)
        # local steps write into the weights
        may_share = devices[0] == "cpu" and experiment.local is None
        self._pulled = PulledWeights(gradient, self._vector_bytes, may_share=may_share)
        self._reader = BatchReader(
            model.train_set, model.task.collate, spec.batches[slot], experiment.data.loader_workers
        )
        place = current_place(devices)
        log_ready(model.name, place.devices)
        return place

    @answers
    def step(
        self, message: StepCall, *weights: Payload, into: Remote | None = None
    ) -> tuple[Payload | StepReport, ...]:
        """Compute one iteration: a gradient, or the change of the weights by local steps.

        Args:
            message: names the batches, and the faults of the step.
            weights: (P + Q,), in a part a shard; none: continue with the present weights.
            into: memory for the gradient; None: it is returned.

        Returns:
            The gradient with the buffers behind it, in a part a shard, or these parts' handles; and
            the report. Its seconds include the emulated part, and on a CPU also drawing the batch
            unless drawn ahead, but no copies of vectors.
        """
        computation, reader, pulled = self._computation, self._reader, self._pulled
        assert computation is not None, "step before reset"
        assert reader is not None, "step before reset"
        assert pulled is not None, "step before reset"
        gradient, batch, steps = computation.gradient, message.batch, message.steps
        work = batch, steps, message.samples, message.progress, message.progress_of_step
        try_kernels(message.samples == self._batch_size)
        if weights:  # the backend emulates the gradient's upload: another step may begin meanwhile
            sleep_s(one_way_s(self._link, self._vector_bytes, message.fault))
            pulled.read(weights)
        began_s = now_s()
        if into is None:
            loss = computation.compute(reader, *work)
        else:
            with into.writing() as vector:
                gradient.write_into(vector)
                loss = computation.compute(reader, *work)
                gradient.outgoing()
                pulled.check()
        # On a GPU the copies of weights and gradient run beside this thread: they are no computing.
        computed_s = computation.device_s or now_s() - began_s
        step_s = self._step_time.seconds_of_steps(
            batch, steps, message.samples, message.fault.factor, computed_s
        )
        began_s = now_s()
        sleep_s(step_s - computed_s)
        busy_s = computed_s + now_s() - began_s
        sizes = gradient.wire.sizes
        parts = outgoing(gradient.outgoing(), sizes) if into is None else into.parts(sizes)
        return *parts, StepReport(loss, busy_s, gradient.not_finite)

    @answers
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def worker_state(self, message: WorkerStateCall) -> tuple[npt.NDArray[np.uint8], None]:
        """Return the worker's state before a batch, as the contents of a safetensors file."""
        assert self._computation is not None, "state before reset"
        data = encode(self._computation.state_before(message.batch))
        return np.frombuffer(data, np.uint8), None

    @answers
    def load_worker_state(self, message: LoadWorkerStateCall) -> None:
        """Load the result of `worker_state`."""
        assert self._computation is not None, "state before reset"
        self._computation.load_state(decode(message.data))

    @answers
    def restore(self, message: RestoreCall, *parts: Payload) -> None:
        """Load the slot's buffers from before an interruption, at the end of a vector in parts."""
        assert self._computation is not None, "restore before reset"
        self._computation.gradient.read_buffers(torch.cat(incoming(*parts)))


def _warm_up_step(
    spec: RunSpec, slot: str, model: InitialModel, devices: Sequence[str]
) -> Callable[[int], torch.Tensor]:
    """Create a step function that shares no tensors with the run.

    It returns the gradient with the buffers behind it, (P + Q,), valid until the next step.
    """
    gradient = _gradient_computation(spec, spec.group(slot), model, devices)
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


def _gradient_computation(
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
