"""The pipelined topology: which calls the decisions about the stages of a cut network mean.

    Release(stage)  -> the passes of its iteration, as soon as their inputs are known to come
    a pass          -> forward(stage, ...) leaves the activation for the next stage
                       backward(stage, ...) leaves its gradient, and that for the stage before
    Apply           -> apply(server of the stage, gradients)

Values are passed on before they are computed: a pass is called as soon as that of its neighbour has
been called, and waits for it where it runs. So stages overlap as far as the data allow, and only
the paradigm sets barriers. This file does not import torch; the arithmetic is in `stage`.

Where a stage is lost, its whole pipeline stops: what is in flight in it is thrown away, and none of
it has been pushed. The other stages remain members at their clocks, so the paradigm of a stage
decides whether other groups wait for them (under BSP they do). Once the next life of the stage has
been released, the pipeline begins anew, as in `pipelines`; it does so, too, when a run goes on from
a checkpoint. A life of a stage begins at a clock of the paradigm's, so its clock is no longer the
number of its batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from raysync.config import Experiment, WorkerGroup
from raysync.core.capability import Capability
from raysync.core.decisions import Apply, Push, Release
from raysync.core.ids import WorkerId, worker_id
from raysync.core.journal import Report
from raysync.core.roster import Roster
from raysync.decoupled.pipelines import Pass, Pipelines, StageId
from raysync.engine.backend import Backend, Call, Value
from raysync.engine.checkpointing import Cut
from raysync.engine.faults import NO_FAULT, FaultPlan
from raysync.engine.parameter_server import PUBLISHED, ParameterServer
from raysync.engine.step_time import KnownSteps
from raysync.engine.topology import NOTHING, Step, apply_plan, issued_at
from raysync.errors import RunFailed
from raysync.paradigms.decoupled import Decoupled


def server_of(stage: int) -> str:
    """Return the id of the server of a stage, from 1."""
    return f"server of stage {stage}"


def refusals_of(paradigm: Decoupled) -> Mapping[Capability, str]:
    """Return what a network in stages cannot carry out, and why."""
    refusals = {
        Capability.BATCH_SIZE: "the stages of a network compute batches of one size",
        Capability.WAIT_FOR_WORKERS: "a pipeline always waits until all of its stages are there",
        Capability.CORRECT_STALENESS: (
            "it is not for delays that are part of the schedule; use shrink"
        ),
        Capability.SHARD_SERVERS: "each stage has one server",
        Capability.SEVERAL_DEVICES: "a stage computes on one device",
        Capability.MICRO_BATCHES: "a stage computes a batch at once",
        Capability.COMPILE: "the passes of a stage are not compiled",
        Capability.ALL_REDUCE: "each stage exchanges gradients through its server",
        Capability.SEND_SIZES: (
            "each stage has a size of its own; upload_factor and download_factor hold for all"
        ),
        Capability.REDUCED_WIRE: (
            "a stage pushes in float32; what goes from stage to stage has the precision of its"
            " workers"
        ),
        Capability.NETWORK_PHASES: "each stage switches by itself, over one network",
        Capability.SHARE_MEMORY: (
            "between stages activations travel, which are object references; with auto all does"
        ),
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
    former: str = ""
    """The former life that had pushed, whose buffers count until this one has been released."""
    release: Release | None = None
    """The latest release of its present life."""
    is_ready: bool = False
    """Whether it can compute: it has been released, in its present life or before a checkpoint that
    the run goes on from."""
    is_fresh: bool = False
    """Whether its process has none of the buffers of the stage: it is that of another life, or of a
    run that was resumed."""
    weights: Value = None
    """The weights of its latest pull."""
    version: int = 0
    """Their version."""
    is_behind: bool = False
    """Whether its next call needs these weights."""
    pushed: int = 0
    """The batches that the stage has pushed, in all of its lives, as of the latest look."""
    before: int | None = 0
    """The batches that it has pushed less the clock of its present life; None until its first
    release."""
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
    groups: Mapping[str, WorkerGroup]
    """Slot of a worker -> the description of its device."""

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
        self._known = KnownSteps(plan.groups, experiment, faults.at_step)
        self._pipelines = Pipelines(
            paradigm.groups, paradigm.modules, plan.batches, paradigm.locked
        )
        self._stages = {
            stage_id: _Worker(stage_id, str(worker_id(name, 1)), slot)
            for stage_id, (name, slot) in plan.slots.items()
        }
        self._slots = {WorkerId(worker.name).slot: worker for worker in self._stages.values()}
        self.workers = [worker.name for worker in self._stages.values()]
        self._began_at = [0.0] * paradigm.groups
        """Group -> seconds since the run began: when its pipeline began anew."""
        self._mail: dict[Pass, tuple[Value, Call]] = {}
        """Pass -> its input, and the neighbour's call that leaves it."""

    @property
    def roster(self) -> Roster:
        """See `Topology.roster`: that of the last stage, which has the loss."""
        return self.machine.roster

    @property
    def rosters(self) -> list[Roster]:
        """See `Topology.rosters`: one a stage."""
        return [machine.roster for machine in self.machine.machines.values()]

    def roster_of(self, worker: str) -> Roster:
        """See `Topology.roster_of`."""
        return self.machine.machines[WorkerId(worker).stage].roster

    def server_of(self, worker: str) -> ParameterServer:
        """See `Topology.server_of`."""
        return self.servers[WorkerId(worker).stage - 1]

    def released(self, release: Release) -> Iterable[Step]:
        """See `Topology.released`."""
        worker = self._worker(release.worker)
        group, stage = worker.stage_id
        if worker.before is None:
            worker.before = worker.pushed - release.clock
        worker.release, worker.is_ready, worker.version = release, True, release.version
        if release.pull:
            worker.weights, worker.is_behind = self.servers[stage - 1].weights(group), True
        if worker.former:
            self.servers[stage - 1].forget(worker.former)
            worker.former = ""
        queue = self._pipelines.released(worker.stage_id)
        if group not in self._pipelines.stopped:
            if release.clock + worker.before > self._pipelines.counts[worker.stage_id].pushed:
                worker.calls.clear()  # all of them are done
            return self._carry_out(queue)
        if all(each.is_ready for each in self._replicas(group)):
            return self._carry_out(self._begin_anew(group))
        return ()

    def _carry_out(self, queue: list[Pass]) -> Iterator[Step]:
        """Call passes, and those that may then begin; yield the steps that they end."""
        while queue:
            following = queue.pop(0)
            if step := self._call(following):
                yield step
            queue += self._pipelines.done(following)

    def pulled(self, worker: str) -> Value:
        """See `Topology.pulled`: the server of a stage keeps no log."""

    def issued_again(self, step: Step) -> Call:
        """See `Topology.issued_again`: the server of a stage does not come back."""
        raise AssertionError("a pass that is issued again")

    def _begin_anew(self, group: int) -> list[Pass]:
        """Begin a pipeline anew that has all its stages again."""
        self._began_at[group] = self._backend.now
        for worker in self._replicas(group):
            self._backend.call(worker.name, "begin_anew", [worker.is_fresh])
            worker.is_behind, worker.is_fresh = True, False
        pushed = {worker.stage_id[1]: self._pushed(worker) for worker in self._replicas(group)}
        return self._pipelines.begin_anew(group, pushed)

    def _replicas(self, group: int) -> list[_Worker]:
        return [self._stages[group, stage] for stage in range(1, self._paradigm.modules + 1)]

    def _worker(self, name: str) -> _Worker:
        """Return the stage of a worker, whose present life it is."""
        worker = self._slots[WorkerId(name).slot]
        if worker.name != name and WorkerId(name).life > WorkerId(worker.name).life:
            worker.former = worker.former or worker.name
            worker.name, worker.is_fresh = name, True
        return worker

    def _pushed(self, worker: _Worker) -> int:
        """Return how many batches a stage has pushed."""
        member = self.roster_of(worker.name).live.get(worker.name)
        if member is not None and worker.before is not None:
            worker.pushed = worker.before + member.clock
        return worker.pushed

    def applied(self, apply: Apply, steps: Sequence[Step], is_pulled: bool) -> None:
        """See `Topology.applied`."""
        server, fields = steps[0].server, NOTHING
        if self._backend.computes:
            replicas = (
                [self._slots[WorkerId(worker).slot].stage_id[0] for worker, _ in apply.pushes]
                if self._paradigm.mixes_locally
                else ()
            )
            fields = apply_plan(
                apply, steps, self._has_buffers, self._workload_samples, replicas
            ).fields()
        server.apply(apply, fields, [step.call for step in steps], is_pulled)

    def _has_buffers(self, name: str) -> bool:
        """Say whether the buffers of a worker count: also those of one that has left, since its
        work was done, or whose next life has not been released yet.
        """
        worker = self._slots[WorkerId(name).slot]
        return name in (worker.name, worker.former)

    def left(self, worker: str) -> list[str]:
        """See `Topology.left`: the whole pipeline stops. The server keeps the buffers of the stage
        until its next life has them.
        """
        lost = self._worker(worker)
        group, _ = lost.stage_id
        pushed = self._pushed(lost)
        lost.release, lost.before, lost.is_ready = None, None, False
        self._stop(group)
        self._pipelines.lose(lost.stage_id, pushed)
        return [each.name for each in self._replicas(group)]

    def _stop(self, group: int) -> None:
        """Throw everything away that is under way in a pipeline."""
        self._pipelines.stop(group)
        for worker in self._replicas(group):
            worker.versions.clear()
            worker.calls.clear()
        for each in [each for each in self._mail if each.stage_id[0] == group]:
            del self._mail[each]

    def partners(self, worker: str) -> list[str]:
        """See `Topology.partners`: the other stages of its pipeline."""
        stage_id = self._worker(worker).stage_id
        partners = [each for each in self._replicas(stage_id[0]) if each.stage_id != stage_id]
        return [str(WorkerId(each.name).slot) for each in partners]

    def given_up(self, worker: str) -> Iterable[Step]:
        """See `Topology.given_up`: the other groups take the batches that its last stage has not
        pushed.

        Raises:
            RunFailed: no group is left that could.
        """
        group, _ = self._worker(worker).stage_id
        done = self._stages[group, self._paradigm.modules].pushed
        for each in self._replicas(group):
            each.pushed = done  # if it is there again after a resume, it goes on from here
            self._pipelines.lose(each.stage_id, done)
        passes = self._pipelines.give_up(group, done)
        if not any(map(self._pipelines.takes, range(self._paradigm.groups))) and (
            left := self._pipelines.left
        ):
            raise RunFailed(
                f"no pipeline is left that could take {left} more batch{'es' * (left > 1)}; the"
                f" last one lost {worker}"
            )
        return self._carry_out(passes)

    def stuck(self) -> list[str]:
        """See `Topology.stuck`: the pipeline that began anew last.

        A newcomer enters the round of its stage that is in progress. So the replicas of one stage
        may meet at another batch than those of the next stage do, and after several losses by more
        batches than the schedule has in flight. Without that pipeline the others always go on.
        """
        live = {
            self._worker(name).stage_id[0]: None for roster in self.rosters for name in roster.live
        }
        if not live:
            return []
        last = max(live, key=lambda group: self._began_at[group])
        return [
            worker.name
            for worker in self._replicas(last)
            if worker.name in self.roster_of(worker.name).live
        ]

    def under_way(self, steps: Mapping[str, Step]) -> dict[str, Release]:
        """See `Topology.under_way`."""
        releases = {}
        for worker in self._stages.values():
            member = self.roster_of(worker.name).live.get(worker.name)
            release = worker.release
            if member is not None and release is not None and release.clock == member.clock:
                releases[worker.name] = release
        return releases

    def state(self, cut: Cut) -> dict[str, Any]:
        """See `Topology.state`: batches that are in flight are not kept. A pipeline that goes on
        begins anew.
        """
        for server, roster in zip(self.servers, self.rosters, strict=True):
            if roster.published < roster.version:
                cut.keep(PUBLISHED, server, server.published)
        closed = [
            group for group in range(self._paradigm.groups) if group in self._pipelines.closed
        ]
        return {
            "machine": self.machine.snapshot(),
            "taken": self._pipelines.taken,
            "closed": closed,
            "stages": [
                [worker.name, self._pushed(worker), worker.before, worker.is_ready]
                for worker in self._stages.values()
            ],
        }

    def load_state(self, state: Mapping[str, Any], pushed: Mapping[Push, Step]) -> None:
        """See `Topology.load_state`."""
        self.machine.restore(state["machine"])
        self.machine.resume(self._backend.now)
        for server, roster in zip(self.servers, self.rosters, strict=True):
            server.resume(roster.version, roster.published)
        self._pipelines.taken = list(state["taken"])
        self._pipelines.closed.update(state["closed"])
        for worker, saved in zip(self._stages.values(), state["stages"], strict=True):
            worker.name, worker.pushed, worker.before, is_ready = saved
            roster, (group, stage) = self.roster_of(worker.name), worker.stage_id
            self._pipelines.stop(group)
            self._pipelines.lose(worker.stage_id, worker.pushed)
            worker.is_fresh = True
            if is_ready and worker.name not in (*roster.computing, *roster.outdated):
                # It may have to compute again what it has pushed, without another release.
                worker.is_ready, worker.version = True, roster.published
                worker.weights = self.servers[stage - 1].weights(group)

    def leavers(self, under_way: Collection[str]) -> list[str]:
        """See `Topology.leavers`: a replica without a batch leaves, since the paradigm of the stage
        would wait for it.
        """
        pipelines = self._pipelines
        if not pipelines.is_empty and not pipelines.closed:
            return []
        leavers = []
        for roster in self.rosters:
            for name in roster.live:
                worker = self._worker(name)
                group, _ = worker.stage_id
                if (
                    name not in under_way
                    and not pipelines.takes(group)
                    and self._pushed(worker) == pipelines.taken[group]
                ):
                    leavers.append(name)
                    pipelines.close(group)
        return leavers

    def waited_since(self, step: Step) -> float:
        """See `Topology.waited_since`: stages wait for each other, so an answer of one stage counts
        for its whole group, which is known to take as long as the slowest of its devices would
        take for the whole network.
        """
        group, _ = self._worker(step.release.worker).stage_id
        at, clock = issued_at(self.roster_of(step.release.worker), step), step.release.clock
        heard_at, known_s = [self._began_at[group]], [0.0]
        for (other, _), worker in self._stages.items():
            if other != group:
                continue
            known_s.append(self._known.seconds(worker.slot, clock, self._batch_size, at))
            member = self.roster_of(worker.name).live.get(worker.name)
            if member is not None:
                heard_at.append(member.telemetry.pushed_at or 0.0)
        return max(at, *heard_at) + max(known_s)

    def suspect(self, step: Step) -> str:
        """See `Topology.suspect`: of the stages that the step waits for, the one that waits for no
        other.
        """
        group, _ = self._worker(step.release.worker).stage_id
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
        if each.direction == "forward":
            worker.versions[each.batch] = worker.version
            if stage < self._paradigm.modules:
                call = self._send(worker, each)
                mail[Pass((group, stage + 1), "forward", each.batch)] = call, call
            elif each in mail:  # the last stage runs it with the backward pass
                mail[Pass(each.stage_id, "backward", each.batch)] = mail.pop(each)
            return None
        call = self._send(worker, each)
        if stage > 1:
            mail[Pass((group, stage - 1), "backward", each.batch)] = call.value(1), call
        forward_version = worker.versions.pop(each.batch)
        if each.batch <= self._pipelines.counts[each.stage_id].pushed:
            return None  # it was pushed before the pipeline began anew
        assert release is not None, f"{each} of a stage that was never released"
        assert worker.before is not None, f"{each} of a stage that was never released"
        assert release.clock + worker.before == each.batch - 1, f"{each} in {release}"
        report = Report(delay_ticks=self._pipelines.schedule.delay(stage))
        if self._paradigm.weights == "stash":
            report = replace(report, forward_version=forward_version)
        return Step(release, self._batch_size, call, self.servers[stage - 1], None, report)

    def _send(self, worker: _Worker, each: Pass) -> Call:
        arrived = [self._mail.pop(each)] if each in self._mail else []
        inputs = [worker.weights] if worker.is_behind else []
        inputs += [value for value, _ in arrived]
        worker.is_behind = False
        fault = NO_FAULT
        if self._faults is not None:
            fault = self._faults.at_step(worker.slot, each.batch - 1, self._backend.now)
        fields = [each.batch, fault.factor, fault.latency_s]
        call = self._backend.call(worker.name, each.direction, fields, inputs)
        worker.calls.append((call, [source for _, source in arrived]))
        return call
