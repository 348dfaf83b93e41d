"""The ways to spread a model over workers: which calls a decision means.

DataParallel    every worker has the whole model, one server (or its shards) applies
Pipelined       the model is cut into stages, each with a server: `raysync.decoupled`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from raysync.config import Experiment, WorkerGroup
from raysync.core.decisions import Apply, Decision, Push, Release
from raysync.core.events import Event
from raysync.core.ids import WorkerId, worker_id
from raysync.core.journal import NO_REPORT, Report
from raysync.core.machine import Machine
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster
from raysync.emulation.fault_plan import FaultPlan
from raysync.emulation.step_time import KnownSteps
from raysync.engine.backend import Backend, Call, Value
from raysync.engine.checkpointing import Cut
from raysync.engine.demands import NO_LOCAL_OPTIMIZER
from raysync.engine.messages import LoadWorkerStateCall, RestoreCall, StepCall, WorkerStateCall
from raysync.engine.parameter_server import PUBLISHED, ParameterServer
from raysync.engine.server_log import server_log
from raysync.errors import RunFailed
from raysync.step_fault import NO_FAULT
from raysync.training.server.apply_plan import ApplyPlan

SERVER = "server"
"""The id of the parameter server's actor."""


@dataclass(slots=True)
class Arriving:
    """A gradient on its way to its server."""

    computed_at: float
    """When its upload began, in seconds since the run began."""
    first: Call
    """The first of the calls that bring it."""
    parts: list[Call]
    """Those that are still waited for."""
    held: list[Any] = field(default_factory=list)
    """The values that have arrived. Ray does not evict them while they are held, which is until
    they are applied."""


@dataclass(slots=True, eq=False)
class Step:
    """A worker's iteration under way, and later its push."""

    release: Release
    """The decision that began it."""
    samples: int
    """The samples of all its batches together."""
    call: Call
    """It ends the iteration, and stands for the gradient. Its answer is a `StepReport`."""
    server: ParameterServer
    """The server that the gradient is for."""
    weights: Value
    """The weights that it computes on; only where delays are compensated."""
    report: Report
    """Further entries for the journal's line of the push."""
    steps: int = 1
    """The optimizer steps of the iteration, each on a batch."""
    arriving: Arriving | None = None
    """The delivery of its gradient, where the backend delivers it once the call has answered."""

    @property
    def batch_size(self) -> int:
        """The samples of each of its batches."""
        return self.samples // self.steps

    def copy(self, call: Call) -> Step:
        """Return a step of the same release that ends with that call; whoever waits for this one
        waits in vain.
        """
        return Step(
            self.release, self.samples, call, self.server, self.weights, self.report, self.steps
        )


class StateMachine(Protocol):
    """A `Machine`, or the machines of several stages."""

    @property
    def timers(self) -> Mapping[str, float]:
        """Key -> the time that the timer is set to."""

    def handle(self, event: Event) -> list[Decision]: ...

    def snapshot(self) -> str: ...


