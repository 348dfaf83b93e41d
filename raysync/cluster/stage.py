"""The actor of one stage of a network that is cut: activations and gradients in, the same out.

    forward(message, [weights], [x])        -> y                                for the next stage
    backward(message, [weights], dy)        -> gradient, dx, report   the last one: x, not dy

What goes between stages are return values, passed on as top-level references from neighbour to
neighbour, nothing of it through the controller. An actor works its calls off in order, which is the
order of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import ray
import torch
from torch import Tensor, nn

from raysync.cluster.actor_errors import answers
from raysync.cluster.actor_spec import Role
from raysync.cluster.clock import now_s, sleep_s
from raysync.cluster.devices import Place, here, ready_devices
from raysync.cluster.freed_memory import give_back_freed_memory, keep_freed_memory
from raysync.cluster.monitoring import log_ready, log_to_stderr
from raysync.cluster.threads import Threads, use_threads
from raysync.cluster.transport import Payload, incoming, outgoing
from raysync.cluster.warm_up import warm_up
from raysync.config import Update, WorkerGroup
from raysync.decoupled.cut import joined
from raysync.decoupled.gossip import exchange_of
from raysync.decoupled.pipelines import StageId
from raysync.decoupled.plan import cut_model, parts_of
from raysync.decoupled.stage import StageComputation, StageWork
from raysync.engine.messages import BackwardCall, ForwardCall, StepReport
from raysync.engine.step_time import StepTime, one_way_s
from raysync.paradigms.decoupled import Decoupled
from raysync.training.batch_reader import BatchReader
from raysync.training.batch_structure import batch_to
from raysync.training.batches import Batches
from raysync.training.buffers import BufferLayout, layout_of
from raysync.training.device import Device, try_kernels
from raysync.training.initial_model import InitialModel
from raysync.training.model_server import Exchange

Activation = npt.NDArray[Any]
"""A tensor of shape (N, ...), as a payload: bfloat16, which NumPy does not have, as uint16."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """All that a stage needs to know in one run."""

    stage_id: StageId
    slot: str
    group: WorkerGroup
    paradigm: Decoupled
    batches: Batches
    """The batches of its group."""
    loader_workers: int
    """The processes that read its samples ahead, where these are read one by one."""
    batch_size: int
    seed: int
    share: float
    """The share of the operations of a step of the whole network."""
    output_bytes: float
    """The bytes that it sends forward for a sample."""


@dataclass(frozen=True, slots=True)
class StageServerPlan:
    """The stage whose weights a server keeps in one run."""

    seed: int
    paradigm: Decoupled
    update: Update
    stage: int

    def exchange(self, model: InitialModel) -> Exchange:
        """See `ServerPlan.exchange`."""
        part = parts_of(model, self.seed, self.paradigm)[self.stage - 1]
        return exchange_of(self.paradigm, self.update, part)


@dataclass(slots=True)
class Stages:
    """The whole network, put together from its stages."""

    seed: int
    paradigm: Decoupled
    layouts: list[BufferLayout] = field(default_factory=list)
    """Those of the stages and then of the whole, known once the model is built."""

    def modules(self, model: InitialModel) -> tuple[nn.Module, nn.Module]:
        """See `Assembly.modules`."""
        module, parts = cut_model(model, self.seed, self.paradigm)
        whole = nn.Sequential(*(item for part in parts for item in part))
        self.layouts = [layout_of(each) for each in (*parts, whole)]
        return whole, module

    def vector(self, weights: Sequence[Tensor]) -> Tensor:
        """See `Assembly.vector`."""
        *stages, whole = self.layouts
        return joined(weights, stages, whole)


class StageActor:
    """One stage of one group, on its device."""

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        keep_freed_memory()
        self._role = role
        log_to_stderr(str(role))
        self._plan: StagePlan | None = None
        self._busy_s = 0.0

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, plan: StagePlan, model: InitialModel) -> Place:
        """Begin a run."""
        [name] = ready_devices(plan.group)
        try_kernels(True)  # all of its batches have one size
        stage, paradigm = plan.stage_id[1], plan.paradigm
        self._plan, self._device, self._busy_s = plan, Device(name), 0.0
        self._step_time = StepTime(plan.group, plan.seed, plan.slot, plan.batch_size)
        computation = StageComputation(
            parts_of(model, plan.seed, paradigm)[stage - 1].to(name),
            paradigm.weights,
            paradigm.shrink,
            plan.group.precision,
        )
        task = model.task
        self._work = StageWork(
            computation,
            stage,
            paradigm.modules,
            task,
            BatchReader(model.train_set, task.collate, plan.batches, plan.loader_workers),
            plan.batch_size,
            self._device,
        )
        give_back_freed_memory()  # that of the run before, whose model may have been a large one
        self._warm_up(plan, model, name)
        place = here([name])
        log_ready(f"stage {stage} of {model.name}", place.devices)
        return place

    def _warm_up(self, plan: StagePlan, model: InitialModel, device: str) -> None:
        """Run a batch through the stages up to this one, and back through this one."""
        precision = plan.group.precision

        def make() -> Callable[[int], object]:
            number, paradigm = plan.stage_id[1], plan.paradigm
            parts = parts_of(model, plan.seed, paradigm)
            *before, own = (part.to(device) for part in parts[:number])
            computation = StageComputation(own, paradigm.weights, paradigm.shrink, precision)
            task, upload = model.task, Device(device).upload
            reader = BatchReader(model.train_set, task.collate, plan.batches)

            def step(clock: int) -> None:
                drawn = batch_to(reader.read(clock, [plan.batch_size])[0], upload)
                x = task.inputs(drawn)
                with torch.no_grad():
                    for part in before:
                        x = part(x)
                if number == paradigm.modules:
                    computation.learn(clock, x, lambda output: task.criterion(output, drawn), 0)
                else:
                    y = computation.forward(clock, x, 0)
                    computation.backward(clock, torch.ones_like(y))

            return step

        warm_up((model.name, device, plan.stage_id[1], precision, plan.batch_size), make)

    @answers
    def forward(self, message: ForwardCall, *arrived: Any) -> Activation:
        """Run a batch forward.

        Args:
            message: names the batch, and what faults do to the pass.
            arrived: weights (P + Q,) if they are new, and then the activation of the stage before;
                the first has none.
        """
        plan = self._ready
        with self._timed(message, 1 / 3, plan.stage_id[1] > 1):
            y = self._device.download(self._work.forward(message.batch, _tensors(arrived)))
        return sent(y)

    @answers
    @ray.method(num_returns=3)  # type: ignore[untyped-decorator]
    def backward(
        self, message: BackwardCall, *arrived: Any
    ) -> tuple[Payload, Activation | None, StepReport]:
        """Run a batch backward.

        The last stage runs it forward before: what arrives there is the activation.

        Returns:
            The gradient with the buffers behind it (P + Q,), the gradient by the input, and the
            loss with the seconds of computing, and what was not finite.
        """
        plan = self._ready
        last, alone = plan.stage_id[1] == plan.paradigm.modules, plan.paradigm.modules == 1
        again = plan.paradigm.weights == "latest" and not last
        with self._timed(message, 1.0 if last or again else 2 / 3, not alone):
            loss, vector, dx = self._work.backward(message.batch, _tensors(arrived))
            gradient = outgoing(self._device.download(vector))[0]
            back = (
                sent(self._device.download(dx)) if dx is not None and plan.stage_id[1] > 1 else None
            )
        busy_s, self._busy_s = self._busy_s, 0.0
        return gradient, back, StepReport(loss, busy_s, self._work.not_finite)

    @property
    def _ready(self) -> StagePlan:
        assert self._plan is not None, "called before reset"
        return self._plan

    @contextmanager
    def _timed(
        self, message: ForwardCall | BackwardCall, part: float, travels: bool
    ) -> Iterator[None]:
        """Sleep for what the emulated device and its link take longer than this one."""
        plan = self._ready
        if travels:
            sent_bytes = round(plan.output_bytes * plan.batch_size)
            sleep_s(one_way_s(plan.group.link, sent_bytes, message.added_s))
        began_s = now_s()
        yield
        # On a GPU copies are no computing, as of a worker.
        computed_s = self._work.device_s or now_s() - began_s
        share = plan.share * part
        step_s = self._step_time.seconds(
            message.batch - 1, plan.batch_size, message.factor, computed_s / share
        )
        began_s = now_s()
        sleep_s(share * step_s - computed_s)
        self._busy_s += computed_s + now_s() - began_s


def _tensors(arrived: Sequence[Any]) -> list[Tensor]:
    """Return what has arrived as tensors: weights may be bytes, activations keep their shape."""
    return [incoming(each)[0] if isinstance(each, bytes) else received(each) for each in arrived]


def sent(tensor: Tensor) -> Activation:
    """Return an activation, or its gradient, as an actor returns it."""
    bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    return bits.numpy()


def received(payload: Activation) -> Tensor:
    """Return the tensor that was sent. A stage computes in floats, so it sends no integers."""
    tensor = torch.from_numpy(payload)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
