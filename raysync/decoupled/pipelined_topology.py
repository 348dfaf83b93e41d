"""The pipelined topology: the calls that carry out decisions about the stages of a network.

    Release(stage)  -> the passes of its iteration, as soon as their inputs are certain to arrive
    a pass          -> forward(stage, ...) leaves the activation for the next stage
                       backward(stage, ...) leaves its gradient, and one for the stage before
    Apply           -> apply(server of the stage, gradients)

A pass is called as soon as its neighbour's pass has been called, and waits for the input where it
runs. So stages overlap as far as the data allow, and only the paradigm sets barriers. This file
does not import torch.

A run cannot continue without one of its stages: it goes back to its newest checkpoint, which has
nothing in flight (see `pipelines`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from raysync.config import Experiment, WorkerGroup
from raysync.core.capability import Capability
from raysync.core.checkpoint import Checkpoint
from raysync.core.decisions import Apply, Push, Release
from raysync.core.ids import WorkerId, worker_id
from raysync.core.journal import Report
from raysync.core.roster import Member, Roster
from raysync.decoupled.pipelines import Pass, Pipelines, StageId
from raysync.emulation.fault_plan import FaultPlan
from raysync.emulation.step_time import KnownSteps
from raysync.engine.backend import Backend, Call, Value
from raysync.engine.checkpointing import ConsistentCut
from raysync.engine.messages import BackwardCall, ForwardCall
from raysync.engine.parameter_server import PUBLISHED, ParameterServer
from raysync.engine.topology import Step, apply_plan, issued_at
from raysync.errors import RunLost
from raysync.paradigms.decoupled import Decoupled
from raysync.step_fault import NO_FAULT

PASSES = {"forward": ForwardCall, "backward": BackwardCall}


def server_of(stage: int) -> str:
    return f"server of stage {stage}"


def refusals_of(paradigm: Decoupled) -> Mapping[Capability, str]:
    """Map the capabilities that a network in stages lacks to the reasons."""
    refusals = {
        Capability.BATCH_SIZE: "the stages of a network compute batches of one size",
        Capability.LEAVE: (
            "a run needs all stages, and a crash removes one; use kill, from which the run"
            " recovers by its newest checkpoint"
        ),
        Capability.WAIT_FOR_WORKERS: "a pipeline needs all of its stages",
        Capability.CORRECT_STALENESS: ("the delays of stages are part of the schedule; use shrink"),
        Capability.SHARD_SERVERS: "each stage has one server",
        Capability.SEVERAL_DEVICES: "a stage computes on one device",
        Capability.MICRO_BATCHES: "a stage computes a batch at once",
        Capability.LOCAL_STEPS: "a stage pushes after each batch",
        Capability.COMPILE: "the passes of a stage are not compiled",
        Capability.ALL_REDUCE: "each stage exchanges gradients through its server",
        Capability.SEND_SIZES: "each stage has a size of its own",
        Capability.REDUCED_WIRE: (
            "a stage pushes in float32; what goes from stage to stage has the precision of its"
            " workers"
        ),
        Capability.NETWORK_PHASES: "each stage switches by itself, over one network",
        Capability.SHARE_MEMORY: (
            "stages exchange activations, which are object references, as with transport: auto"
        ),
        Capability.EMULATE_LINKS: (
            "on Ray a stage does not emulate the way to its server; engine: virtual does"
        ),
    }
    if paradigm.modules > 1:
        refusals[Capability.WHOLE_MODEL] = (
            "it needs the whole network, but each server has only one stage"
        )
    return refusals


@dataclass(slots=True)
class _StageWorker:
    stage_id: StageId
    name: str
    slot: str  # the worker's that runs it; faults refer to it
    release: Release | None = None  # the latest one
    weights: Value = None  # from the latest pull
    version: int = 0
    is_behind: bool = False  # the next call must carry the weights
    # batch in flight -> version of the weights of its forward pass
    versions: dict[int, int] = field(default_factory=dict)
    # the calls of this iteration, each with the neighbours' calls that it waits for
    calls: list[tuple[Call, list[Call]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PipelinedPlan:
    """The parts of a pipelined run, without torch."""

    paradigm: Decoupled
    workload_samples: int  # every stage processes all of them
    batches: int  # in the pool: enough for the workload, and equally many for each group
    # Stage k of group s -> the stage's slot, by which journals name it, and that of the worker that
    # runs it: number s K + k - 1 in the experiment file's order.
    slots: Mapping[StageId, tuple[str, str]]
    groups: Mapping[str, WorkerGroup]  # slot of a worker -> its device
    shares: Mapping[int, float]  # stage -> share of a step's operations
    vector_bytes: Mapping[int, int]  # stage -> bytes of its parameters and buffers
    # stage of a group -> bytes per sample of its output, and of the returning gradient
    output_bytes: Mapping[StageId, float]

    def stage_of(self, slot: str) -> StageId:
        return next(
            stage_id for stage_id, (stage_slot, _) in self.slots.items() if stage_slot == slot
        )

    def worker_of(self, slot: str) -> str:
        """Return the slot of the worker that runs a stage, by the stage's own slot."""
        return self.slots[self.stage_of(slot)][1]

    def group(self, slot: str) -> WorkerGroup:
        """Find a stage's device by the stage's own slot."""
        return self.groups[self.worker_of(slot)]

    def topology(self, backend: Backend, experiment: Experiment, faults: FaultPlan) -> Pipelined:
        return Pipelined(backend, self, experiment, faults)


