"""The ways to spread a model over workers: the calls of each decision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, fsum
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from raysync.config import Experiment, WorkerGroup
from raysync.core.checkpoint import Checkpoint
from raysync.core.decisions import Apply, Decision, Push, Release
from raysync.core.events import Event
from raysync.core.ids import WorkerId, worker_id
from raysync.core.journal import NO_REPORT, Report
from raysync.core.machine import Machine
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster
from raysync.core.staleness import staleness
from raysync.emulation.fault_plan import FaultPlan
from raysync.emulation.step_time import KnownSteps
from raysync.engine.backend import Backend, Call, Value
from raysync.engine.checkpointing import ConsistentCut
from raysync.engine.demands import NO_LOCAL_OPTIMIZER
from raysync.engine.messages import LoadWorkerStateCall, RestoreCall, StepCall, WorkerStateCall
from raysync.engine.parameter_server import PUBLISHED, ParameterServer
from raysync.engine.server_log import server_log
from raysync.errors import RunFailed
from raysync.step_fault import NO_FAULT
from raysync.training.server.apply_plan import ApplyPlan

# DataParallel    every worker has the whole model, one server (or its shards) applies
# Pipelined       the model is cut into stages, each with a server: `raysync.decoupled`

SERVER = "server"
ROUNDING = 1e-9  # steps so close to a whole number count as it


@dataclass(slots=True)
class Arriving:
    """A gradient on its way to its server."""

    computed_at: float  # when its upload began, in seconds since the run began
    first: Call  # the first of the calls that bring it
    parts: list[Call]  # the calls still awaited
    # arrived values; Ray does not evict what is referenced
    values: list[Any] = field(default_factory=list)


class Planned(NamedTuple):
    """The work of an iteration."""

    clock: int
    steps: int
    size: int  # samples per batch
    samples_per_s: float | None  # in the iteration before; None: unknown


@dataclass(slots=True, eq=False)
class Step:
    """A worker's iteration in flight, and later its push."""

    release: Release
    samples: int  # of all its batches together
    call: Call  # ends the iteration and leaves the gradient; answers with a `StepReport`
    server: ParameterServer
    weights: Value  # what it computes on; only where delays are compensated
    report: Report  # for the journal's line of the push
    steps: int = 1  # optimizer steps, each on a batch
    # where the backend delivers gradients once the call has answered
    arriving: Arriving | None = None

    @property
    def batch_size(self) -> int:
        return self.samples // self.steps

    def copy(self, call: Call) -> Step:
        """Return a step of the same release with another call; this one is never reported."""
        return Step(
            self.release, self.samples, call, self.server, self.weights, self.report, self.steps
        )


class StateMachine(Protocol):
    """A `Machine`, or the machines of several stages."""

    @property
    def timers(self) -> Mapping[str, float]: ...

    def handle(self, event: Event) -> list[Decision]: ...

    def snapshot(self) -> str: ...


class Topology(Protocol):
    """Translates decisions into calls; the driver does everything else."""

    @property
    def machine(self) -> StateMachine: ...

    @property
    def workers(self) -> Sequence[str]:
        """The workers that begin the run, in order."""

    @property
    def servers(self) -> Sequence[ParameterServer]:
        """The servers, by stage."""

    @property
    def is_pipelined(self) -> bool:
        """Whether each worker has a part of the model.

        Then none can be spared, and a run continues beyond its workload until all have left.
        """

    @property
    def rosters(self) -> Sequence[Roster]:
        """By stage; the last one has the model's progress and version."""

    def released(self, release: Release) -> Iterable[Step]:
        """Issue the calls of an iteration; return the steps that are then in flight."""

    def issued_again(self, step: Step, lost: Collection[Call]) -> Call | None:
        """Reissue a step whose weights are among the lost ones; None: it needs others."""

    def applied(self, apply: Apply, steps: Sequence[Step], is_pulled: bool) -> None:
        """Issue an update with the gradients of these steps, in the order of its pushes.

        `is_pulled`: a release pulls the new weights before the next update.
        """

    def left(self, worker: str, report: Report) -> None:
        """Forget a worker without a process, before it leaves.

        Raises:
            RunLost: the run cannot continue without it.
        """

    def state(self, cut: ConsistentCut) -> dict[str, Any]:
        """Return the checkpoint state, JSON-native; the snapshot keeps its values."""

    def load_state(self, former: Checkpoint, pushed: Mapping[Push, Step]) -> None:
        """Restore `state`'s result with new processes; see `Machine.resume`.

        Args:
            pushed: neither applied nor dropped, in the order of their arrival.
        """

    def leavers(self, under_way: Collection[str]) -> list[str]:
        """Return the members without further work, given those with a step in flight."""

    def expected_at(self, step: Step) -> float:
        """Return the time of a step's answer by the experiment's description.

        Its deadline counts from then, so a step that is described as long does not count as frozen.
        """

    def suspect(self, step: Step) -> str:
        """Return the worker to blame if the step does not end in time."""