class Topology(Protocol):
    """Translates decisions into calls; the driver does everything else."""

    @property
    def machine(self) -> StateMachine:
        """The state machine that handles events."""

    @property
    def workers(self) -> Sequence[str]:
        """The workers that begin the run, in their order."""

    @property
    def servers(self) -> Sequence[ParameterServer]:
        """The servers, in the order of the stages."""

    @property
    def is_pipelined(self) -> bool:
        """Whether each worker has a part of the model: none can be spared, and a run continues,
        beyond its workload, until all have left.
        """

    @property
    def rosters(self) -> Sequence[Roster]:
        """The rosters, in the order of the stages; the last one has the progress and the version of
        the model.
        """

    def released(self, release: Release) -> Iterable[Step]:
        """Issue the calls of an iteration; return the steps that are then under way."""

    def issued_again(self, step: Step, lost: Collection[Call]) -> Call | None:
        """Issue a step again if it never began, since the weights that it needs are among those
        that were lost and are being made again. Return its call; None: it needs others.
        """

    def applied(self, apply: Apply, steps: Sequence[Step], is_pulled: bool) -> None:
        """Issue an update with the gradients of these pushes.

        Args:
            apply: the decision, with its pushes in the order in which they are combined.
            steps: the steps of its pushes, in that order.
            is_pulled: whether a release pulls the new weights before the next update.
        """

    def left(self, worker: str, why: str) -> None:
        """Forget a worker that is lost, or has no process any more, and is about to leave.

        Raises:
            RunLost: the run cannot go on without it.
        """

    def state(self, cut: Cut) -> dict[str, Any]:
        """Return what a checkpoint needs of it, JSON-native; the cut keeps its values."""

    def load_state(
        self, state: Mapping[str, Any], pushed: Mapping[Push, Step], kept: Mapping[str, bytes]
    ) -> None:
        """Go on from what `state` returned, with new processes; see `Machine.resume`.

        Args:
            state: JSON-native.
            pushed: the pushes that are neither applied nor dropped, in the order of their arrival.
            kept: see `Checkpoint.kept`.
        """

    def leavers(self, under_way: Collection[str]) -> list[str]:
        """Return the members that have nothing left to do, given those with a step under way."""

    def waited_since(self, step: Step) -> float:
        """Return the time, in seconds since the run began, from which the deadline of an answer
        counts: that at which it would be there if only what the experiment says took time. So a
        step that is described as a long one does not count as frozen.
        """

    def suspect(self, step: Step) -> str:
        """Return the worker to blame if the step does not end in time."""


@dataclass(frozen=True, slots=True)
class DataParallelPlan:
    """The parts of a data-parallel run."""

    paradigm: Paradigm
    workload_samples: int
    groups: Mapping[str, WorkerGroup]
    """Slot -> the description of its device."""
    has_buffers: bool
    """Whether the model has buffers, such as the statistics of batch norm: each worker has its
    own."""
    vector_bytes: float = 0.0
    """The size of a gradient, and of the weights."""

    def group(self, slot: str) -> WorkerGroup:
        """Return the description of a worker's device."""
        return self.groups[slot]

    def topology(self, backend: Backend, experiment: Experiment, faults: FaultPlan) -> DataParallel:
        """Return the topology of a run."""
        return DataParallel(backend, self, experiment, faults)


