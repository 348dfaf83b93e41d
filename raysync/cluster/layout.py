"""The spec of a run, and the class of its workers."""

from __future__ import annotations

from raysync.cluster.actors.stage import Stage
from raysync.cluster.actors.worker import Worker
from raysync.cluster.run_spec import RunSpec
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.decoupled.pipelined_topology import server_of
from raysync.decoupled.plan import check, placed_as, plan_of
from raysync.engine.topology import SERVER, DataParallelPlan
from raysync.paradigms.decoupled import Decoupled
from raysync.record.metrics_registry import RunLabels
from raysync.training.preparation import TrainingPlan


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
        sizes = {server_of(stage): plan.vector_bytes[stage] for stage in plan.shares}
        return RunSpec(
            experiment=placed_as(experiment, paradigm),
            topology=plan.topology(),
            batches={plan.name(each): plan.batches_of(each[0]) for each in plan.slots},
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
        batches={slot: training.batches(slot) for slot in training.groups},
        vector_bytes={SERVER: training.vector_bytes},
        push_bytes={SERVER: training.push_bytes},
        primary=primary,
        labels=labels,
    )


def worker_class(spec: RunSpec) -> type:
    return Stage if spec.is_pipelined else Worker
