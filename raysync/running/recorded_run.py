"""One run of an engine, and its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from raysync.config import Experiment, ParadigmChoice
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Ended, Line, Remark, Resumed
from raysync.engine.checkpoint_state import OUTLIVED_S, for_workers_of
from raysync.errors import RunFailed
from raysync.paradigms.decoupled import Decoupled
from raysync.record.checkpoints import CHECKPOINTS, CheckpointWriter, numbers_in
from raysync.record.event_text import report_events
from raysync.record.journal_file import end_of, lines_before
from raysync.record.measures import Measures
from raysync.record.metrics_registry import RunLabels
from raysync.record.reader import RunRecord, load
from raysync.record.resumption import checkpoints_of
from raysync.record.run_end import SIGNAL
from raysync.record.storage import check, display_name, experiment_folder, join
from raysync.record.uploader import uploads
from raysync.record.user_code import user_code
from raysync.record.writer import JOURNAL, RecordWriter, folder_name, make_folder
from raysync.running.engines import Engine, Notify, WatchCallback
from raysync.running.recovery import Recoveries, Reports, ResumePoint
from raysync.running.stop_request import RunCut, stop_request
from raysync.tracking.callback import RunStart, callbacks_of
from raysync.tracking.observers import Observers, trackers_of
from raysync.training.preparation import TrainingPlan
from raysync.training.tasks.supervised import Supervised

MODEL_AFTER = ("finished", "diverged")  # the statuses of runs that leave a model


class RecordedRun:
    """Write the record of a run while an engine trains and observers watch."""

    def __init__(
        self,
        engine: Engine,
        training: TrainingPlan,
        choice: ParadigmChoice,
        resume_from: ResumePoint | None,
        notify: Notify,
    ) -> None:
        self._engine, self._training, self._choice = engine, training, choice
        self._resume_from, self._notify = resume_from, notify
        self._experiment = training.experiment.model_copy(update={"paradigm": choice})
        self._began = datetime.now() if resume_from is None else resume_from.began
        self._folder = (
            _new_folder(self._experiment) if resume_from is None else resume_from.record.path
        )
        self._checkpoints = _checkpoint_writer(self._folder, self._experiment)
        self._labels = RunLabels(self._experiment.name, self._folder.name, self._experiment.label)
        # created before the engine begins, as they may be refused
        self._trackers = trackers_of(self._experiment, notify)
        self._callbacks = callbacks_of(self._experiment)
        self._watches: tuple[WatchCallback, ...] = ()
        self._problem = ""
        self._is_one_of_several = False

    def begin(self, sweep: str = "") -> Reports:
        """Start or resume the run on the engine; return its reports."""
        name = self._experiment.name
        self._labels = replace(self._labels, experiment=f"{sweep}/{name}" if sweep else name)
        return self._reports(None if self._resume_from is None else self._resume_from.checkpoint)

    def _reports(self, checkpoint: Checkpoint | None) -> Reports:
        training, journal = self._training, self._folder / JOURNAL
        paradigm = training.make(self._choice)
        if checkpoint is None:
            stream = self._engine.run(training, paradigm, self._labels)
        else:
            checkpoint = for_workers_of(checkpoint, self._experiment)
            if isinstance(paradigm, Decoupled):
                state = {**checkpoint.state, OUTLIVED_S: end_of(journal)}
                checkpoint = replace(checkpoint, state=state)
            history = partial(lines_before, journal, checkpoint)
            stream = self._engine.run(training, paradigm, self._labels, checkpoint, history)
        return chain([next(stream)], stream)  # an impossible run raises here

    @contextmanager
    def observed(
        self, sweep: str, comparison: str, watch: WatchCallback, callbacks: Sequence[object]
    ) -> Iterator[RecordWriter]:
        """Within the block, write and upload the record, and notify observers."""
        experiment, resume_from, notify = self._experiment, self._resume_from, self._notify
        self._is_one_of_several = bool(sweep or comparison)
        start = RunStart(self._folder, sweep or experiment.name, experiment, self._began)
        callbacks = [*self._callbacks, *callbacks]
        measures = self._new_measures()
        if resume_from is None:
            make_folder(self._folder)
        with (
            uploads(
                self._folder, self._checkpoints.folder, notify, is_resumed=resume_from is not None
            ) as upload,
            Observers(start, self._trackers, callbacks, notify) as observers,
            self._new_writer(measures, comparison) as self._writer,
        ):
            self._observers = observers
            self._watches = observers, upload, watch
            yield self._writer

    def _new_measures(self) -> Measures:
        training = self._training
        measures = Measures(
            training.workload_samples,
            self._experiment.aim(training.primary),
            training.primary,
            training.chance_accuracy,
            last=self._experiment.evaluation.last,
        )
        if self._resume_from is None and (rosters := self._engine.rosters):
            measures.share(rosters)
        return measures

    def _new_writer(self, measures: Measures, comparison: str) -> RecordWriter:
        training, choice = self._training, self._choice
        engine, resume_from = self._engine, self._resume_from
        return RecordWriter(
            folder=self._folder,
            config_yaml=self._experiment.recorded.to_yaml(),
            paradigm=training.make(choice),
            measures=measures,
            about=_about(training, choice),
            began=self._began,
            places={name: asdict(place) for name, place in engine.places.items()},
            checkpoints=self._checkpoints,
            resumption=None
            if resume_from is None
            else resume_from.resumption(exact=engine.resumes_exactly),
            comparison=comparison,
            user_code=user_code_of(training, choice),
        )

    def follow(self, stream: Reports) -> None:
        """Record the reports; raise `RunFailed` if an actor or the user's code failed."""
        writer, engine, experiment = self._writer, self._engine, self._experiment
        self._observers.start(self._remark)
        if self._resume_from is not None and writer.resumed is not None:
            self._write([])  # show observers the measures up to the checkpoint
            report_events([writer.resumed], self._notify)
            if self._resume_from.remark:
                self._remark(self._resume_from.remark)
        with stop_request(is_answered=experiment.checkpoint is not None) as request:
            recoveries = Recoveries(
                experiment, self._reports, request.wait, self._notify, exact=engine.resumes_exactly
            )
            for report in recoveries.reports(stream, writer):
                self._handle(report)
                if request.poll():
                    engine.stop()

    def _handle(self, report: list[Line] | Checkpoint | Resumed) -> None:
        if isinstance(report, Checkpoint):
            self._write_checkpoint(report)
        elif isinstance(report, Resumed):
            report_events([report], self._notify)
            self._write([])  # show observers the measures up to the checkpoint
        else:
            self._write_models(report)
            self._write(report)

    def _write(self, lines: list[Line]) -> None:
        self._writer.write(lines)
        report_events(lines, self._notify)
        for watch in self._watches:
            watch(self._writer.measures)

    def _remark(self, text: str) -> None:
        measures = self._writer.measures
        if measures.ended is not None:  # nothing follows the end of a journal
            self._notify(text)
            return
        lines: list[Line] = [Remark(measures.now, text)]
        self._writer.write(lines)
        report_events(lines, self._notify)

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; if that fails, the run continues."""
        try:
            self._writer.write_checkpoint(checkpoint)
        except OSError as error:
            reason = " ".join((error.strerror or str(error)).split())
            self._remark(
                f"Checkpoint {checkpoint.number} could not be written ({reason}): the run"
                " continues, and earlier checkpoints stay."
            )

    def _write_models(self, report: list[Line]) -> None:
        # models precede the line of the end: a run that has ended cannot be resumed
        if report and isinstance(report[-1], Ended) and report[-1].status in MODEL_AFTER:
            for model in self._engine.models:
                self._writer.write_model(model.which, model.data)

    @contextmanager
    def completing(self) -> Iterator[None]:
        """Complete the record, however the block ends."""
        try:
            yield
        except RunFailed as failure:
            self._problem = str(failure)  # the journal may have its end already
            self._close("failed", self._problem)
        except BaseException as error:
            stopped = not isinstance(error, Exception)  # Ctrl-C, or the end of the process
            has_ended = self._writer.measures.ended is not None
            if not has_ended:
                by = (error.by if isinstance(error, RunCut) else SIGNAL) if stopped else ""
                self._close(*(("stopped", "") if stopped else ("failed", repr(error))), by)
            if stopped or not has_ended:
                what = "Stopped" if stopped else "Failed"
                self._notify(
                    f"{what}. The record up to now: {display_name(self._folder)}"
                    f"{self._next_step() if stopped else ''}"
                )
            raise

    def _next_step(self) -> str:
        """Say how a run goes on; "" in a sweep or comparison, which say it themselves."""
        if self._is_one_of_several:
            return ""
        if numbers_in(self._checkpoints.folder):
            return f"\nTo resume: raysync run --resume {display_name(self._folder)}"
        return "\nIt has no checkpoint to resume from; set checkpoint: {every_s: 60}."

    def _close(self, status: str, error: str, by: str = "") -> None:
        writer = self._writer
        if writer.measures.ended is None:
            with suppress(RunFailed):  # if it cannot be written, the writer keeps the reason
                writer.write([Ended(status, writer.measures.now, error, by=by)])
        writer.close()

    def record(self) -> RunRecord:
        """Load the record; raise `RunFailed` if the run failed or could not be recorded."""
        ended, failure = self._writer.measures.ended, self._writer.failure
        assert ended is not None, "a run without an end"
        why = ended.error if ended.status == "failed" else self._problem
        if why or failure:
            path = display_name(self._folder)
            location = f"The record up to then: {path}" if self._folder.exists() else ""
            raise RunFailed("\n".join(dict.fromkeys(filter(None, (why, failure, location)))))
        return load(self._folder, trust=True)  # the user's own record


def user_code_of(training: TrainingPlan, choice: ParadigmChoice) -> dict[str, Any] | None:
    """Describe the user's code that a run executes; see `user_code`."""
    settings = training.experiment.model_dump(include={"task", "model", "data"})
    objects: list[object] = [training.task]
    if isinstance(training.task, Supervised):
        objects += [training.task.plan.source, *vars(training.task.data).values()]
    return user_code([settings, *objects], [choice.model_dump()])


