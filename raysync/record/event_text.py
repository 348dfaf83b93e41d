"""Describe the events of a run in sentences, for `raysync watch` and the controller's log.

Frequent events come with pushes (holds, drops, forecasts); rare ones deserve a line of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from raysync.core.decisions import (
    Apply,
    Decision,
    Drop,
    Hold,
    Note,
    Release,
    Restore,
    Suspend,
    Switch,
)
from raysync.core.events import Event, Joined, Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Checkpointed, Ended, Entry, Line, Remark, Report, Resumed

TOGETHER_S = 1.0  # Ray reports all workers on a lost node within milliseconds
# kinds that do not come with every push, as a user's own might
RARE_NOTES = ("straggler", "recovered", "balanced")


@dataclass(frozen=True, slots=True)
class EventText:
    at: float  # seconds since the run began
    # hold, drop, switch, suspended, restored, joined, left, remark, checkpoint, resumed, ended, or
    # the kind of a note
    kind: str
    worker: str  # the worker concerned; empty: all of them
    text: str  # a sentence, without full stop
    rare: bool = True  # whether it deserves a line of a log


_FREQUENT_DECISIONS: frozenset[type] = frozenset({Apply, Release, Hold})


def texts_of(line: Line) -> Iterator[EventText]:
    match line:
        case Entry(event=event, decisions=decisions, report=report):
            yield from _membership_texts(event, report)
            for decision in decisions:
                yield from _decision_texts(event.at, decision)
        case Remark(at=at, text=text):
            yield EventText(at, "remark", "", text.removesuffix("."))
        case Checkpointed(at=at, number=number):
            text = f"checkpoint {number} is taken"
            yield EventText(at, "checkpoint", "", text, rare=False)
        case Resumed(at=at):
            yield EventText(at, "resumed", "", _resumption_text(line))
        case Ended(status=status, at=at, error=error, by=by):
            more = "".join(f"; {text}" for text in (by and f"by {by}", error) if text)
            yield EventText(at, "ended", "", f"the run has ended: {status}{more}")


def _resumption_text(line: Resumed) -> str:
    count = line.lost_pushes
    lost = f"; {count:,} push{'es were' if count > 1 else ' was'} lost" if count else ""
    return f"resumed from checkpoint {line.number} after {seconds(line.away_s)}{lost}"


def _membership_texts(event: Event, report: Report) -> Iterator[EventText]:
    match event:
        case Joined(at=at, worker=worker) if WorkerId(worker).life != 1:
            back = "has joined, in place of the worker that left"
            if report.away_s is not None:
                back = f"has joined {seconds(report.away_s)} after its slot lost its worker"
            yield EventText(at, "joined", worker, f"{worker} {back}")
        case Left(at=at, worker=worker) if not report.done:
            yield EventText(at, "left", worker, _leaving_text([worker], report))


def _leaving_text(workers: Sequence[str], report: Report) -> str:
    """Describe the leaving of workers with one report."""
    is_one, why = len(workers) == 1, report.why or "it left"
    are, them = ("is", "it") if is_one else ("are", "them")
    text = f"{', '.join(workers)} {are} gone ({'' if is_one else 'each: '}{why});"
    text += f" the run continues without {them}"
    if report.restart_in_s is not None:
        text += f", and restarts {them} in {seconds(report.restart_in_s)}"
    return text


def _decision_texts(at: float, decision: Decision) -> Iterator[EventText]:
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
                at, "suspended", worker, f"{worker} is suspended {why}: the other workers continue"
            )
        case Restore(worker=worker):
            yield EventText(at, "restored", worker, f"{worker} is restored")
        case Note(kind=kind, worker=worker, values=values):
            yield EventText(at, kind, worker, _noted(kind, worker, values), rare=kind in RARE_NOTES)


def _noted(kind: str, worker: str, values: Mapping[str, Any]) -> str:
    """Describe a note; of a user's own paradigm, list its values."""
    # a user's own paradigm may call a note as raysync does, and have other values in it
    with suppress(LookupError, TypeError, ValueError):
        if text := _text_of_note(kind, worker, values):
            return text
    more = ", ".join(
        f"{name} {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in values.items()
    )
    return f"{kind} {worker}{f': {more}' if more else ''}"


def _text_of_note(kind: str, worker: str, values: Mapping[str, Any]) -> str:
    """Describe a note of raysync's own; "": it is none."""
    match kind:
        case "controller":
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
        case "waited":
            return (
                f"{worker} waited {seconds(values['actual_wait_s'])}; "
                f"predicted: {seconds(values['predicted_wait_s'])}"
            )
        case "straggler":
            return (
                f"{worker} is a straggler: {values['pushes_per_active_s']:.3g} pushes a second"
                f" against a mean of {values['mean_pushes_per_active_s']:.3g}, slow in"
                f" {values['windows']} detection windows in a row"
            )
        case "balanced":
            return (
                f"{values['samples']:,} samples are divided again: {values['smallest']:,} to"
                f" {values['largest']:,} a worker; longest iteration"
                f" {seconds(values['predicted_s'])}, predicted {seconds(values['before_s'])}"
                " without it"
            )
        case "recovered":
            return f"{worker} is no straggler any more"
    return ""


def seconds(value: float | None) -> str:
    """Format a duration with two or three digits; None is unknown."""
    if value is None:
        return "unknown"
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.2f} s" if round(value, 3) >= 1 else f"{1000 * value:.3g} ms"


def report_events(lines: Sequence[Line], notify: Callable[[str], None]) -> None:
    """Notify of the rare events, once for all workers that leave together."""
    reported: set[str] = set()
    for line in lines:
        if isinstance(line, Entry):
            if not is_rare(line):
                continue
        elif isinstance(line, Ended):  # its status is reported elsewhere
            for fault in line.faults_without_effect:
                notify(f"Fault never triggered: {fault}.")
            continue
        for event in filter(attrgetter("rare"), texts_of(line)):
            text = event.text
            if event.kind == "left" and isinstance(line, Entry):
                if event.worker in reported:
                    continue
                together = _left_with(line, lines)
                reported.update(together)
                text = _leaving_text(together, line.report)
            notify(f"After {event.at:.1f} s: {text}.")


def is_rare(entry: Entry) -> bool:
    """Return whether an entry can have a rare event: more than a push, update, release or hold."""
    if type(entry.event) is not Pushed:
        return True
    for decision in entry.decisions:  # noqa: SIM110 - for two or three, `any` takes twice as long
        if type(decision) not in _FREQUENT_DECISIONS:
            return True
    return False


def _left_with(first: Entry, lines: Sequence[Line]) -> list[str]:
    """Return the workers that left soon after, with the same report, as on a lost node."""
    return [
        line.event.worker
        for line in lines
        if isinstance(line, Entry)
        and isinstance(line.event, Left)
        and line.report == first.report
        and 0 <= line.event.at - first.event.at <= TOGETHER_S
    ]
