"""How flat vectors travel between actors.

`object-ref`: as NumPy views of the flat float32 vector, one a server shard, returned from actor calls and passed on as
top-level references. Ray shares them without a copy within a node (a torch tensor through the object store costs about ten
times as much). What arrives is read-only. Another transport is another pair of these two functions.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Payload = npt.NDArray[Any]


def outgoing(vector: Tensor, shards: int = 1) -> tuple[Payload, ...]:
    """A vector of this process's memory as an actor returns it, split evenly.

    Ray copies it when the method returns, so the vector may be reused then.
    """
    return tuple(part.detach().numpy() for part in vector.tensor_split(shards))


def incoming(*payloads: Payload) -> list[Tensor]:
    """Vectors as they arrive: for reading only."""
    return [torch.from_numpy(payload) for payload in payloads]


def _quieten() -> None:
    """torch tells once a process that an array is read-only, which is how they arrive here: let it be of this one."""
    array = np.zeros(1, np.float32)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)


_quieten()
