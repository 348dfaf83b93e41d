"""Run an experiment: choose the engine, and write the record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from raysync import config
from raysync.bottlenecks import Setting, diagnose
from raysync.cluster.fork_server import ForkServer
from raysync.config import Experiment, ParadigmChoice
from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Left
from raysync.core.journal import Ended, Entry, Line, Remark, Resumed
from raysync.core.metrics import PrimaryMetric, known
from raysync.core.paradigm import AnyParadigm
from raysync.core.roster import Roster
from raysync.engine.checkpoint_state import OUTLIVED_S
from raysync.engine.early_stop import stop_metric
from raysync.engine.elastic import for_workers_of
from raysync.engine.kept_models import SavedModel
from raysync.errors import ConfigError, RunFailed, unknown_name
from raysync.paradigms.decoupled import Decoupled
from raysync.record.checkpoints import CHECKPOINTS, CheckpointWriter
from raysync.record.event_text import gone, is_rare, texts_of
from raysync.record.journal_cut import came_to, lines_before
from raysync.record.measures import Measures
from raysync.record.metrics_registry import RunLabels
from raysync.record.reader import RunRecord, load
from raysync.record.resumption import checkpoints_of
from raysync.record.storage import check, display_name, join
from raysync.record.uploader import uploads
from raysync.record.user_code import user_code
from raysync.record.writer import JOURNAL, RecordWriter, folder_name, make_folder
from raysync.recovery import GoesOn, Recoveries, Reports
from raysync.stop_request import stop_request
from raysync.tracking.callback import RunStart, callbacks_of, check_callbacks
from raysync.tracking.observers import Observers
from raysync.tracking.trackers import trackers_of
from raysync.training.data import Labelled
from raysync.training.models import ModelSource
from raysync.training.preparation import TrainingPlan, prepare
from raysync.training.supervised import Supervised
from raysync.training.task import Task

KEPT_AFTER = ("finished", "diverged")
"""The ends of a run that leaves its model."""
TOGETHER_S = 1.0
"""Within how long workers leave together: Ray tells of all on a lost node within milliseconds."""
Watch = Callable[[Measures], None]
Notify = Callable[[str], None]


class Engine(Protocol):
    """An engine that trains: `cluster.session.Session` or `virtual.engine.VirtualEngine`."""

    @property
    def places(self) -> Mapping[str, Any]:
        """Actor -> a dataclass that says where it ran, in the latest run."""

    @property
    def resumes_exactly(self) -> bool:
        """Whether iterations under way at a checkpoint go on, in place of beginning again."""

    @property
    def rosters(self) -> Mapping[int, Roster]:
        """Stage -> the roster of the latest run's machine, 0 where the network is whole; empty
        where the machine is in another process.
        """

    @property
    def models(self) -> Sequence[SavedModel]:
        """The models that the latest run left; they are there before its last line."""

    def run(
        self,
        training: TrainingPlan,
        paradigm: AnyParadigm,
        labels: RunLabels | None = None,
        checkpoint: Checkpoint | None = None,
        history: Callable[[], Sequence[Line]] = tuple,
    ) -> Iterator[list[Line] | Checkpoint]:
        """Train, and yield the lines of the journal in order; the last one is an `Ended`. Metrics
        are published under the labels. The first report has lines; each checkpoint is reported
        behind its line.

        Args:
            training: what to train.
            paradigm: a fresh one.
            labels: what names the run in logs and metrics; None: no metrics are published.
            checkpoint: what the run goes on from: the lines are those behind its cut. None: it
                begins.
            history: returns the lines of the journal up to there.

        Raises:
            RunLost: a process was lost that the run cannot do without; there is no `Ended`.
        """

    def stop(self) -> None:
        """Let the run under way end as `stopped`, after a last checkpoint."""


def quiet(_: object) -> None:
    """Tell nobody."""


@contextmanager
def engine_for(
    experiment: Experiment,
    notify: Notify = quiet,
    address: str | None = None,
    fork_server: ForkServer | None = None,
) -> Iterator[Engine]:
    """Start the engine that an experiment names. It serves any number of runs.

    Args:
        experiment: the experiment to run.
        notify: receives sentences that the user should read.
        address: the cluster to join where `cluster.address` is `auto`; None: a private one.
        fork_server: the one that was started early for it; None: there is none.
    """
    if experiment.engine == "virtual":
        from raysync.virtual.engine import VirtualEngine

        yield VirtualEngine()
        return
    from raysync.cluster.session import Session  # Ray is slow to import

    with Session(notify, address, fork_server=fork_server) as session:
        yield session


def run(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    *,
    model: ModelSource | None = None,
    data: Labelled | None = None,
    task: Task | None = None,
    watch: Watch = quiet,
    notify: Notify = quiet,
    callbacks: Sequence[object] = (),
) -> RunRecord:
    """Train one experiment and return its record.

    Args:
        experiment: a validated experiment, plain data as in an experiment file, or the path of such
            a file.
        model: an nn.Module, or a function returning one, in place of the experiment's model. A
            function receives `input_shape` and `classes` if it has parameters of these names.
        data: a `raysync.DataSet` in place of the experiment's data set; `raysync.data_set` makes
            one of arrays, or of torch's data sets.
        task: a `raysync.Task`, with a model and data of its own, in place of all that.
        watch: receives the measures so far, a few times a second.
        notify: receives sentences that the user should read.
        callbacks: objects with methods of `raysync.Callback`, which are called here; an error in
            one of them ends the run as failed.

    Raises:
        ConfigError: the experiment asks for something impossible.
        RunFailed: an actor or the user's own code failed. The record up to then is kept, and the
            message names it.

    With `cluster.address: auto`, the default, a cluster that Ray is connected to is used and left
    as it was: call `ray.init()` first, as in a Ray job. Otherwise a private cluster is started and
    stopped.
    """
    check_functions("raysync.run", watch=watch, notify=notify)
    check_callbacks(callbacks)
    if not isinstance(experiment, Experiment | Mapping | str | Path):
        raise ConfigError(
            "raysync.run: an experiment is settings {name: value, ...}, the path of a file, "
            f"or a validated Experiment, got {type(experiment).__name__}."
        )
    if isinstance(experiment, str | Path):
        experiment = config.load(Path(experiment))
    elif not isinstance(experiment, Experiment):
        experiment = config.validate(experiment)
    training = prepare(experiment, model, data, task)
    for remark in training.remarks:
        notify(remark)
    if experiment.trains:
        notify(training.rate_in_force(experiment.paradigm))
    with engine_for(experiment, notify) as engine:
        return run_in(
            engine, training, experiment.paradigm, watch=watch, notify=notify, callbacks=callbacks
        )


def check_functions(caller: str, **functions: object) -> None:
    """Refuse arguments that must be functions, and are none."""
    for name, function in functions.items():
        if not callable(function):
            given = type(function).__name__
            raise ConfigError(f"{caller}: {name} must be a function, got {given}.")


def run_in(
    engine: Engine,
    training: TrainingPlan,
    choice: ParadigmChoice,
    *,
    watch: Watch = quiet,
    notify: Notify = quiet,
    callbacks: Sequence[object] = (),
    sweep: str = "",
    comparison: str = "",
    goes_on: GoesOn | None = None,
    diagnoses: bool = False,
) -> RunRecord:
    """Train under a paradigm on an engine that can serve further runs; see `run`. For a
    trial, `sweep` is the name of its sweep; for a run of a comparison, `comparison` is the id of
    that. With `goes_on`, a run that was lost is resumed. With `diagnoses`, the bottleneck of a run
    in virtual time is looked for, which takes some tenths of a second.
    """
    began = datetime.now() if goes_on is None else goes_on.began
    check_metrics(training.experiment, training.metrics, training.primary)
    experiment = training.experiment.model_copy(update={"paradigm": choice})
    measures = Measures(
        training.workload_samples, experiment.target, training.primary, training.chance_accuracy
    )
    folder = goes_on.record.path if goes_on is not None else _new_folder(experiment, choice)
    checkpoints = _checkpoints_for(folder, experiment)
    name = f"{sweep}/{experiment.name}" if sweep else experiment.name
    trackers = trackers_of(experiment, notify)
    callbacks = [*callbacks_of(experiment), *callbacks]
    labels = RunLabels(name, folder.name, choice.label)
    former = None if goes_on is None else goes_on.checkpoint

    def begin(checkpoint: Checkpoint | None) -> Reports:
        if checkpoint is None:
            stream = engine.run(training, training.make(choice), labels)
        else:
            checkpoint = for_workers_of(checkpoint, experiment)
            if isinstance(training.make(choice), Decoupled):
                state = {**checkpoint.state, OUTLIVED_S: came_to(folder / JOURNAL)}
                checkpoint = replace(checkpoint, state=state)
            history = partial(lines_before, folder / JOURNAL, checkpoint)
            stream = engine.run(training, training.make(choice), labels, checkpoint, history)
        return chain([next(stream)], stream)

    stream = begin(former)  # an impossible experiment raises here, before there is a record of it
    if goes_on is None:
        make_folder(folder)
        if rosters := engine.rosters:
            measures.share(rosters)
    path = display_name(folder)
    start = RunStart(folder, sweep or experiment.name, experiment, began)
    with (
        uploads(folder, checkpoints.folder, notify, goes_on=goes_on is not None) as upload,
        Observers(start, trackers, callbacks, notify) as observers,
        RecordWriter(
            folder,
            experiment.recorded.to_yaml(),
            training.make(choice),
            measures,
            _about(training, choice),
            began,
            {name: asdict(place) for name, place in engine.places.items()},
            checkpoints,
            None if goes_on is None else goes_on.resumption(exact=engine.resumes_exactly),
            comparison,
            user_code_of(training, choice),
        ) as writer,
    ):

        def remark(text: str) -> None:
            if writer.measures.ended is None:
                _write(writer, [Remark(writer.measures.now, text)], (), notify)
            else:  # nothing follows the end of a journal
                notify(text)

        watches, problem = (observers, upload, watch), ""
        try:
            observers.start(remark)
            if goes_on is not None and writer.resumed is not None:
                _write(writer, [], watches, notify)  # all that is kept
                _tell([writer.resumed], notify)
                if goes_on.remark:
                    remark(goes_on.remark)
            with stop_request(is_answered=experiment.checkpoint is not None) as request:
                recoveries = Recoveries(
                    experiment, begin, request.wait, notify, exact=engine.resumes_exactly
                )
                for report in recoveries.reports(stream, writer):
                    if isinstance(report, Checkpoint):
                        _keep(writer, report, remark)
                    elif isinstance(report, Resumed):
                        _tell([report], notify)
                        _write(writer, [], watches, notify)  # they look at what is left
                    else:
                        _write_models(writer, report, engine)
                        _write(writer, report, watches, notify)
                    if request.take():
                        engine.stop()
            if diagnoses:
                writer.bottleneck = _bottleneck(training, choice, writer.measures)
        except RunFailed as failure:
            problem = str(failure)  # its end may be written already
            _end(writer, "failed", problem)
        except BaseException as error:
            stopped = not isinstance(error, Exception)  # Ctrl-C, or the end of the process
            in_order = writer.measures.ended is not None
            if not in_order:
                _end(writer, *(("stopped", "") if stopped else ("failed", repr(error))))
            if stopped or not in_order:
                notify(f"{'Stopped' if stopped else 'Failed'}. The record up to now: {path}")
            raise
    ended = writer.measures.ended
    assert ended is not None, "a run without an end"
    why = ended.error if ended.status == "failed" else problem
    if why or writer.failure:
        kept = f"The record up to then: {path}" if folder.exists() else ""
        raise RunFailed("\n".join(dict.fromkeys(filter(None, (why, writer.failure, kept)))))
    return load(folder, trust=True)  # the user's own record


def user_code_of(training: TrainingPlan, choice: ParadigmChoice) -> dict[str, Any] | None:
    """Describe the user's code that a run executes; see `user_code`."""
    named = training.experiment.model_dump(include={"task", "model", "data"})
    objects: list[object] = [training.task]
    if isinstance(training.task, Supervised):
        objects += [training.task.plan.source, *vars(training.task.data).values()]
    return user_code([named, *objects], [choice.model_dump()])


