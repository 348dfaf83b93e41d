"""What happens in a run, in sentences: for who watches it, and for the log of its controller.

What is decided anew with every push (holds, drops, LagTuner's forecasts) is told apart from what is
rare: a switch, a straggler, who has died or joined, the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raysync.core.decisions import Decision, Drop, Hold, Note, Restore, Suspend, Switch
from raysync.core.events import Event, Joined, Left
from raysync.core.ids import WorkerId
from raysync.core.journal import Ended, Entry, Line, Remark

PREDICTED = "predicted_wait_s"
RARE_NOTES = ("straggler", "recovered")
"""Kinds of notes that do not come with pushes; those of a user's own paradigm may."""


@dataclass(frozen=True, slots=True)
class EventText:
    """One thing that happened."""

    at: float
    """Seconds since the run began."""
    kind: str
    """hold, drop, switch, suspended, restored, joined, left, remark or ended; a note has its own
    kind."""
    worker: str
    """Whom it is about; empty: all."""
    text: str
    """A sentence, without its full stop."""
    rare: bool = True
    """Whether it deserves a line of a log."""


def texts_of(line: Line) -> Iterator[EventText]:
    """What a line of a journal tells, in its order."""
    match line:
        case Entry(event=event, decisions=decisions, report=report):
            yield from _came_or_went(event, report)
            for decision in decisions:
                yield from _decided(event.at, decision)
        case Remark(at=at, text=text):
            yield EventText(at, "remark", "", text.removesuffix("."))
        case Ended(status=status, at=at, error=error):
            yield EventText(
                at, "ended", "", f"the run has ended: {status}{f'; {error}' if error else ''}"
            )


def _came_or_went(event: Event, report: Mapping[str, Any]) -> Iterator[EventText]:
    match event:
        case Joined(at=at, worker=worker) if WorkerId(worker).life != 1:
            yield EventText(
                at, "joined", worker, f"{worker} has joined, in the place of the one that left"
            )
        case Left(at=at, worker=worker) if not report.get("done"):
            yield EventText(
                at,
                "left",
                worker,
                f"{worker} is gone ({report.get('why', 'it left')}); the run goes on without it",
            )


def _decided(at: float, decision: Decision) -> Iterator[EventText]:
    match decision:
        case Switch(to=to, why=why):
            yield EventText(at, "switch", "", f"switch to {to}: {why}")
        case Hold(worker=worker, why=why):
            yield EventText(at, "hold", worker, f"{worker} waits: {why}", rare=False)
        case Drop(push=(worker, clock), why=why):
            yield EventText(
                at, "drop", worker, f"push {clock} of {worker} is dropped: {why}", rare=False
            )
        case Suspend(worker=worker, why=why):
            yield EventText(
                at, "suspended", worker, f"{worker} is suspended {why}: the others go on without it"
            )
        case Restore(worker=worker):
            yield EventText(at, "restored", worker, f"{worker} is restored")
        case Note(kind=kind, worker=worker, values=values):
            yield EventText(at, kind, worker, _noted(kind, worker, values), rare=kind in RARE_NOTES)


def _noted(kind: str, worker: str, values: Mapping[str, Any]) -> str:
    """A note in plain words; those of a user's own paradigm with their values."""
    match kind:
        case "controller" if (
            "slowest" in values and _numbers(values, "lead", "extra") and _times(values, PREDICTED)
        ):
            extra = values["extra"]
            granted = (
                f"{extra} more iteration{'s' if extra > 1 else ''}"
                if extra
                else "no more iterations"
            )
            return (
                f"{worker}, {values['lead']} clocks ahead of {values['slowest']}, gets {granted}"
                f" (r* = {extra}); predicted wait {seconds(values['predicted_wait_s'])}"
            )
        case "waited" if _times(values, "predicted_wait_s", "actual_wait_s"):
            return (
                f"{worker} waited {seconds(values['actual_wait_s'])}; "
                f"predicted: {seconds(values['predicted_wait_s'])}"
            )
        case "straggler" if _numbers(
            values, "pushes_per_active_s", "mean_pushes_per_active_s", "windows"
        ):
            return (
                f"{worker} is a straggler: {values['pushes_per_active_s']:.3g} pushes a second"
                f" against a mean of {values['mean_pushes_per_active_s']:.3g}, slow in"
                f" {values['windows']} detection windows in a row"
            )
        case "recovered":
            return f"{worker} is no straggler any more"
    more = ", ".join(
        f"{name} {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in values.items()
    )
    return f"{kind} {worker}{f': {more}' if more else ''}"


def _numbers(values: Mapping[str, Any], *names: str) -> bool:
    """Whether all of them are there; a user's own paradigm may give its notes what values
    it likes.
    """
    return all(type(values.get(name)) in (int, float) for name in names)


def _times(values: Mapping[str, Any], *names: str) -> bool:
    """Say whether all of them are there as times; None is a time that is not known."""
    return all(
        name in values and (values[name] is None or _numbers(values, name)) for name in names
    )


def seconds(value: float | None) -> str:
    """A short time to be read; None is not known."""
    if value is None:
        return "unknown"
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"
