"""What the actors of a actor group are called: in the Ray dashboard, in logs, and for
`ray.get_actor`.

    raysync:unequal-3f2a91:controller                   raysync:unequal-3f2a91:worker-3 (gtx1060-0)
    raysync:unequal-3f2a91:server-0           raysync:unequal-3f2a91:worker-3 (gtx1060-0) #2

The last is a worker that came back, in its second life. The middle names the *actor_group*: the
experiment and an id. It is not a run's record, because Ray names an actor once, when it is made,
and a session keeps its actors for all runs of a comparison; which run they are at is a line of the
controller's log. The id keeps actor groups apart that share a namespace: those of the trials of a
sweep, of two jobs that join one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4


def actor_group_name(experiment: str) -> str:
    """A new one: `raysync:NAME-ID`."""
    return f"raysync:{experiment}-{uuid4().hex[:6]}"


@dataclass(frozen=True, slots=True)
class Role:
    """What an actor is in its actor_group."""

    kind: str
    """controller, evaluator, server-0, worker-3."""
    slot: str = ""
    """Of a worker: as the journal calls it, without the number of its life."""
    life: int = 1

    def name(self, actor_group: str) -> str:
        """Ray's, unique in its namespace."""
        slot = f" ({self.slot})" if self.slot not in ("", self.kind) else ""
        return f"{actor_group}:{self.kind}{slot}{self._again}"

    def __str__(self) -> str:
        """What logs show."""
        slot = f" {self.slot}" if self.slot not in ("", self.kind) else ""
        return f"{self.kind}{slot}{self._again}"

    @property
    def _again(self) -> str:
        return f" #{self.life}" if self.life > 1 else ""


def worker_roles(slots: Sequence[str]) -> list[Role]:
    """The roles of the workers in those slots."""
    return [Role(f"worker-{number}", slot) for number, slot in enumerate(slots)]
