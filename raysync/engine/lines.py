"""The journal lines of a run that are not reported yet."""

from __future__ import annotations

from raysync.core.journal import ActorKind, Line, Remark
from raysync.engine.backend import Backend


class Lines(list[Line]):
    """The lines since the last report, to which every part of a run adds its own."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def remark(self, text: str, lost: ActorKind | None = None, away_s: float = 0.0) -> None:
        """Add a sentence for readers, and the loss that it tells of."""
        self.append(Remark(self._backend.now, text, lost, away_s))

    def take(self) -> list[Line]:
        """Remove and return all lines, for a report."""
        taken = list(self)
        self.clear()
        return taken
