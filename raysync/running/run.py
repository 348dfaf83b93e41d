"""Run an experiment on its engine, and write the record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysync import config
from raysync.config import Experiment, ParadigmChoice
from raysync.engine.demands import check_metrics
from raysync.errors import ConfigError
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord
from raysync.running.engines import Engine, Notify, WatchCallback, engine_for, quiet
from raysync.running.recorded_run import RecordedRun
from raysync.running.recovery import ResumePoint
from raysync.tracking.callback import check_callbacks
from raysync.training.data.data_set import Labelled
from raysync.training.models.builtin import ModelSource
from raysync.training.preparation import TrainingPlan, prepare
from raysync.training.task import Task

# Receives what a run trained, and its measures; returns what limited it, as data for the record.
Diagnose = Callable[[TrainingPlan, ParadigmChoice, Measures], Mapping[str, Any] | None]


def run(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    *,
    model: ModelSource | None = None,
    data: Labelled | None = None,
    task: Task | None = None,
    watch: WatchCallback = quiet,
    notify: Notify = quiet,
    callbacks: Sequence[object] = (),
) -> RunRecord:
    """Train one experiment and return its record.

    By default (`cluster.address: auto`), the run uses the cluster that Ray is connected to, and
    leaves it running: call `ray.init()` first, as in a Ray job. Otherwise the run starts a private
    cluster, and stops it.

    Args:
        experiment: a validated experiment, plain data as in an experiment file, or the path of one.
        model: an nn.Module, or a function returning one, instead of the experiment's model. A
            function receives `input_shape` and `classes` if it has parameters of these names.
        data: a `raysync.DataSet` (see `raysync.data_set`) instead of the experiment's data set.
        task: a `raysync.Task`, with its own model and data.
        watch: receives the measures so far, a few times a second.
        notify: receives sentences that the user should read.
        callbacks: objects with methods of `raysync.Callback`; an error in one fails the run.

    Raises:
        ConfigError: the experiment asks for something impossible.
        RunFailed: an actor or the user's own code failed; the message names the run folder.
    """
    check_functions("raysync.run", watch=watch, notify=notify)
    check_callbacks(callbacks)
    if not isinstance(experiment, Experiment | Mapping | str | Path):
        raise ConfigError(
            "raysync.run: experiment must be settings {name: value, ...}, the path of a file, or"
            f" an Experiment; got {type(experiment).__name__}."
        )
    if isinstance(experiment, str | Path):
        experiment = config.load(Path(experiment))
    elif not isinstance(experiment, Experiment):
        experiment = config.validate(experiment)
    experiment = config.row_of(experiment, experiment.paradigm)
    training = prepare(experiment, model, data, task)
    for remark in training.remarks:
        notify(remark)
    for remark in training.estimate_remarks:  # virtual seconds mean little: never unseen
        warnings.warn(remark, stacklevel=2) if notify is quiet else notify(remark)
    if experiment.trains:
        notify(training.rate_in_force(experiment.paradigm))
    with engine_for(experiment, notify) as engine:
        return run_in(
            engine, training, experiment.paradigm, watch=watch, notify=notify, callbacks=callbacks
        )


def check_functions(caller: str, **functions: object) -> None:
    """Refuse arguments that are not callable."""
    for name, function in functions.items():
        if not callable(function):
            given = type(function).__name__
            raise ConfigError(f"{caller}: {name} must be a function, got {given}.")


def run_in(
    engine: Engine,
    training: TrainingPlan,
    choice: ParadigmChoice,
    *,
    watch: WatchCallback = quiet,
    notify: Notify = quiet,
    callbacks: Sequence[object] = (),
    sweep: str = "",
    comparison: str = "",
    resume_from: ResumePoint | None = None,
    diagnose: Diagnose | None = None,
) -> RunRecord:
    """Train under a paradigm on an engine that can serve further runs; see `run`.

    `diagnose`, such as `predict.diagnosis.bottleneck_of_run`, finds what limited the run.
    """
    check_metrics(training.experiment, training.metrics, training.primary)
    running = RecordedRun(
        engine=engine, training=training, choice=choice, resume_from=resume_from, notify=notify
    )
    stream = running.begin(sweep)  # an impossible experiment raises here, before it has a record
    with running.observed(sweep, comparison, watch, callbacks) as writer, running.completing():
        running.follow(stream)
        if diagnose is not None:
            writer.bottleneck = diagnose(training, choice, writer.measures)
    return running.record()
