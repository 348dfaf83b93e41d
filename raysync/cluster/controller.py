"""The controller actor: one machine, a clock, and the actor calls that its decisions mean.

    Release -> worker.step.remote([clock, batch_size], *weights_refs)  returns (*gradient_refs, report_ref)
    Apply   -> server.apply_and_publish.remote(plan, *gradient_refs)   returns weights_ref

with one reference to gradient and weights a server shard. What troubles add to a step goes with it; a worker that
they crash has its actor killed, at its time or in place of the step, and a new one started if it is to come back.

It handles references and small reports, never a tensor. The *future* weights go into the next step, so a Release costs no
extra round trip, and a barrier needs no code: the machine simply has not released anyone. Gradients and weights are
return values of actor calls, owned by this actor: a gradient survives the worker that made it. Nothing is nested in a
return value, which Ray would never free (Ray 2.60, results below 100 KiB).

The one blocking call is `ray.wait` on what is under way, with a timeout at the next deadline, timer, crash, or report that
the driver is due. An update is waited for only if its weights are to be evaluated: a step that answers shows that the update
whose weights it pulled is done, and all before that; a step that fails may have failed with the update, whose error is then
looked up. `run` is a generator: what happened streams to the driver, which alone writes the record, so this actor
keeps no history; it tells the driver at least every second that it is alive.

What holds when something is lost:

* A push is the arrival of its gradient at the server, not the end of its computation. So a worker's node takes no push
  along that the machine knows of: a gradient that it still held never arrives, and its worker is a `Left`.
* On the first server's node a fetched gradient is not evicted, since this actor holds it until it is applied. A part
  that another shard has fetched can be: it is lost if, on top of that, the node that made it goes before the update.
* An update that fails nevertheless ends the run with its own error: every update and publication names its version, and
  a server that has missed one refuses whatever comes next. No model lacks an update unnoticed.
* An evaluator only measures: see `evaluations`. The loss of a server, or of this actor, ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from raysync.agenda import Agenda
from raysync.cluster.clock import now_s, sleep_s
from raysync.cluster.evaluations import Evaluations
from raysync.cluster.logs import log_begin, log_to_stderr
from raysync.cluster.messages import ApplyPlan, StepReport
from raysync.cluster.metrics import Exporter, run_metrics
from raysync.cluster.names import Role
from raysync.cluster.pending import Comeback, Life, Pending, Restart, Scoring, Sent, Step, Update, is_lost, reason
from raysync.cluster.running import to_its_end
from raysync.cluster.shards import Parts, Shards
from raysync.cluster.starting import START_DEADLINE_S
from raysync.config import Experiment
from raysync.core.decisions import (
    Apply,
    Decision,
    Drop,
    Hold,
    Note,
    Push,
    Release,
    Restore,
    SetTimer,
    Suspend,
    Switch,
)
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.ids import WorkerId, worker_id
from raysync.core.journal import Evaluation, Line, Remark, answered
from raysync.core.machine import Machine
from raysync.core.paradigm import Paradigm
from raysync.errors import RunFailed
from raysync.record.metrics import Title
from raysync.troubles import UNHARMED, Troubles

if TYPE_CHECKING:
    from raysync.cluster.posts import Post  # imports torch, which this actor does without where nobody comes back

SERVER_VERDICT_S = 10.0
"""How long a failed step waits for the server's own error, which explains it better."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run, as the controller needs it."""

    paradigm: Paradigm
    workload_samples: int
    experiment: Experiment
    actor_ids: dict[str, str]
    """Worker slot -> Ray's id of its actor."""
    posts: dict[str, Post]
    """Of the slots whose workers come back after a crash."""
    title: Title | None = None
    """Names the run in the log and the metrics; None: no metrics are published."""
    evaluator_setup: tuple[Any, ...] = ()
    """References to the arguments of the evaluator's `reset`."""