def _bottleneck(
    training: TrainingPlan, choice: ParadigmChoice, measures: Measures
) -> dict[str, Any] | None:
    """Return where the time of a run went; None where that cannot be simulated, or not fast."""
    if training.experiment.engine != "virtual":
        return None
    if measures.ended is None or measures.ended.status != "finished" or training.experiment.stop:
        return None
    setting = Setting.of(training, choice)
    diagnosis = diagnose(setting, measures.seconds) if setting is not None else None
    return None if diagnosis is None else diagnosis.plain()


def check_metrics(
    experiment: Experiment, metrics: Sequence[str] | None, primary: PrimaryMetric
) -> None:
    """Refuse a metric of `target` or `stop` that the task does not have, a target in its worse
    direction, and a metric of `stop` whose direction is not known.

    Args:
        experiment: has the settings.
        metrics: the metrics of the task; None: they are not known before the first evaluation.
        primary: its primary metric.

    Raises:
        ConfigError: the message has the nearest name.
    """
    for where, name in experiment.named_metrics.items():
        if metrics is not None and name not in known(metrics):
            raise unknown_name("metric", name, known(metrics), where=where)
    target, stop = experiment.target, experiment.stop
    if target is not None and target.metric == primary.name and target.rises != primary.rises:
        better, bound = ("larger", "at_least") if primary.rises else ("smaller", "at_most")
        raise ConfigError(
            f"target: a {better} {primary.name} is better: give {bound}; got {target.words}."
        )
    if stop is not None and stop_metric(experiment, primary) is None:
        raise ConfigError(
            f"stop.mode: say which direction of {stop.metric!r} is better: max or min."
        )


