"""What was not finite in a step."""

from __future__ import annotations

import msgspec

from raysync.core.structs import Whole


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was not finite first, of a step with which a run diverged."""

    first: str
    """weights, activations, loss or gradient."""
    parameter: str
    """The name of the first parameter there; "": it is in none."""
    samples: list[Whole]
    """The indices of the batch in the training set."""
