"""The plan of a decoupled run: the cut network, the stages' workers, and their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from raysync.config import Experiment
from raysync.core.ids import stage_slot
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.decoupled.cut import COSTS, Part, costs_of, cut
from raysync.decoupled.pipelined_topology import PipelinedPlan, refusals_of
from raysync.decoupled.pipelines import StageId
from raysync.engine.demands import refusals_of_data_parallel, refuse
from raysync.errors import ConfigError
from raysync.paradigms.decoupled import Decoupled
from raysync.paradigms.registry import make_inner
from raysync.training.models.initial_model import InitialModel
from raysync.training.preparation import TrainingPlan
from raysync.training.tasks.supervised import Supervised
from raysync.training.trials.task_trial import first_batch
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.parameter_groups import check_named
from raysync.training.worker.precision import computing_in, taken_in

FLOAT_BYTES = 4


def plan_of(training: TrainingPlan, paradigm: Decoupled) -> PipelinedPlan:
    """Cut the network and place the stages, or raise a ConfigError."""
    experiment = training.experiment
    check(experiment, paradigm)
    if not training.task.can_be_cut:
        raise ConfigError(
            f"paradigm: {paradigm.name}: the task {training.task.name} has a `loss` of the whole"
            " model, but stages need a loss of the model's output: give the task `inputs` and"
            " `criterion` instead."
        )
    parts = parts_of(training.model, experiment.seed, paradigm)
    check_named(experiment.update, (name for part in parts for name in part.names))
    models = [FlatModel(part) for part in parts]
    slots = {
        (index // paradigm.modules, index % paradigm.modules + 1): slot
        for index, slot in enumerate(experiment.slots())
    }
    example = _example(training.model)
    costs = [max(1.0, cost) for cost in costs_of(parts, example, COSTS["operations"])]
    rounds = -(-training.workload_samples // (paradigm.groups * experiment.batch_size))
    return PipelinedPlan(
        paradigm=paradigm,
        workload_samples=training.workload_samples,
        batches=rounds * paradigm.groups,
        slots={each: (stage_slot(slot, each[1]), slot) for each, slot in slots.items()},
        groups=training.groups,
        shares={index: cost / sum(costs) for index, cost in enumerate(costs, start=1)},
        vector_bytes={
            index: FLOAT_BYTES * (model.size + model.buffer_size)
            for index, model in enumerate(models, start=1)
        },
        output_bytes=_output_bytes(parts, example, training, slots),
    )


def parts_of(model: InitialModel, seed: int, paradigm: Decoupled) -> list[Part]:
    return cut_model(model, seed, paradigm)[1]


def cut_model(model: InitialModel, seed: int, paradigm: Decoupled) -> tuple[nn.Module, list[Part]]:
    """Build and cut a model; the whole module shares the parts' tensors."""
    module = model.build(seed)
    parts = cut(
        module, paradigm.modules, _example(model), paradigm.balance, paradigm.at, model.name
    )
    return module, parts


def placed_as(experiment: Experiment, paradigm: AnyParadigm) -> Experiment:
    """Return the experiment for placement: each stage of a cut network has a server."""
    if not isinstance(paradigm, Decoupled):
        return experiment
    cluster = experiment.cluster.model_copy(update={"server_shards": paradigm.modules})
    return experiment.model_copy(update={"cluster": cluster})


def check_training(training: TrainingPlan, paradigm: AnyParadigm) -> None:
    """Refuse before any run what its start would refuse."""
    if not isinstance(paradigm, Decoupled):
        check(training.experiment, paradigm)
        return
    if moved := training.model.found.moved:
        raise ConfigError(
            f"paradigm: {paradigm.name}: training steps move {moved[0]!r}, which has no gradient;"
            " passes of stages recompute, and would move it twice. Train this model without stages."
        )
    plan_of(training, paradigm)


def check(experiment: Experiment, paradigm: AnyParadigm) -> None:
    """Refuse settings that a run would ignore or cannot carry out."""
    if not isinstance(paradigm, Decoupled):
        if isinstance(paradigm, Paradigm):
            refusals = refusals_of_data_parallel(experiment, paradigm)
            refuse(paradigm.name, refusals, experiment, paradigm)
        return
    refuse(
        paradigm.name,
        refusals_of(paradigm),
        experiment,
        make_inner(paradigm.sync, f"{paradigm.name}: sync"),
        "sync: ",
    )
    if paradigm.mixes_locally and experiment.update.combine == "sum":
        raise ConfigError(f"paradigm: {paradigm.name}: update.combine: sum: a matrix mixes means.")
    update = experiment.update
    if any(update.in_phase(name).lr_scaling == "inverse-root" for name in ("", *update.phases)):
        raise ConfigError(
            f"paradigm: {paradigm.name}: update.lr_scaling: inverse-root: it counts workers that"
            " train the whole network; give the rate itself, with lr_scaling: none."
        )


def _example(model: InitialModel) -> Tensor:
    """Return the model's input for two samples."""
    task = model.task
    if isinstance(task, Supervised):
        return task.plan.example
    inputs = task.inputs(first_batch(model, [0, 1]))
    if not isinstance(inputs, Tensor):
        raise ConfigError(
            f"paradigm: decoupled: the inputs of the task {task.name} are"
            f" {type(inputs).__name__}; the first stage needs one tensor."
        )
    return inputs


def _output_bytes(
    parts: Sequence[Part], samples: Tensor, training: TrainingPlan, slots: Mapping[StageId, str]
) -> dict[StageId, float]:
    """Measure the bytes of each stage's output for one sample, in the precision of its group."""
    measured: dict[tuple[str, ...], list[float]] = {}
    sizes = {}
    for group in sorted({group for group, _ in slots}):
        precisions = tuple(
            training.groups[slots[group, stage]].precision for stage in range(1, len(parts) + 1)
        )
        if precisions not in measured:
            measured[precisions] = _sample_bytes(parts, samples, precisions)
        for stage, size in enumerate(measured[precisions], start=1):
            sizes[group, stage] = size
    return sizes


@torch.no_grad()
def _sample_bytes(parts: Sequence[Part], x: Tensor, precisions: Sequence[str]) -> list[float]:
    sizes = []
    for part, precision in zip(parts, precisions, strict=True):
        part.eval()
        with computing_in(precision, x.device):
            x = part(taken_in(precision, x))
        part.train()
        sizes.append(x.numel() * x.element_size() / len(x))
    return sizes
