"""Find the bottleneck of a run, and the change that helps most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from raysync.bottlenecks.causes import Cause, Kind, causes, whole_network
from raysync.bottlenecks.changes import Change, changes
from raysync.bottlenecks.setting import Setting

Varied = TypeVar("Varied", Cause, Change)

MATTERS = 0.05
"""The share of the time that the bottleneck takes at least; a run without any computes."""
HELPS = 0.02
"""The share of the time that a change must save to be named; between changes that differ by less
than that the simplest is named."""


@dataclass(frozen=True)
class Found:
    """A variation of a run, and how long its work then takes."""

    what: str
    """Its name in a sentence."""
    seconds: float


@dataclass(frozen=True)
class Diagnosis:
    """What limits a run."""

    kind: Kind | Literal["computing"]
    seconds: float
    """Of the work as it is."""
    bottleneck: Found | None
    """The limit without which the work takes the least time; None: computing takes it."""
    change: Found | None
    """The change with which it takes the least time; None: none of those tried helps."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON-native data, for the record."""
        limit, change = self.bottleneck, self.change
        return {
            "kind": self.kind,
            "what": limit.what if limit else "computing",
            "without_s": limit.seconds if limit else None,
            "change": change.what if change else None,
            "change_s": change.seconds if change else None,
        }


def diagnose(setting: Setting, seconds: float | None = None) -> Diagnosis | None:
    """Repeat a run with one thing changed at a time.

    Args:
        setting: the run.
        seconds: what its work took, if that is known, of which the simulated part may be a part;
            None: as much as the simulation says.

    Returns:
        None if the simulated run takes no time, or does not finish.
    """
    simulated = setting.seconds()
    if not simulated:
        return None
    scale = (seconds or simulated) / simulated

    now = simulated * scale

    def timed(variations: Iterable[Varied]) -> Iterator[tuple[Varied, float]]:
        for each in variations:
            took = each.setting.seconds()
            if took is not None:
                yield each, took * scale

    limits = (causes(setting), whole_network(setting))
    bottleneck = next(filter(None, (_best(timed(each), now, MATTERS) for each in limits)), None)
    change = _best(timed(changes(setting)), now, HELPS)
    if bottleneck is None:
        return Diagnosis("computing", now, None, _found(change))
    cause, _ = bottleneck
    return Diagnosis(cause.kind, now, _found(bottleneck), _found(change))


def _found(varied: tuple[Cause | Change, float] | None) -> Found | None:
    return None if varied is None else Found(varied[0].what, varied[1])


def _best(
    variations: Iterable[tuple[Varied, float]], now: float, saves: float
) -> tuple[Varied, float] | None:
    """Return the first of those that are about as good as the best, if that saves enough."""
    timed = list(variations)
    least = min((seconds for _, seconds in timed), default=now)
    if least > (1 - saves) * now:
        return None
    return next(each for each in timed if each[1] <= (1 + HELPS) * least)
