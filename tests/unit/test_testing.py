"""What `raysync.testing` finds in paradigms that break the contract."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from msgspec.structs import replace

from raysync import Apply, ConfigError, Drop, IllegalDecision, Paradigm, Release
from raysync.core.decisions import Restore, Suspend
from raysync.paradigms import make
from raysync.paradigms.bsp import BSP
from raysync.paradigms.ringmaster import Ringmaster
from raysync.testing import Drive, check_paradigm
from tests.builders.messages import naming


@dataclass
class Sound(Paradigm):
    """Asynchronous: what the broken ones below differ from."""

    name: ClassVar[str] = "sound"

    def on_push(self, roster, push):
        return [Apply((push,)), Release(push[0])]

    def on_leave(self, roster, worker):
        return []

    def explain(self, roster, worker):
        return "it waits for nothing"


class Meddling(Sound):
    """It changes the roster."""

    def on_push(self, roster, push):
        roster.version += 1
        return super().on_push(roster, push)


class Greedy(Sound):
    """It applies a push twice."""

    def on_push(self, roster, push):
        return [Apply((push,)), *super().on_push(roster, push)]


class Hanging(Sound):
    """It lets a worker wait that nobody wakes."""

    def on_push(self, roster, push):
        return [Apply((push,))]


class Idle(Sound):
    """All compute, and nothing is ever applied."""

    def on_push(self, roster, push):
        return [Drop(push, why="not now"), Release(push[0])]


@dataclass
class Impatient(Sound):
    """Two workers of one clock make an update: it hangs where one of several is left behind."""

    def on_push(self, roster, push):
        if len(roster.held) < 2 and len(roster.members) > 1:
            return []
        paces = {roster.clock(worker) for worker in roster.held}
        if len(paces) > 1 and len(roster.members) > 2:
            return []
        return [Apply(tuple(roster.buffered)), *map(Release, roster.held)]

    def on_leave(self, roster, worker):
        return [*map(Release, roster.held)]


class Hoarder(Sound):
    """It applies the push of one worker, and keeps those of another for ever."""

    def on_push(self, roster, push):
        is_kept = push[0] != min(roster.members)
        return [*([] if is_kept else [Apply((push,))]), Release(push[0])]


class Probation(Sound):
    """A newcomer is left out until somebody pushes."""

    def on_join(self, roster, worker):
        if len(roster.members) > 1 and roster.received:
            return [Suspend(worker, "until the others know it")]
        return [Release(worker)]

    def on_push(self, roster, push):
        return [*super().on_push(roster, push), *self._taken_in(roster)]

    def on_leave(self, roster, worker):
        return [] if roster.members else self._taken_in(roster)

    def _taken_in(self, roster):
        return [each for one in roster.suspended for each in (Restore(one), Release(one))]


@dataclass
class Forgetful(Sound):
    """It keeps a part of its state where a restored one does not find it."""

    def __post_init__(self):
        self.pushes = 0

    def on_push(self, roster, push):
        self.pushes += 1
        used = Drop(push, why="it is the second")
        return [used if self.pushes % 2 == 0 else Apply((push,)), Release(push[0])]


@dataclass
class Secretive(Sound):
    """Its state is not JSON."""

    seen: set = field(default_factory=set, init=False)

    def on_push(self, roster, push):
        self.seen.add(push[0])
        return super().on_push(roster, push)


@dataclass
class Counting(Ringmaster):
    """Ringmaster with a staleness of 0, but its drops count as steps."""

    staleness: int = 0

    def on_push(self, roster, push):
        return [
            replace(each, reason="other") if isinstance(each, Drop) else each
            for each in super().on_push(roster, push)
        ]


class Mute(BSP):
    """It gives no reason."""

    def explain(self, roster, worker):
        return ""


@pytest.fixture(autouse=True)
def without_shrinking():
    """A history that breaks a paradigm is enough here; the shortest takes seconds to find."""
    settings.register_profile("unshrunk", settings(), phases=[Phase.generate])
    before = settings.get_current_profile_name()
    settings.load_profile("unshrunk")
    yield
    settings.load_profile(before)


def test_a_sound_paradigm_passes():
    check_paradigm("bsp", lead_bound=0, examples=5)
    check_paradigm(Probation, examples=10)
    check_paradigm(f"{__name__}:Sound", examples=3)


@pytest.mark.parametrize(
    ("broken", "error", "says"),
    [
        (Meddling, AssertionError, "on_push"),
        (Greedy, IllegalDecision, "buffered"),
        (Hanging, IllegalDecision, "deadlock"),
        (Idle, AssertionError, "applied"),
        (Impatient, IllegalDecision, "deadlock"),
        (Forgetful, AssertionError, "restored"),
        (Hoarder, AssertionError, "applied dropped"),
        (Secretive, (IllegalDecision, TypeError), "set"),
        (Mute, AssertionError, "reason"),
    ],
)
def test_a_broken_one_is_found(broken, error, says):
    with pytest.raises(error, match=naming(says)):
        check_paradigm(broken)


@pytest.mark.slow
def test_a_deadlock_of_ordinary_runs_is_found():
    """A wrapper whose drops count in the clocks by which the paradigm inside holds workers."""
    inner = {"name": "hybrid", "k": 2, "staleness_tolerance": 0, "pull_interval": 3}
    with pytest.raises(IllegalDecision, match="deadlock"):
        check_paradigm(partial(Counting, inner), examples=400)


def test_a_lead_beyond_what_was_promised_is_found():
    check_paradigm(partial(make, "ssp", staleness=2), lead_bound=2, examples=5)
    with pytest.raises(AssertionError, match=naming("1 ahead")):
        check_paradigm("asp", lead_bound=0)


def test_what_is_no_paradigm_is_refused():
    with pytest.raises(ConfigError, match=naming("'bsp'")):
        check_paradigm("bps")
    with pytest.raises(ConfigError, match=naming("decoupled Paradigm")):
        check_paradigm("decoupled")


def test_a_drive_returns_decisions():
    drive = Drive(make("bsp"), "a#1", "b#1")
    [hold] = drive.push("a#1", at=1.0)
    assert "b#1" in hold.why
    applied, *released = drive.push("b#1", at=2.0)
    assert applied.pushes == (("a#1", 0), ("b#1", 0))
    assert [each.worker for each in released] == ["a#1", "b#1"]
    assert drive.roster.version == 1
