"""The spec of a run, and the programs of its actors, built alike on every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from raysync.config import WorkerGroup
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.decoupled.gossip import store_of
from raysync.decoupled.pipelined_topology import PipelinedPlan, server_of
from raysync.decoupled.plan import check, parts_of, placed_as, plan_of
from raysync.decoupled.stage_computation import StageComputation
from raysync.decoupled.stage_seconds import StageSeconds
from raysync.emulation.step_time import StepTime
from raysync.engine.messages import LoadServerStateCall
from raysync.engine.server_log import log_bytes
from raysync.engine.topology import SERVER, DataParallelPlan
from raysync.paradigms.decoupled import Decoupled
from raysync.programs.run_spec import RunSpec
from raysync.programs.server import ServerProgram
from raysync.programs.stage import StageProgram
from raysync.programs.worker import WorkerProgram
from raysync.record.metrics_registry import RunLabels
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batches import Batches
from raysync.training.models.initial_model import InitialModel
from raysync.training.preparation import TrainingPlan
from raysync.training.server.parameter_store import shard_of
from raysync.training.vectors.flat import FlatModel
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.gradient import GradientComputation


def spec_of(
    training: TrainingPlan, paradigm: AnyParadigm, labels: RunLabels | None = None
) -> RunSpec:
    """Return the spec of a run.

    Raises:
        ConfigError: the network cannot be cut as the paradigm says, or a setting does not fit it.
    """
    experiment, primary = training.experiment, training.primary
    if isinstance(paradigm, Decoupled):
        plan = plan_of(training, paradigm)
        sizes = {server_of(stage): size for stage, size in plan.vector_bytes.items()}
        return RunSpec(
            experiment=placed_as(experiment, paradigm),
            topology=plan,
            batches=_batches_of_stages(training, plan),
            vector_bytes=sizes,
            push_bytes=sizes,  # see `Capability.REDUCED_WIRE`
            primary=primary,
            labels=labels,
        )
    assert isinstance(paradigm, Paradigm), f"{paradigm.name} is another kind of run"
    check(experiment, paradigm)
    return RunSpec(
        experiment=experiment,
        topology=DataParallelPlan(
            paradigm=paradigm,
            workload_samples=training.workload_samples,
            groups=training.groups,
            has_buffers=training.has_buffers,
            vector_bytes=training.vector_bytes,
        ),
        batches={slot: training.batches(slot) for slot in training.shards},
        vector_bytes={SERVER: training.vector_bytes},
        push_bytes={SERVER: training.push_bytes},
        primary=primary,
        labels=labels,
    )


def _batches_of_stages(training: TrainingPlan, plan: PipelinedPlan) -> dict[str, Batches]:
    """Return the batches of each stage: those of the worker that runs its group's first stage."""
    first = {group: slot for (group, stage), (_, slot) in plan.slots.items() if stage == 1}
    dealt = replace(training, shards=training.deal(list(first.values())))
    return {
        name: dealt.batches(first[group])
        for (group, _), (name, _) in plan.slots.items()
        if dealt.shards
    }


def server_program(
    spec: RunSpec,
    index: int,  # of the server's actor: its stage, or its shard
    model: InitialModel,
    state: Sequence[bytes] = (),  # the file of a `SnapshotCall`, to resume from
    *,
    device: str = "cpu",
    is_whole: bool = False,  # one server for all shards, of decoded gradients
) -> ServerProgram:
    """Return a server's part of the model, with initial weights and optimizer, or resumed.

    Raises:
        ConfigError: the state is of another model or optimizer.
    """
    experiment = spec.experiment
    if isinstance(spec.topology, PipelinedPlan):
        paradigm = spec.topology.paradigm
        part = parts_of(model, experiment.seed, paradigm)[index]
        store = store_of(paradigm, experiment.update, part)
    else:
        whole = FlatModel(model.build(experiment.seed).to(device), found=model.found)
        shards, wire = experiment.cluster.server_shards, experiment.cluster.wire.name
        shard = (0, 1, "float32") if is_whole else (index, shards, wire)
        store = shard_of(whole, experiment.update, *shard)
    program = ServerProgram(store)
    for data in state:
        program.handle(LoadServerStateCall(), [data])
    return program


def gradient_of(
    spec: RunSpec,
    group: WorkerGroup,
    model: InitialModel,
    devices: Sequence[str],
    *,
    draws_ahead: bool = False,
) -> GradientComputation:
    """Return the computation of a worker, as its group and the cluster say."""
    experiment = spec.experiment
    wire = experiment.cluster.wire
    return GradientComputation(
        module=model.build(experiment.seed),
        task=model.task,
        devices=devices,
        group=group,
        micro_batch=experiment.micro_batch,
        wire=wire.name,
        fraction=wire.fraction,
        shards=experiment.cluster.server_shards,
        draws_ahead=draws_ahead,
        found=model.found,
    )


def worker_program(
    spec: RunSpec,
    slot: str,
    model: InitialModel,
    gradient: GradientComputation,
    *,
    can_lose_servers: bool,  # as `ActorProcesses.can_lose`
    tries_kernels: bool = False,  # cuDNN's, which are a setting of the whole process
    loader_workers: int = 0,
    computing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> WorkerProgram:
    """Return the program of a worker; `gradient` may serve others, too."""
    experiment = spec.experiment
    may_repeat = can_lose_servers and log_bytes(experiment, spec.vector_bytes[SERVER]) > 0
    return WorkerProgram(
        WorkerComputation(gradient, experiment, may_repeat),
        reader_of(spec, slot, model, loader_workers),
        experiment.batch_size_of(slot) if tries_kernels else None,
        computing,
    )


def reader_of(
    spec: RunSpec, slot: str, model: InitialModel, loader_workers: int = 0
) -> BatchReader:
    return BatchReader(model.train_set, model.task.collate, spec.batches[slot], loader_workers)


def stage_program(
    spec: RunSpec,
    slot: str,  # the stage's own
    model: InitialModel,
    device: str = "cpu",
    loader_workers: int = 0,
    computing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> StageProgram:
    assert isinstance(spec.topology, PipelinedPlan), "a run without stages"
    topology, experiment = spec.topology, spec.experiment
    (_, stage), paradigm = topology.stage_of(slot), topology.paradigm
    part = parts_of(model, experiment.seed, paradigm)[stage - 1].to(device)
    precision = topology.group(slot).precision
    return StageProgram(
        computation=StageComputation(part, paradigm.weights, paradigm.shrink, precision),
        stage=stage,
        stages=paradigm.modules,
        task=model.task,
        reader=reader_of(spec, slot, model, loader_workers),
        batch_size=experiment.batch_size,
        device=device,
        computing=computing,
    )


def step_time_of(spec: RunSpec, slot: str) -> StepTime:
    """Return the durations of a worker's steps; `slot` is a worker's, or a stage's own."""
    topology, experiment = spec.topology, spec.experiment
    group = topology.group(slot)
    if isinstance(topology, PipelinedPlan):
        slot = topology.worker_of(slot)
    return StepTime(group, experiment.seed, slot, group.batch_size or experiment.batch_size)


def stage_seconds_of(spec: RunSpec, slot: str) -> StageSeconds:
    assert isinstance(spec.topology, PipelinedPlan), "a run without stages"
    plan, size = spec.topology, spec.experiment.batch_size
    return StageSeconds(step_time_of(spec, slot), size, plan, plan.stage_of(slot)[1])
