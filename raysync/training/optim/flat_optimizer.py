"""torch's optimizer of a flat vector (P,), with a state that restores bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import unwrap

import torch
from torch import Tensor
from torch.optim import Optimizer

from raysync.config import Update
from raysync.training.formats.state_file import State
from raysync.training.optim.optimizers import SETTINGS, is_fused, is_torchs_own, optimizer_of
from raysync.training.vectors.parameter_groups import FlatParameterGroup

# elements of a step without a fused kernel: the temporary vectors of its passes fit into the cache
PIECE = 2**16


class FlatOptimizer:
    """Steps on the slices of parameter groups that tile `weights` (P,), in place.

    Slices are cut into *pieces*, each with a state in torch's sense: a whole slice for a fused
    kernel, a matrix for Muon.
    """

    def __init__(
        self, update: Update, weights: Tensor, groups: Sequence[FlatParameterGroup]
    ) -> None:
        self._groups = groups
        longest = max(1, len(weights)) if is_fused(update) else PIECE
        # the pieces of each group, as slices of (P,)
        self.pieces = [list(group.pieces(longest)) for group in groups]
        parameters = [
            [torch.nn.Parameter(weights[piece].view(group.matrix or -1)) for piece in pieces]
            for group, pieces in zip(groups, self.pieces, strict=True)
        ]
        self._optimizer = optimizer_of(update, [{"params": views} for views in parameters])
        # each piece as a view of the weights, and as a slice of (P,)
        self._views_and_pieces = [
            pair
            for views, pieces in zip(parameters, self.pieces, strict=True)
            for pair in zip(views, pieces, strict=True)
        ]
        is_torchs = is_torchs_own(update)
        self._advance = _bare_step(self._optimizer) if is_torchs else self._optimizer.step

    @property
    def kind(self) -> str:
        return type(self._optimizer).__name__

    def step(
        self, gradient: Tensor, lr: float, weight_decay: float, momentum: float | None
    ) -> None:
        """Make a step; groups may scale `lr` and override `weight_decay`.

        Args:
            gradient: (P,), which is only read.
            momentum: None: the optimizer has none.
        """
        for group, flat in zip(self._optimizer.param_groups, self._groups, strict=True):
            group["lr"] = lr * flat.lr_factor
            group["weight_decay"] = weight_decay if flat.weight_decay is None else flat.weight_decay
            if momentum is not None:
                group["momentum"] = momentum
        for parameter, piece in self._views_and_pieces:
            parameter.grad = gradient[piece].view_as(parameter)
        self._advance()
        for parameter, _ in self._views_and_pieces:
            parameter.grad = None  # lets the vectors that arrived be freed

    def state(self) -> State:
        """Return the optimizer's state; its tensors are valid until the next step."""
        saved = self._optimizer.state_dict()
        # JSON knows only strings as keys
        return {**saved, "state": {str(key): values for key, values in saved["state"].items()}}

    def restore(self, saved: State) -> None:
        """Adopt the state of an optimizer of the same class and pieces, not its settings."""
        # a number is of a parameter; an optimizer may keep more under names of its own
        states = {
            int(key) if key.isdigit() else key: values for key, values in saved["state"].items()
        }
        _restore(self._optimizer, {**saved, "state": states})


def _bare_step(optimizer: Optimizer) -> Callable[[], None]:
    """Return the step of a torch class without its profiler range, hooks and compiler marks."""
    # between two updates their code leaves the caches, and costs a small model a fifth of an update
    step = unwrap(type(optimizer).step)

    def bare_step() -> None:
        with torch.no_grad():
            step(optimizer)

    return bare_step


def _restore(optimizer: Optimizer, saved: State) -> None:
    settings = [
        {name: group[name] for name in SETTINGS if name in group}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(saved)
    for group, present in zip(optimizer.param_groups, settings, strict=True):
        group.update(present)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for key, values in saved["state"].items():
        if isinstance(key, int):  # torch has cast these values to the parameter's type
            cast = optimizer.state[parameters[key]]
            optimizer.state[parameters[key]] = {
                name: value.to(cast[name].device) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }


def count_state_numbers(update: Update) -> int:
    """Count an optimizer's numbers for each parameter between steps (for Muon at most)."""
    size = 8
    optimizer = FlatOptimizer(update, torch.zeros(size), [FlatParameterGroup((slice(0, size),))])
    momentum = update.momentum or None
    optimizer.step(torch.ones(size), update.lr, update.weight_decay, momentum)
    states = optimizer.state()["state"]
    return sum(
        value.numel() == size
        for values in states.values()
        for value in values.values()
        if isinstance(value, Tensor)
    )