def _new_folder(experiment: Experiment) -> Path:
    check(experiment_folder(experiment.output, experiment.name))
    return folder_name(experiment.output, experiment.name, experiment.label)


def _checkpoint_writer(folder: Path, experiment: Experiment) -> CheckpointWriter:
    setting = experiment.checkpoint
    if setting is None:
        return CheckpointWriter(folder / CHECKPOINTS)
    if setting.output is not None:
        check(join(setting.output, folder.name), "checkpoint.output")
    return CheckpointWriter(checkpoints_of(folder, setting.output), setting.keep)


def _about(training: TrainingPlan, choice: ParadigmChoice) -> dict[str, Any]:
    experiment = training.experiment
    target = experiment.aim(training.primary)
    return {
        "engine": experiment.engine,
        "timing": experiment.timing,
        "profile": experiment.profile,
        "paradigm": choice.name,
        "paradigm_label": experiment.model_copy(update={"paradigm": choice}).label,
        "set": choice.set,
        "paradigm_parameters": training.make(choice).parameters(),
        "model": training.task.model_name,
        "parameters": training.parameters,
        "dataset": training.task.data_name,
        "tokens": training.tokens,
        "workers": experiment.worker_count,
        "seed": experiment.seed,
        "metric": training.primary.name,
        "metric_mode": training.primary.mode,
        "target": None if target is None else target.plain(),
        "chance_accuracy": training.chance_accuracy,
        "last_evaluations": experiment.evaluation.last,
        "batch_metrics": list(training.batch_metrics),
    }
