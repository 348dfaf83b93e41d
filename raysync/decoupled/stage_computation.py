"""The arithmetic of one stage: a batch forward, and later backward.

Shapes: P trainable parameters of the stage, Q floats of its buffers, N samples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from raysync.decoupled.cut import Part
from raysync.training.formats.state_file import State
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.parameter_groups import NamedParameter
from raysync.training.worker.device import use_tf32
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


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
