"""The controller actor: one machine, a clock, and the actor calls that its decisions mean.

    Release -> worker.step.remote(clock, batch_size, weights_ref)      returns (gradient_ref, report_ref)
    Apply   -> server.apply_and_publish.remote(plan, *gradient_refs)   returns (weights_ref, ack_ref), never awaited

It handles references and small reports, never a tensor. The *future* weights go into the next step, so a Release costs no
extra round trip, and a barrier needs no code: the machine simply has not released anyone. Gradients and weights are return
values of actor calls, owned by this actor: a gradient survives the worker that made it. Nothing is nested in a return
value, which Ray would never free (Ray 2.60, results below 100 KiB).

The one blocking call is `ray.wait` on what is under way, with a timeout at the next deadline, timer or report to the
driver. `run` is a generator: what happened streams to the driver, which alone writes the record, so this actor keeps no
history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from raysync.cluster.clock import now_s
from raysync.cluster.server import Ack, ApplyPlan
from raysync.cluster.worker import StepReport
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
    actor_ids: dict[str, str]
    """Worker slot -> Ray's id of its actor."""


@dataclass(slots=True)
class Step:
    """A worker's iteration under way."""

    worker: str
    clock: int
    base: int
    batch_size: int
    gradient: Any
    deadline_s: float


@dataclass(slots=True)
class Publication:
    """An update under way, or an evaluation of what it published."""

    version: int
    progress: float
    marks: tuple[float, ...] = ()
    at: float | None = None
    scores: tuple[float, float] | None = None


class Controller:
    """Runs one machine after another over the same actors."""

    def run(self, plan: RunPlan, server: Any, evaluator: Any, workers: dict[str, Any]) -> Iterator[list[Line]]:
        """Train to the end of the workload, and report as it happens; the last line is an `Ended`."""
        run = _Run(plan, server, evaluator, workers)
        reported_s = now_s()
        try:
            run.start()
            while run.pending:
                run.wait(reported_s + REPORT_EVERY_S)
                if run.lines and now_s() >= reported_s + REPORT_EVERY_S:
                    yield run.take_lines()
                    reported_s = now_s()
        except RunFailed as failure:
            run.lines.append(Ended("failed", run.last_at, str(failure)))
        else:
            run.lines.append(Ended(run.status, run.last_at))
        yield run.take_lines()