@dataclass(frozen=True, slots=True)
class DataParallelPlan:
    """The parts of a data-parallel run."""

    paradigm: Paradigm
    workload_samples: int
    groups: Mapping[str, WorkerGroup]  # slot -> the description of its device
    # the model has buffers, such as batch norm's statistics; each worker has its own
    has_buffers: bool
    vector_bytes: float = 0.0  # of a gradient, and of the weights

    def group(self, slot: str) -> WorkerGroup:
        return self.groups[slot]

    def topology(self, backend: Backend, experiment: Experiment, faults: FaultPlan) -> DataParallel:
        return DataParallel(backend, self, experiment, faults)


class DataParallel:
    """Every worker has the whole model, and one server applies their gradients."""

    # Release -> step(worker, weights)       leaves the gradient, reports loss and seconds
    # Apply   -> apply(server, gradients)    leaves the weights, if they are published

    is_pipelined = False

    def __init__(
        self, backend: Backend, plan: DataParallelPlan, experiment: Experiment, faults: FaultPlan
    ) -> None:
        self.machine = Machine(plan.paradigm, plan.workload_samples, experiment.seed)
        self.roster = self.machine.roster
        self.workers = [str(worker_id(slot, 1)) for slot in experiment.slots()]
        log = server_log(backend, SERVER, experiment, plan.vector_bytes)
        self.server = ParameterServer(backend, SERVER, experiment, log=log)
        self.servers = [self.server]
        self._backend, self._transit = backend, backend.transit
        self._workload_samples = plan.workload_samples
        self._has_buffers = plan.has_buffers
        self._has_server = not plan.paradigm.collective
        # slot, and worker once released -> samples per batch
        self._batch_sizes = experiment.batch_sizes
        # the optimizer steps of a release that gives no number
        self._local_steps = 1 if experiment.local is None else experiment.local.steps
        self._is_local = experiment.local is not None
        self._planned: dict[str, Planned] = {}  # worker -> its latest iteration
        self._largest = 0  # the most samples of an iteration so far
        self._keeps_worker_state = bool(experiment.worker_state)
        self._faults = faults if experiment.faults else None
        self._known = KnownSteps(plan.groups, experiment, faults.at_step, plan.vector_bytes)
        self._compensates = experiment.update.delay_compensation is not None
        self._keeps_pulled = self._compensates or log is not None
        # worker -> its last pull, where delays are compensated, or where a lost server may not have
        # delivered it yet
        self._pulled: dict[str, Value] = {}
        # worker -> its last pull at the resumption, until its next pull
        self._resumed: dict[str, Value] = {}
        # worker -> a vector with its buffers, from the resumption to its first push
        self._restored: dict[str, Value] = {}

    @property
    def rosters(self) -> Sequence[Roster]:
        return (self.roster,)

    def released(self, release: Release) -> Iterable[Step]:
        worker, clock, pulls = release.worker, release.clock, release.pull
        size = release.batch_size or self._batch_sizes.get(worker) or self._slot_batch_size(worker)
        steps = self._planned_steps(release, size)
        if steps > 1 and not self._is_local and self._backend.computes:
            raise RunFailed(f"{release}: {NO_LOCAL_OPTIMIZER}")
        message, report = self._step_call(worker, clock, size, steps), NO_REPORT
        if self._resumed and worker in self._resumed:
            self._restore(worker)
        if pulls:
            weights = self.server.published or self.server.weights()
            if self._has_server and (late_s := self._transit.late_s(weights)):
                report = Report(server_s=late_s)
            call = self._backend.call(worker, message, (weights,))
            if self._keeps_pulled:
                self._pulled[worker] = weights
        elif worker in self._resumed:
            weights = self._resumed[worker]
            call = self._backend.call(worker, message, (weights,))
        else:
            call = self._backend.call(worker, message)
        base = self._pulled.get(worker) if self._compensates else None
        if (self._resumed or self._restored) and self._resumed.pop(worker, None) is None:
            self._restored.pop(worker, None)  # it has pushed since: its buffers are its own
        return (Step(release, size * steps, call, self.server, base, report, steps),)

    def issued_again(self, step: Step, lost: Collection[Call]) -> Call | None:
        worker, clock = step.release.worker, step.release.clock
        if (weights := self._pulled.get(worker)) not in lost:
            return None
        self._restore(worker)
        message = self._step_call(worker, clock, step.batch_size, step.steps)
        return self._backend.call(worker, message, (weights,))

    def _restore(self, worker: str) -> None:
        """Restore a worker's buffers, if they are lost with the former process.

        Just before its step: with a server that is lost before, both are lost, and issued again.
        """
        if worker in self._restored:
            self._backend.call(worker, RestoreCall(), [self._restored[worker]])

    def _planned_steps(self, release: Release, size: int) -> int:
        """Return the steps of an iteration: as released, but at most its share of what is left."""
        worker, clock = release.worker, release.clock
        steps, planned = release.steps or self._local_steps, self._planned.get(worker)
        if steps == 1 and not self._is_local:
            return 1
        rate = self._samples_per_s(worker)
        if planned is not None and planned.clock == clock:  # resumed: it keeps its steps
            steps = max(1, min(steps, planned.steps))
        elif steps > 1 and self._may_exceed(steps * size, rate):
            steps = min(steps, max(1, self._share_of_steps(size)))
        self._planned[worker] = Planned(clock, steps, size, rate)
        self._largest = max(self._largest, steps * size)
        return steps

    def _samples_per_s(self, worker: str) -> float | None:
        """Return the rate of a worker's latest push, from its release on; None: unknown."""
        member, planned = self.roster.live[worker], self._planned.get(worker)
        if planned is None or planned.clock == member.clock:
            return planned and planned.samples_per_s
        active_s = member.telemetry.active_s
        return planned.steps * planned.size / active_s if active_s else None

    def _may_exceed(self, samples: int, rate: float | None) -> bool:
        """Whether an iteration may be more than its share: only then it costs a look at all."""
        roster, count = self.roster, len(self.roster.computing) + self._to_join
        unseen = (count + len(roster.buffered)) * max(self._largest, samples)
        applied = roster.samples_applied
        workers = max(count, applied / roster.now / rate) if rate else count  # as fast as this one
        return self._workload_samples - applied - unseen < workers * samples

    def _share_of_steps(self, size: int) -> int:
        """Return the share of the steps that are left, of a worker released now.

        Samples that were pushed or begun before are no longer left. The rest is shared so that all
        that compute end together, at their latest rates: with even shares, the others would make
        many pushes of a single step while a slow worker's last steps are under way. Workers that
        are released together share evenly, as with an exchange at each step, and rounded up: what
        rounding down leaves would need another update, of single steps. Such updates cost loss,
        since outer momentum does not know how short they are.
        """
        roster = self.roster
        rates = {worker: self._samples_per_s(worker) for worker in roster.computing}
        known = [rate for rate in rates.values() if rate]
        usual_rate = fmean(known) if known else 1.0
        mates = [usual_rate] * self._to_join
        others: list[tuple[float, float]] = []  # the seconds that an iteration still takes; rate
        left = self._workload_samples - roster.samples_applied
        left -= sum(push.samples for push in roster.buffered.values())
        for worker in roster.computing:
            member, planned = roster.live[worker], self._planned.get(worker)
            rate, since = rates[worker] or usual_rate, member.telemetry.released_at
            if since in (None, roster.now) or not planned or planned.clock != member.clock:
                mates.append(rate)
            else:
                samples, active_s = planned.steps * planned.size, roster.now - (since or 0.0)
                left -= samples
                others.append((max(0.0, samples / rate - active_s), rate))
        share = _samples_until_the_end(left, fsum(mates), others) / len(mates) / size
        return ceil(share - ROUNDING) if len(mates) > 1 else floor(share + ROUNDING)

    @property
    def _to_join(self) -> int:
        """The workers that begin the run, and have not joined yet."""
        roster = self.roster
        began = roster.received or roster.departed
        return 0 if began else len(self.workers) - len(roster.live)

    def _slot_batch_size(self, worker: str) -> int:
        size = self._batch_sizes[worker] = self._batch_sizes[WorkerId(worker).slot]
        return size

    def _step_call(self, worker: str, clock: int, samples: int, steps: int) -> StepCall:
        fault, progress, of_step = NO_FAULT, 0.0, 0.0
        if self._faults is not None:
            fault = self._faults.at_step(WorkerId(worker).slot, clock, self.roster.now)
        if self._is_local and self._backend.computes:
            progress = self.roster.samples_applied / self._workload_samples
            of_step = self._round_samples(samples) / self._workload_samples
        batch = self.roster.live[worker].batches
        return StepCall(
            batch, samples, fault=fault, steps=steps, progress=progress, progress_of_step=of_step
        )

    def _round_samples(self, size: int) -> int:
        """Return the samples of one step of all members that compute, the present one's given."""
        planned, of_slot = self._planned, self._batch_sizes.get
        sizes = (
            planned[worker].size if worker in planned else of_slot(WorkerId(worker).slot, 0)
            for worker in self.roster.computing  # also of a slot that is gone, which leaves now
        )
        coming = self.workers if self._to_join else ()
        live = self.roster.live
        return sum(sizes) + sum(
            of_slot(WorkerId(worker).slot, size) for worker in coming if worker not in live
        )

    def applied(self, apply: Apply, steps: Sequence[Step], is_pulled: bool) -> None:
        vectors: list[Value] = [step.call for step in steps]
        if self._compensates:
            vectors += [step.weights for step in steps]
        plan = self._plan(apply, steps) if self._backend.computes else None
        self.server.apply(apply, plan, vectors, is_pulled)

    def _plan(self, apply: Apply, steps: Sequence[Step]) -> ApplyPlan:
        roster = self.roster
        return apply_plan(
            apply,
            steps,
            roster.live.__contains__,
            self._workload_samples,
            members=len(roster.members),
        )

    def left(self, worker: str, report: Report) -> None:
        self._planned.pop(worker, None)
        self._pulled.pop(worker, None)
        self._resumed.pop(worker, None)
        self._restored.pop(worker, None)
        self.server.forget(worker)

    def leavers(self, under_way: Collection[str]) -> list[str]:
        return []

    def expected_at(self, step: Step) -> float:
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
        return step.release.worker

    def state(self, cut: ConsistentCut) -> dict[str, Any]:
        if self.roster.published < self.roster.version:
            cut.keep(PUBLISHED, self.server, self.server.published)
        live = self.roster.live
        pushers = [worker for worker, member in live.items() if member.base >= 0]
        if self._keeps_worker_state and self._backend.computes:
            cut.workers = {
                worker: self._backend.call(worker, WorkerStateCall(live[worker].batches))
                for worker in pushers
            }
        planned = {
            worker: each.steps
            for worker, each in self._planned.items()
            if worker in live and each.clock == live[worker].clock
        }
        return {"machine": self.machine.snapshot(), "pushers": pushers, "steps": planned}

    def load_state(self, former: Checkpoint, pushed: Mapping[Push, Step]) -> None:
        state = former.state["topology"]
        self.machine = Machine.restore(state["machine"], self.machine.paradigm)
        self.machine.resume(former.at)  # as in the journal: a process needs a moment to start
        self.roster = self.machine.roster
        live = self.roster.live
        for worker, steps in state.get("steps", {}).items():
            size = self._slot_batch_size(worker)
            self._planned[worker] = Planned(live[worker].clock, steps, size, None)
            self._largest = max(self._largest, steps * size)
        if self._has_buffers and self._backend.computes:
            latest = {worker: step.call for (worker, _), step in pushed.items()}
            for worker in state["pushers"]:  # before the weights, which imply the buffers
                self._restored[worker] = latest.get(worker) or self.server.statistics(worker)
        for worker, data in former.worker_files.items():
            if worker in self.roster.live:
                self._backend.call(worker, LoadWorkerStateCall(bytes(data)))
        self.server.resume(self.roster.version, self.roster.published)
        if self.roster.live:
            self._resumed = dict.fromkeys(self.roster.live, self.server.weights())
        if self._keeps_pulled:
            self._pulled = dict(self._resumed)


