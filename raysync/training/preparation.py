"""The task, model and shards of an experiment, checked before an engine starts."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import ValidationError
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from raysync.config import Data, Experiment, Local, ParadigmChoice, Update, WorkerGroup
from raysync.config.base import listed
from raysync.config.durations import is_shared
from raysync.core.capability import Capability
from raysync.core.metrics import OF_THE_TEST_SET, PrimaryMetric
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.errors import ConfigError
from raysync.paradigms.local import steps_per_push
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batches import Array, Batches, shards
from raysync.training.data.data_set import DataSet, Labelled, check_samples
from raysync.training.data.selected_samples import labels_of
from raysync.training.files.model_file import check_savable
from raysync.training.files.weight_files import read_any
from raysync.training.loading import primary_metric, task_of
from raysync.training.models.builtin import MODELS, ModelSource
from raysync.training.models.initial_model import InitialModel
from raysync.training.optim.flat_optimizer import count_state_numbers
from raysync.training.optim.lr_schedule import local_rate, rate_in_force
from raysync.training.optim.optimizers import check_optimizer
from raysync.training.optim.outer_optimizers import OUTER
from raysync.training.task import Task
from raysync.training.tasks.supervised import Classification, LanguageModel, Supervised
from raysync.training.trials.batch_metrics import batch_metrics
from raysync.training.trials.cost import step_flops
from raysync.training.trials.smallest_batch import smallest_batch
from raysync.training.trials.task_trial import TRIED, tried_indices, try_task
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.module_state import ModuleState
from raysync.training.vectors.parameter_groups import check_groups
from raysync.training.vectors.wire import Wire
from raysync.training.worker.own_state import PLAIN
from raysync.users_code import users_code

FLOAT_BYTES = 4
MOST_NAMES = 6  # the most names that a remark lists
# about one core of a CPU: the assumed speed of a virtual worker without step_s, flops_per_s or
# trace
CORE_FLOPS_PER_S = 1e11


@dataclass(frozen=True)
class TrainingPlan:
    """The training as both engines need it."""

    experiment: Experiment
    model: InitialModel  # actors share it
    parameters: int  # trainable ones
    vector_bytes: int  # the bytes of a pull: parameters and buffers
    groups: dict[str, WorkerGroup]  # by worker slot, with `flops_per_s` converted to `step_s`
    shards: dict[str, Array]  # worker slot -> indices of its samples; empty without training
    workload_samples: int
    # the names of the task's metrics; None: not known before the first evaluation
    metrics: tuple[str, ...] | None
    remarks: tuple[str, ...] = ()  # sentences for the user before a run
    batch_metrics: tuple[str, ...] = ()  # names of metrics that depend on `evaluation.batch_size`
    smallest_batch: int = 1  # fewest samples that a device can compute at once

    def make(self, choice: ParadigmChoice) -> AnyParadigm:
        return self.experiment.make(choice, self.smallest_batch)

    @property
    def task(self) -> Task:
        return self.model.task

    @property
    def data(self) -> Any:
        assert isinstance(self.task, Supervised), f"{self.task.name} has data of its own"
        return self.task.data

    @property
    def has_buffers(self) -> bool:
        return self.vector_bytes > FLOAT_BYTES * self.parameters

    @property
    def push_bytes(self) -> int:
        """The bytes of a push: an encoded gradient, and buffers."""
        cluster = self.experiment.cluster
        if cluster.wire.is_plain:
            return self.vector_bytes
        buffers = self.vector_bytes // FLOAT_BYTES - self.parameters
        wire = Wire(
            name=cluster.wire.name,
            parameters=self.parameters,
            buffers=max(0, buffers),
            shards=cluster.server_shards,
            fraction=cluster.wire.fraction,
        )
        return FLOAT_BYTES * sum(wire.sizes)

    def push_samples(self, choice: ParadigmChoice) -> float:
        """Return the mean samples of a push at the start of a run."""
        local = self.experiment.local
        steps = steps_per_push(self.make(choice), 1 if local is None else local.steps)
        return steps * fmean(self.experiment.batch_sizes.values())

    @property
    def tokens(self) -> bool:
        return isinstance(self.task, LanguageModel)  # exp(loss) is a perplexity

    def deal(self, slots: list[str]) -> dict[str, Array]:
        return _deal(self.experiment, self.model, slots)

    def batches(self, slot: str) -> Batches:
        return Batches(self.shards[slot], self.experiment.seed, slot, self.model.sample_weights)

    def build(self) -> nn.Module:
        return self.model.build(self.experiment.seed)

    def reader(self, slot: str) -> BatchReader:
        """Return the batches of a worker slot, read by this process."""
        return BatchReader(self.model.train_set, self.task.collate, self.batches(slot))

    def with_seed(self, seed: int) -> TrainingPlan:
        seeded = replace(self, experiment=self.experiment.model_copy(update={"seed": seed}))
        return replace(seeded, shards=seeded.deal(list(self.groups)))

    def rate_in_force(self, choice: ParadigmChoice) -> str:
        experiment, local = self.experiment, self.experiment.local
        rate = rate_in_force(experiment.update, experiment.make(choice), experiment.worker_count)
        steps = 0 if local is None else steps_per_push(experiment.make(choice), local.steps)
        return rate if local is None else f"{local_rate(local, steps)}; outer {rate}"

    @property
    def primary(self) -> PrimaryMetric:
        return primary_metric(self.task)

    @cached_property
    def chance_accuracy(self) -> float | None:
        """The accuracy of the best constant guess; None without training or labels in memory."""
        experiment, task = self.experiment, self.task
        if not (experiment.trains and isinstance(task, Classification)):
            return None
        if not isinstance(task.data, DataSet):
            return None
        validation = task.data.validation_y
        labels = task.data.test_y if validation is None else validation
        # evaluations during the run may use only the first part: the larger accuracy counts
        parts = (labels, labels[: experiment.evaluation.samples])
        return max(
            float(np.unique(part, return_counts=True)[1].max()) / part.size for part in parts
        )

    @property
    def estimate_remarks(self) -> tuple[str, ...]:
        """A sentence for each group whose step time is estimated."""
        return tuple(
            f"Worker group {group!r} has no step time; estimated from the floating-point"
            f" operations: {step_s:.2g} s."
            for group, step_s in self.estimated_s.items()
        )

    @property
    def estimated_s(self) -> dict[str, float]:
        """Group -> seconds of its step, where the settings do not give them."""
        given = {group.name for group in self.experiment.workers if group.emulates_steps}
        return {
            group.name: group.step_s
            for group in self.groups.values()
            if group.name not in given and group.step_s
        }


def prepare(
    experiment: Experiment,
    model: ModelSource | None = None,
    data: Labelled | None = None,
    task: Task | None = None,
    *,
    for_balanced: bool = False,
) -> TrainingPlan:
    """Load the data, build the model once, and deal the samples out.

    Args:
        model: replaces the experiment's model.
        data: replaces the experiment's data set.
        task: replaces both.

    Raises:
        ConfigError: task, data or model do not exist or do not fit.
    """
    task, experiment = task_of(experiment, model, data, task)
    counts = {name: value for name, value in vars(task).items() if isinstance(value, PLAIN)}
    if experiment.network.vector_bytes is not None and not experiment.trains:
        return _without_model(experiment, InitialModel(task), experiment.network.vector_bytes)
    file = experiment.init_from
    initial = InitialModel(task, None if file is None else read_any(file, "init_from"))
    count = _train_count(experiment.data, initial)
    _check_batches(experiment, task, count)
    module = initial.build(experiment.seed)
    experiment, remarks = _add_task_settings(task, module, experiment, count)
    remarks += _batch_norm_remarks(experiment, module)
    _check_settings(experiment, FlatModel(module), initial.name)
    smallest = 1
    if experiment.trains:
        smallest = smallest_batch(experiment, initial, module, count, for_balanced=for_balanced)
    metrics, found = _tried(experiment, initial, module, count)
    initial = initial.with_found(found)
    flat = FlatModel(module, found=found)
    flat.check_buffers()
    batch_dependent = _batch_dependent_metrics(experiment, initial, module)
    plan = TrainingPlan(
        experiment=experiment,
        model=initial,
        parameters=flat.size,
        vector_bytes=FLOAT_BYTES * (flat.size + flat.buffer_size),
        groups=_groups_with_step_times(experiment, initial),
        shards=_deal(experiment, initial, list(experiment.slots())),
        workload_samples=experiment.workload_samples(count),
        metrics=metrics,
        remarks=(
            *remarks,
            *_batch_metrics_remarks(batch_dependent, experiment.evaluation.batch_size),
            *_shared_trace_remarks(experiment),
            *_worker_state_remarks(experiment, flat.size),
            *_outer_optimizer_remarks(experiment),
            *_module_remarks(experiment, found),
            *_muon_remarks(experiment, flat),
        ),
        batch_metrics=batch_dependent,
        smallest_batch=smallest,
    )
    # what its own counts show of these checks is not the run's
    vars(task).update({name: counts[name] for name in found.of_task if name in counts})
    return plan


def _without_model(experiment: Experiment, model: InitialModel, vector_bytes: int) -> TrainingPlan:
    """Plan timing-only runs with vectors of a given size, without building a model."""
    count = _train_count(experiment.data, model) if experiment.workload.epochs is not None else 0
    return TrainingPlan(
        experiment=experiment,
        model=model,
        parameters=-(-vector_bytes // FLOAT_BYTES),
        vector_bytes=vector_bytes,
        groups=_groups_with_step_times(experiment, model),
        shards={},
        workload_samples=experiment.workload_samples(count),
        metrics=None,
    )


def _train_count(data: Data, model: InitialModel) -> int:
    """Check all parts of the data; return the number of training samples in use."""
    where = f"task {model.task.name}"
    count = check_samples(f"{where}: train_set", model.train_set)
    check_samples(f"{where}: test_set", model.test_set)
    if model.validation_set is not None:
        check_samples(f"{where}: validation_set", model.validation_set)
    return min(count, data.train_samples or count)


def _check_batches(experiment: Experiment, task: Task, limit: int) -> None:
    """Refuse batches that are larger than the training set."""
    for where, size, groups in experiment.named_batch_sizes():
        # a worker's share may be smaller than its batch, which then repeats samples
        if groups and size > limit:
            raise ConfigError(
                f"{where}: {size:,} is more than the {limit:,} training samples of"
                f" {task.data_name or task.name}."
            )


def _add_task_settings(
    task: Task, module: nn.Module, experiment: Experiment, count: int
) -> tuple[Experiment, tuple[str, ...]]:
    """Add the task's optimizer settings to `update` (or `local`); return remarks, too."""
    local, epochs = experiment.local, experiment.workload_samples(count) / count
    block: Update | Local = experiment.update if local is None else local
    file, where = (experiment.update, "update") if local is None else (local.update, "local")
    with users_code(f"task {task.name}: remarks"):
        remarks = list(task.remarks(module))
    with users_code(f"task {task.name}: update"):
        settings = dict(task.update(module, file, epochs))
    if not settings.keys().isdisjoint(("optimizer", "lr")):
        settings.setdefault("lr_scaling", "none")  # a rate of the task's own stays as it is
    added = {
        name: value
        for name, value in settings.items()
        if name in type(block).model_fields and name not in block.model_fields_set
    }
    if not added:
        return experiment, tuple(remarks)
    text = ", ".join(f"{name}: {value}" for name, value in added.items())
    try:
        block = type(block).model_validate(block.model_dump(exclude_unset=True) | added)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first.get("ctx", {}).get("error", first["msg"])
        raise ConfigError(f"task {task.name}: its {where} ({text}): {reason}.") from error
    # a scaling that is in force anyhow needs no remark
    if added.keys() != {"lr_scaling"} or settings["lr_scaling"] != file.lr_scaling:
        remarks.append(f"Taken over from {task.name} into {where}: {text}.")
    return experiment.model_copy(update={where: block}), tuple(remarks)


