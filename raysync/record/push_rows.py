"""One row for each push, and rows as columns: the contents of `pushes.parquet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple


class PushRow(Struct, gc=False):
    """One push, filled in as it becomes known. Times are seconds since the run began."""

    worker: str
    group: str
    clock: int
    samples: int
    loss: float | None
    """Mean cross-entropy of the batch at the weights it was computed on, in nats."""
    base: int
    """The model version that it was computed on."""
    lead: int
    """The worker's lead over the slowest that takes part, in clocks, when it was released for
    this iteration."""
    released_at_s: float
    """When it was released or, if that was held back until there were enough workers, when it was
    carried out."""
    computed_at_s: float
    """When the gradient was computed, and its upload began."""
    pushed_at_s: float
    """When the gradient had arrived."""
    busy_s: float
    """Computing alone; the rest of the time between release and push is the server's, and
    transfer."""
    server_s: float = 0.0
    """Seconds from the release until the server had made the weights; 0 where that is not known, as
    on Ray, where it is part of the transfer."""
    outcome: str = "buffered"
    """applied, dropped, or buffered if the run ended first."""
    version: int | None = None
    """The model version that its update produced."""
    staleness: int | None = None
    """Versions applied between `base` and its own update."""
    delay_ticks: int | None = None
    """Ticks between the batch's forward and its backward pass; of a pipeline's stage only."""
    applied_at_s: float | None = None
    wait_s: float = 0.0
    """Seconds from this push to the worker's next release, to its leaving, or to the end of the
    run."""
    why: str | None = None
    """Why it was dropped, in words."""
    reason: str | None = None
    """Why it was dropped: one of `DROP_REASONS`."""
    steps: int = 1
    """The optimizer steps of the iteration; more than one only where workers step locally."""

    @property
    def transfer_s(self) -> float:
        """The seconds between release and push without computing and without the server's. Clocks
        of two machines differ by a little, so it may come out below 0, which is cut."""
        return max(0.0, self.pushed_at_s - self.released_at_s - self.busy_s - self.server_s)


Columns = Mapping[str, Any]
"""Name of a field of `PushRow` -> its values, (rows,): a NumPy vector where `VECTORS` has the name,
else a tuple."""
VECTORS = {name: hint for name, hint in get_type_hints(PushRow).items() if hint in (int, float)}
"""Name of a numeric field that is never None -> its type."""


def columns_of(rows: Sequence[PushRow]) -> dict[str, Any]:
    """Return rows as columns, as `Columns` has them, in the order of `PushRow`."""
    names = PushRow.__struct_fields__
    transposed = zip(*map(astuple, rows), strict=True) if rows else [()] * len(names)
    columns = dict[str, Any](zip(names, transposed, strict=True))
    for name, kind in VECTORS.items():
        columns[name] = np.array(columns[name], kind)
    return columns
