"""The controller actor of a decoupled run: the machines, the pipelines, and the actor calls that their decisions mean.

    Release(stage)  -> the passes of its iteration, as soon as their inputs are known to come
    a pass          -> stage.forward.remote(...) or stage.backward.remote(...), with the references of its inputs
    Apply(...)      -> server.apply.remote(...), and server.publish.remote(group) for who pulls next

What is passed on are references of values that are still to be computed, so a pass is sent off when that of the neighbour
has been, and waits for it where it runs: stages overlap as far as the data allows, with no barrier but the paradigm's.
Only the report of a backward pass is waited for. A stage that is lost ends the run: its pipeline cannot go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite, nextafter
from typing import Any, cast

import ray
from ray.exceptions import RayActorError, RayError

from raysync.cluster.clock import now_s, sleep_s
from raysync.cluster.evaluations import Evaluations
from raysync.cluster.logs import log_begin, log_to_stderr
from raysync.cluster.metrics import Exporter, run_metrics
from raysync.cluster.names import Role
from raysync.cluster.pending import Restart, Scoring, reason
from raysync.cluster.running import to_its_end
from raysync.cluster.shards import Parts
from raysync.cluster.starting import START_DEADLINE_S
from raysync.config import Experiment
from raysync.core.decisions import Apply, Drop, Push, Release
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.ids import WorkerId, worker_id
from raysync.core.journal import Evaluation, Line, answered
from raysync.decoupled.pipelines import Pass, Pipelines, Stage
from raysync.decoupled.virtual import DONE
from raysync.errors import RunFailed
from raysync.paradigms.decoupled import Decoupled
from raysync.record.metrics import Title
from raysync.troubles import UNHARMED, Troubles


@dataclass(frozen=True, slots=True)
class DecoupledRunPlan:
    """One run, as the controller needs it."""

    rule: Decoupled
    experiment: Experiment
    workload_samples: int
    batches: int
    names: dict[Stage, str]
    slots: dict[Stage, str]
    title: Title | None
    """Names the run in the log and the metrics; None: no metrics are published."""
    evaluator_setup: tuple[Any, ...] = ()
    """References to the arguments of the evaluator's `reset`."""


@dataclass(slots=True)
class _Step:
    """A backward pass under way, and the iteration that it ends."""

    stage: Stage
    batch: int
    gradient: Any
    version: int
    forward_version: int


@dataclass(slots=True)
class _Update:
    """An update under way, and the marks at which what it makes is evaluated."""

    module: int
    version: int
    progress: float
    marks: tuple[float, ...]
    weights: Parts | None
    """The means of all modules' replicas; of those with marks."""
    at: float | None = None
    """Seconds since the run began: when these weights were published."""
    is_last: bool = False
    """Whether they were published with the last update of all, which may still be under way."""


@dataclass(slots=True)
class _Worker:
    """One stage."""

    name: str
    actor: Any
    version: int = 0
    weights: Any = None
    """Reference to new ones, for the next call."""
    versions: dict[int, int] = field(default_factory=dict)
    """Batch in flight -> version of the weights of its forward pass."""


