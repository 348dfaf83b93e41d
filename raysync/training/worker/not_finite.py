"""The first value that is not finite where a run diverges, and its samples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import isfinite

import torch
from torch import Tensor

from raysync.core.finding import Finding
from raysync.training.data.batch_reader import BatchReader
from raysync.training.vectors.parameter_groups import NamedParameter


def with_sum(losses: Sequence[Tensor], vector: Tensor) -> Tensor:
    """Return losses and the sum of a vector as one vector of its device, to be read at once."""
    return torch.stack([each.reshape(()).to(vector.device) for each in (*losses, vector.sum())])


def first_not_finite(
    loss: float | None,
    gradient: Tensor,
    weights: Tensor,
    parameters: Sequence[NamedParameter],
    reader: BatchReader,
    batch: tuple[int, int],
    activations: Tensor | None = None,
) -> Finding | None:
    """Find the first value of a step that is not finite, in the order of computation.

    Args:
        loss: None: this part of the network has none.
        parameters: tile `gradient` and `weights` (P,).
        batch: its clock and size.
        activations: the input from the previous part of the network.
    """
    # One pass over the gradient for each step; all else only where something is wrong. (The sum of
    # large gradients may overflow: the second check finds them finite.)
    if (loss is None or isfinite(loss)) and isfinite(gradient.sum().item()):
        return None
    first, parameter = "", ""
    if not bool(torch.isfinite(weights).all()):
        first, parameter = "weights", _first_in(weights, parameters)
    elif activations is not None and not bool(torch.isfinite(activations).all()):
        first = "activations"
    elif loss is not None and not isfinite(loss):
        first = "loss"
    elif not bool(torch.isfinite(gradient).all()):
        first, parameter = "gradient", _first_in(gradient, parameters)
    if not first:
        return None
    return Finding(first, parameter, reader.samples(*batch))


def _first_in(vector: Tensor, parameters: Sequence[NamedParameter]) -> str:
    place = int(torch.nonzero(~torch.isfinite(vector))[0])
    ends = accumulate(parameter.size for parameter in parameters)
    return next(
        parameter.name for parameter, end in zip(parameters, ends, strict=True) if place < end
    )