def _batch_norm_remarks(experiment: Experiment, module: nn.Module) -> tuple[str, ...]:
    """Warn of batch norm over batches of unequal sizes."""
    choices = (experiment.paradigm, *experiment.paradigms)
    paradigms = [experiment.make(choice) for choice in choices]
    is_unequal = len({group.batch_size for group in experiment.workers}) > 1 or any(
        capability is Capability.BATCH_SIZE
        for paradigm in paradigms
        if isinstance(paradigm, Paradigm)
        for capability, _ in paradigm.demands()
    )
    if experiment.micro_batch is not None or not is_unequal:
        return ()
    if not any(isinstance(part, _BatchNorm) for part in module.modules()):
        return ()
    return (
        "Batch norm normalises each worker's batch by itself: with batches of unequal sizes the"
        " small ones have noisier statistics. With micro_batch: 16, and sizes that are multiples of"
        " it (`balanced` has `multiple: 16`), every worker normalises over 16 samples at a time.",
    )


def _check_settings(experiment: Experiment, flat: FlatModel, name: str) -> None:
    """Refuse settings that do not fit the model."""
    if experiment.keep != "none":
        check_savable(flat.module, name)
    blocks = {"update": experiment.update}
    if experiment.local is not None:
        blocks["local"] = experiment.local.update
    for block, settings in blocks.items():
        check_optimizer(settings, block)
        check_groups(settings, flat.parameters, block)
    if experiment.cluster.server_shards > flat.most_servers:
        raise ConfigError(
            f"cluster.server_shards: {experiment.cluster.server_shards} servers cannot share the"
            f" {flat.size} parameters that {name} has; at most {flat.most_servers} can."
        )


