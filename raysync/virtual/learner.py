"""The training of a virtual run: one process computes for all workers, each on the weights that it would have had.

Shape legend: P = trainable parameters, Q = elements of all buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from raysync.config import WorkerGroup
from raysync.core.decisions import Apply, Push
from raysync.errors import RunFailed
from raysync.training.device import refuse_without_kernels
from raysync.training.evaluation import evaluate
from raysync.training.flat import FlatModel
from raysync.training.gradient import GradientComputation
from raysync.training.store import ParameterStore
from raysync.training.task import Task


class Learner:
    """The parameter store, the gradients that have been pushed, and one model that computes for everybody in turn.

    What is a worker's own on Ray is kept for each: batches, and batch-norm statistics. (A worker with several devices: what
    is kept is the mean of its replicas', from which all of them go on; on Ray each keeps its own.)
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        has_gpu = any(group.gpus for group in task.groups.values()) and torch.cuda.is_available()
        self._device = "cuda:0" if has_gpu else "cpu"
        if has_gpu:
            refuse_without_kernels(self._device)
        flat = FlatModel(task.model.build())
        self._size = flat.size
        self._initial = flat.initial()  # (P + Q,)
        self._store = ParameterStore(self._initial, flat.size, task.experiment.update)
        self._evaluated = FlatModel(task.model.build().to(self._device))
        self._batches = {slot: task.batches(slot) for slot in task.groups}
        self._computations: dict[tuple[int, str], GradientComputation] = {}
        self._buffers: dict[str, Tensor] = {}  # worker -> (P + Q,), its latest statistics at the end
        self._gradients: dict[Push, Tensor] = {}
        self._compensates = task.experiment.update.delay_compensation is not None
        self._bases: dict[Push, Tensor] = {}  # the weights of each of them, if delays are compensated
        self._weights: Tensor | None = None

    def weights(self) -> Tensor:
        """The published weights, (P + Q,); they stay as they are."""
        if self._weights is None:
            self._weights = self._store.publish().clone()
        return self._weights

    def compute(self, worker: str, slot: str, clock: int, batch_size: int, weights: Tensor) -> float:
        """One iteration of a worker, on the weights that it pulled; returns the loss and keeps the gradient.

        Raises:
            RunFailed: the user's model broke.
        """
        computation = self._computation(self._task.groups[slot])
        computation.read_weights([weights])
        computation.read_buffers(self._buffers.get(worker, self._initial))
        try:
            with torch.random.fork_rng(devices=[0] if self._device != "cpu" else []):
                loss = computation.compute(self._batches[slot], clock, batch_size)
        except Exception as error:
            raise RunFailed(f"worker {worker}: {type(error).__name__}: {error}") from error
        self._gradients[worker, clock] = gradient = computation.outgoing().clone()
        if self._compensates:
            self._bases[worker, clock] = weights
        if len(gradient) > self._size:
            self._buffers[worker] = gradient
        return loss

    def apply(
        self, update: Apply, samples: Sequence[int], staleness: Sequence[int], members: Collection[str], progress: float,
    ) -> None:
        """One update.

        Args:
            update: whose gradients it takes, and its phase; if it does not publish, `weights` stay those from before.
            samples: batch size of each push.
            staleness: versions applied between the weights of each push and this update.
            members: who has not left; the statistics of others no longer count.
            progress: of the run before it.
        """
        if not update.publish:
            self.weights()
        gradients = [self._gradients.pop(push) for push in update.pushes]
        bases = [self._bases.pop(push) for push in update.pushes if self._compensates]
        workers = [worker if worker in members else None for worker, _ in update.pushes]
        self._store.apply(gradients, samples, workers, progress, update.phase, staleness, bases)
        if update.publish:
            self._weights = None

    def drop(self, push: Push) -> None:
        """Forget a gradient."""
        self._gradients.pop(push, None)
        self._bases.pop(push, None)

    def forget(self, worker: str) -> None:
        """A worker has left."""
        self._buffers.pop(worker, None)
        self._store.forget(worker)

    def evaluate(self, on_all: bool) -> tuple[float, float]:
        """Accuracy (a fraction of 1) and mean cross-entropy (nats) of the newest weights on the test set.

        Args:
            on_all: of it, not only on as much as the experiment's plan says.
        """
        plan = self._task.experiment.evaluation
        newest, samples = self._store.publish(), None if on_all else plan.samples
        return evaluate(self._evaluated, newest, self._task.data, plan.batch_size, samples)

    def _computation(self, group: WorkerGroup) -> GradientComputation:
        key = (group.devices, group.precision)
        if key not in self._computations:
            devices = [self._device] * group.devices
            module = self._task.model.build()
            self._computations[key] = GradientComputation(module, self._task.data, devices, group.precision)
        return self._computations[key]
