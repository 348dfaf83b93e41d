"""The arithmetic of one stage: a batch forward, and later backward.

Shapes: P trainable parameters of the stage, Q floats of its buffers, N samples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from raysync.core.finding import Finding
from raysync.decoupled.cut import Part
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batch_structure import batch_to
from raysync.training.files.state_file import State
from raysync.training.server.parameter_groups import NamedParameter
from raysync.training.tasks.task import Task
from raysync.training.worker.device import Device, seconds_between, use_tf32
from raysync.training.worker.flat import FlatModel
from raysync.training.worker.not_finite import first_not_finite
from raysync.training.worker.precision import computing_in, taken_in

Weights = Literal["stash", "latest"]


@dataclass
class _Stashed:
    x: Tensor
    seed: int
    y: Tensor | None  # the output with its graph; None: the backward pass recomputes it
    weights: Tensor | None  # (P,), with which the graph was built


class StageComputation:
    """The computation of one stage of one group.

    Weights arrive as flat vectors and are never written to, so old ones can stay in use. With
    `stash`, PipeDream's weight stashing, a backward pass uses the weights of its forward pass, and
    the gradient is exact: it keeps the graph and, if changed since, the weights, at most 2(K - k)
    of each. `latest` uses the present weights: it runs the batch forward again, so it keeps only
    its input. FDG's program does neither: it uses old activations with weights changed in place,
    which today's torch refuses.

    Buffers (batch-norm's statistics) are the stage's own; a forward pass changes them, a repeated
    one does not.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Weights = "stash",
        shrink: float = 1.0,
        precision: str = "float32",
    ) -> None:
        """
        Args:
            shrink: beta, which multiplies the gradient from the next stage (FDG's gradient
                shrinking); it scales stage k's own gradient by beta^(K - k).
        """
        self._flat = FlatModel(module.train(), module.names if isinstance(module, Part) else None)
        self._module = module
        self._names = [
            name for name, parameter in module.named_parameters() if parameter.requires_grad
        ]
        self._shapes = [
            parameter.shape for parameter in module.parameters() if parameter.requires_grad
        ]
        self._mode: Weights = weights
        self._shrink, self._precision = shrink, precision
        self._weights = self._flat.weights.detach().clone().requires_grad_()  # (P,)
        self.stashed: dict[int, _Stashed] = {}
        self.size = self._flat.size  # P

    @property
    def weights(self) -> Tensor:
        """The present weights, (P,)."""
        return self._weights.detach()

    @property
    def parameters(self) -> Sequence[NamedParameter]:
        return self._flat.parameters

    def initial(self) -> Tensor:
        """Return parameters and buffers, (P + Q,)."""
        return self._flat.initial()

    def read_weights(self, vector: Tensor) -> None:
        """Use the weights (not the buffers) of a vector (P + Q,), which must not change later."""
        self._weights = vector[: self.size].detach().requires_grad_()

    def read_buffers(self, vector: Tensor) -> None:
        """Copy the buffers at the end of a vector (P + Q,)."""
        self._flat.read_buffers(vector)

    def forward(self, batch: int, x: Tensor, seed: int) -> Tensor:
        """Return the output (N, ...) of a batch for the next stage; the seed is for dropout."""
        assert batch not in self.stashed, f"batch {batch} is in flight already"
        x = x.detach()
        if self._mode == "latest":
            with torch.no_grad():
                y = self._run(x, seed)
            self.stashed[batch] = _Stashed(x, seed, None, None)
            return y
        x.requires_grad_(x.is_floating_point())
        y = self._run(x, seed)
        self.stashed[batch] = _Stashed(x, seed, y, self._weights)
        return y.detach()

    # dy: the gradient of the loss by the output of `forward`
    def backward(self, batch: int, dy: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return `outgoing` (P + Q,), and the gradient by x unless x is no float."""
        stashed = self.stashed.pop(batch)
        if stashed.y is None:
            stashed.x.requires_grad_(stashed.x.is_floating_point())
            stashed.y = self._run(stashed.x, stashed.seed, repeats=True)
            stashed.weights = self._weights
        return self._gradients(stashed, self._shrink * dy)

    def learn(
        self, batch: int, x: Tensor, criterion: Callable[[Tensor], Tensor], seed: int
    ) -> tuple[float, Tensor, Tensor | None]:
        """Run a batch through the last stage; return its loss and the results of `backward`."""
        x = x.detach().requires_grad_(x.is_floating_point())
        y = self._run(x, seed)
        with self._computing():
            loss = criterion(y)
        outgoing, dx = self._gradients(
            _Stashed(x, seed, loss, self._weights), torch.ones_like(loss)
        )
        return loss.item(), outgoing, dx

    def state(self) -> State:
        """Return the state of later passes; its tensors must not be changed."""
        return {
            "weights": self._weights,
            "buffers": self._flat.buffers(),
            "stashed": {
                str(batch): [stashed.x, stashed.seed, stashed.weights]
                for batch, stashed in self.stashed.items()
            },
        }

    def load_state(self, state: State) -> None:
        """Restore the result of `state`."""
        self._flat.read_buffers(state["buffers"])
        # graphs are rebuilt; they do not depend on the buffers, which have changed since
        for batch, (x, seed, weights) in state["stashed"].items():
            x, y = x.detach(), None
            if weights is not None:
                self._weights = weights = weights.detach().requires_grad_()
                x.requires_grad_(x.is_floating_point())
                y = self._run(x, seed, repeats=True)
            self.stashed[int(batch)] = _Stashed(x, seed, y, weights)
        self._weights = state["weights"].detach().requires_grad_()

    def _run(self, x: Tensor, seed: int, *, repeats: bool = False) -> Tensor:
        parts = torch.split(self._weights, [shape.numel() for shape in self._shapes])
        tensors = {
            name: part.view(shape)
            for name, part, shape in zip(self._names, parts, self._shapes, strict=True)
        }
        if repeats:  # only the first run of a batch changes buffers
            tensors |= {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        # Under `bf16` y has the type of the last operation under autocast, mostly bfloat16, as the
        # next layer of the whole network would get it.
        with _seeded(seed), self._computing():
            y: Tensor = functional_call(self._module, tensors, (taken_in(self._precision, x),))
        return y

    def _computing(self) -> AbstractContextManager[object]:
        return computing_in(self._precision, self._weights.device)

    def _gradients(self, stashed: _Stashed, dy: Tensor) -> tuple[Tensor, Tensor | None]:
        assert stashed.y is not None, "nothing to differentiate"
        assert stashed.weights is not None, "no weights to differentiate by"
        inputs = [stashed.weights, *([stashed.x] if stashed.x.requires_grad else [])]
        # another computation of this process may have changed this setting
        use_tf32(self._precision != "float32")
        gradient, *dx = torch.autograd.grad(stashed.y, inputs, dy)
        self._flat.gradient.copy_(gradient)
        self._flat.write_buffers()
        return self._flat.outgoing, dx[0] if dx else None


class StageWork:
    """Carries out the calls to a stage, on every backend."""

    def __init__(
        self,
        computation: StageComputation,
        stage: int,
        stages: int,
        task: Task,
        reader: BatchReader,
        batch_size: int,
        device: Device | None = None,  # None: tensors stay where they are
    ) -> None:
        self._computation, self._task = computation, task
        self._reader, self._batch_size = reader, batch_size
        self._is_first, self._is_last = stage == 1, stage == stages
        self._upload = device.upload if device is not None else _unchanged
        self._mark = device.mark if device is not None else _no_mark
        self._span: tuple[Any, Any] = (None, None)  # marks before and after the last pass
        self._needs_buffers = True  # the stage reads the run's buffers with its first weights
        self.not_finite: Finding | None = None  # in the last backward pass

    @property
    def device_s(self) -> float:
        """A GPU's seconds for the last pass, once its results are copied; 0 on a CPU."""
        return seconds_between(*self._span)

    def forward(self, batch: int, inputs: Sequence[Tensor]) -> Tensor:
        """Run a batch forward; return the activation for the next stage, (N, ...).

        Args:
            inputs: new weights (P + Q,), if any, then the previous stage's activation, if any.
        """
        x = self._read(inputs, expected=0 if self._is_first else 1)
        if x is None:
            x = self._task.inputs(self._samples(batch))
        with self._timed():
            return self._computation.forward(batch, x, self._reader.seed(batch - 1))

    def backward(
        self, batch: int, inputs: Sequence[Tensor]
    ) -> tuple[float | None, Tensor, Tensor | None]:
        """Run a batch backward; the last stage runs it forward first.

        Args:
            inputs: new weights (P + Q,), if any, then the gradient by the stage's output or, for
                the last stage, the previous stage's activation, if any.

        Returns:
            The loss (of the last stage only), the vector to push (P + Q,), and the gradient by the
            input.
        """
        arrived = self._read(inputs, expected=0 if self._is_first and self._is_last else 1)
        loss: float | None
        if self._is_last:
            loss, vector, dx = self._learn(batch, arrived)
        else:
            assert arrived is not None, "a backward pass without a gradient"
            loss = None
            with self._timed():
                vector, dx = self._computation.backward(batch, arrived)
        self.not_finite = first_not_finite(
            loss,
            vector[: self._computation.size],
            self._computation.weights,
            self._computation.parameters,
            self._reader,
            (batch - 1, self._batch_size),
            arrived,
        )
        return loss, vector, dx

    def state(self) -> State:
        return self._computation.state() | {"takes_buffers": self._needs_buffers}

    def load_state(self, state: State) -> None:
        self._computation.load_state(state)
        self._needs_buffers = state["takes_buffers"]

    def _read(self, inputs: Sequence[Tensor], expected: int) -> Tensor | None:
        """Read new weights, if any; return the neighbour's tensor, if one is expected."""
        if len(inputs) > expected:
            vector = self._upload(inputs[0])
            self._computation.read_weights(vector)
            if self._needs_buffers:
                self._computation.read_buffers(vector)
                self._needs_buffers = False
        return self._upload(inputs[-1]) if expected else None

    def _samples(self, batch: int) -> Any:
        # all stages of a group read the same batch
        return batch_to(self._reader.read(batch - 1, [self._batch_size])[0], self._upload)

    def _learn(self, batch: int, arrived: Tensor | None) -> tuple[float, Tensor, Tensor | None]:
        samples = self._samples(batch)
        x = self._task.inputs(samples) if arrived is None else arrived
        with self._timed():
            return self._computation.learn(
                batch,
                x,
                lambda output: self._task.criterion(output, samples),
                self._reader.seed(batch - 1),
            )

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = self._mark()
        yield
        self._span = begin, self._mark()


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _no_mark() -> None:
    return None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
