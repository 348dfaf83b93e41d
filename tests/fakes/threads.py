"""A third shell, beside Ray's and the virtual clock's: each actor is a thread of this process.

A value is an object in memory, and seconds pass. Only one actor computes at a time: the generators
of torch, NumPy and Python belong to the process.
"""

from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic

from msgspec.structs import replace

from raysync.core.ids import WorkerId
from raysync.engine.backend import Failure
from raysync.engine.error_text import reason
from raysync.engine.evaluations import EVALUATOR
from raysync.engine.event_queue import EventQueue
from raysync.engine.messages import LoadServerStateCall, StepReport
from raysync.programs import building
from raysync.programs.evaluator import EvaluatorProgram

COMPUTING = Lock()


class Call:
    """A call, and the first of its values; its future has the values and the answer."""

    def __init__(self, future):
        self.future = future

    def value(self, index):
        return self, index

    @property
    def answer(self):
        return self.future.result()[1]


class Actor:
    """A thread that executes its calls in order; once it has died, they fail instead."""

    def __init__(self, name, make):
        self._name, self._make, self._program, self._busy_s = name, make, None, 0.0
        self.is_dead, self.tasks = False, SimpleQueue()  # None: the thread ends
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def call(self, message=None, inputs=()):
        """Queue a call, and return its future; None: it only makes the program."""
        future = Future()
        self.tasks.put((future, message, inputs))
        return future

    def _run(self):
        while task := self.tasks.get():
            future, *call = task
            future.set_result(self._outcome(*call))

    def _outcome(self, message, inputs):
        try:
            outcome = None if self.is_dead else self._execute(message, inputs)
        except BaseException as error:
            outcome = (), Failure("raised", reason(error), self._name)
        return ((), Failure("died", "its actor died", self._name)) if self.is_dead else outcome

    def _execute(self, message, inputs):
        found = []
        for future, index in inputs:
            values, answer = future.result()
            if isinstance(answer, Failure):
                return (), answer
            found.append(values[index])
        with COMPUTING:
            self._program = self._program or self._make(self._name)
            if message is None:
                return (), None
            began_s = monotonic()
            handled = self._program.handle(message, found)
            values, answer = handled.kept, handled.answer
            self._busy_s += monotonic() - began_s
        if isinstance(answer, StepReport):  # a stage computes in several calls
            answer, self._busy_s = replace(answer, busy_s=self._busy_s), 0.0
        return values, list(values) if message.row.is_file else answer


class Threads:
    """The world of one run: a `Backend`, and its `Transit` and `Processes`."""

    computes, delivers = True, False
    transit = processes = property(lambda self: self)

    def __init__(self, make, began_at=0.0):
        """
        Args:
            make: makes the program of an actor by its id, also at a restart.
            began_at: the run's time at which it resumes, in seconds.
        """
        self._make, self._began_s = make, monotonic() - began_at
        self._actors, self._started = {}, []  # the present one of each id; all
        self._due, self._timers = SimpleQueue(), EventQueue()
        self.schedule = self.schedule_deadline = self._timers.schedule

    def close(self):
        """End all actors, and wait for their threads."""
        for actor in self._started:
            actor.is_dead = True
            actor.tasks.put(None)
        for actor in self._started:
            actor.thread.join()

    @property
    def now(self):
        return monotonic() - self._began_s

    def wait(self):
        wait_s = max(0.0, min(self._timers.next_at - self.now, 1.0))  # not to infinity
        with suppress(Empty):
            self.schedule(self.now, *self._due.get(timeout=wait_s))
        while self._timers.next_at <= self.now:
            self._timers.advance()

    def is_report_due(self, lines):
        return lines > 0

    # ---- calls ----

    def call(self, actor, message, inputs=()):
        found = self._actors.get(actor) or self._start(actor)
        pairs = [each if isinstance(each, tuple) else (each, 0) for each in inputs]
        # not the calls: who waits for lost values does not get those of the retry
        return Call(found.call(message, [(call.future, index) for call, index in pairs]))

    def repeat(self, lost, server, message, inputs=()):
        call = self.call(server, message, inputs)
        if lost is not None:
            lost.future = call.future
        return call

    def watch(self, call, then, argument):
        call.future.add_done_callback(lambda _: self._due.put((then, argument)))

    def is_done(self, call):
        return call.future.done()

    def failure(self, call, patience_s):
        _, answer = call.future.result(patience_s)
        return answer if isinstance(answer, Failure) else None

    # ---- values on their way: they are there at once ----

    def late_s(self, value):
        return 0.0

    def enter_phase(self, phase): ...

    # ---- processes ----

    def _start(self, name):
        actor = self._actors[name] = Actor(name, self._make)
        self._started.append(actor)
        return actor

    def availability(self, worker):
        return "free"

    def watch_nodes(self, drained, lost): ...

    def spawn(self, worker):
        return Call(self._start(worker).call())

    def kill(self, actor):
        (self._actors.get(actor) or self._start(actor)).is_dead = True  # also before its first call

    def end_at(self, worker, at):
        self.schedule(at, self.kill, worker)

    def restart(self, actor, *base, freezes=False):
        self.kill(actor)
        ready = self.spawn(actor)
        return self.call(actor, LoadServerStateCall(), base) if base else ready

    def can_lose(self, server):
        return True


def program_of(name, spec, model, servers):
    """Make the program of an actor; see `Checkpoint.servers`."""
    if name == EVALUATOR:
        return EvaluatorProgram(spec, model, "cpu")
    if name in spec.servers:
        [index] = spec.servers[name]  # no shards
        return building.server_program(spec, index, model, servers.get(name, ()))
    slot = str(WorkerId(name).slot)
    if spec.is_pipelined:
        return building.stage_program(spec, slot, model)
    gradient = building.gradient_of(spec, spec.group(slot), model, ["cpu"])
    return building.worker_program(spec, slot, model, gradient, can_lose_servers=True)


def driver_of(training, paradigm, checkpoint=None, around=lambda name, program: program):
    """Return the driver of a run; `around` may put something around the program of an actor."""
    spec, model = building.spec_of(training, paradigm), training.model
    servers, began_at = (checkpoint.servers, checkpoint.at) if checkpoint else ({}, 0.0)
    backend = Threads(lambda name: around(name, program_of(name, spec, model, servers)), began_at)
    return spec.driver(backend, checkpoint)
