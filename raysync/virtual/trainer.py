"""The training of a virtual run: one process computes for all workers, each on its own weights.

Shape legend: P = trainable parameters, Q = numbers of float32 that all buffers take.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysync.config import WorkerGroup
from raysync.core.finding import Finding
from raysync.engine.messages import StepCall
from raysync.training.preparation import TrainingPlan
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.device import refuse_without_kernels, use_deterministic_kernels
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.precision import refuse_unsupported


def device_of(training: TrainingPlan) -> str:
    """Return the device of a virtual run: the GPU if its workers have any and there is one."""
    has_gpu = any(group.gpus for group in training.groups.values()) and torch.cuda.is_available()
    if has_gpu:
        refuse_without_kernels("cuda:0")
        for group in training.groups.values():
            refuse_unsupported(group.precision, "cuda:0")
    return "cuda:0" if has_gpu else "cpu"


class Trainer:
    """One model that computes for every worker in turn.

    Each worker has its own batches and batch-norm statistics, as on Ray. The replicas of a worker
    with several devices continue from the mean of their statistics; on Ray each keeps its own.
    """

    def __init__(self, training: TrainingPlan) -> None:
        self._training = training
        self._device = device_of(training)
        if self._device != "cpu":
            use_deterministic_kernels()
        self._readers = {slot: training.reader(slot) for slot in training.groups}
        self._computations: dict[tuple[int, str], GradientComputation] = {}
        model = self._computation_for(next(iter(training.groups.values()))).model
        self._size = model.size
        self._initial = model.initial()  # (P + Q,)
        self._generators = [torch.default_generator]
        if self._device != "cpu":  # torch has created its generator by now
            self._generators.append(torch.cuda.default_generators[0])

    def compute(
        self,
        slot: str,
        message: StepCall,
        weights: Tensor,  # (P + Q,) at the beginning of the iteration
        # a vector that ends with the worker's latest buffers; None: the initial ones
        buffers: Tensor | None,
        worker: WorkerComputation,  # has the worker's state between pushes
    ) -> tuple[float, Tensor, Finding | None]:
        """Compute one iteration of a worker.

        Returns:
            The loss; the gradient with the buffers behind it as the shards of a server decode it,
            (P + Q,) in float32, on the run's device, without a copy to the CPU; and the finding, if
            something was not finite.
        """
        computation = worker.gradient
        computation.read_weights([weights])  # each time: a model may write to its own
        computation.read_buffers(self._initial if buffers is None else buffers)
        computation.write_into(torch.empty(sum(computation.wire.sizes), device=self._device))
        states = [generator.get_state() for generator in self._generators]
        try:
            loss = worker.compute(
                self._readers[slot],
                message.batch,
                message.steps,
                message.samples,
                message.progress,
                message.progress_of_step,
            )
        finally:
            # NumPy's and Python's take longer: the engine restores these at the end of the run
            for generator, state in zip(self._generators, states, strict=True):
                generator.set_state(state)
        return loss, computation.wire.decode(computation.outgoing()), computation.not_finite

    def worker(self, slot: str) -> WorkerComputation:
        gradient = self._computation_for(self._training.groups[slot])
        return WorkerComputation(gradient, self._training.experiment)

    @property
    def has_buffers(self) -> bool:
        return len(self._initial) > self._size

    def _computation_for(self, group: WorkerGroup) -> GradientComputation:
        key = (group.devices, group.precision)
        if key not in self._computations:
            training, experiment = self._training, self._training.experiment
            self._computations[key] = GradientComputation(
                module=training.build(),
                task=training.task,
                devices=[self._device] * group.devices,
                # to compile would take longer than the steps
                group=group.model_copy(update={"compile": False}),
                micro_batch=experiment.micro_batch,
                shards=experiment.cluster.server_shards,
                wire=experiment.cluster.wire.name,
                fraction=experiment.cluster.wire.fraction,
                found=training.model.found,
            )
        return self._computations[key]