def _samples_until_the_end(
    left: float, rate: float, others: Iterable[tuple[float, float]]
) -> float:
    """Return what workers of this rate in all do until they and the others end together.

    Args:
        left: the samples that all of them have to do.
        rate: of the workers, in samples per second.
        others: the seconds after which each other one begins with these, and its rate.
    """
    work, rates = left, rate
    for begins_s, other in sorted(others):
        if begins_s * rates >= work:  # the end comes before
            break
        work, rates = work + begins_s * other, rates + other
    return work * rate / rates


def roster_of(topology: Topology, worker: str) -> Roster:
    return topology.rosters[WorkerId(worker).stage - 1]  # a whole network is stage 0: index -1


def rosters_by_stage(topology: Topology) -> dict[int, Roster]:
    """Return stage -> its roster; stage 0: workers with the whole network."""
    return dict(enumerate(topology.rosters, start=int(topology.is_pipelined)))


def server_for(topology: Topology, worker: str) -> ParameterServer:
    return topology.servers[WorkerId(worker).stage - 1]


def released_at(topology: Topology, step: Step) -> float:
    worker = step.release.worker
    at = roster_of(topology, worker).live[worker].telemetry.released_at
    assert at is not None, f"{step.release} of a worker that was never released"
    return at


def issued_at(topology: Topology, step: Step) -> float:
    """Return the time of a step's call: its release, or later if that was held back."""
    return released_at(topology, step) + (step.report.held_back_s or 0.0)


