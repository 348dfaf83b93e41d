"""An engine's reports to the machine: past tense, immutable.

`at` is when the engine learned of it, in seconds since the run began.
"""

from __future__ import annotations

from raysync.core.structs import Seconds, TaggedStruct, Whole


class Joined(TaggedStruct, frozen=True, kw_only=True):
    """A worker is ready for its first release."""

    at: Seconds
    worker: str  # `slot#n`, n counting the lives of the slot; an id is used once in a run


class Left(TaggedStruct, frozen=True, kw_only=True):
    """A worker died, froze or left. A push of it that is still in flight will be dropped."""

    at: Seconds
    worker: str


class Pushed(TaggedStruct, frozen=True, kw_only=True):
    """A push arrived where it is applied: a gradient, or the change by local steps."""

    at: Seconds
    worker: str
    clock: Whole  # the iteration, as its Release gave it
    base: Whole  # the model version that the gradient was computed on
    samples: Whole  # of all steps together
    busy_s: Seconds  # computation alone, without transfers
    computed_at: Seconds | None = None  # when the upload began; None: the push arrived at once
    steps: Whole = 1  # optimizer steps, each on a batch of its own


class TimerFired(TaggedStruct, frozen=True, kw_only=True):
    """A timer set by a SetTimer expired."""

    at: Seconds
    key: str


Event = Joined | Left | Pushed | TimerFired
