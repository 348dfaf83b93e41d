"""Resume a lost, stopped or failed run from its record."""

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
from raysync.running.recovery import ResumePoint
from raysync.running.run import check_functions, run_in
from raysync.tracking.callback import check_callbacks
from raysync.training.data.data_set import Labelled
from raysync.training.models.builtin import ModelSource
from raysync.training.preparation import TrainingPlan, prepare
from raysync.training.task import Task


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
    """Resume a lost, stopped or failed run from its newest intact checkpoint.

    Args:
        path: the folder or URI of its record, which is trusted: modules that it names are imported.
        overrides: settings as for `--set`, of those in `config.resume_changes.CHANGEABLE`.
        model, data, task: as for `run`; objects that the run was given must be given again.
        watch, notify: as for `run`.
        callbacks: as for `run`; they receive the evaluations before the checkpoint, too.

    Raises:
        ConfigError: no record or no intact checkpoint; the run has ended or is still active; or a
            setting that cannot change.
        RunFailed: see `run`.
    """
    check_functions("raysync.resume", watch=watch, notify=notify)
    check_callbacks(callbacks)
    record = load(path, trust=True)
    experiment = config.load(record.path / "config.yaml", overrides, recorded=True)
    experiment = config.row_of(experiment, experiment.paradigm)
    training, resume_from = prepare_to_resume(record, experiment, notify, model, data, task)
    with engine_for(training.experiment, notify) as engine:
        return run_in(
            engine,
            training,
            experiment.paradigm,
            watch=watch,
            notify=notify,
            callbacks=callbacks,
            resume_from=resume_from,
        )


def prepare_to_resume(
    record: RunRecord,
    experiment: Experiment,
    notify: Notify,
    model: ModelSource | None = None,
    data: Labelled | None = None,
    task: Task | None = None,
) -> tuple[TrainingPlan, ResumePoint]:
    """Prepare a run to resume from a trusted record; raise `ConfigError` as `resume` does."""
    about = check_resumable(record)
    check_place(record.config, experiment, record.path.parent)
    if not experiment.names_a_task:  # one of the user's own may bring settings, which are recorded
        check_changes(record.config, experiment.recorded, elastic=True)
    try:
        training = prepare(experiment, model, data, task)
    except ConfigError as error:
        if model is None and data is None and task is None:
            raise ConfigError(
                f"{error}\n"
                "Give a model, data or task that was a Python object again: raysync.resume(path,"
                " model=...)."
            ) from error
        raise
    check_changes(record.config, training.experiment.recorded, elastic=True)
    # the workload of the start, even if `iterations_per_worker` now has other workers
    training = replace(training, workload_samples=workload_of(record))
    resume_from = _resume_point(record, about, training, notify)
    if experiment.trains:
        notify(training.rate_in_force(experiment.paradigm))
    return training, resume_from


def find_resume_point(
    record: RunRecord, training: TrainingPlan, notify: Notify, *, is_gone: bool = False
) -> ResumePoint | None:
    """Find the checkpoint of one run of several; without one, it starts again, with a notice.

    The record is trusted and the settings are checked. With `is_gone`, no process writes the record
    any more. Raises `ConfigError` if the run has ended or is still active, or if its model differs.
    """
    try:
        about = check_resumable(record, is_gone=is_gone)
        return _resume_point(record, about, training, notify)
    except NoCheckpointError as why:
        notify(f"{why} It starts from the beginning.")
        return None


def _resume_point(
    record: RunRecord, about: Mapping[str, Any], training: TrainingPlan, notify: Notify
) -> ResumePoint:
    if (before := about.get("parameters")) not in (None, training.parameters):
        raise ConfigError(
            f"{display_name(record.path)}: the model of the run has {before} parameters, and"
            f" {training.task.model_name} has {training.parameters}."
        )
    setting = training.experiment.checkpoint
    output = None if setting is None else setting.output
    checkpoint = newest_checkpoint(record, notify, output=output)
    return ResumePoint(record, checkpoint, _code_change(record, training))


def _code_change(record: RunRecord, training: TrainingPlan) -> str:
    """Return a remark if the user's code has changed since the run began, else ""."""
    before = environment_of(record).get("user_code")
    now = user_code_of(training, record.config.paradigm)
    hashes = [code["sha256"][:8] if code else "none" for code in (before, now)]
    if hashes[0] == hashes[1]:
        return ""
    return f"The user's code has changed since the run began: {hashes[1]} instead of {hashes[0]}"
