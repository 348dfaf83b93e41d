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
    # mean over the batch at the weights it was computed on; of labels a cross-entropy in nats
    loss: float | None
    base: int  # the model version that it was computed on
    lead: int  # clocks over the slowest participant, at the worker's release for this iteration
    # the release, or its execution if it was held back until enough workers were there
    released_at_s: float
    computed_at_s: float  # the upload begins
    pushed_at_s: float  # the gradient has arrived
    busy_s: float  # computing alone
    # from the release until the server had made the weights; 0: unknown (Ray), then transfer
    server_s: float = 0.0
    outcome: str = "buffered"  # or applied, dropped; it stays if the run ends first
    version: int | None = None  # made by its update
    staleness: int | None = None  # versions applied between `base` and `version`
    # at a pipeline's stage, the ticks between the batch's forward and its backward pass
    delay_ticks: int | None = None
    applied_at_s: float | None = None
    wait_s: float = 0.0  # until the worker's next release, its leaving, or the end of the run
    why: str | None = None  # of a drop, in words
    reason: str | None = None  # of a drop, one of `DROP_REASONS`
    # what the paradigm weighed it by in its update (`Apply.weights`); None: by its samples
    weight: float | None = None
    steps: int = 1  # optimizer steps of the iteration; more than one with local steps

    @property
    def transfer_s(self) -> float:
        """The rest between release and push; at least 0, as clocks of two machines differ."""
        return max(0.0, self.pushed_at_s - self.released_at_s - self.busy_s - self.server_s)


# field of `PushRow` -> (rows,), a NumPy vector where `VECTORS` has the name, else a tuple
Columns = Mapping[str, Any]
# numeric field that is never None -> type
VECTORS = {name: hint for name, hint in get_type_hints(PushRow).items() if hint in (int, float)}


def columns_of(rows: Sequence[PushRow]) -> dict[str, Any]:
    """Transpose rows into columns, in the order of `PushRow`."""
    names = PushRow.__struct_fields__
    transposed = zip(*map(astuple, rows), strict=True) if rows else [()] * len(names)
    columns = dict[str, Any](zip(names, transposed, strict=True))
    for name, kind in VECTORS.items():
        columns[name] = np.array(columns[name], kind)
    return columns
