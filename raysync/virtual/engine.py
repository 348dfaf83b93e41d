"""The virtual engine: one machine, a virtual clock, and the events that its decisions lead to.

    Release(w)   -> weights reach w (network), w computes (emulation, troubles) -> Pushed(w)
    Apply(...)   -> the gradients reach the server, which makes an update: for the model at once, for the clock in its time
    Crash        -> Left, and later Joined under the next id of the slot

A heap of (time, sequence number, what happens) is worked off in its order; nothing else moves the clock, and what is
random is hashed from the seed, so a run is the same on every run (on one machine, with one number of torch threads).
`Pushed` is the end of the worker's computing. A gradient is computed when its `Pushed` comes, on the weights of the worker's
last pull, so none is computed that nobody pushes.

What differs from the Ray engine: a decision takes no time, nor does its way to a worker; evaluation takes none; a worker
whose step computes for longer than `cluster.step_deadline_s` is counted as gone (there its transfers count, too), but a
server is never late. What a link or a trouble adds to the way of a gradient comes after `Pushed` here; a worker on Ray
sleeps for both ways before it computes, so cycles are as long, and pushes are learned of later. A crash at a clock comes
here when the weights have arrived, there at the Release.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from torch import Tensor

from raysync.agenda import Agenda
from raysync.config import WorkerGroup
from raysync.core.decisions import Apply, Drop, Push, Release, SetTimer
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.ids import worker_id
from raysync.core.journal import Evaluation, Line, answered
from raysync.core.machine import Machine
from raysync.core.paradigm import Paradigm
from raysync.emulation import step_duration_s
from raysync.errors import RunFailed
from raysync.record.metrics import Title
from raysync.training.task import Task
from raysync.troubles import UNHARMED, Troubles
from raysync.virtual.learner import Learner
from raysync.virtual.network import Network, Way
from raysync.virtual.running import REPORT_EVERY, to_its_end


@dataclass(slots=True, eq=False)
class _Worker:
    """One life of a slot."""

    name: str
    slot: str
    life: int
    group: WorkerGroup
    way: Way
    weights: Tensor | None = None
    """Of its last pull."""


@dataclass(slots=True)
class _Step:
    """An iteration under way."""

    worker: _Worker
    way: Way
    clock: int
    base: int
    batch_size: int
    busy_s: float
    latency_s: float
    """That troubles add to each way."""


class VirtualEngine:
    """Runs tasks in this process."""

    def __init__(self) -> None:
        self.places: dict[str, Any] = {}
        """Actors, of which there are none."""

    def run(self, task: Task, paradigm: Paradigm, title: Title | None = None) -> Iterator[list[Line]]:
        """Train a task under a paradigm, and yield what happens, in order; the last line is an `Ended`.

        Nobody watches virtual seconds as they pass: no metrics are published under the title.
        """
        return to_its_end(_Run(task, paradigm))


class _Run:
    """The state of one run."""

    def __init__(self, task: Task, paradigm: Paradigm) -> None:
        experiment = task.experiment
        self.machine = Machine(paradigm, task.workload_samples)
        self.lines: list[Line] = []
        self.status = ""
        """How the training ended; empty while it goes on."""
        self.troubles = Troubles(experiment)
        self._troubled = bool(experiment.troubles)
        self._task = task
        self._seed = experiment.seed
        self._batch_size = experiment.batch_size
        self._deadline_s = experiment.cluster.step_deadline_s
        self._network = Network(experiment, task.groups, task.vector_bytes)
        self._learner = Learner(task) if experiment.timing == "with-gradients" else None
        self._marks = list(reversed(experiment.evaluation.progress_marks()))
        self._workers: dict[str, _Worker] = {}
        """Slot -> its worker of now."""
        self._lives: dict[str, _Worker] = {}
        """Id -> its worker, dead or alive: parsing an id at every release would take longer."""
        self._steps: dict[Push, _Step] = {}
        """Pushes that are neither applied nor dropped."""
        self._samples = 0
        self._agenda = Agenda()

    @property
    def last_at(self) -> float:
        """Seconds since the run began: the latest publication."""
        return self._network.updated_at

    def start(self) -> None:
        """Evaluate the initial model and let every worker join."""
        self._evaluate()
        for index, crash in self.troubles.crashes.items():
            if crash.at_s is not None:
                self._agenda.schedule(crash.at_s, self._crash, (index, None))
        for slot in self._task.groups:
            self._join((slot, 1))

    def advance(self) -> None:
        """What happens next, to the end of the run or until there is something to report."""
        while not self.status and len(self.lines) < REPORT_EVERY:
            self._agenda.advance()

    def take_lines(self) -> list[Line]:
        """What happened since the last call."""
        lines, self.lines = self.lines, []
        return lines

    @property
    def _progress(self) -> float:
        return self._samples / self._task.workload_samples

    # ---- what happens ----

    def _join(self, slot_and_life: tuple[str, int]) -> None:
        slot, life = slot_and_life
        worker = _Worker(worker_id(slot, life), slot, life, self._task.groups[slot], self._network.ways[slot])
        self._workers[slot] = self._lives[worker.name] = worker
        self._handle(Joined(at=self._agenda.now, worker=worker.name), {})

    def _push(self, step: _Step) -> None:
        worker = step.worker
        if self._workers.get(worker.slot) is not worker:
            return  # it crashed on the way
        loss, report = 0.0, {}
        if self._learner is not None:
            assert worker.weights is not None, f"{worker.name} never pulled"
            loss = self._learner.compute(worker.name, worker.slot, step.clock, step.batch_size, worker.weights)
            report = {"loss": loss}
        self._steps[worker.name, step.clock] = step
        self._handle(Pushed(at=self._agenda.now, worker=worker.name, clock=step.clock, base=step.base,
                            samples=step.batch_size, busy_s=step.busy_s), report)
        if not isfinite(loss):
            if not self.status:
                self._evaluate(self._progress)  # the model as it now is
            self.status = "diverged"

    def _miss_deadline(self, worker: _Worker) -> None:
        self._lose(worker, f"no answer for {self._deadline_s:g} s")

    def _crash(self, index_and_victim: tuple[int, _Worker | None]) -> None:
        index, victim = index_and_victim
        crash = self.troubles.crashes[index]
        worker = self._workers.get(crash.worker)
        if worker is None or victim not in (None, worker):
            return  # it is gone already
        self.troubles.took_effect(index)
        if crash.rejoin_after_s is not None:
            self._agenda.schedule(self._agenda.now + crash.rejoin_after_s, self._join, (worker.slot, worker.life + 1))
        self._lose(worker, f"crashed: {self.troubles.described(index)}")

    def _lose(self, worker: _Worker, why: str) -> None:
        if self._workers.get(worker.slot) is not worker:
            return  # it is gone already
        del self._workers[worker.slot]
        if self._learner is not None:
            self._learner.forget(worker.name)
        self._handle(Left(at=self._agenda.now, worker=worker.name), {"why": why})
        if not self.status and not self._workers and not self._agenda.expects(self._join):
            raise RunFailed(f"every worker is gone; the last was {worker.name}: {why}")

    def _fire(self, timer: tuple[str, float]) -> None:
        key, at = timer
        if self.machine.timers.get(key) == at:
            self._handle(TimerFired(at=self._agenda.now, key=key), {})

    # ---- what the machine decides ----

    def _handle(self, event: Event, report: dict[str, Any]) -> None:
        entry = answered(self.machine, event, report)
        self.lines.append(entry)
        for decision in entry.decisions:
            match decision:
                case Apply():
                    self._apply(decision)
                    if self.status:
                        return
                case Release():
                    self._release(decision)
                case Drop(push=push):
                    self._steps.pop(push, None)
                    if self._learner is not None:
                        self._learner.drop(push)
                case SetTimer(key=key, at=at) if at is not None:
                    self._agenda.schedule(max(at, self._agenda.now), self._fire, (key, at))

    def _apply(self, decision: Apply) -> None:
        steps = [self._steps.pop(push) for push in decision.pushes]
        samples = [step.batch_size for step in steps]
        if self._learner is not None:
            staleness = [decision.version - 1 - step.base for step in steps]
            self._learner.apply(decision, samples, staleness, self.machine.roster.live, self._progress)
        self._samples += sum(samples)
        self._network.update(steps, self._agenda.now, publish=decision.publish)
        if self._samples >= self._task.workload_samples:
            self.status = "finished"
        self._evaluate()  # the last one may find that it diverged

    def _release(self, decision: Release) -> None:
        worker = self._lives[decision.worker]
        slot, clock = worker.slot, decision.clock
        suffered = self.troubles.befall(slot, clock, self._agenda.now) if self._troubled else UNHARMED
        begin = self._agenda.now
        if decision.pull:
            begin = self._network.download(worker.way, begin, suffered.latency_s)
            if self._learner is not None:
                worker.weights = self._learner.weights()
        crash = self.troubles.crash_at_clock(slot, clock) if self._troubled else None
        if crash is not None:
            self._agenda.schedule(begin, self._crash, (crash, worker))
            return
        size = decision.batch_size or self._batch_size
        busy_s = step_duration_s(worker.group, 0.0, self._seed, slot, clock, suffered.factor, size / self._batch_size)
        if busy_s > self._deadline_s:
            self._agenda.schedule(begin + self._deadline_s, self._miss_deadline, worker)
            return
        self._agenda.schedule(begin + busy_s, self._push,
                       _Step(worker, worker.way, clock, decision.version, size, busy_s, suffered.latency_s))

    def _evaluate(self, *marks: float) -> None:
        """The model as it now is, for the marks that progress has passed (and others)."""
        if self._learner is None:
            return
        due = list(marks)
        while self._marks and self._marks[-1] <= self._progress:
            due.append(self._marks.pop())
        if not due:
            return
        accuracy, loss = self._learner.evaluate(on_all=1 in due)
        for mark in due:
            self.lines.append(Evaluation(mark=mark, progress=self._progress, version=self.machine.roster.version,
                                         at=self._network.updated_at, accuracy=accuracy, loss=loss))
        if not isfinite(loss):
            self.status = "diverged"
