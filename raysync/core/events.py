"""The reports of an engine to the machine: past tense, immutable, each with the time at which the
engine learned of it.
"""

from __future__ import annotations

from raysync.core.structs import Seconds, TaggedStruct, Whole


class Joined(TaggedStruct, frozen=True, kw_only=True):
    """A worker is ready for its first release."""

    at: Seconds
    """Seconds since the run began."""
    worker: str
    """`slot#n`, where n counts the lives of that slot; an id is used once in a run."""


class Left(TaggedStruct, frozen=True, kw_only=True):
    """A worker died, froze or left. If a push of it is still in flight, that push will be
    dropped.
    """

    at: Seconds
    """Seconds since the run began."""
    worker: str


class Pushed(TaggedStruct, frozen=True, kw_only=True):
    """The gradient of one iteration, or what its local steps changed, has arrived where it will be
    applied."""

    at: Seconds
    """Seconds since the run began: when it had arrived."""
    worker: str
    clock: Whole
    """The iteration, as given by the Release that started it."""
    base: Whole
    """The model version that the gradient was computed on."""
    samples: Whole
    """The size of the batch; of several steps, of all their batches together."""
    busy_s: Seconds
    """Seconds of computation alone, without transfers."""
    computed_at: Seconds | None = None
    """Seconds since the run began: when the gradient was computed, and its upload began; None: it
    was there at once."""
    steps: Whole = 1
    """The optimizer steps of the iteration, each on a batch of its own."""


class TimerFired(TaggedStruct, frozen=True, kw_only=True):
    """A timer that a SetTimer requested has run out."""

    at: Seconds
    """Seconds since the run began."""
    key: str


Event = Joined | Left | Pushed | TimerFired