def _write_models(writer: RecordWriter, report: list[Line], engine: Engine) -> None:
    """Write the models that a run leaves before the line of its end: a run that has ended cannot be
    resumed.
    """
    if report and isinstance(report[-1], Ended) and report[-1].status in KEPT_AFTER:
        for model in engine.models:
            writer.write_model(model.which, model.data)


def _write(
    writer: RecordWriter, lines: list[Line], watches: Iterable[Watch], notify: Notify
) -> None:
    writer.write(lines)
    _tell(lines, notify)
    for watch in watches:
        watch(writer.measures)


def _tell(lines: Sequence[Line], notify: Notify) -> None:
    """Tell the user what deserves a line of a log: of workers that leave together, one."""
    told: set[str] = set()
    """Workers of whose leaving a line tells."""
    for line in lines:
        if isinstance(line, Entry):
            if not is_rare(line):
                continue
        elif isinstance(line, Ended):  # its status is reported elsewhere
            for fault in line.faults_without_effect:
                notify(f"Fault never triggered: {fault}.")
            continue
        for event in filter(attrgetter("rare"), texts_of(line)):
            text = event.text
            if event.kind == "left" and isinstance(line, Entry):
                if event.worker in told:
                    continue
                together = _left_with(line, lines)
                told.update(together)
                text = gone(together, line.report)
            notify(f"After {event.at:.1f} s: {text}.")


