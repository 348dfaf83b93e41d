"""How flat vectors travel between actors.

`object-ref`: as NumPy views of the flat float32 vector, returned from actor calls and passed on as top-level references.
Ray shares them without a copy within a node (a torch tensor through the object store costs about ten times as much). What
arrives is read-only. Another transport is another pair of these two functions.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

Payload = npt.NDArray[Any]


def outgoing(vector: Tensor) -> Payload:
    """A vector as an actor returns it; Ray copies it when the method returns, so the vector may be reused then."""
    return vector.detach().cpu().numpy()


def incoming(payload: Payload) -> Tensor:
    """A vector as it arrives: for reading only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(payload)
