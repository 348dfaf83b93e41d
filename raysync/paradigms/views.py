"""The roster as a rule sees it that runs inside another one, while some members are kept from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import deepcopy

from raysync.core.decisions import Apply, Decision, Drop, Push, Release
from raysync.core.roster import Roster


def without(roster: Roster, workers: Collection[str]) -> Roster:
    """A roster of its own without those members and their buffered pushes."""
    view = deepcopy(roster)
    for worker in workers:
        for push in [push for push in view.buffered if push[0] == worker]:
            view.drop(push)
        view.leave(worker)
    return view


def follow(view: Roster, decision: Decision) -> None:
    """Do to a view what `Machine` will do to the roster."""
    match decision:
        case Apply(pushes=pushes, publish=publish):
            view.apply(pushes, publish=publish)
        case Drop(push=push):
            view.drop(push)
        case Release(worker=worker, pull=pull):
            view.release(worker, pull=pull)


def unused(roster: Roster, decisions: Iterable[Decision]) -> tuple[Push, ...]:
    """The buffered pushes that none of those decisions uses up."""
    used: set[Push] = set()
    for decision in decisions:
        match decision:
            case Apply(pushes=pushes):
                used.update(pushes)
            case Drop(push=push):
                used.add(push)
    return tuple(push for push in roster.buffered if push not in used)
