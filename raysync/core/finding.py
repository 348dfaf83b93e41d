"""The non-finite values with which a run diverged."""

from __future__ import annotations

import msgspec

from raysync.core.structs import Whole


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first non-finite value of a step."""

    first: str  # weights, activations, loss or gradient
    parameter: str  # the first parameter with such a value; "": none has one
    samples: list[Whole]  # the batch, as indices into the training set