def _left_with(first: Entry, lines: Sequence[Line]) -> list[str]:
    """Return the workers that left with a first one, as with their node: soon, and as it did."""
    return [
        line.event.worker
        for line in lines
        if isinstance(line, Entry)
        and isinstance(line.event, Left)
        and line.report == first.report
        and 0 <= line.event.at - first.event.at <= TOGETHER_S
    ]


def _keep(writer: RecordWriter, checkpoint: Checkpoint, remark: Notify) -> None:
    """Write a checkpoint; without it, the run goes on."""
    try:
        writer.write_checkpoint(checkpoint)
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        remark(
            f"Checkpoint {checkpoint.number} could not be written ({reason}): the run goes on, and"
            " the checkpoints before it stay."
        )


def _new_folder(experiment: Experiment, choice: ParadigmChoice) -> Path:
    """Choose the folder of a new record, where one can be written."""
    check(join(experiment.output, experiment.name))
    return folder_name(experiment.output, experiment.name, choice.label)


def _checkpoints_for(folder: Path, experiment: Experiment) -> CheckpointWriter:
    """Return the writer of the checkpoints that belong to the record in a folder."""
    setting = experiment.checkpoint
    if setting is None:
        return CheckpointWriter(folder / CHECKPOINTS)
    if setting.output is not None:
        check(join(setting.output, folder.name), "checkpoint.output")
    return CheckpointWriter(checkpoints_of(folder, setting.output), setting.keep)


def _end(writer: RecordWriter, status: str, error: str) -> None:
    """Complete the record of a run whose engine could not write its end."""
    if writer.measures.ended is None:
        with suppress(RunFailed):  # if it cannot be written, the writer keeps the reason
            writer.write([Ended(status, writer.measures.now, error)])
    writer.close()


def _about(training: TrainingPlan, choice: ParadigmChoice) -> dict[str, Any]:
    experiment = training.experiment
    return {
        "engine": experiment.engine,
        "timing": experiment.timing,
        "profile": experiment.profile,
        "paradigm": choice.name,
        "paradigm_label": choice.label,
        "paradigm_parameters": training.make(choice).parameters(),
        "model": training.task.model_name,
        "parameters": training.parameters,
        "dataset": training.task.data_name,
        "tokens": training.tokens,
        "workers": experiment.worker_count,
        "seed": experiment.seed,
        "metric": training.primary.name,
        "metric_mode": training.primary.mode,
        "target": None if experiment.target is None else experiment.target.plain(),
        "chance_accuracy": training.chance_accuracy,
        "batch_metrics": list(training.batch_metrics),
    }
