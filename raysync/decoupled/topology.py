"""The pipelined topology: which calls the decisions about the stages of a cut network mean.

    Release(stage)  -> the passes of its iteration, as soon as their inputs are known to come
    a pass          -> forward(stage, ...) leaves the activation for the next stage
                       backward(stage, ...) leaves its gradient, and that for the stage before
    Apply           -> apply(server of the stage, gradients)

Values are passed on before they are computed: a pass is called as soon as that of its neighbour has
been called, and waits for it where it runs. So stages overlap as far as the data allow, and only
the paradigm sets barriers. This file does not import torch; the arithmetic is in `stage`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysync.config import Experiment
from raysync.core.capability import Capability
from raysync.core.decisions import Apply, Push, Release
from raysync.core.ids import WorkerId, worker_id
from raysync.core.roster import Roster
from raysync.decoupled.pipelines import Pass, Pipelines, StageId
from raysync.engine.backend import Backend, Call, Value
from raysync.engine.checkpointing import Cut
from raysync.engine.faults import NO_FAULT, FaultPlan
from raysync.engine.parameter_server import ParameterServer
from raysync.engine.topology import NOTHING, Step, apply_plan, issued_at
from raysync.paradigms.decoupled import Decoupled


def server_of(stage: int) -> str:
    """Return the id of the server of a stage, from 1."""
    return f"server of stage {stage}"


def refusals_of(paradigm: Decoupled) -> Mapping[Capability, str]:
    """Return what a network in stages cannot carry out, and why."""
    refusals = {
        Capability.BATCH_SIZE: "the stages of a network compute batches of one size",
        Capability.LOSE_WORKERS: "the loss of a worker ends the run; no stage comes back",
        Capability.TAKE_CHECKPOINTS: (
            "a pipeline's batches are under way at any moment, and cannot be taken up again so far"
        ),
        Capability.CORRECT_STALENESS: (
            "it is not for delays that are part of the schedule; use shrink"
        ),
        Capability.SHARD_SERVERS: "each stage has one server",
        Capability.SEVERAL_DEVICES: "a stage computes on one device",
        Capability.MICRO_BATCHES: "a stage computes a batch at once",
        Capability.SHARE_HOSTS: "a stage has the cores of its worker to itself",
        Capability.PRECISION: "the stages compute in float32 so far",
        Capability.ALL_REDUCE: "each stage exchanges gradients through its server",
        Capability.EMULATE_LINKS: (
            "on Ray a stage does not emulate the way to its server; engine: virtual does"
        ),
    }
    if paradigm.modules > 1:
        refusals[Capability.WHOLE_NORM] = (
            "it needs the norm of the whole network, which no server has"
        )
    return refusals


@dataclass(slots=True)
class _Worker:
    """One stage of one group."""

    stage_id: StageId
    name: str
    slot: str
    """The slot of the worker that it is placed on, by which faults name it."""
    release: Release | None = None
    """The latest release."""
    weights: Value = None
    """New weights for the next call, if it needs any."""
    versions: dict[int, int] = field(default_factory=dict)
    """Batch in flight -> the version of the weights of its forward pass."""
    calls: list[tuple[Call, list[Call]]] = field(default_factory=list)
    """The calls of this iteration, each with the calls of the neighbours that it waits for."""


@dataclass(frozen=True, slots=True)
class PipelinedPlan:
    """The parts of a pipelined run, without torch."""

    paradigm: Decoupled
    workload_samples: int
    """The workload of the run; each stage does all of it."""
    batches: int
    """The number of batches of the pool."""
    slots: Mapping[StageId, tuple[str, str]]
    """Stage of a group -> its own slot, and that of the worker that it is placed on."""

    def topology(self, backend: Backend, experiment: Experiment, faults: FaultPlan) -> Pipelined:
        """Return the topology of a run."""
        return Pipelined(backend, self, experiment, faults)


class Pipelined:
    """The network is cut into stages, each with a server; groups of them work side by side."""

    drains = True

    def __init__(
        self, backend: Backend, plan: PipelinedPlan, experiment: Experiment, faults: FaultPlan
    ) -> None:
        """
        Args:
            backend: has the actors of the run.
            plan: the stages of the network, and the paradigm of their replicas.
            experiment: gives the batch size, and whether there are faults.
            faults: the faults of the run.
        """
        paradigm = plan.paradigm
        self.refusals = refusals_of(paradigm)
        self.machine = paradigm.machine(plan.workload_samples)
        self.servers = [
            ParameterServer(backend, server_of(stage), has_replicas=paradigm.mixes_locally)
            for stage in range(1, paradigm.modules + 1)
        ]
        self._backend, self._paradigm = backend, paradigm
        self._batch_size = experiment.batch_size
        self._workload_samples = plan.workload_samples
        self._faults = faults if experiment.faults else None
        self._pipelines = Pipelines(
            paradigm.groups, paradigm.modules, plan.batches, paradigm.locked
        )
        self._stages = {
            stage_id: _Worker(stage_id, str(worker_id(name, 1)), slot)
            for stage_id, (name, slot) in plan.slots.items()
        }
        self._workers = {worker.name: worker for worker in self._stages.values()}
        self.workers = list(self._workers)
        self._mail: dict[Pass, tuple[Value, Call]] = {}
        """Pass -> its input, and the neighbour's call that leaves it."""

    @property
    def roster(self) -> Roster:
        """See `Topology.roster`: that of the last stage, which has the loss."""
        return self.machine.roster

    def roster_of(self, worker: str) -> Roster:
        """See `Topology.roster_of`."""
        return self.machine.machines[WorkerId(worker).stage].roster

    def server_of(self, worker: str) -> ParameterServer:
        """See `Topology.server_of`."""
        return self.servers[WorkerId(worker).stage - 1]

    def released(self, release: Release) -> Iterable[Step]:
        """See `Topology.released`."""
        worker = self._workers[release.worker]
        worker.release = release
        worker.calls.clear()  # all of them are done
        group, stage = worker.stage_id
        if release.pull:
            worker.weights = self.servers[stage - 1].weights(group)
        queue = self._pipelines.released(worker.stage_id)
        while queue:
            following = queue.pop(0)
            if step := self._call(following):
                yield step
            queue += self._pipelines.done(following)

    def pulled(self, worker: str) -> Value:
        """See `Topology.pulled`: the server of a stage keeps no log."""

    def issued_again(self, step: Step) -> Call:
        """See `Topology.issued_again`; the loss of a stage's server ends the run."""
        raise AssertionError("a pass that is issued again")

    def applied(self, apply: Apply, steps: Sequence[Step], is_pulled: bool) -> None:
        """See `Topology.applied`."""
        server, roster = steps[0].server, self.roster_of(steps[0].release.worker)
        fields = NOTHING
        if self._backend.computes:
            replicas = (
                [self._workers[worker].stage_id[0] for worker, _ in apply.pushes]
                if self._paradigm.mixes_locally
                else ()
            )
            fields = apply_plan(apply, steps, roster, self._workload_samples, replicas).fields()
        server.apply(
            fields,
            apply.pushes,
            [step.call for step in steps],
            publish=apply.publish,
            is_pulled=is_pulled,
        )

    def left(self, worker: str) -> None:
        """Do nothing: the loss of a stage ends the run, and the server of a drained stage keeps its
        buffers.
        """

    def state(self, cut: Cut) -> dict[str, Any]:
        """See `Topology.state`; a run in stages is refused before it begins."""
        raise AssertionError("a checkpoint of a run in stages")

    def load_state(self, state: Mapping[str, Any], pushed: Mapping[Push, Step]) -> None:
        """See `Topology.load_state`."""
        raise AssertionError("a run in stages is not resumed")

    def leavers(self, under_way: Collection[str]) -> list[str]:
        """See `Topology.leavers`: a replica without a batch leaves, since the paradigm of the stage
        would wait for it.
        """
        if not self._pipelines.is_closed:
            return []
        return [
            worker.name
            for stage_id, worker in self._stages.items()
            if worker.name not in under_way
            and worker.name in self.roster_of(worker.name).live
            and self._pipelines.is_drained(stage_id)
        ]

    def waited_since(self, step: Step) -> float:
        """See `Topology.waited_since`: stages wait for each other, so an answer of one stage counts
        for its whole group.
        """
        group, _ = self._workers[step.release.worker].stage_id
        heard_at = [0.0]
        for (other, _), worker in self._stages.items():
            member = self.roster_of(worker.name).live.get(worker.name)
            if other == group and member is not None:
                heard_at.append(member.telemetry.pushed_at or 0.0)
        return max(issued_at(self.roster_of(step.release.worker), step), *heard_at)

    def suspect(self, step: Step) -> str:
        """See `Topology.suspect`: of the stages that the step waits for, the one that waits for no
        other.
        """
        group, _ = self._workers[step.release.worker].stage_id
        is_done = self._backend.is_done
        for (other, _), worker in self._stages.items():
            if other != group:
                continue
            under_way = next((each for each in worker.calls if not is_done(each[0])), None)
            if under_way is not None and all(map(is_done, under_way[1])):
                return worker.name
        return step.release.worker

    def _call(self, each: Pass) -> Step | None:
        """Call a pass; return the step that it ends, if it ends one."""
        (group, stage), worker = each.stage_id, self._stages[each.stage_id]
        release, mail = worker.release, self._mail
        assert release is not None, "a pass of a stage that was never released"
        if each.direction == "forward":
            worker.versions[each.batch] = release.version
            if stage < self._paradigm.modules:
                call = self._send(worker, each)
                mail[Pass((group, stage + 1), "forward", each.batch)] = call, call
            elif each in mail:  # the last stage runs it with the backward pass
                mail[Pass(each.stage_id, "backward", each.batch)] = mail.pop(each)
            return None
        assert release.clock == each.batch - 1, f"{each} in {release}"
        call = self._send(worker, each)
        if stage > 1:
            mail[Pass((group, stage - 1), "backward", each.batch)] = call.value(1), call
        forward_version = worker.versions.pop(each.batch)
        report: dict[str, Any] = {"delay_ticks": self._pipelines.schedule.delay(stage)}
        if self._paradigm.weights == "stash":
            report["forward_version"] = forward_version
        return Step(release, self._batch_size, call, self.servers[stage - 1], None, report)

    def _send(self, worker: _Worker, each: Pass) -> Call:
        arrived = [self._mail.pop(each)] if each in self._mail else []
        weights, worker.weights = worker.weights, None
        inputs = ([] if weights is None else [weights]) + [value for value, _ in arrived]
        fault = NO_FAULT
        if self._faults is not None:
            fault = self._faults.at_step(worker.slot, each.batch - 1, self._backend.now)
        fields = [each.batch, fault.factor, fault.latency_s]
        call = self._backend.call(worker.name, each.direction, fields, *inputs)
        worker.calls.append((call, [source for _, source in arrived]))
        return call