def _tried(
    experiment: Experiment, model: InitialModel, module: nn.Module, count: int
) -> tuple[tuple[str, ...] | None, ModuleState]:
    """Try a task, unless it is raysync's own with a model of its own; name its metrics."""
    task, found = model.task, ModuleState()
    names: tuple[str, ...] | None = None
    if isinstance(task, Supervised) and isinstance(task.data, DataSet):
        names = task.metric_names
    if names is None or (experiment.trains and not _is_ours(task)):
        fresh = model.build(experiment.seed)
        if fresh is module:  # the task returns one object each time, which the run is to find so
            fresh = deepcopy(module)
        tried = tried_indices(experiment, count, min(experiment.batch_size, TRIED))
        of_trial, found = try_task(model, fresh, tried)
        names = names or of_trial
    if names is None or model.validation_set is None:
        return names, found
    return (*names, *(f"{OF_THE_TEST_SET}{name}" for name in names)), found


def _is_ours(task: Task) -> bool:
    """Whether model, data and loss are raysync's own."""
    source = task.plan.source if isinstance(task, Supervised) else None
    return isinstance(source, str) and source in MODELS


def _module_remarks(experiment: Experiment, found: ModuleState) -> Iterator[str]:
    """Say what a module changes in a step beside what is trained, and what becomes of it."""
    if found.moved:
        yield (
            f"Training steps move parameters without a gradient: {listed(found.moved, MOST_NAMES)}."
            " They travel as buffers do: the server has the mean of the workers'."
        )
    if found.sums:
        yield (
            "The loss of a batch is the sum over its samples, as far as a trial shows. raysync"
            " averages pushes by samples, as if it were the mean: the rate then depends on the"
            " batch size. Return the mean."
        )
    if found.draws_alone:
        yield (
            "A training sample differs when it is read twice with the same seed: the data set draws"
            " from a generator of its own, which raysync cannot seed. Runs of one seed, and resumed"
            " runs, have other samples. Draw from torch, numpy.random or random in __getitem__."
        )
    if own := (*found.own, *(f"{name} (of the task)" for name in found.of_task)):
        saved = ""
        if experiment.checkpoint is not None:
            saved = " Checkpoints keep numbers, texts and tensors of it alone."
            if experiment.engine == "ray":
                saved = " No checkpoint has it: a resumed worker begins with it anew."
        yield (
            f"Training steps change {listed(own, MOST_NAMES)}: each worker has its own, and"
            f" evaluations have the initial ones.{saved}"
        )


