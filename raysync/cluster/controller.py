"""The controller actor: one machine, a clock, and the actor calls that its decisions mean.

    Release -> worker.step.remote([clock, batch_size], *weights_refs)  returns (*gradient_refs, report_ref)
    Apply   -> server.apply_and_publish.remote(plan, *gradient_refs)   returns weights_ref

with one reference to gradient and weights a server shard.

It handles references and small reports, never a tensor. The *future* weights go into the next step, so a Release costs no
extra round trip, and a barrier needs no code: the machine simply has not released anyone. Gradients and weights are
return values of actor calls, owned by this actor: a gradient survives the worker that made it. Nothing is nested in a
return value, which Ray would never free (Ray 2.60, results below 100 KiB).

The one blocking call is `ray.wait` on what is under way, with a timeout at the next deadline, timer, or report that the
driver is due. An update is waited for only if its weights are to be evaluated: a step that answers shows that the update
whose weights it pulled is done, and all before that; a step that fails may have failed with the update, whose error is then
looked up. `run` is a generator: what happened streams to the driver, which alone writes the record, so this actor
keeps no history.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from raysync.cluster.clock import now_s, sleep_s
from raysync.cluster.messages import ApplyPlan, StepReport
from raysync.cluster.shards import Parts, Shards
from raysync.core.decisions import Apply, Decision, Drop, Hold, Note, Push, Release, SetTimer, Switch
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.journal import Ended, Entry, Evaluation, Line
from raysync.core.machine import Machine
from raysync.core.paradigm import Paradigm
from raysync.errors import RunFailed

REPORT_EVERY_S = 0.25
"""How often the driver hears of what happened."""
SERVER_VERDICT_S = 10.0
"""How long a failed step waits for the server's own error, which explains it better."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run, as the controller needs it."""

    paradigm: Paradigm
    workload_samples: int
    batch_size: int
    marks: tuple[float, ...]
    """Progress at which to evaluate, rising, the last one 1."""
    step_deadline_s: float
    evaluation_deadline_s: float
    clips: bool
    """Whether updates look at the norm of the whole gradient."""
    actor_ids: dict[str, str]
    """Worker slot -> Ray's id of its actor."""


@dataclass(slots=True)
class Step:
    """A worker's iteration under way."""

    worker: str
    clock: int
    base: int
    pulls: bool
    batch_size: int
    gradient: Parts
    deadline_s: float


@dataclass(slots=True)
class Update:
    """An update, or a publication without one, under way on the server."""

    version: int
    progress: float
    marks: tuple[float, ...]
    """Marks on the progress at which these weights are evaluated."""
    weights: Parts | None
    """Of those with marks."""
    acks: Parts
    """References that are there when it is done: a version each, or the weights, which nobody here looks at."""
    deadline_s: float
    at: float | None = None
    """Seconds since the run began: when it was known to be published; of those with marks."""


@dataclass(slots=True)
class Scoring:
    """An evaluation under way."""

    update: Update
    deadline_s: float


class Controller:
    """Runs one machine after another over the same actors."""

    def run(self, plan: RunPlan, servers: list[Any], evaluator: Any, workers: dict[str, Any]) -> Iterator[list[Line]]:
        """Train to the end of the workload, and report as it happens; the last line is an `Ended`."""
        run = _Run(plan, Shards(servers, plan.clips), evaluator, workers)
        reported_s, error = now_s(), ""
        try:
            run.start()
            while run.goes_on:
                run.wait(until_s=reported_s + REPORT_EVERY_S if run.lines else inf)
                if run.lines and now_s() >= reported_s + REPORT_EVERY_S:
                    yield run.take_lines()
                    reported_s = now_s()
        except RunFailed as failure:
            error = str(failure)
        except Exception as bug:  # of the user's paradigm, or ours: what led to it must still reach the journal
            logging.getLogger(__name__).exception("the run broke")
            error = f"controller: {type(bug).__name__}: {' '.join([str(bug), *getattr(bug, '__notes__', [])])}"
        run.lines.append(Ended("failed" if error else run.status, run.last_at, error))
        yield run.take_lines()


