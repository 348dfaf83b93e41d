"""Finds the task of an experiment: a built-in one of model and data, or the user's."""

from __future__ import annotations

from raysync.config import Data, Experiment, Named
from raysync.config.experiment import BUILT_IN_TASKS, GIVEN
from raysync.core.metrics import MODES, PrimaryMetric
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import call_checked, load_reference
from raysync.training.adapter_registry import task_adapter
from raysync.training.data.data_set import DataSet, Labelled, LazyDataSet, subset
from raysync.training.data.datasets import KINDS, load
from raysync.training.models.builtin import ModelPlan, ModelSource
from raysync.training.task import Task
from raysync.training.tasks.supervised import TASKS, Supervised
from raysync.users_code import users_code


def task_of(
    experiment: Experiment, model: ModelSource | None, data: Labelled | None, task: object
) -> tuple[Task, Experiment]:
    """Return the task of an experiment, and the experiment with the names of given objects."""
    if task is not None:
        return _given_task(experiment, task, model, data)
    if experiment.task is not None and experiment.names_a_task:
        loaded = load_task(experiment.task)
        _refuse_settings_of_others(experiment, loaded)
        return loaded, experiment
    return _built_in_task(experiment, model, data)


def _given_task(
    experiment: Experiment, task: object, model: object, data: object
) -> tuple[Task, Experiment]:
    if not isinstance(task, Task):
        raise ConfigError(
            f"task: must be an object of a class that derives from raysync.Task, got"
            f" {type(task).__name__}."
        )
    _check_names(task)
    if model is not None or data is not None:
        other = "model" if model is not None else "data"
        raise ConfigError(f"task: {task.name} builds its own model and data; leave {other} out.")
    experiment = experiment.model_copy(update={"task": Named(name=f"{GIVEN}{task.name}")})
    _refuse_settings_of_others(experiment, task)
    return task, experiment


def _built_in_task(
    experiment: Experiment, model: ModelSource | None, data: Labelled | None
) -> tuple[Task, Experiment]:
    if data is not None and not isinstance(data, DataSet | LazyDataSet):
        raise ConfigError(
            "data: must be a raysync.DataSet, as raysync.data_set returns it, got "
            f"{type(data).__name__}."
        )
    loaded = load(experiment.data) if data is None else subset(data, experiment.data)
    augment, shape = experiment.data.augment, loaded.input_shape
    if augment != "none" and isinstance(loaded, LazyDataSet):
        raise ConfigError(
            f"data.augment: {augment} is for data in memory; the samples of {loaded.name} are read"
            " one by one: augment them there."
        )
    if augment != "none" and len(shape) != 3:
        raise ConfigError(
            f"data.augment: {augment} is for images (C, H, W); {loaded.name} has"
            f" samples of shape {shape}."
        )
    choice = experiment.model
    source, parameters = (choice.name, choice.parameters) if model is None else (model, {})
    plan = ModelPlan(
        source=source,
        parameters=parameters,
        input_shape=shape,
        classes=loaded.classes,
        tokens=loaded.tokens,
    )
    if model is not None or data is not None:  # the record names the objects that were given
        names = {
            "model": experiment.model if model is None else Named(name=plan.name),
            "data": experiment.data.model_copy(update={"name": loaded.name}),
        }
        experiment = experiment.model_copy(update=names)
    return TASKS[_checked_kind(experiment, loaded)](plan, loaded, augment), experiment


def _checked_kind(experiment: Experiment, data: Labelled) -> str:
    """Return the built-in task that suits the labels; refuse another one in the experiment."""
    kind = data.kind
    if experiment.task is not None and experiment.task.name != kind:
        raise ConfigError(
            f"task: {experiment.task.name} does not go with the labels of {data.name}, which are"
            f" for a {kind}."
        )
    if experiment.task is not None and experiment.task.parameters:
        raise ConfigError(
            f"task: {kind} has no parameter {next(iter(experiment.task.parameters))!r}."
        )
    return kind


def load_task(choice: Named) -> Task:
    """Import a task, and make it with its parameters.

    Raises:
        ConfigError: it does not exist, its parameters do not fit, or it is no task.
        NotTrusted: a record that is not trusted names it.
    """
    where = f"task {choice.name}"
    if choice.name.startswith(GIVEN):
        raise ConfigError(
            f"{where}: the task was a Python object, so only a Python program can run it again:"
            " raysync.run(..., task=...)."
        )
    if ":" not in choice.name:
        allowed = [*BUILT_IN_TASKS, "package.module:Class"]
        raise unknown_name("task", choice.name, allowed, where="task")
    make = task_adapter(choice.name) or load_reference(choice.name, where)
    with users_code(where):
        task = call_checked(make, where, choice.parameters, {})
    if not isinstance(task, Task):
        raise ConfigError(
            f"{where}: must be a class that derives from raysync.Task, or a function that returns"
            f" such an object; got {type(task).__name__}."
        )
    _check_names(task)
    return task


def _check_names(task: Task) -> None:
    """Check that a task's names can be read."""
    with users_code(f"task {type(task).__name__}: its names"):
        _ = task.name, task.model_name, task.data_name


def _refuse_settings_of_others(experiment: Experiment, task: Task) -> None:
    """Refuse settings of built-in tasks beside a task with its own model and data."""
    default, data = Data(), experiment.data
    settings = [
        f"data.{name}"
        for name in ("name", "data_dir", "parameters", "augment", "validation_samples")
        if getattr(data, name) != getattr(default, name)
    ]
    if experiment.model != Experiment().model:
        settings.insert(0, "model")
    if settings:
        raise ConfigError(
            f"{settings[0]}: the task {task.name} builds its own model and reads its own data;"
            " leave this setting out."
        )


def primary_of(experiment: Experiment) -> PrimaryMetric:
    """Return the primary metric of an experiment before its data are loaded."""
    if experiment.task is not None and experiment.names_a_task:
        return primary_metric(load_task(experiment.task))
    return primary_metric(_class_before_loading(experiment))


def metrics_of(experiment: Experiment) -> tuple[str, ...] | None:
    """Name the metrics of an experiment's task before its data are loaded; None: unknown."""
    return None if experiment.names_a_task else _class_before_loading(experiment).metric_names


def _class_before_loading(experiment: Experiment) -> type[Supervised]:
    """Return the built-in task; by default a user's data set is for classification."""
    if experiment.task is not None:
        return TASKS[experiment.task.name]
    return TASKS[KINDS.get(experiment.data.name, "classification")]


def primary_metric(task: Task | type[Task]) -> PrimaryMetric:
    """Return the primary metric of a task, with its direction."""
    if task.higher_is_better is None:
        return PrimaryMetric(task.primary, MODES.get(task.primary, "min"))
    return PrimaryMetric(task.primary, "max" if task.higher_is_better else "min")
