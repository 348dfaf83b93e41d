"""The worker actor: weights in, gradient out; it knows no paradigm and no other worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from raysync.cluster.actor_errors import answers
from raysync.cluster.actors.actor_spec import Place, Role
from raysync.cluster.actors.devices import here, ready_devices
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
    LoadLocalStateCall,
    LocalStateCall,
    RestoreCall,
    StepCall,
    StepReport,
)
from raysync.engine.topology import SERVER
from raysync.training.data.batch_reader import BatchReader, even_sizes
from raysync.training.files.state_file import decode, encode, packed, unpacked
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.device import try_kernels
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.local_steps import LocalSteps


def _computation(
    spec: RunSpec, group: WorkerGroup, model: InitialModel, devices: Sequence[str]
) -> GradientComputation:
    experiment = spec.experiment
    return GradientComputation(
        module=model.build(experiment.seed),
        task=model.task,
        devices=devices,
        group=group,
        micro_batch=experiment.micro_batch,
        wire=experiment.cluster.wire,
        shards=experiment.cluster.server_shards,
        draws_ahead=True,
    )


def _trial(
    spec: RunSpec, slot: str, model: InitialModel, devices: Sequence[str]
) -> Callable[[int], torch.Tensor]:
    """Return a function that computes the step of a clock, with tensors of its own; it returns the
    gradient with the buffers behind it, (P + Q,), which is valid until the next step.
    """
    computation = _computation(spec, spec.group(slot), model, devices)
    reader = BatchReader(model.train_set, model.task.collate, spec.batches[slot])
    initial = computation.model.initial().cpu()  # as weights come: a GPU pins memory for them
    batch_size = spec.experiment.batch_size_of(slot)

    def step(clock: int) -> torch.Tensor:
        try_kernels(True)
        computation.read_weights([initial])
        computation.compute(reader, clock, batch_size)
        return computation.outgoing()

    return step


class Worker:
    """It computes gradients on its device, or on several."""

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        keep_freed_memory()
        self._role = role
        log_to_stderr(str(role))
        self._gradient: GradientComputation | None = None
        self._reader: BatchReader | None = None
        self._pulled: PulledWeights | None = None
        self._local: LocalSteps | None = None

    def __repr__(self) -> str:
        return str(self._role)

    def serve(self, service: Service) -> None:
        """Carry out the calls that a transport brings."""
        service.run(self, meanwhile=self._draw_ahead)

    def _draw_ahead(self) -> None:
        """Draw the next batch while the server updates, in place of doing it once the weights are
        there. Samples that are read one by one are left to processes of their own: reading them
        takes long, and must show in the seconds of a step.
        """
        gradient, reader = self._gradient, self._reader
        assert gradient is not None, "drawing before reset"
        assert reader is not None, "drawing before reset"
        if reader.is_in_memory:
            gradient.draw_ahead(reader)

    def reset(self, spec: RunSpec, model: InitialModel) -> Place:
        """Begin a run."""
        self._gradient = self._pulled = self._reader = self._local = None
        give_back_freed_memory()  # that of the run before, whose model may have been a large one
        slot, experiment = self._role.slot, spec.experiment
        group, size = spec.group(slot), experiment.batch_size_of(slot)
        devices = ready_devices(group, group.devices)
        forget_run()
        self._link, self._batch_size = group.link, size
        self._vector_bytes = spec.vector_bytes[SERVER]
        self._step_time = StepTime(group, experiment.seed, slot, size)
        warm_up(
            (model.name, *devices, group.precision, group.compile, size),
            lambda: _trial(spec, slot, model, devices),
        )
        self._gradient = _computation(spec, group, model, devices)
        local = experiment.local
        may_share = devices[0] == "cpu" and local is None  # local steps write into the weights
        self._pulled = PulledWeights(self._gradient, self._vector_bytes, may_share=may_share)
        is_checkpointed = experiment.checkpoint is not None
        self._local = (
            None
            if local is None
            else LocalSteps(self._gradient, local, is_checkpointed=is_checkpointed)
        )
        self._shards = experiment.cluster.server_shards
        self._reader = BatchReader(
            model.train_set, model.task.collate, spec.batches[slot], experiment.data.loader_workers
        )
        place = here(devices)
        log_ready(model.name, place.devices)
        return place

    @answers
    def step(
        self, message: StepCall, *weights: Payload, into: Remote | None = None
    ) -> tuple[Payload | StepReport, ...]:
        """Compute one iteration: a gradient, or local steps and by how much they change the
        weights.

        Args:
            message: names the batches, and what faults do to the step.
            weights: (P + Q,) from the server, in a part a shard; none: go on with the weights you
                have.
            into: what the gradient is to be written into; None: it is returned.

        Returns:
            The gradient with the buffers behind it, as it travels, in a part a shard, or the
            handles of these parts; the loss, the seconds of computing, the emulated part included:
            forward and backward, on a CPU also drawing the batch unless that was done ahead,
            without the copies of vectors; and what was not finite.
        """
        gradient, reader, pulled = self._gradient, self._reader, self._pulled
        assert gradient is not None, "step before reset"
        assert reader is not None, "step before reset"
        assert pulled is not None, "step before reset"
        try_kernels(message.samples == self._batch_size)
        if weights:  # the backend lets the gradient take its time: another step may come meanwhile
            sleep_s(one_way_s(self._link, self._vector_bytes, message.fault))
            pulled.read(weights)
        began_s = now_s()
        if into is None:
            loss = self._compute(message, gradient, reader)
        else:
            with into.written() as vector:
                gradient.write_into(vector)
                loss = self._compute(message, gradient, reader)
                gradient.outgoing()
                pulled.check()
        # On a GPU the copies of weights and gradient run beside this thread: they are no computing.
        device_s = gradient.device_s if self._local is None else self._local.device_s
        computed_s = device_s or now_s() - began_s
        step_s = self._step_time.seconds_of(
            message.batch, message.steps, message.samples, message.fault.factor, computed_s
        )
        began_s = now_s()
        sleep_s(step_s - computed_s)
        busy_s = computed_s + now_s() - began_s
        sizes = gradient.wire.sizes
        parts = outgoing(gradient.outgoing(), sizes) if into is None else into.parts(sizes)
        return *parts, StepReport(loss, busy_s, gradient.not_finite)

    def _compute(
        self, message: StepCall, gradient: GradientComputation, reader: BatchReader
    ) -> float:
        """Compute an iteration; return its loss."""
        local, batch, size = self._local, message.batch, message.samples
        if local is None:
            return gradient.compute(reader, batch, size)
        return local.compute(reader, batch, message.steps, size, message.progress)

    @answers
    def local_state(self, message: LocalStateCall) -> tuple[Payload | None, ...]:
        """Return the state of the local steps as it was before a batch, in a part a shard, which
        have nothing else in common with the shards.
        """
        assert self._local is not None, "no local steps"
        vector = packed(encode(self._local.state_before(message.batch)), self._shards)
        return *outgoing(vector, even_sizes(len(vector), self._shards)), None

    @answers
    def load_local_state(self, message: LoadLocalStateCall, *parts: Payload) -> None:
        """Take what `local_state` returned, in its parts."""
        assert self._local is not None, "no local steps"
        self._local.load_state(decode(unpacked(torch.cat(incoming(*parts)))))

    @answers
    def restore(self, message: RestoreCall, *parts: Payload) -> None:
        """Take the buffers at the end of a vector, which comes in a part a shard: those that this
        slot had when the run was interrupted.
        """
        assert self._gradient is not None, "restore before reset"
        self._gradient.read_buffers(torch.cat(incoming(*parts)))
