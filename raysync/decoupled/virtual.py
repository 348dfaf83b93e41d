"""The virtual engine of decoupled runs: stages that compute at once, on a virtual clock.

    Release(stage)   -> the weights of its module reach it (network), then it may begin its next iteration
    a pass begins    once its stage is free, has the weights, and its input has come from the neighbour
    a backward pass  ends with the stage's Pushed, and sends the gradient on to the stage before
    Apply(...)       -> the module's server makes an update, as in `raysync.virtual`

A pass takes its part of the step of the whole network on the stage's device: the module's share of the operations, a third
of it forward and two thirds backward (`weights: latest` runs forward again first). What goes from stage to stage goes over
both workers' links, one way; the servers are their modules' own.

A stage whose group has no batch left leaves, so that nobody waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from torch import Tensor

from raysync.agenda import Agenda
from raysync.core.decisions import Apply, Drop, Push, Release, SetTimer
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.ids import WorkerId, worker_id
from raysync.core.journal import Evaluation, Line, answered
from raysync.decoupled.learner import DecoupledLearner
from raysync.decoupled.pipelines import Pass, Pipelines, Stage
from raysync.decoupled.plan import DecoupledPlan
from raysync.emulation import one_way_s, step_duration_s
from raysync.troubles import UNHARMED, Troubles
from raysync.virtual.network import Network, Way
from raysync.virtual.running import REPORT_EVERY, to_its_end

DONE = "its group has no batch left"
"""Why a stage leaves."""

FORWARD = 1 / 3
"""Of the operations of a step; backward has twice as many."""


@dataclass(slots=True, eq=False)
class _Replica:
    """One stage at work."""

    stage: Stage
    worker: str
    way: Way
    queue: deque[Pass] = field(default_factory=deque)
    running: bool = False
    weights_at: float = 0.0
    released_version: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    """Batch in flight -> version of the weights of its forward pass."""
    busy_s: float = 0.0
    """Since its last push."""


@dataclass(slots=True)
class _Step:
    """A push, as the network has it."""

    group: int
    way: Way
    latency_s: float
    samples: int


def run_virtually(plan: DecoupledPlan) -> Iterator[list[Line]]:
    """Train in this process, and yield what happens, in order; the last line is an `Ended`."""
    return to_its_end(_Run(plan))


class _Run:
    """The state of one run."""

    def __init__(self, plan: DecoupledPlan) -> None:
        task, rule = plan.task, plan.rule
        experiment = task.experiment
        self.lines: list[Line] = []
        self.status = ""
        self.troubles = Troubles(experiment)
        self._plan, self._experiment = plan, experiment
        self._modules = rule.machine(task.workload_samples)
        self._pipelines = Pipelines(rule.groups, rule.modules, plan.batches, rule.locked)
        self._learner = DecoupledLearner(plan) if experiment.timing == "with-gradients" else None
        self._networks = {module: self._network(module) for module in plan.shares}
        self._replicas = {stage: _Replica(stage, worker_id(plan.name(stage), 1), self._networks[stage[1]].ways[slot])
                          for stage, slot in plan.slots.items()}
        self._stages = {replica.worker: stage for stage, replica in self._replicas.items()}
        self._arrives_at: dict[Pass, float] = {}
        """Pass -> when its input is there."""
        self._steps: dict[Push, _Step] = {}
        self._marks = list(reversed(experiment.evaluation.progress_marks()))
        self._agenda = Agenda()

    def _network(self, module: int) -> Network:
        groups = {slot: self._plan.group(stage) for stage, slot in self._plan.slots.items() if stage[1] == module}
        return Network(self._experiment, groups, self._plan.vector_bytes[module])

    @property
    def last_at(self) -> float:
        """Seconds since the run began: the latest publication."""
        return max(network.updated_at for network in self._networks.values())

    def start(self) -> None:
        """Evaluate the initial network and let every stage join."""
        self._evaluate()
        for replica in self._replicas.values():
            self._handle(Joined(at=0.0, worker=replica.worker), {})

    def advance(self) -> None:
        """What happens next, to the end of the run or until there is something to report."""
        while not self.status and len(self.lines) < REPORT_EVERY:
            self._agenda.advance()

    def take_lines(self) -> list[Line]:
        """What happened since the last call."""
        lines, self.lines = self.lines, []
        return lines

    # ---- passes ----

    def _begin_iteration(self, arrived: tuple[_Replica, Tensor | None, int]) -> None:
        """The weights of its release are there."""
        replica, weights, version = arrived
        replica.weights_at, replica.released_version = self._agenda.now, version
        if self._learner is not None and weights is not None:
            self._learner.read(replica.stage, weights)
        self._queue(self._pipelines.released(replica.stage))
        self._leave_if_drained()

    def _queue(self, passes: list[Pass]) -> None:
        for one in passes:
            self._replicas[one.stage].queue.append(one)
        for stage in dict.fromkeys(one.stage for one in passes):
            self._begin_pass(self._replicas[stage])

    def _begin_pass(self, replica: _Replica) -> None:
        if replica.running or not replica.queue:
            return
        one = replica.queue.popleft()
        replica.running = True
        begin = max(self._agenda.now, self._arrives_at.pop(one, 0.0))
        slot, clock = self._plan.slots[one.stage], one.batch - 1
        suffered = self.troubles.befall(slot, clock, begin) if self._experiment.troubles else UNHARMED
        seconds = step_duration_s(self._plan.group(one.stage), 0.0, self._experiment.seed, slot, clock, suffered.factor,
                                  self._plan.shares[one.stage[1]] * self._part(one))
        if one.direction == "forward":
            replica.versions[one.batch] = replica.released_version
        replica.busy_s += seconds
        self._agenda.schedule(begin + seconds, self._end_pass, (replica, one, suffered.latency_s))

    def _part(self, one: Pass) -> float:
        """Of the module's part of a step."""
        if one.direction == "forward":
            return FORWARD
        again = self._plan.rule.weights == "latest" and one.stage[1] < self._plan.rule.modules
        return 1 - FORWARD + (FORWARD if again else 0.0)

    def _end_pass(self, what: tuple[_Replica, Pass, float]) -> None:
        replica, one, added_s = what
        replica.running = False
        push = (replica.worker, self._clock(one)) if one.direction == "backward" else None
        loss = self._learner.run(one, push) if self._learner is not None else None
        self._send_on(one, added_s)
        self._queue(self._pipelines.done(one))
        if push is not None:
            self._push(replica, one, push, loss, added_s)
        self._begin_pass(replica)

    def _clock(self, one: Pass) -> int:
        """A stage's iterations end with batches 1, 2, ...; clocks are counted from 0."""
        return one.batch - 1

    def _send_on(self, one: Pass, added_s: float) -> None:
        group, module = one.stage
        to = (group, module + (1 if one.direction == "forward" else -1))
        if to not in self._replicas:
            return
        size = round(self._plan.output_bytes[min(module, to[1])] * self._experiment.batch_size)
        links = [self._experiment.network.link, self._plan.group(one.stage).link, self._plan.group(to).link]
        latency_s = sum(link.latency_s for link in links) + added_s
        transfer_s = max(one_way_s(link, size) - link.latency_s for link in links)
        self._arrives_at[Pass(to, one.direction, one.batch)] = self._agenda.now + latency_s + transfer_s

    def _push(self, replica: _Replica, one: Pass, push: Push, loss: float | None, added_s: float) -> None:
        group, module = one.stage
        size = self._experiment.batch_size
        self._steps[push] = _Step(group, replica.way, added_s, size)
        report: dict[str, Any] = {"delay_ticks": self._pipelines.schedule.delay(module)}
        forward_version = replica.versions.pop(one.batch)
        if self._plan.rule.weights == "stash":
            report["forward_version"] = forward_version
        if loss is not None:
            report["loss"] = loss
        busy_s, replica.busy_s = replica.busy_s, 0.0
        self._handle(Pushed(at=self._agenda.now, worker=replica.worker, clock=push[1], base=replica.released_version,
                            samples=size, busy_s=busy_s), report)
        if loss is not None and not isfinite(loss):
            self._evaluate(self._progress)
            self.status = "diverged"
        self._leave_if_drained()

    def _leave_if_drained(self) -> None:
        """Who has nothing left to do leaves: its module's paradigm would wait for it."""
        if not self._pipelines.is_closed:
            return
        for stage, replica in list(self._replicas.items()):
            members = self._modules.machines[stage[1]].roster.live
            if replica.worker in members and self._pipelines.is_drained(stage) and not self.status:
                self._handle(Left(at=self._agenda.now, worker=replica.worker), {"why": DONE, "done": True})
        if not self.status and not any(machine.roster.live for machine in self._modules.machines.values()):
            self.status = "finished"
            self._evaluate(at_end=True)  # may find that it diverged

    # ---- what the machines decide ----

    def _fire(self, timer: tuple[str, float]) -> None:
        key, at = timer
        if self._modules.timers.get(key) == at:
            self._handle(TimerFired(at=self._agenda.now, key=key), {})

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
                    self._steps.pop(push, None)
                    if self._learner is not None:
                        self._learner.drop(push)
                case SetTimer(key=key, at=at) if at is not None:
                    self._agenda.schedule(max(at, self._agenda.now), self._fire, (key, at))

    def _apply(self, decision: Apply) -> None:
        module = WorkerId(decision.pushes[0][0]).stage
        roster = self._modules.machines[module].roster
        steps = [self._steps.pop(push) for push in decision.pushes]
        done = roster.samples_applied - sum(step.samples for step in steps)  # the roster has counted them already
        if self._learner is not None:
            pushes = [(step.group, push) for step, push in zip(steps, decision.pushes, strict=True)]
            self._learner.apply(module, pushes, roster.live, done / self._plan.task.workload_samples, decision.phase)
        self._networks[module].update(steps, self._agenda.now)
        if module == self._plan.rule.modules:
            self._evaluate()

    def _release(self, decision: Release) -> None:
        stage = self._stages[decision.worker]
        replica, network = self._replicas[stage], self._networks[stage[1]]
        begin = network.download(replica.way, self._agenda.now, 0.0) if decision.pull else self._agenda.now
        weights = self._learner.pull(stage) if self._learner is not None and decision.pull else None
        self._agenda.schedule(begin, self._begin_iteration, (replica, weights, decision.version))

    @property
    def _progress(self) -> float:
        progress = self._modules.roster.progress
        assert progress is not None, "a run without a workload"
        return progress

    def _evaluate(self, *marks: float, at_end: bool = False) -> None:
        """The network as it now is, for the marks that progress has passed (and others); for the last one at the end."""
        due, progress = list(marks), min(self._progress, 1.0)
        while self._marks and self._marks[-1] <= progress and (self._marks[-1] < 1 or at_end):
            due.append(self._marks.pop())
        if self._learner is None or not due:
            return
        accuracy, loss = self._learner.evaluate(on_all=1 in due)
        for mark in due:
            self.lines.append(Evaluation(mark=mark, progress=progress, version=self._modules.roster.version,
                                         at=self.last_at, accuracy=accuracy, loss=loss))
        if not isfinite(loss):
            self.status = "diverged"
