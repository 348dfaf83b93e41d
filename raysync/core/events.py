"""What an engine tells the machine: past tense, immutable, each with the time at which the engine
learned of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysync.core.fast_init import fast_init


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A worker is ready for its first release."""

    at: float
    """Seconds since the run began."""
    worker: str
    """`slot#n`, n counting the lives of that slot; an id is used once in a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A worker died, was frozen or went away. A push of it that is still in flight will be
    dropped.
    """

    at: float
    """Seconds since the run began."""
    worker: str


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """A worker finished computing the gradient of one iteration."""

    at: float
    """Seconds since the run began."""
    worker: str
    clock: int
    """The iteration, as named by the Release that started it."""
    base: int
    """Model version the gradient was computed on."""
    samples: int
    """Size of the batch."""
    busy_s: float
    """Seconds of computing alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer that a SetTimer asked for has run out."""

    at: float
    """Seconds since the run began."""
    key: str


Event = Joined | Left | Pushed | TimerFired
