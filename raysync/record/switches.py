"""What a switch costs: how long after it the first push of the new rule comes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from raysync.core.decisions import Switch


@dataclass(slots=True)
class Switched:
    """One switch."""

    at_s: float
    """Seconds since the run began."""
    to: str
    why: str
    first_push_s: float | None = None
    """From the switch to the first push of a step that began after it; None if none came."""


class Switches:
    """The switches of a run, from its journal. (Sync-Switch's own restart from a checkpoint: 36 s
    on 8 workers, Table III.)

    Steps under way at a switch do not count, though their pushes are the new rule's: they would
    make it look free.
    """

    def __init__(self) -> None:
        self._made: list[Switched] = []

    def switched(self, at: float, decision: Switch) -> None:
        """It was decided at that time."""
        self._made.append(Switched(at, decision.to, decision.why))

    def pushed(self, released_at_s: float, pushed_at_s: float) -> None:
        """A step, in any order."""
        for switch in reversed(self._made):
            if released_at_s >= switch.at_s:
                after_s = pushed_at_s - switch.at_s
                switch.first_push_s = (
                    after_s if switch.first_push_s is None else min(switch.first_push_s, after_s)
                )
                return

    def rows(self) -> list[dict[str, Any]]:
        """As `summary.json` has them."""
        return [asdict(switch) for switch in self._made]
