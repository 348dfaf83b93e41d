"""The virtual backend by itself: actors, calls and values on a virtual clock. It knows no paradigm
and no push.
"""

from contextlib import suppress
from math import inf

import pytest

from raysync.engine.backend import Failure
from raysync.engine.messages import Message
from raysync.step_fault import NO_FAULT
from raysync.virtual.transfers import Path, PhaseNetwork
from raysync.virtual.virtual_backend import REPORT_EVERY, VirtualBackend
from raysync.virtual.virtual_processes import ProcessEnd


class Add(Message, frozen=True):
    seconds: float
    numbers: tuple[float, ...] = ()


class Adder:
    """Sums numbers up."""

    def __init__(self, name):
        self.site, self.total = name, 0

    def cost(self, message, inputs):
        return float(message.seconds), 0.0, NO_FAULT, NO_FAULT, "free"

    def compute(self, message, inputs, answer):
        assert answer == "free"
        self.total += sum(message.numbers) + sum(inputs)
        if self.total < -9:
            raise ValueError("too low")
        return (self.total, -self.total), self.total


class World:
    """A backend, and what it told of."""

    def __init__(self, paths=None, *, computes=True, **ends):
        self.made, self.heard = [], []
        self.backend = VirtualBackend(
            lambda phase: PhaseNetwork(paths or {}), self._make, computes=computes, ends=ends
        )

    def _make(self, name):
        self.made.append(name)
        return Adder(name)

    def call(self, actor, seconds, fields=(), *inputs):
        call = self.backend.call(actor, Add(seconds, tuple(fields)), inputs)
        self.backend.watch(call, self._told, (actor, call))
        return call

    def _told(self, what):
        actor, call = what
        self.heard.append((self.backend.now, actor, call.answer))

    def run(self):
        with suppress(AssertionError):  # there is nothing left to wait for
            while True:
                self.backend.wait()
        return self.heard


def test_an_actor_works_its_calls_off_in_their_order_and_keeps_its_state():
    world = World()
    for seconds, number in ((2, 1), (1, 10), (0.5, 100)):
        world.call("a", seconds, [number])
    world.call("b", 1, [7])
    assert world.run() == [(1, "b", 7), (2, "a", 1), (3, "a", 11), (3.5, "a", 111)]
    assert world.made == ["a", "b"]
    world.call("a", 1)
    assert world.run()[-1] == (4.5, "a", 111), "an actor that is free begins at once"


def test_a_value_may_be_passed_on_before_it_is_computed():
    world = World()
    first = world.call("a", 2, [5])
    world.call("b", 1, [], first.value(1))
    world.call("c", 1, [1], first, first.value(0))
    assert world.run() == [(2, "a", 5), (3, "b", -5), (3, "c", 11)]


def test_a_value_travels_from_the_call_that_needs_it():
    """It takes no way at its own site; and it is not sent before it is there."""
    world = World({"b": {"a": Path(latency_s=0.5, transfer_s=1.0)}})
    first = world.call("a", 2)
    world.call("a", 1, [], first)
    world.call("b", 1, [], first)
    assert [(at, who) for at, who, _ in world.run()] == [(2, "a"), (3, "a"), (4.5, "b")]
    world.call("b", 1, [], first)
    assert world.run()[-1][0] == 4.5 + 1.5 + 1


def test_what_was_delivered_in_one_phase_is_there_in_the_next():
    """Only the second phase's network has a way, of 1 s."""
    networks = {
        "": PhaseNetwork({}, changes=True),
        "far": PhaseNetwork({"s": {"a": Path(1, 0)}}, changes=True),
    }
    backend = VirtualBackend(networks.__getitem__, Adder, computes=True)
    transit = backend.transit
    assert transit.delivers, "the next phase may have a way, which values must not go then"
    delivered = backend.call("a", Add(0, (5,)))
    transit.deliver(delivered, "s")
    transit.enter_phase("far")
    assert backend.call("s", Add(0), [delivered]).at == 0
    assert backend.call("s", Add(0), [backend.call("a", Add(0))]).at == 1


