"""Calls that come by the actor which makes their input, whatever dies and whenever."""

import json
import os
import select

import pytest
from hypothesis import given, strategies as st

from raysync.cluster.actor_errors import ActorError
from raysync.cluster.transports.shared.channels import WINDOW_BYTES, Channels, PipedCall
from raysync.cluster.transports.shared.pipes import receive
from raysync.cluster.transports.shared.serving import LEAVE, Piped, Requests
from raysync.engine.backend import Failure
from raysync.engine.messages import SavedCall
from tests.builders.requests import request

DIED = Failure("died", "it was killed")
NAMES = ("server", "other", "worker", "another")


class Reference:
    """A reference of Ray's that never comes."""

    def future(self):
        return self

    def add_done_callback(self, then):
        """Nothing becomes of it."""


class Actor:
    """An actor that takes a message when it is told to.

    Attributes:
        done: the numbers of its calls; one by Ray after the call 3 is 3.5.
        queued: what Ray has for it: services, and numbers of calls.
    """

    def __init__(self, made):
        self.serve, self.done, self.is_alive, self.made = self, [], True, made
        self.service, self.queued = None, []

    def remote(self, service):
        self.queued.append(service)
        self.begin()
        return Reference()

    def begin(self):
        """Do what Ray has for it, unless it serves."""
        while self.queued and self.service is None and self.is_alive:
            match self.queued.pop(0):
                case Piped(requests, answers, last):
                    self.requests = requests.open(os.O_RDONLY)
                    self.answers = answers.open(os.O_WRONLY)
                    self.service = Requests(self, self.answers, last)
                case number:
                    self.done.append(number)

    def end(self):
        if self.service is not None:
            self.service.close()
            self.service = None
            os.close(self.requests)
            os.close(self.answers)

    def execute(self, message, inputs, into):
        fields = json.loads(message.name)
        assert self.made.issuperset(fields["needs"]), "an input is not there"
        self.done.append(fields["call"])
        if fields["fails"]:
            raise ActorError("", "ValueError: mine")
        self.made.add(fields["call"])
        return [], fields["call"]

    def has_mail(self):
        if self.service is None:
            return False
        poll = select.poll()
        poll.register(self.requests, select.POLLIN)
        return self.is_alive and any(event & select.POLLIN for _, event in poll.poll(0))

    def take(self):
        """Take in the next message; return whether there was one."""
        if not self.has_mail():
            return False
        message = receive(self.requests)
        if message is LEAVE:
            self.end()
            self.begin()
        else:
            self.service.process(message)
        return True

    def die(self):
        if self.is_alive:
            self.is_alive = False
            self.end()


class World:
    """The driver and four actors."""

    def __init__(self):
        self.channels = Channels(lambda reference: DIED)
        self.made = set()
        """The calls that have left what others need."""
        self.actors = {name: Actor(self.made) for name in NAMES}
        self.pipes = {name: self.channels.open(name, self.actors[name]) for name in NAMES}
        self.calls = []

    def call(self, name, needs=(), fails=False, padding=0):
        fields = {"call": len(self.calls), "needs": [*needs], "fails": fails, "pad": "x" * padding}
        needed = [self.calls[index] for index in needs]
        call = PipedCall(self.pipes[name], request(SavedCall(json.dumps(fields)), needed))
        self.calls.append(call)
        self.pipes[name].call(call)
        return call

    def by_ray(self, name):
        """Call an actor by Ray. Meanwhile the actors go on, and the dead become known."""
        pump, actor = self.channels.pump, self.actors[name]

        def go_on(timeout_s):
            if not sum(each.take() for each in self.actors.values()):
                for each in NAMES:
                    self.lose(each)
            pump(0)

        self.channels.pump = go_on
        self.pipes[name].leave()
        self.channels.pump = pump
        actor.queued.append(len(self.calls) - 0.5)
        actor.begin()

    def pump(self):
        self.channels.pump(0)

    def lose(self, name):
        """Let the driver hear that an actor is dead."""
        if not self.actors[name].is_alive:
            self.pipes[name].fail(DIED)

    def settle(self):
        """Go on until nothing happens any more."""
        for name in NAMES:
            self.lose(name)
        idle = 0
        while idle < 2:
            idle = 0 if sum(actor.take() for actor in self.actors.values()) else idle + 1
            self.pump()

    def close(self):
        self.channels.close()
        for actor in self.actors.values():
            actor.die()


