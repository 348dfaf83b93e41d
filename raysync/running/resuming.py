"""Go on with a run that was lost, stopped or has failed, from its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysync import config
from raysync.config import Experiment
from raysync.config.resume_changes import check_changes, check_place
from raysync.errors import ConfigError
from raysync.record.reader import RunRecord, load
from raysync.record.resumption import (
    NoCheckpointError,
    check_resumable,
    environment_of,
    newest_checkpoint,
    workload_of,
)
from raysync.record.storage import display_name
from raysync.running.engines import Notify, WatchCallback, engine_for, quiet
from raysync.running.recorded_run import user_code_of
from raysync.running.recovery import GoesOn
from raysync.running.run import check_functions, run_in
from raysync.tracking.callback import check_callbacks
from raysync.training.data.data_set import Labelled
from raysync.training.models.builtin import ModelSource
from raysync.training.preparation import TrainingPlan, prepare
from raysync.training.tasks.task import Task


def resume(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    model: ModelSource | None = None,
    data: Labelled | None = None,
    task: Task | None = None,
    watch: WatchCallback = quiet,
    notify: Notify = quiet,
    callbacks: Sequence[object] = (),
) -> RunRecord:
    """Go on with a run that was lost, stopped or has failed, from its newest checkpoint that is
    whole, and return its record, which goes on, too.

    Args:
        path: the folder of its record, or its URI. The record is trusted: what it names is
            imported.
        overrides: changes of its settings, as `--set` takes them: `checkpoint.every_s=60`. Only
            those in `config.resume_changes.CHANGEABLE` are allowed.
        model: as of `run`; what was given to the run must be given again.
        data: likewise.
        task: likewise.
        watch: as of `run`.
        notify: as of `run`.
        callbacks: as of `run`; they are told the evaluations before the checkpoint, too.

    Raises:
        ConfigError: there is no record, or no checkpoint that is whole; the run is over or still
            goes on; or a setting changed that cannot.
        RunFailed: see `run`.
    """
    check_functions("raysync.resume", watch=watch, notify=notify)
    check_callbacks(callbacks)
    record = load(path, trust=True)
    experiment = config.load(record.path / "config.yaml", overrides, recorded=True)
    training, goes_on = prepare_to_resume(record, experiment, notify, model, data, task)
    with engine_for(training.experiment, notify) as engine:
        return run_in(
            engine,
            training,
            experiment.paradigm,
            watch=watch,
            notify=notify,
            callbacks=callbacks,
            goes_on=goes_on,
        )


def prepare_to_resume(
    record: RunRecord,
    experiment: Experiment,
    notify: Notify,
    model: ModelSource | None = None,
    data: Labelled | None = None,
    task: Task | None = None,
) -> tuple[TrainingPlan, GoesOn]:
    """Return what a run trains that is to go on, and from where.

    Args:
        record: a trusted record.
        experiment: that of the record, possibly with other settings.
        notify: receives sentences that the user should read.
        model: see `resume`.
        data: see `resume`.
        task: see `resume`.

    Raises:
        ConfigError: see `resume`.
    """
    about = check_resumable(record)
    check_place(record.config, experiment, record.path.parent)
    if not experiment.names_a_task:  # one of the user's own may bring settings, which are recorded
        check_changes(record.config, experiment.recorded, elastic=True)
    try:
        training = prepare(experiment, model, data, task)
    except ConfigError as error:
        if model is None and data is None and task is None:
            raise ConfigError(
                f"{error}\nA model, data or task that was given to the run as a Python object must"
                " be given again: raysync.resume(path, model=...)."
            ) from error
        raise
    check_changes(record.config, training.experiment.recorded, elastic=True)
    # as many as it began with, also where other workers go on with `iterations_per_worker`
    training = replace(training, workload_samples=workload_of(record))
    goes_on = _goes_on(record, about, training, notify)
    if experiment.trains:
        notify(training.rate_in_force(experiment.paradigm))
    return training, goes_on


def resumption_of(
    record: RunRecord, training: TrainingPlan, notify: Notify, *, is_gone: bool = False
) -> GoesOn | None:
    """Return where a run of several goes on; None, with a word, if it has no checkpoint, and begins
    anew.

    Args:
        record: a trusted record.
        training: what it trains; its settings have been checked.
        notify: receives sentences that the user should read.
        is_gone: whether the caller knows that no process writes the record any more.

    Raises:
        ConfigError: the run is over, or still goes on; or its model is another one.
    """
    try:
        about = check_resumable(record, is_gone=is_gone)
        return _goes_on(record, about, training, notify)
    except NoCheckpointError as why:
        notify(f"{why} It begins anew.")
        return None


def _goes_on(
    record: RunRecord, about: Mapping[str, Any], training: TrainingPlan, notify: Notify
) -> GoesOn:
    """Return the newest checkpoint of a run, if that is one of the model that it trains."""
    if (before := about.get("parameters")) not in (None, training.parameters):
        raise ConfigError(
            f"{display_name(record.path)}: the model of the run has {before} parameters, and"
            f" {training.task.model_name} has {training.parameters}."
        )
    setting = training.experiment.checkpoint
    output = None if setting is None else setting.output
    checkpoint = newest_checkpoint(record, notify, output=output)
    return GoesOn(record, checkpoint, _other_code(record, training))


def _other_code(record: RunRecord, training: TrainingPlan) -> str:
    """Say that the user's code is another one than when the run began; "" if it is not."""
    before = environment_of(record).get("user_code")
    now = user_code_of(training, record.config.paradigm)
    hashes = [each["sha256"][:8] if each else "none" for each in (before, now)]
    if hashes[0] == hashes[1]:
        return ""
    return f"The user's code has changed since the run began: {hashes[1]} in place of {hashes[0]}"