def apply_plan(
    apply: Apply,
    steps: Sequence[Step],
    is_live: Callable[[str], bool],
    workload_samples: int,
    replicas: Sequence[int] = (),
    members: int = 1,
) -> ApplyPlan:
    """Return the details of an update for its server.

    Args:
        is_live: whether a worker still takes part, so that its buffers count.
        replicas: the replica of each push, where each has its own optimizer.
        members: the number of workers that take part; 0 where the last one has left since.
    """
    return ApplyPlan(
        workers=[worker if is_live(worker) else None for worker, _ in apply.pushes],
        samples=[step.samples for step in steps],
        progress=apply.samples_before / workload_samples,
        phase=apply.phase,
        staleness=[staleness(apply.version, step.release.version) for step in steps],
        version=apply.version,
        weights=list(apply.weights),
        members=max(1, members),
        replicas=list(replicas),
    )


def in_order_of_slots(apply: Apply) -> Apply:
    """Sort the pushes of an update by slot, whichever arrived first.

    A floating-point sum depends on its order: so equal gradients make equal weights, bit by bit.
    """
    # Names of pushes sort by slot, life, clock: `#` sorts before every character of a slot.
    pushes, weights = apply.pushes, apply.weights
    if len(pushes) == 1:
        return apply
    if not weights:
        return replace(apply, pushes=tuple(sorted(pushes)))
    pushes, weights = zip(*sorted(zip(pushes, weights, strict=True)), strict=True)
    return replace(apply, pushes=pushes, weights=weights)


def pulls_next(decisions: Sequence[Decision], index: int) -> bool:
    """Return whether a release pulls between that decision and the next update."""
    for decision in decisions[index + 1 :]:
        if isinstance(decision, Release) and decision.pull:
            return True
        if isinstance(decision, Apply):
            return False
    return False