def _muon_remarks(experiment: Experiment, flat: FlatModel) -> Iterator[str]:
    """Name the matrices that muon steps along."""
    updates = [experiment.update, *([experiment.local.update] if experiment.local else [])]
    if any(update.is_muon for update in updates):
        names = [each.name for each in flat.parameters if each.matrix is not None]
        rest, named = len(flat.parameters) - len(names), listed(names, MOST_NAMES) or "no matrix"
        yield f"muon: {named}; AdamW for {rest} other parameters."


def _batch_dependent_metrics(
    experiment: Experiment, model: InitialModel, module: nn.Module
) -> tuple[str, ...]:
    """Name the metrics that depend on the batch; raysync's own tasks and models have none."""
    task = model.task
    if _is_ours(task) or not experiment.trains:
        return ()
    with users_code(f"task {task.name}: metrics"):
        return batch_metrics(model, module, min(experiment.evaluation.batch_size, TRIED))


def _batch_metrics_remarks(names: tuple[str, ...], size: int) -> Iterator[str]:
    if names:
        yield (
            f"{', '.join(names)} depend{'s' * (len(names) == 1)} on which samples are in one batch,"
            f" so on evaluation.batch_size: {size}. Compare it between runs of the same size only."
        )


def _groups_with_step_times(experiment: Experiment, model: InitialModel) -> dict[str, WorkerGroup]:
    """Return the group of each slot, with step times from rates; on the virtual engine for all."""
    default = CORE_FLOPS_PER_S if experiment.engine == "virtual" else None
    rates = {
        group.name: group.flops_per_s or (None if group.emulates_steps else default)
        for group in experiment.workers
    }
    with users_code(f"task {model.task.name}: loss"):
        flops = max(1.0, step_flops(model, experiment.batch_size)) if any(rates.values()) else 0.0
    timed = {}
    for group in experiment.workers:
        step_s, rate = group.step_s, rates[group.name]
        if rate:
            size = group.batch_size or experiment.batch_size
            step_s = flops * (size / experiment.batch_size) / rate
        timed[group.name] = group.model_copy(update={"step_s": step_s, "flops_per_s": None})
    return {slot: timed[group.name] for slot, group in experiment.slots().items()}