class _Run:
    """The state of one run. It is over when nothing is pending any more."""

    def __init__(self, plan: RunPlan, server: Any, evaluator: Any, workers: dict[str, Any]) -> None:
        self.plan = plan
        self.machine = Machine(plan.paradigm, plan.workload_samples)
        self.lines: list[Line] = []
        self.pending: dict[Any, Step | tuple[str, Publication]] = {}
        """Reference under way -> what it belongs to; the oldest first."""
        self.status = ""
        """How the training ended; empty while it goes on. Evaluations may still be pending then."""
        self.last_at = 0.0
        """Seconds since the run began: the latest publication."""
        self._server = server
        self._evaluator = evaluator
        self._workers = workers
        self._gradients: dict[Push, tuple[Any, int]] = {}
        self._weights: Any = None
        self._marks = list(reversed(plan.marks))
        self._began_s = now_s()

    def start(self) -> None:
        """Publish the initial model and let every worker join."""
        self._publish(self._take_marks(0.0))
        for slot in self.plan.actor_ids:
            if not self.status:
                self._handle(Joined(at=self._now(), worker=f"{slot}#1"))

    def wait(self, until_s: float) -> None:
        """Wait for the next thing to happen, at most until that time of the clock, and act on it."""
        deadlines_s = [step.deadline_s for step in self.pending.values() if isinstance(step, Step)]
        timers_s = [self._began_s + at for at in self.machine.timers.values()] if not self.status else []
        timeout_s = max(0.0, min([until_s, *deadlines_s, *timers_s]) - now_s())
        ready, _ = ray.wait(list(self.pending), num_returns=1, timeout=timeout_s)
        for reference in ready:
            self._arrived(reference)
        self._fire_timers()
        self._miss_deadlines()

    def take_lines(self) -> list[Line]:
        """What happened since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def _now(self) -> float:
        return now_s() - self._began_s

    # ---- what arrives ----

    def _arrived(self, reference: Any) -> None:
        pending = self.pending.pop(reference)
        if isinstance(pending, Step):
            self._stepped(reference, pending)
            return
        kind, publication = pending
        try:
            value = ray.get(reference)
        except RayError as error:
            raise RunFailed(f"{kind}: {_reason(error)}") from error
        if isinstance(value, Ack):
            assert value.version == publication.version, f"the server is at {value}, not at {publication}"
            publication.at = self.last_at = self._now()
        else:
            publication.scores = value
        self._report_evaluation(publication)

    def _stepped(self, reference: Any, step: Step) -> None:
        try:
            report: StepReport = ray.get(reference)
        except (ActorDiedError, ActorUnavailableError) as error:
            if error.actor_id != self.plan.actor_ids[_slot(step.worker)]:
                self._fail_by_server(error)
            self._lose(step.worker, "its actor died")
            return
        except RayTaskError as error:
            self._fail_by_server(error)
            raise RunFailed(f"worker {step.worker}: {_reason(error)}") from error
        self._gradients[step.worker, step.clock] = (step.gradient, step.batch_size)
        event = Pushed(at=self._now(), worker=step.worker, clock=step.clock, base=step.base,
                       samples=step.batch_size, busy_s=report.busy_s)
        self._handle(event, {"loss": report.loss})
        if not isfinite(report.loss):
            self._diverge()

    def _fail_by_server(self, error: RayError) -> None:
        """A step fails with the update that it waits for: then the server's own error is the one to tell."""
        acks = [ref for ref, it in self.pending.items() if not isinstance(it, Step) and it[0] == "server"]
        for ack in acks:
            try:
                ray.get(ack, timeout=SERVER_VERDICT_S)
            except RayError as verdict:
                if not isinstance(verdict, GetTimeoutError):
                    raise RunFailed(f"server: {_reason(verdict)}") from error
        if not isinstance(error, RayTaskError):
            raise RunFailed(f"server: {_reason(error)}") from error

    def _report_evaluation(self, publication: Publication) -> None:
        """An evaluation is told once both its scores and the time of its publication are known."""
        if publication.scores is None or publication.at is None:
            return
        accuracy, loss = publication.scores
        for mark in publication.marks:
            self.lines.append(Evaluation(mark=mark, progress=publication.progress, version=publication.version,
                                         at=publication.at, accuracy=accuracy, loss=loss))

    def _fire_timers(self) -> None:
        for key, at in list(self.machine.timers.items()):
            if not self.status and self._now() >= at and key in self.machine.timers:
                self._handle(TimerFired(at=self._now(), key=key))

    def _miss_deadlines(self) -> None:
        for reference, step in list(self.pending.items()):
            if isinstance(step, Step) and now_s() >= step.deadline_s and reference in self.pending:
                del self.pending[reference]
                ray.kill(self._workers[_slot(step.worker)])
                self._lose(step.worker, f"no answer for {self.plan.step_deadline_s:g} s")

    def _lose(self, worker: str, why: str) -> None:
        self._server.forget.remote(worker)
        self._handle(Left(at=self._now(), worker=worker), {"why": why})
        if not self.machine.roster.members:
            raise RunFailed(f"every worker is gone; the last was {worker}: {why}")

    # ---- what the machine decides ----

    def _handle(self, event: Event, report: dict[str, Any] | None = None) -> None:
        decisions = self.machine.handle(event)
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
        samples = tuple(size for _, size in taken)
        work = self.plan.workload_samples
        after = self.machine.roster.samples_applied - sum(
            self._samples(later) for later in rest if isinstance(later, Apply))
        progress = after / work
        members = self.machine.roster.members
        live = tuple(worker if worker in members else None for worker, _ in decision.pushes)
        plan = ApplyPlan(live, samples, progress=(after - sum(samples)) / work)
        gradients = [gradient for gradient, _ in taken]
        marks = self._take_marks(progress)
        if marks or any(isinstance(later, Release) and later.pull for later in rest):
            self._weights, ack = self._server.apply_and_publish.remote(plan, *gradients)
        else:
            self._weights, ack = None, self._server.apply.remote(plan, *gradients)
        self._await_ack(ack, Publication(decision.version, progress, marks))
        if progress >= 1:
            self._end("finished")

    def _samples(self, decision: Apply) -> int:
        return sum(self._gradients[push][1] for push in decision.pushes)

    def _release(self, decision: Release) -> None:
        if decision.pull and self._weights is None:
            self._publish(())
        size = decision.batch_size or self.plan.batch_size
        worker = self._workers[_slot(decision.worker)]
        gradient, report = worker.step.remote(decision.clock, size, self._weights if decision.pull else None)
        self.pending[report] = Step(decision.worker, decision.clock, decision.version, size, gradient,
                                    now_s() + self.plan.step_deadline_s)

    def _publish(self, marks: tuple[float, ...]) -> None:
        roster = self.machine.roster
        self._weights, ack = self._server.publish.remote()
        self._await_ack(ack, Publication(roster.version, roster.progress or 0.0, marks))

    def _await_ack(self, ack: Any, publication: Publication) -> None:
        self.pending[ack] = ("server", publication)
        if publication.marks:
            self.pending[self._evaluator.evaluate.remote(self._weights)] = ("evaluator", publication)

    def _take_marks(self, progress: float) -> tuple[float, ...]:
        taken = []
        while self._marks and self._marks[-1] <= progress:
            taken.append(self._marks.pop())
        return tuple(taken)

    def _end(self, status: str) -> None:
        """Training is over: what the workers still compute is not waited for."""
        self.status = status
        self.pending = {ref: it for ref, it in self.pending.items() if not isinstance(it, Step)}

    def _diverge(self) -> None:
        """A loss was not finite: a result, not a crash. The model as it then is gets its evaluation."""
        if not self.status:
            self._publish((self.machine.roster.progress or 0.0,))
        self._end("diverged")


def _slot(worker: str) -> str:
    return worker.rpartition("#")[0]


def _reason(error: RayError) -> str:
    """The user's part of a Ray error, in a few lines."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {cause}".strip()