class DataParallel:
    """Every worker has the whole model, and one server applies their gradients.

    Release -> step(worker, weights)               leaves the gradient, reports loss and seconds
    Apply   -> apply(server, gradients)              leaves the weights, if they are published
    """

    is_pipelined = False

    def __init__(
        self, backend: Backend, plan: DataParallelPlan, experiment: Experiment, faults: FaultPlan
    ) -> None:
        self.machine = Machine(plan.paradigm, plan.workload_samples)
        self.roster = self.machine.roster
        self.workers = [str(worker_id(slot, 1)) for slot in experiment.slots()]
        log = server_log(backend, SERVER, experiment, plan.vector_bytes)
        self.server = ParameterServer(backend, SERVER, experiment, log=log)
        self.servers = [self.server]
        self._backend = backend
        self._workload_samples = plan.workload_samples
        self._has_buffers = plan.has_buffers
        self._has_server = not plan.paradigm.collective
        self._batch_sizes = experiment.batch_sizes
        """Slot, and worker once it was released -> the samples of its iteration."""
        self._local_steps = 1 if experiment.local is None else experiment.local.steps
        """The steps of an iteration whose release names none."""
        self._is_local = experiment.local is not None
        self._keeps_worker_state = bool(experiment.kept_by_workers)
        self._faults = faults if experiment.faults else None
        self._known = KnownSteps(plan.groups, experiment, faults.at_step, plan.vector_bytes)
        self._compensates = experiment.update.delay_compensation is not None
        self._keeps_pulled = self._compensates or log is not None
        self._pulled: dict[str, Value] = {}
        """Worker -> the weights of its last pull; kept only if delays are compensated, or if they
        can be lost before the worker has them."""
        self._resumed: dict[str, Value] = {}
        """Worker -> the weights that it counts as having pulled when the run was resumed, until it
        has really pulled some."""
        self._restored: dict[str, Value] = {}
        """Worker -> the vector with its buffers, from when the run was resumed to its first push
        after that."""

    @property
    def rosters(self) -> Sequence[Roster]:
        return (self.roster,)

    def released(self, release: Release) -> Iterable[Step]:
        worker, clock, pulls = release.worker, release.clock, release.pull
        size = release.batch_size or self._batch_sizes.get(worker) or self._size_of(worker)
        steps = release.steps or self._local_steps
        if steps > 1 and not self._is_local and self._backend.computes:
            raise RunFailed(f"{release}: {NO_LOCAL_OPTIMIZER}")
        message = self._step(worker, clock, size, steps)
        base, report = None, NO_REPORT
        if pulls:
            weights = self.server.published or self.server.weights()
            if self._has_server and (late_s := self._backend.late_s(weights)):
                report = Report(server_s=late_s)
            call = self._backend.call(worker, message, (weights,))
            if self._keeps_pulled:
                self._pulled[worker] = weights
        elif worker in self._resumed:
            weights = self._resumed[worker]
            call = self._backend.call(worker, message, (weights,))
        else:
            call = self._backend.call(worker, message)
        if self._compensates:
            base = self._pulled.get(worker)
        if self._resumed:
            self._resumed.pop(worker, None)
            self._restored.pop(worker, None)
        return (Step(release, size * steps, call, self.server, base, report, steps),)

    def issued_again(self, step: Step, lost: Collection[Call]) -> Call | None:
        worker, clock = step.release.worker, step.release.clock
        if (weights := self._pulled.get(worker)) not in lost:
            return None
        if worker in self._restored:
            self._backend.call(worker, RestoreCall(), [self._restored[worker]])
        message = self._step(worker, clock, step.batch_size, step.steps)
        return self._backend.call(worker, message, (weights,))

    def _step(self, worker: str, clock: int, samples: int, steps: int) -> StepCall:
        fault, progress = NO_FAULT, 0.0
        if self._faults is not None:
            fault = self._faults.at_step(WorkerId(worker).slot, clock, self.roster.now)
        if self._is_local:
            progress = self.roster.samples_applied / self._workload_samples
        batch = self.roster.live[worker].batches
        return StepCall(batch, samples, fault=fault, steps=steps, progress=progress)

    def _size_of(self, worker: str) -> int:
        size = self._batch_sizes[worker] = self._batch_sizes[WorkerId(worker).slot]
        return size

    def applied(self, apply: Apply, steps: Sequence[Step], is_pulled: bool) -> None:
        vectors: list[Value] = [step.call for step in steps]
        if self._compensates:
            vectors += [step.weights for step in steps]
        plan = self._plan(apply, steps) if self._backend.computes else None
        self.server.apply(apply, plan, vectors, is_pulled)

    def left(self, worker: str, why: str) -> None:
        """See `Topology.left`: others go on."""
        self._pulled.pop(worker, None)
        self._resumed.pop(worker, None)
        self._restored.pop(worker, None)
        self.server.forget(worker)

    def state(self, cut: Cut) -> dict[str, Any]:
        if self.roster.published < self.roster.version:
            cut.keep(PUBLISHED, self.server, self.server.published)
        live = self.roster.live
        pushers = [worker for worker, member in live.items() if member.base >= 0]
        if self._keeps_worker_state and self._backend.computes:
            cut.workers = {
                worker: self._backend.call(worker, WorkerStateCall(live[worker].batches))
                for worker in pushers
            }
        return {"machine": self.machine.snapshot(), "pushers": pushers}

    def load_state(
        self, state: Mapping[str, Any], pushed: Mapping[Push, Step], kept: Mapping[str, bytes]
    ) -> None:
        self.machine = Machine.restore(state["machine"], self.machine.paradigm)
        self.machine.resume(self._backend.now)
        self.roster = self.machine.roster
        if self._has_buffers and self._backend.computes:
            latest = {worker: step.call for (worker, _), step in pushed.items()}
            for worker in state["pushers"]:  # before the weights: who has these has the buffers
                self._restored[worker] = latest.get(worker) or self.server.statistics(worker)
                self._backend.call(worker, RestoreCall(), [self._restored[worker]])
        for worker, data in kept.items():
            if worker in self.roster.live:
                self._backend.call(worker, LoadWorkerStateCall(bytes(data)))
        self.server.resume(self.roster.version, self.roster.published)
        if self.roster.live:
            self._resumed = dict.fromkeys(self.roster.live, self.server.weights())
        if self._keeps_pulled:
            self._pulled = dict(self._resumed)

    def leavers(self, under_way: Collection[str]) -> list[str]:
        """Return no workers: each has something to do until the run ends."""
        return []

    def waited_since(self, step: Step) -> float:
        at, worker = issued_at(self, step), step.release.worker
        return at + self._known.seconds(
            WorkerId(worker).slot,
            step.release.clock,
            batch=self.roster.live[worker].batches,
            steps=step.steps,
            size=step.batch_size,
            at=at,
        )

    def suspect(self, step: Step) -> str:
        """Return the step's own worker: it waits for no other."""
        return step.release.worker

    def _plan(self, apply: Apply, steps: Sequence[Step]) -> ApplyPlan:
        roster = self.roster
        return apply_plan(
            apply,
            steps,
            roster.live.__contains__,
            self._workload_samples,
            members=len(roster.members),
        )