class Pipelined:
    """Groups of stages in parallel; each stage of the network has one server."""

    is_pipelined = True

    def __init__(
        self, backend: Backend, plan: PipelinedPlan, experiment: Experiment, faults: FaultPlan
    ) -> None:
        paradigm = plan.paradigm
        self.machine = paradigm.machine(plan.workload_samples, experiment.seed)
        self.servers = [
            ParameterServer(
                backend, server_of(stage), experiment, has_replicas=paradigm.mixes_locally
            )
            for stage in range(1, paradigm.modules + 1)
        ]
        self._backend, self._paradigm = backend, paradigm
        self._batch_size = experiment.batch_size
        self._workload_samples = plan.workload_samples
        self._faults = faults if experiment.faults else None
        self._known = KnownSteps(plan.groups, experiment, faults.at_step)
        self._pipelines = Pipelines(
            paradigm.groups, paradigm.modules, plan.batches, paradigm.locked
        )
        self._stages = {
            stage_id: _StageWorker(stage_id, str(worker_id(name, 1)), slot)
            for stage_id, (name, slot) in plan.slots.items()
        }
        self._slots = {WorkerId(worker.name).slot: worker for worker in self._stages.values()}
        self.workers = [worker.name for worker in self._stages.values()]
        # pass to come -> its input, and the neighbour's call that produces the input
        self._inputs: dict[Pass, tuple[Value, Call]] = {}

    @property
    def rosters(self) -> list[Roster]:
        # one roster for each stage; the last stage's has the loss
        return [machine.roster for machine in self.machine.machines.values()]

    def released(self, release: Release) -> Iterable[Step]:
        worker = self._worker(release.worker)
        group, stage = worker.stage_id
        worker.release, worker.version = release, release.version
        if release.pull:
            worker.weights, worker.is_behind = self.servers[stage - 1].weights(group), True
        if release.clock > self._pipelines.counts[worker.stage_id].pushed:
            worker.calls.clear()  # the passes of the completed iteration
        return self._carry_out(self._pipelines.released(worker.stage_id))

    def _carry_out(self, queue: list[Pass]) -> Iterator[Step]:
        """Call passes and all that these enable; yield the steps they complete."""
        while queue:
            following = queue.pop(0)
            if step := self._call(following):
                yield step
            queue += self._pipelines.done(following)

    def _call(self, begun: Pass) -> Step | None:
        """Call a pass; return the step that it ends, if it ends one."""
        (group, stage), worker = begun.stage_id, self._stages[begun.stage_id]
        release, inputs = worker.release, self._inputs
        if begun.direction == "forward":
            worker.versions[begun.batch] = worker.version
            if stage < self._paradigm.modules:
                call = self._send(worker, begun)
                inputs[Pass((group, stage + 1), "forward", begun.batch)] = call, call
            elif begun in inputs:  # the last stage runs both passes in one call
                inputs[Pass(begun.stage_id, "backward", begun.batch)] = inputs.pop(begun)
            return None
        call = self._send(worker, begun)
        if stage > 1:
            inputs[Pass((group, stage - 1), "backward", begun.batch)] = call.value(1), call
        forward_version = worker.versions.pop(begun.batch)
        if begun.batch <= self._pipelines.counts[begun.stage_id].pushed:
            return None  # the batch was pushed before the run was resumed
        assert release is not None, f"{begun} of a stage that was never released"
        assert release.clock == begun.batch - 1, f"{begun} in {release}"
        report = Report(delay_ticks=self._pipelines.schedule.delay(stage))
        if self._paradigm.weights == "stash":
            report = replace(report, forward_version=forward_version)
        return Step(release, self._batch_size, call, self.servers[stage - 1], None, report)

    def _send(self, worker: _StageWorker, begun: Pass) -> Call:
        arrived = [self._inputs.pop(begun)] if begun in self._inputs else []
        inputs = [worker.weights] if worker.is_behind else []
        inputs += [value for value, _ in arrived]
        worker.is_behind = False
        fault = NO_FAULT
        if self._faults is not None:
            fault = self._faults.at_step(worker.slot, begun.batch - 1, self._backend.now)
        message = PASSES[begun.direction](begun.batch, fault)
        call = self._backend.call(worker.name, message, inputs)
        worker.calls.append((call, [source for _, source in arrived]))
        return call

    def issued_again(self, step: Step, lost: Collection[Call]) -> None:
        """Do nothing: the server of a stage is not restarted."""

    def applied(self, apply: Apply, steps: Sequence[Step], is_pulled: bool) -> None:
        server, plan = steps[0].server, None
        if self._backend.computes:
            replicas = (
                [self._worker(worker).stage_id[0] for worker, _ in apply.pushes]
                if self._paradigm.mixes_locally
                else ()
            )
            plan = apply_plan(apply, steps, lambda _: True, self._workload_samples, replicas)
        server.apply(apply, plan, [step.call for step in steps], is_pulled)

    def left(self, worker: str, report: Report) -> None:
        """Raise RunLost: no stage can be spared."""
        why = f"{worker}: {report.why}, and its pipeline needs it"
        raise RunLost(why, "worker" if report.is_loss else None)

    def state(self, cut: ConsistentCut) -> dict[str, Any]:
        """Save the machines and counts; batches in flight are not saved."""
        for server, roster in zip(self.servers, self.rosters, strict=True):
            if roster.published < roster.version:
                cut.keep(PUBLISHED, server, server.published)
        return {"machine": self.machine.snapshot(), "taken": self._pipelines.taken}

    def load_state(self, former: Checkpoint, pushed: Mapping[Push, Step]) -> None:
        state = former.state["topology"]
        self.machine.restore(state["machine"])
        self.machine.resume(former.at)  # as in the journal: a process needs a moment to start
        for server, roster in zip(self.servers, self.rosters, strict=True):
            server.resume(roster.version, roster.published)
        for (group, stage), worker in self._stages.items():
            # the stage may have to repeat passes of pushed batches, without another release
            worker.weights, worker.is_behind = self.servers[stage - 1].weights(group), True
            worker.version = self._roster(worker).published
        taken = state["taken"]
        batches = {key: self._count_pushed(worker, taken) for key, worker in self._stages.items()}
        steps = [*self._carry_out(self._pipelines.resume(taken, batches))]
        assert not steps, f"{steps} without a release"

    def leavers(self, under_way: Collection[str]) -> list[str]:
        """Name the stages that have pushed all batches: their paradigms must not wait for them."""
        pipelines = self._pipelines
        if not pipelines.is_empty:
            return []
        return [
            name
            for roster in self.rosters
            for name in roster.live
            if name not in under_way
            and self._count_pushed(worker := self._worker(name), pipelines.taken)
            == pipelines.taken[worker.stage_id[0]]
        ]

    def expected_at(self, step: Step) -> float:
        """Find the latest answer of the step's group, plus its longest expected step.

        Stages wait for each other: one answer counts for all, and the slowest device sets the time.
        """
        (group, _), clock = self._worker(step.release.worker).stage_id, step.release.clock
        at = issued_at(self, step)
        answered_at, known_s = [at], [0.0]
        for (other, _), worker in self._stages.items():
            if other != group:
                continue
            known_s.append(
                self._known.seconds(
                    worker.slot, clock, batch=clock, steps=1, size=self._batch_size, at=at
                )
            )
            if (member := self._member(worker)) is not None:
                answered_at.append(member.telemetry.pushed_at or 0.0)
        return max(answered_at) + max(known_s)

    def suspect(self, step: Step) -> str:
        """Name the stage of the group whose call waits for no other stage."""
        group, _ = self._worker(step.release.worker).stage_id
        is_done = self._backend.is_done
        for (other, _), worker in self._stages.items():
            if other != group:
                continue
            under_way = next((pair for pair in worker.calls if not is_done(pair[0])), None)
            if under_way is not None and all(map(is_done, under_way[1])):
                return worker.name
        return step.release.worker

    def _worker(self, name: str) -> _StageWorker:
        return self._slots[WorkerId(name).slot]

    def _roster(self, worker: _StageWorker) -> Roster:
        return self.machine.machines[worker.stage_id[1]].roster

    def _member(self, worker: _StageWorker) -> Member | None:
        return self._roster(worker).live.get(worker.name)

    def _count_pushed(self, worker: _StageWorker, taken: Sequence[int]) -> int:
        # a stage leaves once it has pushed all batches of its group
        member = self._member(worker)
        return taken[worker.stage_id[0]] if member is None else member.clock
