"""Calls over pipes: actors are threads or processes, and of Ray only the news of who is dead is
needed.
"""

import gc
import multiprocessing
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
    """A thread that carries out calls, and the ones that Ray would queue behind its `serve`."""

    def __init__(self):
        self.done, self.gate, self.serve = [], threading.Event(), self
        self.gate.set()
        self.queue = threading.Thread()

    def queued(self, work, reference=None):
        before = self.queue

        def turn():
            if before.ident is not None:
                before.join()
            work()
            if reference is not None:
                reference.set_result(None)

        self.queue = threading.Thread(target=turn, daemon=True)
        self.queue.start()

    def remote(self, service):
        reference = Served()
        self.queued(lambda: service.run(self), reference)
        return reference

    def execute(self, message, inputs, into):
        match message:
            case SavedCall(name=name):
                self.gate.wait()
                self.done.append(name)
                return [], len(self.done)
            case StepCall():
                return ["handle"], [0.5, 1.0]

    def by_ray(self, channel):
        """Be called by Ray, behind all calls of the channel."""
        channel.leave()
        self.queued(lambda: self.execute(SavedCall("by Ray"), (), None))


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


@pytest.fixture
def channels():
    made = Channels(lambda reference: DIED)
    yield made
    made.close()


def call(channels, actor, name="a", text="0", needs=(), message=None):
    channel = channels.open(name, actor)
    piped = PipedCall(channel, request(message or SavedCall(text), needs))
    channel.call(piped)
    return piped


def test_calls_are_carried_out_in_their_order_whoever_they_come_by(channels):
    actor = Actor()
    channel = channels.open("a", actor)
    actor.by_ray(channel)
    first = [call(channels, actor, text=str(number)) for number in range(3)]
    for _ in range(2):
        actor.by_ray(channel)
    last = call(channels, actor, text="3")
    channels.await_call(last, 5)
    assert actor.done == ["by Ray", "0", "1", "2", "by Ray", "by Ray", "3"]
    assert [each.answer for each in (*first, last)] == [2, 3, 4, 7]
    step = call(channels, actor, message=StepCall(0, 8))
    channels.await_call(step, 5)
    assert step.answer == [0.5, 1.0], "handles are known already"


def test_a_chain_of_calls_holds_the_memory_of_its_end_alone(channels):
    """Each is made of the one before it, like updates of gradients of weights of updates."""
    slots = Slots(64, segment_bytes=128, kind=SharedVector)  # one slot a segment
    actors = {name: Actor() for name in ("worker", "server")}
    last = None
    gc.disable()  # a leak would be a chain, not a cycle; a collection must not hide one
    try:
        for number in range(50):
            name = ("worker", "server")[number % 2]
            asked = request(SavedCall(str(number)), [last] if last else [], (slots.lease(),))
            last = PipedCall(channels.open(name, actors[name]), asked)
            last.channel.call(last)
            del asked
            channels.await_call(last, 5)
    finally:
        gc.enable()
    assert len(slots.segments) <= 3
    assert actors["server"].done == [str(number) for number in range(1, 50, 2)]


def test_a_call_waits_for_its_inputs_no_longer_than_it_is_told(channels):
    maker, user = Actor(), Actor()
    maker.gate.clear()
    value = call(channels, maker, "maker")
    after = call(channels, user, "user", needs=[value])
    behind = call(channels, user, "user", text="behind")
    with pytest.raises(TimeoutError):
        channels.await_call(after, 0.05)
    assert user.done == []
    maker.gate.set()
    channels.await_call(behind, 5)
    assert user.done == ["0", "behind"]


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
    actor.gate.clear()
    calls = [call(channels, actor, text="x" * (WINDOW_BYTES // 4)) for _ in range(20)]
    actor.gate.set()
    channels.await_call(calls[-1], 5)
    assert [each.answer for each in calls] == list(range(1, 21))


class Process:
    """An actor in a process of its own, which can be killed."""

    def __init__(self):
        self.serve, self.reference = self, Served()
        self._context = multiprocessing.get_context("fork")

    def remote(self, service):
        self.process = self._context.Process(target=service.run, args=(self,), daemon=True)
        self.process.start()
        return self.reference

    def execute(self, message, inputs, into):
        if message.name == "die":
            os.kill(os.getpid(), 9)
        return [], message.name


def test_a_killed_actor_fails_what_it_has_not_answered_and_what_waits_for_that(channels):
    actor, user = Process(), Actor()
    done, dies, behind = (call(channels, actor, text=each) for each in ("done", "die", "behind"))
    waits = call(channels, user, "user", needs=[behind])
    actor.process.join()
    actor.reference.set_result(None)
    channels.await_call(waits, 5)
    assert done.answer == "done", "its answer had come"
    assert [each.answer for each in (dies, behind, waits)] == [DIED] * 3
    assert call(channels, user, "user", text="goes on").needs == []


def test_an_actor_that_begins_when_its_driver_is_gone_leaves(channels):
    actor, begins = Actor(), threading.Event()
    actor.queued(begins.wait)
    mine = Channels(lambda reference: DIED)
    lost = call(mine, actor)
    mine.close()
    assert lost.failure
    others = [os.pipe() for _ in range(3)]  # they have the numbers of its files
    begins.set()
    actor.queue.join(5)
    assert not actor.queue.is_alive()
    assert actor.done == []
    for file in (file for pipe in others for file in pipe):
        os.close(file)


def test_an_actor_leaves_when_its_driver_is_gone_and_no_file_is_left(channels):
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    mine = Channels(lambda reference: DIED)
    actor = Actor()
    mine.await_call(call(mine, actor), 5)
    mine.close()
    actor.queue.join(5)
    assert not actor.queue.is_alive()
    assert set(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