class DecoupledController:
    """Runs one decoupled run after another over the same stages."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._exporter = Exporter()
        log_to_stderr(str(role))

    def __repr__(self) -> str:
        return str(self._role)

    def run(
        self, plan: DecoupledRunPlan, servers: list[Any], evaluator: Any, stages: dict[Stage, Any],
    ) -> Iterator[list[Line]]:
        """Train to the end of the workload, and report as it happens; the last line is an `Ended`."""
        log_begin(plan.rule, plan.experiment, plan.workload_samples, plan.title)
        run = _Run(plan, servers, evaluator, stages)
        yield from to_its_end(run, run_metrics(self._exporter, plan.title, plan.experiment, plan.rule.protocol,
                                               plan.workload_samples))


class _Run:
    """The state of one run."""

    def __init__(self, plan: DecoupledRunPlan, servers: list[Any], evaluator: Any, stages: dict[Stage, Any]) -> None:
        self.lines: list[Line] = []
        self.status = ""
        self.last_at = 0.0
        self.troubles = Troubles(plan.experiment)
        self._plan = plan
        self._servers = dict(enumerate(servers, start=1))
        self._modules = plan.rule.machine(plan.workload_samples)
        self._pipelines = Pipelines(plan.rule.groups, plan.rule.modules, plan.batches, plan.rule.locked)
        self._workers = {stage: _Worker(worker_id(plan.names[stage], 1), actor) for stage, actor in stages.items()}
        self._stages = {worker.name: stage for stage, worker in self._workers.items()}
        self._mail: dict[Pass, Any] = {}
        """Pass -> reference to its input, from the neighbour."""
        self._gradients: dict[Push, tuple[int, Any]] = {}
        self._published: dict[tuple[int, int], Any] = {}
        """Module and group -> reference to what is pulled; gone with the next update."""
        self._pending: dict[Any, _Step | _Update | Scoring | Restart] = {}
        evaluation = plan.experiment.evaluation
        self._evaluations = Evaluations(evaluator, plan.evaluator_setup, evaluation.progress_marks(),
                                        evaluation.deadline_s, START_DEADLINE_S)
        self._size = plan.experiment.batch_size
        self._deadline_s = plan.experiment.cluster.step_deadline_s
        self._began_s = self._heard_s = now_s()

    def start(self) -> None:
        """Evaluate the initial network and let every stage join."""
        self._evaluate(_Update(self._plan.rule.modules, 0, 0.0, self._due(0.0), self._means()))
        for worker in self._workers.values():
            self._handle(Joined(at=self._now(), worker=worker.name), {})

    @property
    def goes_on(self) -> bool:
        """Whether something is under way, or will be at its time."""
        return bool(self._pending or (self._modules.timers and not self.status))

    def wait(self, until_s: float) -> None:
        """Wait for the next thing to happen, at most until that time of the clock, and act on it."""
        timers = list(self._modules.timers.values()) if not self.status else []
        times = [until_s, *self._deadlines().values(), *(self._began_s + at for at in timers)]
        timeout_s = max(0.0, min(times) - now_s())
        if self._pending:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=timeout_s)
            for reference in ready:
                self._heard_s = now_s()
                self._arrived(reference)
        else:
            sleep_s(timeout_s)
        for key, at in list(self._modules.timers.items()):
            if not self.status and self._now() >= at and key in self._modules.timers:
                self._handle(TimerFired(at=self._now(), key=key), {})
        self._miss_deadlines()

    def _deadlines(self) -> dict[Any, float]:
        """The deadline of what is under way; stages wait for each other, so one answer counts for all."""
        return {reference: it.deadline_s if isinstance(it, Scoring | Restart) else self._heard_s + self._deadline_s
                for reference, it in self._pending.items()}

    def _miss_deadlines(self) -> None:
        for reference, deadline_s in self._deadlines().items():
            if now_s() < deadline_s or ray.wait([reference], timeout=0)[0]:  # it is there, and only waits for its turn
                continue
            pending = self._pending.pop(reference)
            if not isinstance(pending, Scoring | Restart):
                raise RunFailed(f"no stage has answered for {self._deadline_s:g} s")
            self._heard_of_evaluator(self._evaluations.late(pending, self._now()))

    def take_lines(self) -> list[Line]:
        """What happened since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def _now(self) -> float:
        return now_s() - self._began_s

    # ---- what arrives ----

    def _arrived(self, reference: Any) -> None:
        pending = self._pending.pop(reference)
        if isinstance(pending, Scoring | Restart):
            if isinstance(pending, Scoring) and cast("_Update", pending.update).is_last:
                pending.update.at = self.last_at
            self._heard_of_evaluator(self._evaluations.arrived(reference, pending, self._now()))
            return
        try:
            result = ray.get(reference)
        except RayActorError as error:
            raise RunFailed(f"an actor was lost, and its pipeline cannot go on without it: {error}") from error
        except RayError as error:
            raise RunFailed(f"{_who(pending, self._plan)}: {reason(error)}") from error
        match pending:
            case _Step():
                self._stepped(pending, *result)
            case _Update():
                self.last_at = self._now()
                if pending.marks:
                    self._evaluate(pending)

    def _heard_of_evaluator(self, lines: list[Line]) -> None:
        self.lines += lines
        self._pending |= self._evaluations.next()
        if any(isinstance(line, Evaluation) and not isfinite(line.loss) for line in lines):
            self._end("diverged")

    def _stepped(self, step: _Step, loss: float, busy_s: float) -> None:
        if self.status:
            return
        module, worker = step.stage[1], self._workers[step.stage]
        push = (worker.name, step.batch - 1)
        self._gradients[push] = (step.stage[0], step.gradient)
        report: dict[str, Any] = {"delay_ticks": self._pipelines.schedule.delay(module)}
        if self._plan.rule.weights == "stash":
            report["forward_version"] = step.forward_version
        if module == self._plan.rule.modules:
            report["loss"] = loss
        self._handle(Pushed(at=self._now(), worker=worker.name, clock=push[1], base=step.version, samples=self._size,
                            busy_s=busy_s), report)
        if not isfinite(loss):
            last = self._plan.rule.modules
            self._evaluate(_Update(last, self._modules.roster.version, self._progress, (self._progress,), self._means()))
            self._end("diverged")
        self._leave_if_drained()

    def _leave_if_drained(self) -> None:
        """Who has nothing left to do leaves: its module's paradigm would wait for it."""
        if not self._pipelines.is_closed:
            return
        under_way = {pending.stage for pending in self._pending.values() if isinstance(pending, _Step)}
        for stage, worker in self._workers.items():
            there = worker.name in self._modules.machines[stage[1]].roster.live
            if there and stage not in under_way and self._pipelines.is_drained(stage) and not self.status:
                self._handle(Left(at=self._now(), worker=worker.name), {"why": DONE, "done": True})
        if not self.status and not any(machine.roster.live for machine in self._modules.machines.values()):
            self._end("finished")
            last = self._plan.rule.modules
            self._evaluate(_Update(last, self._modules.roster.version, self._progress, self._due(1.0), self._means()))

    def _end(self, status: str) -> None:
        """Training is over: what the stages still compute is not waited for."""
        self.status = status
        self._pending = {ref: it for ref, it in self._pending.items() if not isinstance(it, _Step)}

    # ---- passes ----

    def _submit(self, passes: list[Pass]) -> None:
        queue = list(passes)
        while queue:
            one = queue.pop(0)
            self._call(one)
            queue += self._pipelines.done(one)

    def _call(self, one: Pass) -> None:
        (group, module), worker = one.stage, self._workers[one.stage]
        last = module == self._plan.rule.modules
        arrived = [self._mail.pop(one)] if one in self._mail else []
        if one.direction == "forward":
            worker.versions[one.batch] = worker.version
            if last:  # it runs with the backward pass
                self._mail |= {Pass(one.stage, "backward", one.batch): ref for ref in arrived}
                return
            y = worker.actor.forward.remote(one.batch, self._befallen(one), *self._weights_for(worker), *arrived)
            self._mail[Pass((group, module + 1), "forward", one.batch)] = y
            return
        gradient, dx, report = worker.actor.backward.remote(one.batch, self._befallen(one), *self._weights_for(worker),
                                                            *arrived)
        if module > 1:
            self._mail[Pass((group, module - 1), "backward", one.batch)] = dx
        self._pending[report] = _Step(one.stage, one.batch, gradient, worker.version, worker.versions.pop(one.batch))

    def _weights_for(self, worker: _Worker) -> list[Any]:
        weights, worker.weights = worker.weights, None
        return [] if weights is None else [weights]

    def _befallen(self, one: Pass) -> tuple[float, float]:
        if not self._plan.experiment.troubles:
            return UNHARMED.factor, UNHARMED.latency_s
        suffered = self.troubles.befall(self._plan.slots[one.stage], one.batch - 1, self._now())
        return suffered.factor, suffered.latency_s

    # ---- what the machines decide ----

    def _handle(self, event: Event, report: dict[str, Any]) -> None:
        entry = answered(self._modules, event, report)
        self.lines.append(entry)
        for decision in entry.decisions:
            match decision:
                case Apply():
                    self._apply(decision)
                case Release():
                    self._release(decision)
                case Drop(push=push):
                    self._gradients.pop(push, None)

    def _apply(self, decision: Apply) -> None:
        module = WorkerId(decision.pushes[0][0]).stage
        roster = self._modules.machines[module].roster
        taken = [self._gradients.pop(push) for push in decision.pushes]
        workers = [worker if worker in roster.live else None for worker, _ in decision.pushes]
        before = (roster.samples_applied - len(taken) * self._size) / self._plan.workload_samples
        fields = [[group for group, _ in taken], workers, [self._size] * len(taken), before, decision.phase,
                  decision.version]
        ack = self._servers[module].apply.remote(fields, *(gradient for _, gradient in taken))
        self._published = {key: ref for key, ref in self._published.items() if key[0] != module}
        marks = self._due(self._progress, at_end=False) if module == self._plan.rule.modules else ()
        self._pending[ack] = _Update(module, decision.version, self._progress, marks, self._means() if marks else None)

    def _release(self, decision: Release) -> None:
        stage = self._stages[decision.worker]
        worker, (group, module) = self._workers[stage], stage
        worker.version = decision.version
        if decision.pull:
            key = (module, group if self._plan.rule.mixes_locally else 0)
            if key not in self._published:
                self._published[key] = self._servers[module].publish.remote(group)
            worker.weights = self._published[key]
        self._submit(self._pipelines.released(stage))

    # ---- evaluation ----

    @property
    def _progress(self) -> float:
        progress = self._modules.roster.progress
        assert progress is not None, "a run without a workload"
        return min(progress, 1.0)

    def _due(self, progress: float, *, at_end: bool = True) -> tuple[float, ...]:
        """Marks that progress has passed; the last one only once all is done."""
        return self._evaluations.take_marks(progress if at_end else min(progress, nextafter(1, 0)))

    def _means(self) -> Parts:
        return tuple(server.mean.remote() for server in self._servers.values())

    def _evaluate(self, update: _Update) -> None:
        if update.marks:
            update.at, update.is_last = self._now(), bool(self.status)
            self._evaluations.add(update)
            self._pending |= self._evaluations.next()


def _who(pending: _Step | _Update, plan: DecoupledRunPlan) -> str:
    if isinstance(pending, _Step):
        return f"stage {plan.names[pending.stage]}, or one that it waits for"
    return f"server of module {pending.module}"