def test_what_happens_at_one_time_happens_in_the_order_in_which_it_was_asked_for():
    world, told = World(), []
    world.backend.schedule(2.0, told.append, "timer")
    world.call("a", 2)
    world.backend.schedule(2.0, told.append, "later")
    world.backend.schedule(1.0, lambda _: told.append(len(world.heard)), None)
    world.run()
    assert told == [0, "timer", "later"]
    assert world.backend.now == 2


def test_a_call_that_raises_fails_and_so_does_what_depends_on_it():
    world = World()
    broken = world.call("a", 1, [-30])
    world.call("b", 1, [], broken)
    world.call("a", 1, [50])
    heard = world.run()
    why = heard[0][2]
    assert heard == [(1, "a", why), (2, "b", why), (2, "a", 20)]
    assert (why.kind, why.actor) == ("raised", "a")
    assert "ValueError: too low" in why.reason
    assert world.backend.failure(broken, 0) == why
    world.call("b", 1, [4])
    assert world.run()[-1] == (3, "b", 4), "it never saw the call that failed"


@pytest.mark.parametrize("computes", [True, False])
def test_a_process_that_dies_takes_along_what_it_has_not_done(computes):
    """Each call fails at that time, or at once; what depends on it fails as it would begin."""
    world = World(computes=computes, a=[ProcessEnd(2.5)])
    done, cut = world.call("a", 2), world.call("a", 2)
    world.call("b", 3, [], done)
    world.call("b", 3, [], cut)
    world.call("c", 3, [], cut)
    world.backend.schedule(4.0, lambda _: world.call("a", 1), None)
    died = Failure("died", "its actor died", "a")
    free = 0 if computes else "free"
    assert world.run() == [
        (2, "a", free),
        (2.5, "a", died),
        (2.5, "c", died),
        (4, "a", died),
        (5, "b", free),
        (5, "b", died),
    ]
    assert [world.backend.failure(call, 0) for call in (done, cut)] == [None, died]


def test_a_frozen_process_gives_no_sign():
    """Nor does what waits for it; others go on."""
    world = World(a=[ProcessEnd(2.5, freezes=True)])
    calls = [world.call("a", 2), world.call("a", 2)]
    waiting = world.call("b", 1, [], calls[1])
    behind, other = world.call("b", 1), world.call("c", 9)
    assert [(at, who) for at, who, _ in world.run()] == [(2, "a"), (9, "c")]
    assert [call.at for call in (calls[1], waiting, behind)] == [inf] * 3
    assert list(map(world.backend.is_done, (calls[0], calls[1], waiting, other))) == [
        True,
        False,
        False,
        True,
    ]
    with pytest.raises(TimeoutError):
        world.backend.failure(waiting, 10.0)


def test_a_restarted_actor_has_a_new_life_with_its_own_end():
    world = World(a=[ProcessEnd(1.5), ProcessEnd(2.0, freezes=True)])
    world.call("a", 1, [1])
    world.call("a", 1, [1])
    world.run()
    assert world.backend.is_done(world.backend.processes.restart("a"))
    frozen = world.call("a", 1, [7])
    assert frozen.at == inf
    world.backend.processes.restart("a")
    world.call("a", 1, [7])
    assert world.run()[-1] == (2.5, "a", 7), "the third life knows of no end, and of nothing before"
    assert world.made == ["a"] * 3


def test_a_killed_actor_is_gone_and_a_worker_that_is_spawned_is_ready():
    world = World()
    world.call("a", 1, [1])
    world.backend.processes.kill("a")
    world.backend.processes.kill("b")
    assert world.backend.is_done(world.backend.processes.spawn("a#2"))
    world.call("a#2", 1, [2])
    world.run()
    assert world.made == ["a", "a#2"]


def test_where_nothing_is_computed_calls_only_take_time():
    world = World(computes=False)
    first = world.call("a", 2, [5])
    world.call("b", 1, [], first)
    assert world.run() == [(2, "a", "free"), (3, "b", "free")]
    assert first.values is None
    for number in range(3 * REPORT_EVERY):
        world.backend.schedule(3.0 + number, lambda _: None, None)
    world.backend.wait()
    assert world.backend.now == 3 + REPORT_EVERY - 1, "a few at once"
