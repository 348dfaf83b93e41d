"""The checks of a paradigm's decisions; an error names its author's own line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from math import isfinite
from typing import Any

from raysync.core.decisions import (
    DROP_REASONS,
    Apply,
    Drop,
    Hold,
    Note,
    Release,
    Restore,
    SetTimer,
    Suspend,
    Switch,
)
from raysync.core.roster import Roster
from raysync.core.structs import JSON_NATIVE, not_native

HEAVIEST = 1e12  # a record has no larger numbers


def _why_not_applied(decision: Apply, roster: Roster) -> str:
    pushes, buffered = decision.pushes, roster.buffered
    if not isinstance(pushes, tuple):
        return f"applies {pushes!r}; the pushes of an Apply are a tuple of (worker, clock)"
    if not pushes:
        return "applies no push; an Apply takes at least one"
    for push in pushes:
        if not isinstance(push, tuple) or push not in buffered:
            return f"applies {_absent_push(push, roster)}"
    if len(pushes) > 1 and len(set(pushes)) < len(pushes):
        return f"applies a push twice in one update: {pushes!r}"
    if decision.weights != ():
        return _why_not_weighted(decision.weights, len(pushes))
    return ""


def why_not_reduced(decision: Apply, roster: Roster) -> str:
    """Return why an update is impossible under a collective, in which all members take part."""
    if why := _why_not_applied(decision, roster):
        return why
    if count := len(roster.computing):
        return (
            f"applies an update while {roster.names(roster.computing, count)} still"
            f" {'compute' if count > 1 else 'computes'}; in a collective all members take part"
        )
    if len(decision.pushes) == len(roster.buffered):
        return ""
    return (
        f"applies {len(decision.pushes)} of {len(roster.buffered)} pushes; in a collective all"
        " members take part"
    )


def _why_not_weighted(weights: object, count: int) -> str:
    if not isinstance(weights, tuple) or len(weights) != count:
        return f"weighs {count} pushes by {weights!r}; weights are a tuple of one for each push"
    if not all(isinstance(weight, int | float) and 0 <= weight <= HEAVIEST for weight in weights):
        return f"weighs pushes by {weights!r}; each weight is a number from 0 to {HEAVIEST:g}"
    if any(weights):
        return ""
    return f"weighs pushes by {weights!r}; at least one is above 0"


def _why_not_released(decision: Release, roster: Roster) -> str:
    worker, size, steps = decision.worker, decision.batch_size, decision.steps
    if not isinstance(worker, str) or worker not in roster.held:
        return f"releases {worker!r}, which {_whereabouts(worker, roster)}"
    if not decision.pull and roster.members[worker].base < 0:
        return f"releases {worker!r} with pull=False, but it never pulled: its first Release must"
    if size is not None and (not isinstance(size, int) or size < 1):
        return f"releases {worker!r} with batch_size={size!r}; it is a whole number from 1"
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        return f"releases {worker!r} with steps={steps!r}; it is a whole number from 1"
    return ""


def _why_not_dropped(decision: Drop, roster: Roster) -> str:
    push = decision.push
    if not isinstance(push, tuple) or push not in roster.buffered:
        return f"drops {_absent_push(push, roster)}"
    if decision.reason not in DROP_REASONS:
        nearest = get_close_matches(str(decision.reason), DROP_REASONS, n=1)
        return (
            f"drops {push!r} with reason={decision.reason!r}; it is one of"
            f" {', '.join(DROP_REASONS)}{f': did you mean {nearest[0]!r}?' if nearest else ''}"
        )
    return ""


def _why_not_set(decision: SetTimer, roster: Roster) -> str:
    key, at = decision.key, decision.at
    if isinstance(key, str) and (at is None or (isinstance(at, int | float) and isfinite(at))):
        return ""
    return f"sets the timer {key!r} to {at!r}; its key is a str, its time is seconds or None"


def _why_not_noted(decision: Note, roster: Roster) -> str:
    what = not_native(decision.values)
    return f"notes {what}; the values of a Note are {JSON_NATIVE}" if what else ""


def _why_not_switched(decision: Switch, roster: Roster) -> str:
    return ""


def _why_not_suspended(decision: Suspend, roster: Roster) -> str:
    worker, why = decision.worker, decision.why
    if not isinstance(worker, str) or worker not in roster.members:
        return f"suspends {worker!r}, which {_whereabouts(worker, roster)}"
    return (
        "" if isinstance(why, str) else f"suspends {worker!r} because of {why!r}; its why is a str"
    )


def _why_not_restored(decision: Restore, roster: Roster) -> str:
    worker = decision.worker
    if isinstance(worker, str) and worker in roster.suspended:
        return ""
    return f"restores {worker!r}, which is not suspended"


def _why_not_held(decision: Hold, roster: Roster) -> str:
    return "returns a Hold, which only the machine issues; give the reason in `explain`"


def why_no_decision(decision: object, roster: Roster) -> str:
    """Return why a paradigm's result is no decision: its type is not in `CHECKS`."""
    return f"returns {decision!r} among its decisions, which is no decision"


# Type of a decision -> the reason why one is impossible now, worded to follow "on_push", or "".
# Paradigms are users' code, so any field may have any type. (A table: a `match` is slower.)
CHECKS: dict[type, Callable[[Any, Roster], str]] = {
    Apply: _why_not_applied,
    Drop: _why_not_dropped,
    Release: _why_not_released,
    Hold: _why_not_held,
    SetTimer: _why_not_set,
    Switch: _why_not_switched,
    Suspend: _why_not_suspended,
    Restore: _why_not_restored,
    Note: _why_not_noted,
}


def _absent_push(push: object, roster: Roster) -> str:
    count = len(roster.buffered)
    which = f": {roster.names(map(repr, roster.buffered), count)}" if count else ""
    return f"the push {push!r}, which is not buffered; {count} pushes are{which}"


def _whereabouts(worker: object, roster: Roster) -> str:
    if isinstance(worker, str):
        if worker in roster.computing:
            return "is released already and computes"
        if worker in roster.suspended:
            return "is suspended"
        if worker in roster.outdated:
            return "is restored, but still at a step from before"
        if worker in roster.departed:
            return "has left"
    return (
        "is no member; the members are"
        f" {roster.names(map(repr, roster.members), len(roster.members))}"
    )


def location(paradigm: object, method: str) -> str:
    """Format the place where a paradigm defines a method: `FILE:LINE: Class.method`."""
    function = inspect.unwrap(getattr(type(paradigm), method))
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}: {type(paradigm).__name__}.{method}"