class Controller:
    """Runs one machine after another over the same actors."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._exporter = Exporter()
        log_to_stderr(str(role))

    def __repr__(self) -> str:
        return str(self._role)

    def run(self, plan: RunPlan, servers: list[Any], evaluator: Any, workers: dict[str, Any]) -> Iterator[list[Line]]:
        """Train to the end of the workload, and report as it happens; the last line is an `Ended`."""
        log_begin(plan.paradigm, plan.experiment, plan.workload_samples, plan.title)
        run = _Run(plan, Shards(servers, plan.experiment.update.clips), evaluator, workers)
        yield from to_its_end(run, run_metrics(self._exporter, plan.title, plan.experiment, plan.paradigm.protocol,
                                               plan.workload_samples))


class _Run:
    """The state of one run."""

    def __init__(self, plan: RunPlan, server: Shards, evaluator: Any, workers: dict[str, Any]) -> None:
        self.plan = plan
        self.machine = Machine(plan.paradigm, plan.workload_samples)
        self.lines: list[Line] = []
        self.pending: dict[Any, Pending] = {}
        """Reference under way -> what it belongs to; the oldest first."""
        self.status = ""
        """How the training ended; empty while it goes on. Evaluations may still be pending then."""
        self.last_at = 0.0
        """Seconds since the run began: the latest publication."""
        self.troubles = Troubles(plan.experiment)
        self._batch_size = plan.experiment.batch_size
        self._deadline_s = plan.experiment.cluster.step_deadline_s
        evaluation = plan.experiment.evaluation
        self._evaluations = Evaluations(evaluator, plan.evaluator_setup, evaluation.progress_marks(),
                                        evaluation.deadline_s, START_DEADLINE_S)
        self._server = server
        self._workers = workers
        self._lives: dict[str, Life] = {}
        """Slot -> its worker of now, or the last one."""
        self._coming: set[str] = set()
        """Who is on the way back."""
        self._agenda = Agenda()
        """Seconds since the run began -> what happens then."""
        self._pushed: dict[Push, Step] = {}
        """Those whose gradients are neither applied nor dropped."""
        self._compensates = plan.experiment.update.delay_compensation is not None
        self._pulled: dict[str, Parts] = {}
        """Worker -> the weights of its last pull; kept only if delays are compensated."""
        self._weights: Parts | None = None
        """What a Release pulls; None if it must be published first."""
        self._sent = Sent()
        self._version = 0
        self._samples = 0
        """Of the updates that were sent to the server."""
        self._began_s = now_s()

    def start(self) -> None:
        """Publish the initial model and let every worker join."""
        self._publish(self._evaluations.take_marks(self._progress))
        for index, crash in self.troubles.crashes.items():
            if crash.at_s is not None:
                self._agenda.schedule(crash.at_s, self._crash, index)
        for slot, actor_id in self.plan.actor_ids.items():
            if not self.status:
                self._join((slot, 1, self._workers[slot], actor_id))

    @property
    def goes_on(self) -> bool:
        """Whether something is under way, or will be at its time."""
        return bool(self.pending or ((self.machine.timers or self._agenda.next_at < inf) and not self.status))

    def wait(self, until_s: float) -> None:
        """Wait for the next thing to happen, at most until that time of the clock, and act on it."""
        assert self.goes_on, "nothing will ever happen"
        deadlines_s = [pending.deadline_s for pending in self.pending.values()]
        times = [*self.machine.timers.values(), self._agenda.next_at] if not self.status else []
        timeout_s = max(0.0, min([until_s, *deadlines_s, *(self._began_s + at for at in times)]) - now_s())
        if self.pending:
            ready, _ = ray.wait(list(self.pending), num_returns=1, timeout=timeout_s)
            for reference in ready:
                self._arrived(reference)
        else:
            sleep_s(timeout_s)  # all wait for a timer, or for one of them to come back
        self._keep_agenda()
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
                self._check_update(reference, pending)
                if all(other is not pending for other in self.pending.values()):  # each shard has answered
                    self._published(pending)
            case Scoring() | Restart():
                self._heard_of_evaluator(self._evaluations.arrived(reference, pending, self._now()))
            case Comeback():
                self._started(reference, pending)

    def _published(self, update: Update) -> None:
        """Stamp it, and those before it: the server works in order, but Ray tells of what is ready in any."""
        self.last_at = self._now()
        for earlier in (*self.pending.values(), update):
            if isinstance(earlier, Update) and earlier.version <= update.version and earlier.at is None:
                earlier.at = self.last_at
        self._sent.done(update.version)
        self.pending |= self._evaluations.next()

    def _check_update(self, reference: Any, update: Update) -> None:
        """An update that failed fails all that come after it: the first one has the error to tell."""
        try:
            ray.get(reference)
        except RayError as error:
            failure = None
            with suppress(GetTimeoutError):
                failure = self._sent.failure(update.version, SERVER_VERDICT_S)
            raise RunFailed(f"server: {failure or reason(error)}") from error

    def _stepped(self, reference: Any, step: Step) -> None:
        """A worker has answered, or a part of its gradient has come: once both have, that is the push."""
        try:
            answer = ray.get(reference)
        except RayError as error:
            self._step_failed(step, error)
            return
        if step.report is None:
            step.report = StepReport(*answer)
            self.pending.update((part, step) for part in self._server.fetch(step.gradient))
        else:
            step.fetched.append(answer)
        if all(other is not step for other in self.pending.values()):
            self._received(step, step.report)

    def _step_failed(self, step: Step, error: RayError) -> None:
        died = isinstance(error, ActorDiedError | ActorUnavailableError)
        if step.report is not None and is_lost(error):
            self._lose(step.life, "its gradient was lost with its node")
        elif died and getattr(error, "actor_id", None) == step.life.actor_id:
            self._lose(step.life, "its actor died")
        else:
            raise self._blame(step, error) from error

    def _received(self, step: Step, report: StepReport) -> None:
        worker = step.life.name
        if step.pulls:
            self._sent.done(step.base)
        self._pushed[worker, step.clock] = step
        event = Pushed(at=self._now(), worker=worker, clock=step.clock, base=step.base, samples=step.batch_size,
                       busy_s=report.busy_s)
        self._handle(event, {"loss": report.loss})
        if not isfinite(report.loss):
            if not self.status:
                self._publish((self._progress,))  # the model as it now is gets its evaluation
            self._end("diverged")

    def _blame(self, step: Step, error: RayError) -> RunFailed:
        """A step fails with the update that it waits for: then the server's own error is the one to tell."""
        with suppress(GetTimeoutError):
            if failure := self._sent.failure(step.base, SERVER_VERDICT_S):
                return RunFailed(f"server: {failure}")
        return RunFailed(f"{f'worker {step.life.name}' if isinstance(error, RayTaskError) else 'server'}: {reason(error)}")

    def _heard_of_evaluator(self, lines: list[Line]) -> None:
        self.lines += lines
        self.pending |= self._evaluations.next()
        if any(isinstance(line, Evaluation) and not isfinite(line.loss) for line in lines):
            self._end("diverged")

    def _started(self, reference: Any, comeback: Comeback) -> None:
        try:
            place = ray.get(reference)
        except RayError as error:
            self._give_up(comeback, reason(error))
            return
        self._agenda.schedule(comeback.due_at, self._join, (comeback.slot, comeback.number, comeback.actor, place.actor_id))

    # ---- what its time has come for ----

    def _keep_agenda(self) -> None:
        while not self.status and self._now() >= self._agenda.next_at:
            self._agenda.advance()

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
            late = f"no answer for {self._deadline_s:g} s"
            match pending:
                case Step():
                    if pending.report is None and pending.pulls:  # it may still wait for its weights
                        self._sent.check(pending.base, late)
                    elif pending.report is not None and reference not in pending.gradient:
                        raise RunFailed(f"server: {late}")  # a shard that was to take its part
                    self._lose(pending.life, late)
                case Update():
                    raise RunFailed(f"server: {late}")
                case Scoring() | Restart():
                    self._heard_of_evaluator(self._evaluations.late(pending, self._now()))
                case Comeback():
                    self._give_up(pending, f"not ready after {START_DEADLINE_S:g} s")

    # ---- who comes and goes ----

    def _join(self, who: tuple[str, int, Any, str]) -> None:
        slot, number, actor, actor_id = who
        step = actor.step.options(num_returns=self._server.count + 1)
        life = self._lives[slot] = Life(worker_id(slot, number), slot, number, actor, actor_id, step)
        self._coming.discard(life.name)
        self._handle(Joined(at=self._now(), worker=life.name))

    def _crash(self, index: int) -> None:
        crash = self.troubles.crashes[index]
        life = self._lives[crash.worker]
        if life.name not in self.machine.roster.live:
            return  # it is gone already
        self.troubles.took_effect(index)
        if crash.rejoin_after_s is not None:
            self._replace(life, crash.rejoin_after_s)
        self._lose(life, f"crashed: {self.troubles.described(index)}")

    def _replace(self, life: Life, after_s: float) -> None:
        """At once: a process takes seconds to start."""
        actor, ready = self.plan.posts[life.slot].fill(life.number + 1)
        comeback = Comeback(life.slot, life.number + 1, actor, self._now() + after_s, now_s() + START_DEADLINE_S)
        self._coming.add(comeback.name)
        self.pending[ready] = comeback

    def _give_up(self, comeback: Comeback, why: str) -> None:
        ray.kill(comeback.actor)
        self._coming.discard(comeback.name)
        said = f"{comeback.name} did not start: {why}"
        self.lines.append(Remark(self._now(), f"{said}; the run goes on without it."))
        self._need_somebody(said)

    def _lose(self, life: Life, why: str) -> None:
        ray.kill(life.actor)  # frozen or unreachable, it must not keep its device
        self.pending = {ref: it for ref, it in self.pending.items() if not (isinstance(it, Step) and it.life is life)}
        self._pulled.pop(life.name, None)
        self._server.forget(life.name)
        self._handle(Left(at=self._now(), worker=life.name), {"why": why})
        self._need_somebody(f"the last was {life.name}: {why}")

    def _need_somebody(self, last: str) -> None:
        if not self.status and not self.machine.roster.live and not self._coming:
            raise RunFailed(f"every worker is gone; {last}")

    # ---- what the machine decides ----

    def _handle(self, event: Event, report: dict[str, Any] | None = None) -> None:
        entry = answered(self.machine, event, report or {})
        self.lines.append(entry)
        for index, decision in enumerate(entry.decisions):
            if self.status:
                return
            match decision:
                case Apply():
                    self._apply(decision, rest=entry.decisions[index + 1 :])
                case Release():
                    self._release(decision)
                case Drop(push=push):
                    self._pushed.pop(push, None)
                case SetTimer() | Hold() | Note() | Switch() | Suspend() | Restore():
                    pass  # the machine keeps its timers, and `wait` looks at them; the others are for the journal

    def _apply(self, decision: Apply, rest: Sequence[Decision]) -> None:
        taken = [self._pushed.pop(push) for push in decision.pushes]
        members = self.machine.roster.live
        plan = ApplyPlan(
            workers=[worker if worker in members else None for worker, _ in decision.pushes],
            samples=[step.batch_size for step in taken], progress=self._progress, phase=decision.phase,
            staleness=[decision.version - 1 - step.base for step in taken], version=decision.version)
        vectors = [step.gradient for step in taken] + [step.weights for step in taken if self._compensates]
        if not decision.publish and self._weights is None:
            self._publish(())
        kept = None if decision.publish else self._weights
        self._version = decision.version
        self._samples += sum(plan.samples)
        marks = self._evaluations.take_marks(self._progress)
        if decision.publish and _pulls_next(rest) and not marks:
            self._weights = self._server.apply_and_publish(plan, vectors)
            self._send(self._weights, (), decision.pushes)
        else:
            self._weights = kept
            self._send(self._server.apply(plan, vectors), (), decision.pushes)
        if marks:
            self._publish(marks)
            self._weights = kept or self._weights
        if self._progress >= 1:
            self._end("finished")

    def _release(self, decision: Release) -> None:
        life, clock = self._lives[WorkerId(decision.worker).slot], decision.clock
        suffered = self.troubles.befall(life.slot, clock, self.machine.roster.now)
        crash = self.troubles.crash_at_clock(life.slot, clock)
        if crash is not None:
            self._agenda.schedule(self.machine.roster.now, self._crash, crash)  # once the decisions in hand are carried out
            return
        if decision.pull and self._weights is None:
            self._publish(())
        size = decision.batch_size or self._batch_size
        weights = (self._weights or ()) if decision.pull else ()
        batch = [clock, size] if suffered is UNHARMED else [clock, size, suffered.factor, suffered.latency_s]
        *gradient, report = life.step.remote(batch, *weights)
        if self._compensates and decision.pull:
            self._pulled[life.name] = weights
        self.pending[report] = Step(life, clock, decision.version, decision.pull, size, tuple(gradient),
                                    self._pulled.get(life.name, ()), now_s() + self._deadline_s)

    def _publish(self, marks: tuple[float, ...]) -> None:
        self._weights, acks = self._server.publish(self._version)
        self._send(acks, marks)

    def _send(self, acks: Parts, marks: tuple[float, ...], pushes: tuple[Push, ...] = ()) -> None:
        """Remember what was sent to the server; wait for it if its weights are to be evaluated."""
        update = Update(self._version, self._progress, marks, self._weights if marks else None, acks,
                        now_s() + self._deadline_s, pushes=pushes)
        self._sent.add(update)
        if marks:
            self.pending.update((ack, update) for ack in acks)
            self._evaluations.add(update)

    def _end(self, status: str) -> None:
        """Training is over: what the workers still compute is not waited for, nor who comes back."""
        self.status = status
        self.pending = {ref: it for ref, it in self.pending.items() if not isinstance(it, Step | Comeback)}


def _pulls_next(rest: Sequence[Decision]) -> bool:
    """Whether somebody pulls before the next update makes other weights."""
    for decision in rest:
        if isinstance(decision, Apply):
            return False
        if isinstance(decision, Release) and decision.pull:
            return True
    return False
