"""The totals of each worker, in NumPy columns: a loop over rows or objects would be slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from raysync.record.push_rows import Columns


@dataclass(slots=True)
class WorkerMeasures:
    released_at: float  # the first time
    left_at: float | None = None
    pushes: int = 0
    dropped: int = 0
    samples: int = 0  # of all pushes
    busy_s: float = 0.0
    transfer_s: float = 0.0
    server_s: float = 0.0
    wait_s: float = 0.0
    applied: int = 0
    staleness_sum: int = 0  # of the applied pushes, in versions
    staleness_max: int = 0

    @property
    def staleness_mean(self) -> float | None:
        return self.staleness_sum / self.applied if self.applied else None


class WorkerTotals:
    """The totals of all workers of a run, as columns."""

    def __init__(self) -> None:
        self._indices: dict[str, int] = {}  # worker -> index in the columns
        self._released_at: list[float] = []
        self._left_at: dict[str, float] = {}
        # total -> (workers,); shorter while the latest workers have none
        self._columns: dict[str, Any] = {
            total.name: np.zeros(0, type(total.default)) for total in fields(WorkerMeasures)[2:]
        }
        self._built: dict[str, WorkerMeasures] | None = None

    def begin(self, worker: str, at: float) -> None:
        """Record the first release of a worker."""
        if worker not in self._indices:
            self._indices[worker] = len(self._indices)
            self._released_at.append(at)
            self._built = None

    def leave(self, worker: str, at: float) -> None:
        """Record that a worker has left, if it was ever released."""
        if worker in self._indices:
            self._left_at[worker] = at
            self._built = None

    @property
    def by_worker(self) -> Mapping[str, WorkerMeasures]:
        """Worker -> its totals, in the order of first releases."""
        if self._built is None:
            self._grow()
            totals = zip(*(column.tolist() for column in self._columns.values()), strict=True)
            self._built = {
                worker: WorkerMeasures(released_at, self._left_at.get(worker), *values)
                for worker, released_at, values in zip(
                    self._indices, self._released_at, totals, strict=True
                )
            }
        return self._built

    def add(self, rows: Columns) -> None:
        """Add rows, in their order: sums do not depend on how many are added at once."""
        self._grow()
        self._built = None
        workers = np.array([self._indices[worker] for worker in rows["worker"]], np.int64)
        stale = np.array([0 if age is None else age for age in rows["staleness"]], np.int64)
        transfer_s = rows["pushed_at_s"] - rows["released_at_s"] - rows["busy_s"] - rows["server_s"]
        for name, values in (
            ("pushes", 1),
            ("dropped", [outcome == "dropped" for outcome in rows["outcome"]]),
            ("samples", rows["samples"]),
            ("applied", [age is not None for age in rows["staleness"]]),
            ("staleness_sum", stale),
            ("busy_s", rows["busy_s"]),
            ("transfer_s", np.maximum(0.0, transfer_s)),
            ("server_s", rows["server_s"]),
            ("wait_s", rows["wait_s"]),
        ):
            np.add.at(self._columns[name], workers, values)
        np.maximum.at(self._columns["staleness_max"], workers, stale)

    def _grow(self) -> None:
        """Extend the columns to all workers."""
        for name, column in self._columns.items():
            if more := len(self._indices) - len(column):
                self._columns[name] = np.concatenate([column, np.zeros(more, column.dtype)])