def _deal(experiment: Experiment, model: InitialModel, slots: list[str]) -> dict[str, Array]:
    if not experiment.trains:
        return {}
    task, samples = model.task, model.train_set
    count = min(len(samples), experiment.data.train_samples or len(samples))  # type: ignore[arg-type]

    def labels() -> Array:
        with users_code(f"task {task.name}: labels"):
            values = labels_of(task.labels, samples)[:count]
        is_regression = isinstance(task, Supervised) and task.data.regression
        if is_regression or values.ndim > 1:
            what = "numbers to predict" if is_regression else "a label for each token"
            raise ConfigError(
                f"data.partition: dirichlet deals samples out by their class; these have {what}.\n"
                "Allowed: iid, shared."
            )
        return values

    sizes = experiment.batch_sizes
    return shards(
        experiment.data,
        count,
        labels,
        {slot: sizes[slot] for slot in slots},
        experiment.seed,
        weighted=model.sample_weights is not None,
    )


def _shared_trace_remarks(experiment: Experiment) -> Iterator[str]:
    for group in experiment.workers:
        # with one list, a worker that was measured as slow is no slower than the others
        if is_shared(group.trace, group.count):
            yield (
                f"The {group.count} workers of {group.name!r} share one list of"
                f" {len(group.trace)} step times, and each starts at another place. To separate"
                " them, give a list or a column for each worker."
            )


def _worker_state_remarks(experiment: Experiment, parameters: int) -> Iterator[str]:
    """Name the size that worker state adds to checkpoints."""
    if not experiment.worker_state or experiment.checkpoint is None or not experiment.trains:
        return
    local = experiment.local
    vectors = int(experiment.cluster.wire.feeds_back)
    if local is not None and local.keeps_state:
        vectors += count_state_numbers(local.update)
    size_mb = FLOAT_BYTES * vectors * parameters / 1e6
    yield (
        f"Each checkpoint has {' and '.join(experiment.worker_state)} of"
        f" {experiment.worker_count} workers: {experiment.worker_count} x {size_mb:.3g} MB at most."
    )


def _outer_optimizer_remarks(experiment: Experiment) -> Iterator[str]:
    """Warn of an optimizer for outer steps without local steps."""
    name = experiment.update.optimizer.name
    if name in OUTER and experiment.local is None:
        yield (
            f"update.optimizer: {name} is made for the weight changes of local steps. Without"
            " `local` it applies gradients, with another kind of momentum."
        )