def roster_of(topology: Topology, worker: str) -> Roster:
    """Return the roster that a worker is in."""
    return topology.rosters[WorkerId(worker).stage - 1]  # where the network is whole, stage 0: -1


def rosters_by_stage(topology: Topology) -> dict[int, Roster]:
    """Return stage -> its roster; 0 stands for workers that hold the whole network."""
    return dict(enumerate(topology.rosters, start=int(topology.is_pipelined)))


def server_for(topology: Topology, worker: str) -> ParameterServer:
    """Return the server that a worker pulls from."""
    return topology.servers[WorkerId(worker).stage - 1]


def released_at(topology: Topology, step: Step) -> float:
    """Return when a step was released, in seconds since the run began."""
    worker = step.release.worker
    at = roster_of(topology, worker).live[worker].telemetry.released_at
    assert at is not None, f"{step.release} of a worker that was never released"
    return at


def issued_at(topology: Topology, step: Step) -> float:
    """Return when a step was issued: when it was released, unless that was held back."""
    return released_at(topology, step) + (step.report.held_back_s or 0.0)


def apply_plan(
    apply: Apply,
    steps: Sequence[Step],
    counts: Callable[[str], bool],
    workload_samples: int,
    replicas: Sequence[int] = (),
    members: int = 1,
) -> ApplyPlan:
    """Return the details of an update for its server.

    Args:
        apply: the decision, with its pushes in the order of the gradients.
        steps: the steps of its pushes.
        counts: whether the buffers of a worker count.
        workload_samples: that of the run.
        replicas: the replica of each push where each has an optimizer of its own.
        members: the workers that take part; none where the last one has left since.
    """
    return ApplyPlan(
        workers=[worker if counts(worker) else None for worker, _ in apply.pushes],
        samples=[step.samples for step in steps],
        progress=apply.samples_before / workload_samples,
        phase=apply.phase,
        staleness=[apply.version - 1 - step.release.version for step in steps],
        version=apply.version,
        weights=list(apply.weights),
        members=max(1, members),
        replicas=list(replicas),
    )


def in_order_of_slots(apply: Apply) -> Apply:
    """Return an update that takes its pushes slot by slot, whichever arrived first.

    A sum of floating-point numbers depends on its order. In this one, equal gradients make equal
    weights, bit by bit, in every run. (The names of pushes sort by slot, then by life and clock:
    `#` sorts before every character of a slot.)
    """
    pushes, weights = apply.pushes, apply.weights
    if len(pushes) == 1:
        return apply
    if not weights:
        return replace(apply, pushes=tuple(sorted(pushes)))
    pushes, weights = zip(*sorted(zip(pushes, weights, strict=True)), strict=True)
    return replace(apply, pushes=pushes, weights=weights)


def pulls_next(decisions: Sequence[Decision], index: int) -> bool:
    """Say whether a release after that decision pulls before the next update changes the
    weights.
    """
    for decision in decisions[index + 1 :]:
        if isinstance(decision, Release) and decision.pull:
            return True
        if isinstance(decision, Apply):
            return False
    return False
