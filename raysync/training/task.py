"""What is trained: an experiment's data, model and shards, checked before any engine starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from raysync.config import Experiment, Named
from raysync.errors import ConfigError
from raysync.training.data import Array, Batches, DataSet, load, shards, subset
from raysync.training.flat import FlatModel
from raysync.training.models import ModelPlan, ModelSource


@dataclass(frozen=True)
class Task:
    """Everything about the training that both engines need."""

    experiment: Experiment
    data: DataSet
    model: ModelPlan
    parameters: int
    """Trainable parameters of the model."""
    shards: dict[str, Array]
    """Worker slot -> indices of its training samples."""
    workload_samples: int

    def batches(self, slot: str) -> Batches:
        """The batches of a worker slot."""
        return Batches(self.shards[slot], self.experiment.seed, slot, self.experiment.data.augment)

    def with_seed(self, seed: int) -> Task:
        """The same task with other randomness: initial weights, shards and batches."""
        experiment = self.experiment.model_copy(update={"seed": seed})
        dealt = shards(experiment.data, self.data.train_y, list(self.shards), seed)
        return replace(self, experiment=experiment, model=replace(self.model, seed=seed), shards=dealt)


def prepare(experiment: Experiment, model: ModelSource | None = None, data: DataSet | None = None) -> Task:
    """Load the data, build the model once, and deal the samples out.

    Args:
        experiment: what to train.
        model: takes the place of the experiment's model, if it is given.
        data: takes the place of the experiment's data set, if it is given.

    Raises:
        ConfigError: whatever of the above does not exist or does not fit.
    """
    loaded = load(experiment.data) if data is None else subset(data, experiment.data)
    if experiment.data.augment != "none" and loaded.train_x.ndim != 4:
        raise ConfigError(f"data.augment: {experiment.data.augment} is for images (C, H, W); {loaded.name} has samples of "
                          f"shape {loaded.input_shape}.")
    choice = experiment.model
    source, parameters = (choice.name, choice.parameters) if model is None else (model, {})
    plan = ModelPlan(source, parameters, loaded.input_shape, loaded.classes, experiment.seed, loaded.tokens)
    size = FlatModel(plan.build()).size
    if experiment.cluster.server_shards > size:
        raise ConfigError(f"cluster.server_shards: {experiment.cluster.server_shards} servers cannot share the {size} "
                          f"parameters that {plan.name} has.")
    if model is not None or data is not None:  # what was given as an object takes its place in the record, too
        named = {"model": experiment.model if model is None else Named(name=plan.name),
                 "data": experiment.data.model_copy(update={"name": loaded.name})}
        experiment = experiment.model_copy(update=named)
    dealt = shards(experiment.data, loaded.train_y, list(experiment.slots()), experiment.seed)
    return Task(experiment, loaded, plan, size, dealt, experiment.workload_samples(len(loaded.train_x)))
