"""What an experiment trains: its data, model and shards, checked before an engine starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from raysync.config import Experiment, Named, WorkerGroup
from raysync.errors import ConfigError
from raysync.paradigms.syncswitch import SyncSwitch
from raysync.training.cost import step_flops
from raysync.training.data import Array, Batches, DataSet, load, shards, subset
from raysync.training.flat import FlatModel
from raysync.training.models import ModelPlan, ModelSource
from raysync.training.optimizers import check_optimizer
from raysync.training.parameter_groups import check_groups

CORE_FLOPS_PER_S = 1e11
"""The assumed speed, on the virtual engine, of a worker without step_s, flops_per_s or trace: about
one core of a CPU."""


@dataclass(frozen=True)
class TrainingPlan:
    """Everything about the training that both engines need."""

    experiment: Experiment
    data: DataSet
    model: ModelPlan
    parameters: int
    """The number of trainable parameters of the model."""
    vector_bytes: int
    """The bytes of a push, and of a pull: parameters and buffers."""
    groups: dict[str, WorkerGroup]
    """Worker slot -> its group, with `flops_per_s` converted to `step_s`."""
    shards: dict[str, Array]
    """Worker slot -> the indices of its training samples; empty if nothing is trained."""
    workload_samples: int

    def batches(self, slot: str) -> Batches:
        """Return the batches of a worker slot."""
        return Batches(self.shards[slot], self.experiment.seed, slot, self.experiment.data.augment)

    def with_seed(self, seed: int) -> TrainingPlan:
        """Return the same training with other randomness: initial weights, shards and batches."""
        experiment = self.experiment.model_copy(update={"seed": seed})
        model, dealt = replace(self.model, seed=seed), _deal(experiment, self.data)
        return replace(self, experiment=experiment, model=model, shards=dealt)

    @cached_property
    def chance_accuracy(self) -> float | None:
        """The accuracy of the best constant guess at the test labels; None if nothing is trained.

        Evaluations during the run may use only the first part of the test set; the larger of the
        guess's accuracies there and on the whole set counts.
        """
        experiment, labels = self.experiment, self.data.test_y
        if experiment.timing == "only":
            return None
        parts = (labels, labels[: experiment.evaluation.samples])
        return max(
            float(np.unique(part, return_counts=True)[1].max()) / part.size for part in parts
        )

    @property
    def estimated_s(self) -> dict[str, float]:
        """Group -> the seconds of its step, for groups whose settings do not say how long it
        takes.
        """
        silent = {group.name for group in self.experiment.workers if not group.emulates_steps}
        return {
            group.name: group.step_s
            for group in self.groups.values()
            if group.name in silent and group.step_s
        }


def prepare(
    experiment: Experiment, model: ModelSource | None = None, data: DataSet | None = None
) -> TrainingPlan:
    """Load the data, build the model once, and deal the samples out.

    Args:
        experiment: names data and model.
        model: replaces the experiment's model if it is given.
        data: replaces the experiment's data set if it is given.

    Raises:
        ConfigError: data or model do not exist or do not fit.
    """
    if data is not None and not isinstance(data, DataSet):
        raise ConfigError(
            "data: must be a raysync.DataSet, as raysync.data_set returns it, got "
            f"{type(data).__name__}."
        )
    loaded = load(experiment.data) if data is None else subset(data, experiment.data)
    _check_batches(experiment, loaded)
    if experiment.data.augment != "none" and loaded.train_x.ndim != 4:
        raise ConfigError(
            f"data.augment: {experiment.data.augment} is for images (C, H, W); {loaded.name} has"
            f" samples of shape {loaded.input_shape}."
        )
    choice = experiment.model
    source, parameters = (choice.name, choice.parameters) if model is None else (model, {})
    plan = ModelPlan(
        source, parameters, loaded.input_shape, loaded.classes, experiment.seed, loaded.tokens
    )
    flat = FlatModel(plan.build())
    check_optimizer(experiment.update)
    check_groups(experiment.update, flat.parameters)
    size = flat.size
    if experiment.cluster.server_shards > size:
        raise ConfigError(
            f"cluster.server_shards: {experiment.cluster.server_shards} servers cannot share the"
            f" {size} parameters that {plan.name} has."
        )
    if model is not None or data is not None:  # the record names the objects that were given
        named = {
            "model": experiment.model if model is None else Named(name=plan.name),
            "data": experiment.data.model_copy(update={"name": loaded.name}),
        }
        experiment = experiment.model_copy(update=named)
    return TrainingPlan(
        experiment,
        loaded,
        plan,
        size,
        4 * (size + flat.buffer_size),
        _timed(experiment, plan),
        _deal(experiment, loaded),
        experiment.workload_samples(len(loaded.train_x)),
    )


def _check_batches(experiment: Experiment, data: DataSet) -> None:
    """Refuse batches that are larger than the training set.

    A worker's own share of it may be smaller than its batch, which then repeats samples.

    Raises:
        ConfigError: it names both sizes.
    """
    limit, sizes = len(data.train_x), {"batch_size": experiment.batch_size}
    for choice in (experiment.paradigm, *experiment.paradigms):
        paradigm = choice.make()
        if isinstance(paradigm, SyncSwitch):
            where = f"paradigm {paradigm.name}: batch_sizes"
            sizes |= {f"{where}.{name}": size for name, size in paradigm.batch_sizes.items()}
    for where, size in sizes.items():
        if size > limit:
            raise ConfigError(
                f"{where}: {size:,} is more than the {limit:,} training samples of {data.name}."
            )


def _deal(experiment: Experiment, data: DataSet) -> dict[str, Array]:
    if experiment.timing == "only":
        return {}
    return shards(experiment.data, data.train_y, list(experiment.slots()), experiment.seed)


def _timed(experiment: Experiment, plan: ModelPlan) -> dict[str, WorkerGroup]:
    """Return the group of each slot, with the seconds of a step where a rate is given; the virtual
    engine needs them for all.
    """
    silent = CORE_FLOPS_PER_S if experiment.engine == "virtual" else None
    rates = {
        group.name: group.flops_per_s or (None if group.emulates_steps else silent)
        for group in experiment.workers
    }
    flops = max(1.0, step_flops(plan, experiment.batch_size)) if any(rates.values()) else 0.0
    steps_s = {name: flops / rate for name, rate in rates.items() if rate}
    timed = {
        group.name: group.model_copy(
            update={"step_s": steps_s.get(group.name, group.step_s), "flops_per_s": None}
        )
        for group in experiment.workers
    }
    return {slot: timed[group.name] for slot, group in experiment.slots().items()}
