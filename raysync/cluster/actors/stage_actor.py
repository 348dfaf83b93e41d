"""The workers of a network that is cut into stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import ray
import torch
from torch import Tensor

from raysync.cluster.actor_errors import answers
from raysync.cluster.actors.actor_spec import Place, Role
from raysync.cluster.actors.devices import current_place, ready_devices
from raysync.cluster.actors.freed_memory import give_back_freed_memory, keep_freed_memory
from raysync.cluster.actors.threads import Threads, use_threads
from raysync.cluster.actors.warm_up import warm_up
from raysync.cluster.clock import now_s, sleep_s
from raysync.cluster.monitoring import log_ready, log_to_stderr
from raysync.cluster.run_spec import RunSpec
from raysync.cluster.transports.payloads import Payload, incoming, outgoing
from raysync.decoupled.pipelined_topology import PipelinedPlan
from raysync.decoupled.plan import parts_of
from raysync.decoupled.stage_computation import StageComputation, StageWork
from raysync.emulation.step_time import StepTime, one_way_s
from raysync.engine.messages import BackwardCall, ForwardCall, StepReport
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batch_structure import batch_to
from raysync.training.data.batches import Batches
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.device import Device, try_kernels

FORWARD = 1 / 3  # the forward share of a step's operations; a backward pass has twice as many
# A tensor of shape (N, ...), as a payload: bfloat16, which NumPy lacks, as uint16.
Activation = npt.NDArray[Any]


class StageActor:
    """The actor of one stage. It executes its calls in order, which is the order of the schedule.

        forward(message, [weights], [x])    -> y                                for the next stage
        backward(message, [weights], dy)    -> gradient, dx, report       the last stage: x, not dy

    Activations and their gradients are passed on as top-level references, not by the controller.
    """

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        keep_freed_memory()
        self._role = role
        log_to_stderr(str(role))
        self._busy_s = 0.0

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, spec: RunSpec, model: InitialModel) -> Place:
        assert isinstance(spec.topology, PipelinedPlan), "a run without stages"
        topology, experiment, slot = spec.topology, spec.experiment, self._role.slot
        stage_id, group = topology.stage_of(slot), topology.group(slot)
        [name] = ready_devices(group)
        try_kernels(True)  # all of its batches have one size
        self._stage, self._paradigm = stage_id[1], topology.paradigm
        self._device, self._busy_s = Device(name), 0.0
        self._share, self._link = topology.shares[self._stage], group.link
        self._batch_size = experiment.batch_size
        self._output_bytes = round(topology.output_bytes[stage_id] * self._batch_size)
        self._step_time = StepTime(group, experiment.seed, slot, self._batch_size)
        computation = StageComputation(
            parts_of(model, experiment.seed, self._paradigm)[self._stage - 1].to(name),
            self._paradigm.weights,
            self._paradigm.shrink,
            group.precision,
        )
        task, batches = model.task, spec.batches[slot]
        self._work = StageWork(
            computation=computation,
            stage=self._stage,
            stages=self._paradigm.modules,
            task=task,
            reader=BatchReader(
                model.train_set, task.collate, batches, experiment.data.loader_workers
            ),
            batch_size=self._batch_size,
            device=self._device,
        )
        give_back_freed_memory()  # of the previous run, whose model may have been large
        self._warm_up(experiment.seed, model, batches, name, group.precision)
        place = current_place([name])
        log_ready(f"stage {self._stage} of {model.name}", place.devices)
        return place

    def _warm_up(
        self, seed: int, model: InitialModel, batches: Batches, device: str, precision: str
    ) -> None:
        """Run a batch through the stages up to this one, and back through this one."""
        number, paradigm, batch_size = self._stage, self._paradigm, self._batch_size

        def make() -> Callable[[int], object]:
            parts = parts_of(model, seed, paradigm)
            *previous, stage = (part.to(device) for part in parts[:number])
            computation = StageComputation(stage, paradigm.weights, paradigm.shrink, precision)
            task, upload = model.task, Device(device).upload
            reader = BatchReader(model.train_set, task.collate, batches)

            def step(clock: int) -> None:
                drawn = batch_to(reader.read(clock, [batch_size])[0], upload)
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

        warm_up((model.name, device, number, precision, batch_size), make)

    @answers
    def forward(self, message: ForwardCall, *arrived: Any) -> Activation:
        """Run a batch forward.

        Args:
            message: names the batch, and the faults of the pass.
            arrived: weights (P + Q,) if new, then the previous stage's activation, if any.
        """
        with self._timed(message, FORWARD, travels=self._stage > 1):
            y = self._device.download(self._work.forward(message.batch, _tensors(arrived)))
        return to_payload(y)

    @answers
    @ray.method(num_returns=3)  # type: ignore[untyped-decorator]
    def backward(
        self, message: BackwardCall, *arrived: Any
    ) -> tuple[Payload, Activation | None, StepReport]:
        """Run a batch backward; the last stage runs it forward before, from the activation.

        Returns:
            The gradient with the buffers behind it (P + Q,), the gradient of the input, and the
            report.
        """
        modules = self._paradigm.modules
        # The last stage runs forward only now; with the latest weights all stages do so again.
        runs_forward = self._stage == modules or self._paradigm.weights == "latest"
        part = 1.0 if runs_forward else 2 * FORWARD
        with self._timed(message, part, travels=modules > 1):
            loss, vector, dx = self._work.backward(message.batch, _tensors(arrived))
            gradient = outgoing(self._device.download(vector))[0]
            back = None if dx is None or self._stage == 1 else to_payload(self._device.download(dx))
        busy_s, self._busy_s = self._busy_s, 0.0
        return gradient, back, StepReport(loss, busy_s, self._work.not_finite)

    @contextmanager
    def _timed(
        self, message: ForwardCall | BackwardCall, part: float, *, travels: bool
    ) -> Iterator[None]:
        """Sleep for the extra time of the emulated device and its link; `part` is of a step."""
        if travels:
            sleep_s(one_way_s(self._link, self._output_bytes, message.fault))
        began_s = now_s()
        yield
        # As in a worker, copies on a GPU are no computing.
        computed_s = self._work.device_s or now_s() - began_s
        share = self._share * part
        step_s = self._step_time.seconds(
            message.batch - 1, self._batch_size, message.fault.factor, computed_s / share
        )
        began_s = now_s()
        sleep_s(share * step_s - computed_s)
        self._busy_s += computed_s + now_s() - began_s


def _tensors(arrived: Sequence[Any]) -> list[Tensor]:
    # weights may be bytes; activations keep their shape
    return [incoming(each)[0] if isinstance(each, bytes) else to_tensor(each) for each in arrived]


def to_payload(tensor: Tensor) -> Activation:
    """Convert an activation, or its gradient, to a payload."""
    bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    return bits.numpy()


def to_tensor(payload: Activation) -> Tensor:
    """Convert a payload to a tensor; stages send floats only, so uint16 is bfloat16."""
    tensor = torch.from_numpy(payload)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
