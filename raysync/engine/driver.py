"""The loop that carries out a machine's decisions, for every backend and every topology."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from math import inf, nextafter
from typing import assert_never

from msgspec import convert
from msgspec.structs import replace

from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
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
from raysync.core.events import Event, Pushed, TimerFired
from raysync.core.finding import Finding
from raysync.core.journal import NO_REPORT, Ended, Entry, Evaluation, Line, Report
from raysync.core.machine import line_in_paradigm
from raysync.core.metrics import ACCURACY, PrimaryMetric
from raysync.core.structs import to_native
from raysync.emulation.fault_plan import FaultPlan
from raysync.engine.backend import Backend
from raysync.engine.checkpoint_state import OUTLIVED_S
from raysync.engine.checkpointing import Checkpointer, ConsistentCut
from raysync.engine.error_text import reason
from raysync.engine.evaluations import Evaluations
from raysync.engine.failure_detection import FailureDetector
from raysync.engine.inflight import InFlight
from raysync.engine.lines import Lines
from raysync.engine.members import Members
from raysync.engine.messages import StepReport
from raysync.engine.stopping import EarlyEnd, Stopping, divergence
from raysync.engine.topology import (
    Step,
    Topology,
    in_order_of_slots,
    pulls_next,
    roster_of,
    server_for,
)
from raysync.errors import IllegalDecision, RunFailed, RunLost

# something happens      a call is done or has failed, or a time has come (`Backend.wait`)
# it becomes an event    Joined, Left, Pushed or TimerFired; the machine answers with decisions
# decisions are calls    the topology issues them, and returns the steps in flight
#
# Losses:
#
# * A push is a gradient's arrival at the server, not the end of its computation. So a lost node
#   takes no known push away: a gradient that it still held never arrives, and its worker has Left.
# * A frozen actor is never reported, so every step has a deadline: see `failure_detection`.
# * A failed update ends the run with its own error. Every update and publication names its version,
#   and a server that missed one refuses every later call: no model misses an update unnoticed.
# * A lost worker comes back as its slot's next life, as a newcomer; its predecessor's computations
#   are not repeated: see `members`. An error of its own code ends the run: it would come again.
# * An evaluator only measures: see `evaluations`.
# * A lost server comes back with its weights while the others continue: see `parameter_server`.
# * The final loss of a server, of a pipeline's stage, or of this driver's process ends the driver.
#   From a checkpoint (see `checkpointing`) the run resumes in new processes.

# The progress of pipelines stays below 1 until they are empty: the last evaluation, at 1, is of the
# final model.
BEFORE_THE_END = nextafter(1, 0)

# A run says that its paradigm keeps pushes if more than both are buffered at its end: so many for
# each worker, and such a share of all.
BUFFERED_EACH, BUFFERED_SHARE = 2, 0.05


class Driver:
    """Passes what happens in a run to its machine, and carries out the decisions.

    After `start` everything happens in callbacks of `Backend.wait`, in one thread; only `stop` may
    be called from another.
    """

    has_begun = False
    is_reenacted = False  # it repeats what came before a checkpoint, so it does not stop early
    # how the training ended; "" until then. Evaluations may be pending even after that.
    status = ""
    last_at = 0.0  # when the latest update was sent, in seconds since the run began
    _progress, _version = 0.0, 0  # after the latest Apply

    def __init__(
        self,
        topology: Topology,
        backend: Backend,
        experiment: Experiment,
        faults: FaultPlan,
        marks: Sequence[float],
        primary: PrimaryMetric = ACCURACY,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """
        Args:
            marks: the progress at which to evaluate, rising; none if nothing is trained.
            primary: the metric of the best model.
            checkpoint: the run resumes from it: the backend has `Checkpoint.workers`, and the
                servers have their files.
        """
        self.topology, self.backend, self.faults = topology, backend, faults
        self._experiment, self._former = experiment, checkpoint
        self._is_evaluated, self._is_pipelined = bool(marks), topology.is_pipelined
        self._last_server = topology.servers[-1]
        self._has_said_idle = False  # that a weight has no effect
        self._workload_samples = topology.rosters[-1].workload_samples or inf
        self._pushed: dict[Push, Step] = {}  # neither applied nor dropped
        self.lines = Lines(backend)
        self.inflight = InFlight(backend, topology)
        self.members = Members(self, experiment)
        self._failures = FailureDetector(
            backend=backend,
            topology=topology,
            experiment=experiment,
            inflight=self.inflight,
            members=self.members,
        )
        self.inflight.attach(self._received, self._failures.step_failed)
        self._stopping = Stopping(experiment, primary, self._workload_samples)
        self._evaluations = Evaluations(
            backend=backend,
            servers=topology.servers,
            experiment=experiment,
            marks=marks,
            lines=self.lines,
            evaluated=self._evaluated,
            primary=primary,
        )
        self.models = self._evaluations.models.saved  # there before the last report
        self.checkpointer = Checkpointer(
            backend=backend,
            servers=topology.servers,
            experiment=experiment,
            lines=self.lines,
            cut=self._cut,
            former=checkpoint,
        )
        # complete, but not reported yet; the journal up to them has been reported
        self.checkpoints = self.checkpointer.done
        for server in topology.servers:
            server.attach(self.lines, self.inflight.issue_again)

    def run(self) -> Iterator[list[Line]]:
        """Train to the end of the workload, and yield the journal's lines; none is a sign of life.

        The last line is an `Ended`, even if the run fails.

        Raises:
            RunLost: a process was lost that the run needs, but there is a checkpoint: so the
                journal is left open.
        """
        error = ""
        try:
            if not self.has_begun:
                self.start()
            wait, is_report_due = self.backend.wait, self.backend.is_report_due
            while self.is_running:
                wait()
                if self._stopping.is_requested and self._stop_after_checkpoint():
                    break
                if is_report_due(len(self.lines)):
                    yield self.lines.take()
        except RunLost as loss:
            if self.checkpointer.exists:
                # so the journal tells when
                self.lines.remark("The run goes back to its newest checkpoint.", loss.lost)
                yield self.lines.take()
                raise
            error = str(loss)
        except RunFailed as failure:
            error = str(failure)
        # the user's paradigm, or a bug of ours: the journal must still be closed
        except Exception as bug:
            logging.getLogger(__name__).exception("the run broke")
            error = reason(bug)
        status, why = ("failed", error) if error else (self.status, self._stopping.why_diverged)
        early = EarlyEnd() if error else self._stopping.early
        self.lines.append(
            Ended(
                status,
                self._ended_at,
                why,
                faults_without_effect=self.faults.without_effect(),
                by=early.by,
                reached=early.reached,
            )
        )
        yield self.lines.take()

    @property
    def _ended_at(self) -> float:
        """The end of the last update, or of a later evaluation, in seconds since the run began."""
        servers = self.topology.servers
        updated_at = max(self.last_at, *(server.finished_at for server in servers))
        return max(updated_at, self._evaluations.published_at)

    def stop(self) -> None:
        """Let the run end as `stopped`, after a last checkpoint if it takes any. Thread-safe."""
        self._stopping.is_requested = True

    def _stop_after_checkpoint(self) -> bool:
        """Request the last checkpoint; return whether it is done, or cannot be taken."""
        self.checkpointer.take_last()
        if self.checkpointer.is_pending:
            return False
        self.status, self._stopping.early = "stopped", EarlyEnd("signal")
        return True

    def start(self, stops_from: float = 0.0) -> None:
        """Evaluate the initial model, and let every worker join; or resume from a checkpoint.

        `stop.after_s` does not end the run before `stops_from`, in seconds since the run began.
        """
        self.has_begun = True
        now = self.backend.now
        if self._former is None:
            self._evaluate(0.0)
        self.members.schedule_crashes(-1.0 if self._former is None else now)
        self.backend.processes.watch_nodes(self._drain, self._lose_node)
        stop = self._experiment.stop
        if stop is not None and stop.after_s is not None:
            early = EarlyEnd("stop.after_s", f"{stop.after_s:g} s are over")
            self.backend.schedule(max(now, stop.after_s, stops_from), self._stop, early)
        if self._former is None:
            for worker in self.topology.workers:
                self.members.join(worker)
        else:
            self._resume(self._former)
        self.checkpointer.begin(self._progress)

    # ---- events and decisions ----

    def _received(self, step: Step, answer: StepReport) -> None:
        """Handle the push of a step."""
        release, arriving = step.release, step.arriving
        worker, clock = release.worker, release.clock
        if release.pull:
            step.server.done(release.version)
        self._pushed[worker, clock] = step
        self.members.unproven.pop(worker, None)  # its start succeeded
        report = step.report
        if answer.loss is not None:
            report = replace(report, loss=answer.loss)
        computed_at = None if arriving is None else arriving.computed_at
        base, samples = release.version, step.samples
        event = Pushed(
            at=self.backend.now,
            worker=worker,
            clock=clock,
            base=base,
            samples=samples,
            busy_s=answer.busy_s,
            computed_at=computed_at,
            steps=step.steps,
        )
        if answer.not_finite is not None:
            self._diverges(event, report, answer.not_finite)
            return
        self.handle(event, report)
        if self._is_pipelined:
            self.members.dismiss()

    def handle(self, event: Event, report: Report) -> None:
        """Pass an event to the machine, and carry its decisions out.

        Raises:
            RunFailed: the paradigm's decision is impossible.
            Exception: any other error of the machine, with a note of the event and the line.
        """
        try:
            decisions = tuple(self.topology.machine.handle(event))
        except IllegalDecision as error:
            raise RunFailed(f"{error} It answered {event}") from error
        except Exception as error:
            error.add_note(f"at {event}, in {line_in_paradigm(error)}")
            raise
        self.lines.append(Entry(event, decisions, report))
        for index in range(len(decisions)):
            self._carry_out(decisions, index)
            if self.status:
                return

    def _carry_out(self, decisions: Sequence[Decision], index: int) -> None:
        match decision := decisions[index]:
            case Release():
                self.release(decision)
            case Apply():
                self._apply(decision, decisions, index)
            case Hold() | Note() | Suspend() | Restore():
                pass  # done by the roster: no call
            case Switch():
                self.backend.transit.enter_phase(decision.to)
            case Drop():
                self._pushed.pop(decision.push, None)
            case SetTimer():
                if decision.at is not None:
                    timer = decision.key, decision.at
                    self.backend.schedule(max(decision.at, self.backend.now), self._fire, timer)
            case _:
                assert_never(decision)

    def _apply(self, decision: Apply, decisions: Sequence[Decision], index: int) -> None:
        apply = in_order_of_slots(decision) if self.backend.computes else decision
        steps, samples = [], apply.samples_before
        for push in apply.pushes:
            step = self._pushed.pop(push)
            steps.append(step)
            samples += step.samples
        if apply.weights and not self._has_said_idle:
            self._say_if_idle(apply, steps)
        self.topology.applied(apply, steps, pulls_next(decisions, index))
        if steps[0].server is not self._last_server:
            return  # the last stage's progress is the model's
        self._version = decision.version
        self.last_at = self.backend.now
        self._progress = progress = samples / self._workload_samples
        if self._is_pipelined:
            progress = min(progress, BEFORE_THE_END)
        if progress >= self._evaluations.next_mark:
            self._evaluate(progress)
        if progress >= self.checkpointer.next_progress:
            self.checkpointer.reached(progress)
        if progress >= 1:
            self._end("finished")

    def _say_if_idle(self, apply: Apply, steps: Sequence[Step]) -> None:
        """Say once that the only weight above 0 has no effect in a mean."""
        is_mean = self._experiment.update.combine == "mean"
        [(weight, step), *others] = (
            pair for pair in zip(apply.weights, steps, strict=True) if pair[0]
        )
        if is_mean and not others and weight not in (1, step.samples):
            self._has_said_idle = True
            self.lines.remark(
                f"Update {apply.version} counts one push, with weight {weight:g}, which has no"
                " effect: update.combine: mean normalises weights. With update: {combine: sum,"
                " lr_scaling: none} they are factors."
            )

    def release(self, release: Release) -> None:
        """Let a worker begin its next iteration, if it may."""
        if self.members.postpone(release):
            return
        for step in self.topology.released(release):
            if not self._failures.is_check_scheduled:
                self._failures.schedule_check()
            self.inflight.issue(step)

    def _fire(self, timer: tuple[str, float]) -> None:
        key, at = timer
        if not self.status and self.topology.machine.timers.get(key) == at:
            self.handle(TimerFired(at=self.backend.now, key=key), NO_REPORT)
            self.members.dismiss()

    # ---- evaluations and the end ----

    def _evaluate(self, progress: float) -> None:
        """Evaluate the present model for the marks up to that progress."""
        marks = self._evaluations.pop_marks(progress)
        self._evaluations.add(self._version, self._progress, marks)

    def _evaluated(self, evaluations: list[Evaluation]) -> None:
        if self._stopping.detect_divergence(evaluations):
            self._end("diverged")
        for evaluation in evaluations:
            if early := self._stopping.reason_to_stop(evaluation):
                self._stop(early)

    def _diverges(self, event: Pushed, report: Report, not_finite: Finding) -> None:
        """End the run with this push, after an evaluation of the present model."""
        self.handle(event, replace(report, not_finite=not_finite))
        self._stopping.why_diverged = divergence(event, not_finite)
        if not self.status:
            self._evaluations.add(self._version, self._progress, (self._progress,))
        self._end("diverged")

    def _stop(self, early: EarlyEnd) -> None:
        """End the run before its workload is done, after a last evaluation."""
        if self.status or self.is_reenacted:
            return
        self._stopping.early = early
        self.lines.remark(f"The run stops early: {early.why}.")
        if self._is_evaluated:
            self._evaluations.add(self._version, self._progress, (self._progress,), is_last=True)
        self._end("finished")

    def finish(self) -> None:
        """End the run: every worker has left, and no work remains."""
        self._evaluate(1.0)
        self._end("finished")

    def _end(self, status: str) -> None:
        """End the training, without waiting for steps in flight or returning workers."""
        if not self.status:
            for server in self.topology.servers:
                server.finish()
            self._say_if_buffered()
        self.status = status
        self.inflight.clear()
        self.members.expect_nobody()
        self._evaluations.save_models()

    def _say_if_buffered(self) -> None:
        """Say that many pushes were neither applied nor dropped."""
        rosters = self.topology.rosters
        buffered = sum(len(roster.buffered) for roster in rosters)
        received = sum(roster.received for roster in rosters)
        workers = sum(len(roster.live) for roster in rosters)
        if buffered > max(BUFFERED_EACH * workers, BUFFERED_SHARE * received):
            self.lines.remark(
                f"{buffered} of {received} pushes were neither applied nor dropped: the paradigm"
                " has kept them."
            )

    @property
    def is_running(self) -> bool:
        """Whether training, an evaluation, the saving of a model, or a last update is under way."""
        return (
            not self.status
            or self._evaluations.is_pending
            or any(server.is_finishing for server in self.topology.servers)
        )

    # ---- nodes ----

    def _drain(self, actor: str) -> None:
        """React to the announced loss of a node."""
        # A worker that can be spared leaves in order. A checkpoint keeps the state of a server, and
        # of the driver, which runs beside one.
        is_server = any(actor == server.actor for server in self.topology.servers)
        if not is_server and not self._is_pipelined:
            self.members.drain(actor)
        elif self._experiment.checkpoint is not None and not self.status:
            self.lines.remark(f"The node of {actor} is drained: preemption. A checkpoint is taken.")
            self.checkpointer.request()

    def _lose_node(self, node: str, actors: Sequence[str]) -> None:
        """Remark the loss of a node; its actors' calls fail by themselves."""
        if not self.status:
            self.lines.remark(
                f"Node {node} is gone, with {', '.join(actors)}. Nodes are not restarted:"
                " restart it, or start another."
            )

    # ---- checkpoints ----

    def _cut(self) -> ConsistentCut | None:
        """Write the state down between two events; None: not now, or the run is over."""
        if self.status:
            return None
        under_way = [
            worker
            for roster in self.topology.rosters
            for worker in (*roster.computing, *roster.outdated)
        ]
        releases = {step.release.worker: step.release for step in self.inflight}
        releases |= self.members.held_back
        # A released worker that is about to crash has no step: not now. (But a stage may be
        # released before there is a pass that ends its iteration.)
        if len(releases) != len(under_way) and not self._is_pipelined:
            self.checkpointer.request()
            return None
        return self._cut_with({worker: releases.get(worker) for worker in under_way})

    def _cut_with(self, releases: Mapping[str, Release | None]) -> ConsistentCut:
        """Write the state down, with the known releases of computing workers."""
        cut = ConsistentCut()
        for push, step in self._pushed.items():
            cut.keep(_push_name(push), step.server, step.call)
            if step.weights is not None:
                cut.keep(_base_name(push), step.server, step.weights)
        state = {
            **self.members.state(),
            "topology": self.topology.state(cut),
            "evaluations": self._evaluations.state(cut),
            "early_stop": self._stopping.state(),
            "faults": self.faults.state(),
            "pushed": [
                [to_native(step.release), step.samples, step.weights is not None]
                for step in self._pushed.values()
            ],
            "releases": {
                worker: [release and release.batch_size, release and release.steps]
                for worker, release in releases.items()
            },
            "last_at": self.last_at,
            "progress": self._progress,
            "version": self._version,
        }
        cut.state = json.loads(json.dumps(state))  # a copy
        return cut

    def _resume(self, former: Checkpoint) -> None:
        """Restore the state of a checkpoint; iterations in flight are computed again."""
        state = former.state
        self.last_at = state["last_at"]
        self._progress, self._version = state["progress"], state["version"]
        self.faults.load_state(state["faults"])
        self.faults.skip_kills(state.get(OUTLIVED_S, -1.0))
        self._stopping.load_state(state["early_stop"])
        for release, samples, has_base in state["pushed"]:
            push = release["worker"], release["clock"]
            server = server_for(self.topology, push[0])
            base = server.saved(_base_name(push)) if has_base else None
            call = server.saved(_push_name(push))
            self._pushed[push] = Step(
                convert(release, Release), samples, call, server, base, NO_REPORT
            )
        self.topology.load_state(former, self._pushed)
        self._evaluations.load_state(state["evaluations"])
        for timer in self.topology.machine.timers.items():
            self.backend.schedule(max(timer[1], self.backend.now), self._fire, timer)
        self.members.load_state(state)
        for worker, (batch_size, steps) in state["releases"].items():
            member = roster_of(self.topology, worker).live[worker]
            self.release(
                Release(worker, member.clock, member.version, batch_size=batch_size, steps=steps)
            )
        self.members.resume(state)


def _push_name(push: Push) -> str:
    """Name the gradient of a push in a checkpoint."""
    worker, clock = push
    return f"push {worker} {clock}"


def _base_name(push: Push) -> str:
    """Name the weights that a push was computed on, in a checkpoint."""
    worker, clock = push
    return f"base {worker} {clock}"
