"""What the machine tells an engine to do: imperative, immutable.

A paradigm returns these with the fields of its choice; `Machine` fills in what it alone knows
(marked *stamped*). The order of a list binds: an Apply takes effect before any later Release of the
same list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from raysync.core.fast_init import fast_init

Push = tuple[str, int]
"""A push is named by (worker, clock)."""

DropReason = Literal["late", "stale", "suspended", "restored", "left", "other"]
"""The kinds of reasons for a Drop, which metrics and figures count by."""

DROP_REASONS: tuple[DropReason, ...] = get_args(DropReason)


@fast_init
@dataclass(frozen=True, slots=True)
class Apply:
    """Make one optimizer step with the sample-weighted mean gradient of these pushes."""

    pushes: tuple[Push, ...]
    version: int = -1
    """Stamped: the model version that this update makes."""
    samples_before: int = -1
    """Stamped: the samples in the pushes that were applied before this update."""
    phase: str = ""
    """Which of the experiment's `update` settings holds, for paradigms that switch; "" is the only
    one."""
    publish: bool = True
    """False: workers that pull later still get the weights that were published before this
    update."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget this push without applying it."""

    push: Push
    why: str
    """It is for a person, and may differ from push to push."""
    reason: DropReason = "other"


@fast_init
@dataclass(frozen=True, slots=True)
class Release:
    """Let a worker compute its next iteration."""

    worker: str
    clock: int = -1
    """Stamped: the iteration it computes."""
    version: int = -1
    """Stamped: the oldest model version it may read; with `pull=False` the version of its last
    pull."""
    pull: bool = True
    """False: go on with the weights you have."""
    batch_size: int | None = None
    """Samples of this iteration; None is the experiment's own batch size."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The worker waits, for a reason that a person understands. Stamped by the machine from
    `Paradigm.explain`.
    """

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send TimerFired(key) at that time. Setting replaces; `at=None` cancels."""

    key: str
    at: float | None


@dataclass(frozen=True, slots=True)
class Switch:
    """The rule changes from here on; every member's lead becomes 0, and `Paradigm.on_switch`
    decides about the held.
    """

    to: str
    why: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Go on without a worker, as if it had left: `Paradigm.on_leave` hears of it after this answer.

    It stays in the run, and a step under way goes on, but no roster of a paradigm shows it among
    the members, nobody waits for it, and what it pushes is dropped. Then it waits.
    """

    worker: str
    why: str
    """What completes "it was suspended ...", for a person."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Let a suspended worker take part again, held, at the pace of the slowest member.

    One that still computes was released before the others went on without it: that push is
    dropped, and with it the worker comes as a newcomer (`Paradigm.on_join`).
    """

    worker: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth keeping in the journal. Replayed like any decision, never executed."""

    kind: str
    worker: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """JSON-native."""


Decision = Apply | Drop | Release | Hold | SetTimer | Switch | Suspend | Restore | Note
