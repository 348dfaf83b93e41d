"""Calls over pipes to actors in threads. Orders, inputs and deaths: test_relays.py."""

import gc
import os
import threading
from concurrent.futures import Future

import pytest

from raysync.cluster.transports.shared.channels import WINDOW_BYTES, Channels, PipedCall
from raysync.cluster.transports.shared.pipes import end_of, frame, receive, send
from raysync.cluster.transports.shared.segments import Slots
from raysync.cluster.transports.shared.serving import LEAVE, RELAY, Piped
from raysync.cluster.transports.shared.shared_vector import SharedVector
from raysync.engine.backend import Failure
from raysync.engine.messages import SavedCall, StepCall, encode
from tests.builders.requests import request

DIED = Failure("died", "it was killed", "a")


class Served(Future):
    """A reference of Ray's: to the end of a `serve`."""

    def future(self):
        return self


class Actor:
    """A thread that carries out calls, once it may begin."""

    def __init__(self):
        self.done, self.begins, self.serve = [], threading.Event(), self
        self.begins.set()

    def remote(self, service):
        def serve():
            self.begins.wait()
            service.run(self)

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        return Served()

    def execute(self, message, inputs, into):
        if isinstance(message, StepCall):
            return ["handle"], [0.5, 1.0]
        self.done.append(message.name)
        return [], len(self.done)

    def leaves(self):
        self.thread.join(5)
        return not self.thread.is_alive()


def open_files():
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.fixture
def channels():
    made = Channels(lambda reference: DIED)
    yield made
    made.close()


def call(channels, actor, name="a", text="0", needs=(), leases=(), message=None):
    channel = channels.open(name, actor)
    piped = PipedCall(channel, request(message or SavedCall(text), needs, leases))
    channel.call(piped)
    return piped


def test_what_is_done_meanwhile_comes_behind_each_answer():
    """Not behind what is only passed on."""
    requests, answers, others = (os.pipe() for _ in range(3))
    calls = [(number, encode(SavedCall(name)), [], None) for number, name in ((1, "a"), (2, "b"))]
    passed_on = 1, RELAY, tuple(end_of(others[1])), frame("for another")
    for message in (*calls, passed_on, LEAVE):
        send(requests[1], frame(message))
    told = []
    piped = Piped(end_of(requests[0]), end_of(answers[1]), last=0)
    piped.run(Actor(), meanwhile=lambda: told.append(receive(answers[0])))
    assert told == [(1, 1, None), (2, 2, None)]
    assert receive(others[0]) == "for another"
    for file in (*requests, *answers, *others):
        os.close(file)


def test_a_chain_of_calls_holds_the_memory_of_its_end_alone(channels):
    """Each is made of the one before it, like updates of gradients of weights of updates."""
    slots = Slots(64, segment_bytes=128, kind=SharedVector)  # one slot a segment
    actors = {name: Actor() for name in ("worker", "server")}
    last = None
    gc.disable()  # a leak would be a chain, not a cycle; a collection must not hide one
    try:
        for number in range(50):
            name, needs = ("worker", "server")[number % 2], [last] if last else []
            last = call(channels, actors[name], name, str(number), needs, (slots.lease(),))
            del needs
            channels.await_call(last, 5)
    finally:
        gc.enable()
    assert len(slots.segments) <= 3
    assert actors["server"].done == [str(number) for number in range(1, 50, 2)]


def test_calls_wait_in_their_order_for_an_actor_and_for_inputs_and_no_longer_than_is_told(channels):
    maker, user = Actor(), Actor()
    maker.begins.clear()
    value = call(channels, maker, "maker")
    call(channels, user, "user", needs=[value])
    behind = call(channels, user, "user", text="behind")
    with pytest.raises(TimeoutError):
        channels.await_call(behind, 0.05)
    assert user.done == []
    maker.begins.set()
    channels.await_call(behind, 5)
    assert user.done == ["0", "behind"]
    step = call(channels, maker, "maker", message=StepCall(0, 8))
    channels.await_call(step, 5)
    assert step.answer == [0.5, 1.0], "handles are known already"


def test_whoever_watches_is_called_back_once_and_in_order(channels):
    actor, told = Actor(), []
    calls = [call(channels, actor, text=str(number)) for number in range(3)]
    for number in (0, 1):
        calls[number].watch(told.append, number)
    channels.await_call(calls[-1], 5)
    calls[2].watch(told.append, 2)
    assert not told, "only the driver's loop calls back"
    for then, argument in channels.due:
        then(argument)
    assert told == [0, 1, 2]


def test_an_actor_that_does_not_answer_is_not_sent_more_than_a_pipe_holds(channels):
    actor = Actor()
    actor.begins.clear()
    calls = [call(channels, actor, text="x" * (WINDOW_BYTES // 4)) for _ in range(20)]
    actor.begins.set()
    channels.await_call(calls[-1], 5)
    assert [each.answer for each in calls] == list(range(1, 21))


def test_an_actor_that_begins_when_its_driver_is_gone_leaves():
    actor = Actor()
    actor.begins.clear()
    mine = Channels(lambda reference: DIED)
    lost = call(mine, actor)
    mine.close()
    assert lost.failure
    others = [os.pipe() for _ in range(3)]  # they have the numbers of its files
    actor.begins.set()
    assert actor.leaves()
    assert actor.done == []
    for file in (file for pipe in others for file in pipe):
        os.close(file)


def test_an_actor_leaves_when_its_driver_is_gone_and_no_file_is_left():
    before = open_files()
    mine, actor = Channels(lambda reference: DIED), Actor()
    mine.await_call(call(mine, actor), 5)
    mine.close()
    assert actor.leaves()
    assert open_files() <= before
