"""The reports of an engine to the machine: past tense, immutable, each with the time at which the
engine learned of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysync.core.fast_init import fast_init, maker


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A worker is ready for its first release."""

    at: float
    """Seconds since the run began."""
    worker: str
    """`slot#n`, where n counts the lives of that slot; an id is used once in a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A worker died, froze or left. If a push of it is still in flight, that push will be
    dropped.
    """

    at: float
    """Seconds since the run began."""
    worker: str


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The gradient of one iteration has arrived: its bytes are where they will be applied."""

    at: float
    """Seconds since the run began: when it had arrived."""
    worker: str
    clock: int
    """The iteration, as given by the Release that started it."""
    base: int
    """The model version that the gradient was computed on."""
    samples: int
    """The size of the batch."""
    busy_s: float
    """Seconds of computation alone, without transfers."""
    computed_at: float | None = None
    """Seconds since the run began: when the gradient was computed, and its upload began; None: it
    was there at once."""


pushed = maker(Pushed)
"""Makes a `Pushed` of all its fields, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer that a SetTimer requested has run out."""

    at: float
    """Seconds since the run began."""
    key: str


Event = Joined | Left | Pushed | TimerFired