def has_all_its_room(world, name):
    """Whether two calls that fill a pipe are sent at once: earlier ones take no room."""
    size = len(world.call(name).to_frame(1)) + 16  # a longer text takes some more bytes
    world.settle()
    for _ in range(2):
        world.call(name, padding=WINDOW_BYTES // 2 - size)
    are_sent = world.actors[name].take() and world.actors[name].take()
    world.settle()
    return are_sent


@pytest.fixture
def world():
    made = World()
    yield made
    made.close()


def test_a_call_reaches_its_actor_without_the_driver_as_soon_as_its_input_is_there(world):
    server, worker = world.actors["server"], world.actors["worker"]
    value = world.call("server")
    step = world.call("worker", [0])
    assert not worker.has_mail(), "its input is not there yet"
    server.take()
    server.take()
    assert worker.take()
    assert worker.done == [1]
    world.settle()
    assert (value.answer, step.answer) == (0, 1)


def test_a_call_whose_input_fails_is_not_passed_on(world):
    world.call("server", fails=True)
    step = world.call("worker", [0])
    while world.actors["server"].take():
        pass
    assert not world.actors["worker"].has_mail()
    behind = world.call("worker")
    world.settle()
    assert step.answer == Failure("raised", "ValueError: mine", "server")
    assert behind.answer == 2
    assert has_all_its_room(world, "worker")


def test_a_call_that_comes_again_much_later_is_not_carried_out(world):
    server, worker = world.actors["server"], world.actors["worker"]
    world.call("server")
    step = world.call("worker", [0])
    server.take()
    server.is_alive = False  # it is frozen, and given up
    world.settle()
    assert (worker.done, step.answer) == ([1], 1)
    world.by_ray("worker")
    worker.take()
    server.is_alive = True
    server.take()
    world.call("worker")
    world.settle()
    assert worker.done == [1, 1.5, 2]


def lose_and_restart(world):
    world.call("server")
    world.actors["server"].die()
    world.lose("server")
    world.actors["server"] = restarted = Actor(world.made)
    world.pipes["server"] = world.channels.open("server", restarted)
    return restarted


def test_a_call_on_what_is_made_again_comes_by_the_actor_that_makes_it(world):
    restarted, told = lose_and_restart(world), []
    again = world.call("server")
    again.watch(told.append, "made again")
    world.calls[0].follow(again, None)
    world.call("worker", [0])
    restarted.take()
    world.made.add(0)
    restarted.take()
    assert world.actors["worker"].take()
    world.settle()
    assert again.has_succeeded
    assert world.calls[0].has_succeeded
    assert [argument for _, argument in world.channels.due] == ["made again"]


def test_a_call_on_what_is_about_to_be_made_again_waits_for_the_driver(world):
    restarted = lose_and_restart(world)
    world.call("other")
    world.call("another")
    again = world.call("server", [1, 2])
    world.calls[0].follow(again, None)
    world.call("worker", [0])
    assert not restarted.take(), "it is not to pass on what needs a call that has not come"
    world.made.add(0)
    world.settle()
    assert world.actors["worker"].done == [4]


@pytest.mark.parametrize(
    "calls",
    [
        [("server",), ("other",), ("worker", [0, 1])],
        [("other",), ("server", [0]), ("worker", [1])],
        [("server", (), False, WINDOW_BYTES), ("worker", [0])],
    ],
    ids=["two make its input", "its input is not sent yet", "it does not fit into the pipe"],
)
def test_a_call_that_cannot_be_passed_on_waits_for_the_driver(world, calls):
    for call in calls:
        world.call(*call)
    for _ in range(3):
        world.actors["server"].take()
    assert not world.actors["worker"].has_mail()
    world.settle()
    assert world.actors["worker"].done == [len(calls) - 1]


def test_a_restarted_actor_relays_no_earlier_calls(world):
    world.call("server", fails=True)
    world.by_ray("server")
    step = world.call("worker", [0])
    for _ in range(3):
        world.actors["server"].take()
    world.settle()
    assert isinstance(step.answer, Failure)
    assert world.actors["worker"].done == []


def test_a_call_of_rays_to_an_actor_that_dies_meanwhile_writes_into_no_file(world, monkeypatch):
    world.call("server")
    world.call("worker", [0])
    world.actors["worker"].die()
    others = []

    def lose(timeout_s):
        world.lose("worker")
        others.extend(os.pipe() for _ in range(3))  # they have the numbers of its files

    monkeypatch.setattr(world.channels, "pump", lose)
    world.pipes["worker"].leave()
    monkeypatch.undo()
    for read, write in others:
        os.close(write)
        assert os.read(read, 1) == b""
        os.close(read)


def test_no_file_is_kept_of_actors_that_are_gone(world):
    world.call("server")
    world.call("worker", [0])
    world.call("another")
    world.settle()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    world.actors["worker"].die()
    world.lose("worker")
    world.call("server")
    world.call("another", [3])
    world.settle()
    gone = 2 + 4  # the actor's ends, and the driver's
    assert len(os.listdir("/proc/self/fd")) <= before - gone  # noqa: PTH208
    assert world.calls[-1].answer == 4


ACTS = st.one_of(
    st.tuples(
        st.just("call"),
        st.sampled_from(NAMES),
        st.lists(st.integers(0, 50), max_size=2),
        st.sampled_from([False] * 9 + [True]),
    ),
    st.tuples(st.sampled_from(["take", "pump", "by_ray", "die", "lose"]), st.sampled_from(NAMES)),
)


@given(acts=st.lists(ACTS, max_size=40))
def test_whatever_happens_each_call_is_done_once_in_its_order_or_not_at_all(acts):
    world, owners, needs, spoiled = World(), [], [], []
    try:
        for kind, name, *rest in acts:
            match kind, rest:
                case "call", [wanted, fails]:
                    count = len(world.calls)
                    own = sorted({index % count for index in wanted}) if count else []
                    owners.append(name)
                    needs.append(own)
                    spoiled.append(fails)
                    world.call(name, own, fails)
                case "take" | "die", []:
                    getattr(world.actors[name], kind)()
                case "by_ray" | "lose", []:
                    getattr(world, kind)(name)
                case _:
                    world.pump()
        world.settle()
        for name, actor in world.actors.items():
            assert actor.done == sorted(actor.done), "Ray's calls, too"
            piped = [number for number in actor.done if number == int(number)]
            assert len(set(piped)) == len(piped)
            assert all(owners[number] == name for number in piped)
        for index, call in enumerate(world.calls):
            actor = world.actors[owners[index]]
            fed = all(world.calls[need].has_succeeded for need in needs[index])
            assert call.is_done
            assert not call.has_succeeded or index in actor.done
            assert fed or index not in actor.done, "it has no input"
            if fed and actor.is_alive:
                assert index in actor.done
                assert call.has_succeeded is not spoiled[index]
        for name, actor in world.actors.items():
            assert not actor.is_alive or has_all_its_room(world, name)
    finally:
        world.close()
