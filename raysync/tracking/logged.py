"""How far a run is logged: kept in its folder, for the process that goes on after a resumption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from raysync.record.storage import completed
from raysync.tracking.rows import EVALUATION


class LoggedRows:
    """Knows which rows an earlier process has logged to the same run of a library."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.run_id = ""  # of the library's run; empty: none has begun
        self._until: dict[str, int] = {}  # kind of row -> its last step
        with suppress(OSError, ValueError):
            state = json.loads(file.read_text(encoding="utf-8"))
            self.run_id, self._until = state["run"], state["samples"]
        self._earlier = dict(self._until)

    def begin(self, run_id: str) -> None:
        """Forget the rows of another run than that."""
        if run_id != self.run_id:
            self.run_id, self._until, self._earlier = run_id, {}, {}
            self._save()

    def has(self, samples: int, metrics: Mapping[str, Any]) -> bool:
        """Whether an earlier process has logged the row, or was further."""
        return samples <= self._earlier.get(_kind(metrics), -1)

    def add(self, samples: int, metrics: Mapping[str, Any]) -> None:
        self._until[_kind(metrics)] = samples
        self._save()

    def _save(self) -> None:
        text = json.dumps({"run": self.run_id, "samples": self._until})
        # without it, another process may log rows twice
        with suppress(OSError), completed(self._file) as new:
            new.write_text(text, encoding="utf-8")


def _kind(metrics: Mapping[str, Any]) -> str:
    """Return the kind of a row: an evaluation is logged behind the measures of later steps."""
    return "evaluations" if any(name.startswith(EVALUATION) for name in metrics) else "measures"
