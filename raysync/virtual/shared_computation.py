"""The training of a virtual run: one process computes for all workers, each on its own weights.

Shape legend: P = trainable parameters, Q = numbers of float32 that all buffers take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raysync.config import WorkerGroup
from raysync.engine.messages import Message, RestoreCall, StepCall
from raysync.programs.building import gradient_of, worker_program
from raysync.programs.program import Handled, check_size
from raysync.programs.run_spec import RunSpec
from raysync.programs.worker import WorkerProgram
from raysync.training.formats.state_file import State
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.device import refuse_without_kernels, use_deterministic_kernels
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.precision import refuse_unsupported


def device_of(groups: Mapping[str, WorkerGroup]) -> str:
    """Return the device of a virtual run: the GPU if its workers have any and there is one."""
    has_gpu = any(group.gpus for group in groups.values()) and torch.cuda.is_available()
    if has_gpu:
        refuse_without_kernels("cuda:0")
        for group in groups.values():
            refuse_unsupported(group.precision, "cuda:0")
    return "cuda:0" if has_gpu else "cpu"


class SharedComputation:
    """One model that computes for every worker in turn, or one for each kind of group."""

    def __init__(self, spec: RunSpec, model: InitialModel) -> None:
        self._spec, self._model = spec, model
        groups = spec.topology.groups
        self.device = device_of(groups)
        if self.device != "cpu":
            use_deterministic_kernels()
        self._computations: dict[tuple[int, str], GradientComputation] = {}
        flat = self._computation_for(next(iter(groups.values()))).model
        self.initial = flat.initial()  # (P + Q,)
        self.has_buffers = len(self.initial) > flat.size
        self.generators = [torch.default_generator]
        if self.device != "cpu":  # torch has created its generator by now
            self.generators.append(torch.cuda.default_generators[0])

    def worker(self, slot: str) -> SharingWorker:
        spec = self._spec
        gradient = self._computation_for(spec.group(slot))
        return SharingWorker(
            self, worker_program(spec, slot, self._model, gradient, can_lose_servers=False)
        )

    def _computation_for(self, group: WorkerGroup) -> GradientComputation:
        key = (group.devices, group.precision)
        if key not in self._computations:
            # to compile would take longer than the steps
            plain = group.model_copy(update={"compile": False})
            devices = [self.device] * group.devices
            self._computations[key] = gradient_of(self._spec, plain, self._model, devices)
        return self._computations[key]


class SharingWorker:
    """The program of a worker whose computation serves others, too: it brings its weights along.

    Each worker has its own batches and batch-norm statistics, as on Ray. The replicas of a worker
    with several devices continue from the mean of their statistics; on Ray each keeps its own. One
    server stands for all shards, so a gradient is left as they decode it, (P + Q,) in float32.
    """

    __slots__ = ("_buffers", "_program", "_shared", "_weights")

    def __init__(self, shared: SharedComputation, program: WorkerProgram) -> None:
        self._shared, self._program = shared, program
        # Vectors that others refer to as well, so a worker takes no memory of its own for them:
        self._weights: Tensor | None = None  # as pulled, or as changed by local steps
        self._buffers = shared.initial  # ends with its latest buffers

    def handle(
        self, message: Message, inputs: Sequence[Any], into: Tensor | None = None
    ) -> Handled:
        if isinstance(message, RestoreCall):
            check_size(inputs, len(self._shared.initial))
            self._buffers = torch.cat(list(inputs))
            return Handled()
        if not isinstance(message, StepCall):
            return self._program.handle(message, inputs)
        shared, computation = self._shared, self._program.computation
        gradient, local = computation.gradient, computation.local
        if inputs:
            [self._weights] = inputs
        assert self._weights is not None, "a worker that never pulled"
        gradient.read_buffers(self._buffers)
        into = torch.empty(sum(gradient.wire.sizes), device=shared.device)
        states = [generator.get_state() for generator in shared.generators]
        try:  # each time with weights: a model may write to its own
            (vector,), report, _ = self._program.handle(message, [self._weights], into)
        finally:
            # NumPy's and Python's take longer: the engine restores these at the end of the run
            for generator, state in zip(shared.generators, states, strict=True):
                generator.set_state(state)
        vector = gradient.wire.decode(vector)
        if local is not None:  # the next iteration may begin with its present weights
            weights = local.weights
            self._weights = torch.cat([weights, self._weights[len(weights) :]])
        if shared.has_buffers:
            self._buffers = vector
        return Handled((vector,), report)

    def state(self) -> State:
        program = self._program.state()
        buffers = None if self._buffers is self._shared.initial else self._buffers
        return {"weights": self._weights, "buffers": buffers, "worker": program}

    def load_state(self, state: State) -> None:
        self._weights, buffers = state["weights"], state["buffers"]
        self._buffers = self._shared.initial if buffers is None else buffers
        self._program.load_state(state["worker"])