class _Run:
    """The state of one run."""

    def __init__(self, plan: RunPlan, server: Shards, evaluator: Any, workers: dict[str, Any]) -> None:
        self.plan = plan
        self.machine = Machine(plan.paradigm, plan.workload_samples)
        self.lines: list[Line] = []
        self.pending: dict[Any, Step | Update | Scoring] = {}
        """Reference under way -> what it belongs to; the oldest first."""
        self.status = ""
        """How the training ended; empty while it goes on. Evaluations may still be pending then."""
        self.last_at = 0.0
        """Seconds since the run began: the latest publication."""
        self._server = server
        self._evaluator = evaluator
        self._workers = workers
        self._steps = {slot: worker.step.options(num_returns=server.count + 1) for slot, worker in workers.items()}
        self._gradients: dict[Push, tuple[Parts, int]] = {}
        self._weights: Parts | None = None
        """Of the newest version; None if that is not published."""
        self._sent: deque[Update] = deque()
        """Updates that are not yet known to be done, the oldest first."""
        self._version = 0
        self._samples = 0
        """Of the updates that were sent to the server."""
        self._marks = list(reversed(plan.marks))
        self._to_evaluate: deque[Update] = deque()
        self._began_s = now_s()

    def start(self) -> None:
        """Publish the initial model and let every worker join."""
        self._publish(self._take_marks())
        for slot in self.plan.actor_ids:
            if not self.status:
                self._handle(Joined(at=self._now(), worker=f"{slot}#1"))

    @property
    def goes_on(self) -> bool:
        """Whether something is under way, or will be when a timer fires."""
        return bool(self.pending or (self.machine.timers and not self.status))

    def wait(self, until_s: float) -> None:
        """Wait for the next thing to happen, at most until that time of the clock, and act on it."""
        assert self.goes_on, "nothing will ever happen"
        deadlines_s = [pending.deadline_s for pending in self.pending.values()]
        timers_s = [self._began_s + at for at in self.machine.timers.values()] if not self.status else []
        timeout_s = max(0.0, min([until_s, *deadlines_s, *timers_s]) - now_s())
        if self.pending:
            ready, _ = ray.wait(list(self.pending), num_returns=1, timeout=timeout_s)
            for reference in ready:
                self._arrived(reference)
        else:
            sleep_s(timeout_s)  # all wait for a timer
        self._fire_timers()
        self._miss_deadlines()

    def take_lines(self) -> list[Line]:
        """What happened since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def _now(self) -> float:
        return now_s() - self._began_s

    @property
    def _progress(self) -> float:
        return self._samples / self.plan.workload_samples

    # ---- what arrives ----

    def _arrived(self, reference: Any) -> None:
        pending = self.pending.pop(reference)
        match pending:
            case Step():
                self._stepped(reference, pending)
            case Update():
                version = self._result(reference, "server")
                assert version == pending.version, f"the server is at {version}, not at {pending}"
                if all(other is not pending for other in self.pending.values()):  # each shard has answered
                    self._published(pending)
                    self._evaluate_next()
            case Scoring(update=update):
                self._scored(update, *self._result(reference, "evaluator"))
                self._evaluate_next()

    def _published(self, update: Update) -> None:
        """Stamp it, and those before it: the server works in order, but Ray tells of what is ready in any."""
        self.last_at = self._now()
        for earlier in (*self.pending.values(), update):
            if isinstance(earlier, Update) and earlier.version <= update.version and earlier.at is None:
                earlier.at = self.last_at
        self._done(update.version)

    def _done(self, version: int) -> None:
        """The server is known to have come to that version."""
        while self._sent and self._sent[0].version <= version:
            self._sent.popleft()

    def _result(self, reference: Any, who: str) -> Any:
        try:
            return ray.get(reference)
        except RayError as error:
            raise RunFailed(f"{who}: {_reason(error)}") from error

    def _stepped(self, reference: Any, step: Step) -> None:
        try:
            report = StepReport(*ray.get(reference))
        except RayError as error:
            died = isinstance(error, ActorDiedError | ActorUnavailableError)
            if not died or getattr(error, "actor_id", None) != self.plan.actor_ids[_slot(step.worker)]:
                raise self._blame(step, error) from error
            self._lose(step.worker, "its actor died")
            return
        if step.pulls:
            self._done(step.base)
        self._gradients[step.worker, step.clock] = (step.gradient, step.batch_size)
        event = Pushed(at=self._now(), worker=step.worker, clock=step.clock, base=step.base,
                       samples=step.batch_size, busy_s=report.busy_s)
        self._handle(event, {"loss": report.loss})
        if not isfinite(report.loss):
            if not self.status:
                self._publish((self._progress,))  # the model as it now is gets its evaluation
            self._end("diverged")

    def _blame(self, step: Step, error: RayError) -> RunFailed:
        """A step fails with the update that it waits for: then the server's own error is the one to tell."""
        with suppress(GetTimeoutError):
            if failure := self._server_failure(step.base, SERVER_VERDICT_S):
                return RunFailed(f"server: {failure}")
        return RunFailed(f"{f'worker {step.worker}' if isinstance(error, RayTaskError) else 'server'}: {_reason(error)}")

    def _server_failure(self, version: int, patience_s: float) -> str | None:
        """The error of the first update up to that version that failed; None if all are done.

        Raises:
            GetTimeoutError: one is still under way.
        """
        try:
            ray.get([ack for update in self._sent if update.version <= version for ack in update.acks], timeout=patience_s)
        except GetTimeoutError:
            raise
        except RayError as error:
            return _reason(error)
        return None

    def _scored(self, update: Update, accuracy: float, loss: float) -> None:
        assert update.at is not None, "evaluated before it was published"
        for mark in update.marks:
            self.lines.append(Evaluation(mark=mark, progress=update.progress, version=update.version, at=update.at,
                                         accuracy=accuracy, loss=loss))
        if not isfinite(loss):
            self._end("diverged")

    def _fire_timers(self) -> None:
        for key, at in list(self.machine.timers.items()):
            if not self.status and self._now() >= at and key in self.machine.timers:
                self._handle(TimerFired(at=self._now(), key=key))

    def _miss_deadlines(self) -> None:
        """The oldest first: a step that waits for the server is not blamed for it."""
        for reference, pending in list(self.pending.items()):
            if now_s() < pending.deadline_s or reference not in self.pending:
                continue
            if ray.wait([reference], timeout=0)[0]:  # it is there, and only waits for its turn
                self._arrived(reference)
                continue
            del self.pending[reference]
            late = f"no answer for {self.plan.step_deadline_s:g} s"
            match pending:
                case Step():
                    if pending.pulls:  # it may still wait for its weights
                        self._check_server(pending.base, late)
                    self._lose(pending.worker, late)
                case Update():
                    raise RunFailed(f"server: {late}")
                case Scoring():
                    raise RunFailed(f"evaluator: no answer for {self.plan.evaluation_deadline_s:g} s")

    def _check_server(self, version: int, late: str) -> None:
        """At a deadline: the server has failed if it has not come to that version."""
        try:
            failure = self._server_failure(version, 0)
        except GetTimeoutError:
            failure = late
        if failure:
            raise RunFailed(f"server: {failure}")

    def _lose(self, worker: str, why: str) -> None:
        ray.kill(self._workers[_slot(worker)])  # frozen or unreachable, it must not keep its device
        self._server.forget(worker)
        self._handle(Left(at=self._now(), worker=worker), {"why": why})
        if not self.status and not self.machine.roster.members:
            raise RunFailed(f"every worker is gone; the last was {worker}: {why}")

    # ---- what the machine decides ----

    def _handle(self, event: Event, report: dict[str, Any] | None = None) -> None:
        try:
            decisions = self.machine.handle(event)
        except Exception as error:
            error.add_note(f"at {event}")
            raise
        self.lines.append(Entry(event, tuple(decisions), report or {}))
        for index, decision in enumerate(decisions):
            if self.status:
                return
            match decision:
                case Apply():
                    self._apply(decision, rest=decisions[index + 1 :])
                case Release():
                    self._release(decision)
                case Drop(push=push):
                    self._gradients.pop(push, None)
                case SetTimer() | Hold() | Note() | Switch():
                    pass  # the machine keeps its timers, and `wait` looks at them; the others are for the journal

    def _apply(self, decision: Apply, rest: list[Decision]) -> None:
        taken = [self._gradients.pop(push) for push in decision.pushes]
        members = self.machine.roster.members
        plan = ApplyPlan(
            workers=[worker if worker in members else None for worker, _ in decision.pushes],
            samples=[size for _, size in taken], progress=self._progress)
        gradients = [gradient for gradient, _ in taken]
        self._version = decision.version
        self._samples += sum(plan.samples)
        marks = self._take_marks()
        if _pulls_next(rest) and not marks:
            self._weights = self._server.apply_and_publish(plan, gradients)
            self._send(self._weights, ())
        else:
            self._weights = None
            self._send(self._server.apply(plan, gradients), ())
        if marks:
            self._publish(marks)
        if self._progress >= 1:
            self._end("finished")

    def _release(self, decision: Release) -> None:
        if decision.pull and self._weights is None:
            self._publish(())
        size = decision.batch_size or self.plan.batch_size
        weights = (self._weights or ()) if decision.pull else ()
        *gradient, report = self._steps[_slot(decision.worker)].remote([decision.clock, size], *weights)
        self.pending[report] = Step(decision.worker, decision.clock, decision.version, decision.pull, size, tuple(gradient),
                                    now_s() + self.plan.step_deadline_s)

    def _publish(self, marks: tuple[float, ...]) -> None:
        self._weights, acks = self._server.publish()
        self._send(acks, marks)

    def _send(self, acks: Parts, marks: tuple[float, ...]) -> None:
        """Remember what was sent to the server; wait for it if its weights are to be evaluated."""
        update = Update(self._version, self._progress, marks, self._weights if marks else None, acks,
                        now_s() + self.plan.step_deadline_s)
        self._sent.append(update)
        if marks:
            self.pending.update((ack, update) for ack in acks)
            self._to_evaluate.append(update)

    def _evaluate_next(self) -> None:
        """One evaluation at a time, of weights that are published.

        What waits are references: of weights above 100 KiB in the object store, which Ray spills to disk when it is full;
        smaller ones in this process, at most one a mark.
        """
        evaluating = any(isinstance(pending, Scoring) for pending in self.pending.values())
        if self._to_evaluate and self._to_evaluate[0].at is not None and not evaluating:
            update = self._to_evaluate.popleft()
            assert update.weights is not None, "an evaluation of weights that were not published"
            scores = self._evaluator.evaluate.remote(*update.weights)
            self.pending[scores] = Scoring(update, now_s() + self.plan.evaluation_deadline_s)

    def _take_marks(self) -> tuple[float, ...]:
        taken = []
        while self._marks and self._marks[-1] <= self._progress:
            taken.append(self._marks.pop())
        return tuple(taken)

    def _end(self, status: str) -> None:
        """Training is over: what the workers still compute is not waited for."""
        self.status = status
        self.pending = {ref: it for ref, it in self.pending.items() if not isinstance(it, Step)}


def _pulls_next(rest: list[Decision]) -> bool:
    """Whether somebody pulls before the next update makes other weights."""
    for decision in rest:
        if isinstance(decision, Apply):
            return False
        if isinstance(decision, Release) and decision.pull:
            return True
    return False


def _slot(worker: str) -> str:
    return worker.rpartition("#")[0]


def _reason(error: RayError) -> str:
    """The user's part of a Ray error, in a few lines."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {cause}".strip()
