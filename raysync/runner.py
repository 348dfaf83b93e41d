"""From an experiment to a record: pick the engine, write what happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from raysync import config
from raysync.config import Experiment, ParadigmChoice
from raysync.core.journal import Ended, Line
from raysync.core.paradigm import AnyParadigm
from raysync.errors import ConfigError, RunFailed
from raysync.record.event_text import texts_of
from raysync.record.measures import Measures
from raysync.record.metrics import RunLabels
from raysync.record.reader import RunRecord, load
from raysync.record.storage import check, display_name, join
from raysync.record.uploader import Uploader
from raysync.record.writer import RecordWriter, folder_name, make_folder
from raysync.training.data import DataSet
from raysync.training.models import ModelSource
from raysync.training.task import Task, prepare

Watch = Callable[[Measures], None]
Notify = Callable[[str], None]


class Engine(Protocol):
    """What trains: `cluster.session.Session` or `virtual.engine.VirtualEngine`."""

    @property
    def places(self) -> Mapping[str, Any]:
        """Actor -> dataclass that says where it sits, of the latest run."""

    def run(
        self, task: Task, paradigm: AnyParadigm, labels: RunLabels | None = None
    ) -> Iterator[list[Line]]:
        """Train, and yield what happens, in order; the last line is an `Ended`. Metrics are
        published under the labels.
        """


def _quiet(_: object) -> None:
    pass


@contextmanager
def engine_for(
    experiment: Experiment, notify: Notify = _quiet, address: str | None = None
) -> Iterator[Engine]:
    """The engine that an experiment names; it serves any number of runs.

    Args:
        experiment: to run.
        notify: is told, in a sentence, what the user should know.
        address: the cluster to join where `cluster.address` is `auto`; None: a private one.
    """
    if experiment.engine == "virtual":
        from raysync.virtual.engine import VirtualEngine

        yield VirtualEngine()
        return
    from raysync.cluster.session import Session  # Ray takes its time to import

    with Session(notify, address) as session:
        yield session


def run(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    *,
    model: ModelSource | None = None,
    data: DataSet | None = None,
    watch: Watch = _quiet,
    notify: Notify = _quiet,
    tensorboard: bool = False,
) -> RunRecord:
    """Train one experiment and return its record.

    Args:
        experiment: a validated one, plain data as in an experiment file, or the path of such a
            file.
        model: an nn.Module, or a function returning one, in place of the experiment's model. A
            function gets `input_shape` and `classes` if it has parameters of these names.
        data: a `raysync.DataSet` in place of the experiment's data set; `raysync.data_set` makes
            one of arrays.
        watch: is called with the measures so far, a few times a second.
        notify: is told what the user should know, a sentence at a time.
        tensorboard: also write TensorBoard's event file into the record, while the run goes on.

    Raises:
        ConfigError: something in the experiment cannot be.
        RunFailed: an actor or the user's own code broke; what was recorded is kept, and named in
            the message.

    With `cluster.address: auto`, the default, a cluster that Ray is connected to is used and left
    as it was: call `ray.init()` first, as in a Ray job. Otherwise a private one is started and
    stopped.
    """
    for name, function in (("watch", watch), ("notify", notify)):
        if not callable(function):
            raise ConfigError(
                f"raysync.run: {name} must be a function, got {type(function).__name__}."
            )
    if not isinstance(experiment, Experiment | Mapping | str | Path):
        raise ConfigError(
            "raysync.run: an experiment is settings {name: value, ...}, the path of a file, "
            f"or a validated Experiment, got {type(experiment).__name__}."
        )
    if isinstance(experiment, str | Path):
        experiment = config.load(Path(experiment))
    elif not isinstance(experiment, Experiment):
        experiment = config.validate(experiment)
    task = prepare(experiment, model, data)
    with engine_for(experiment, notify) as engine:
        return run_in(
            engine, task, experiment.paradigm, watch=watch, notify=notify, tensorboard=tensorboard
        )


def run_in(
    engine: Engine,
    task: Task,
    choice: ParadigmChoice,
    *,
    watch: Watch = _quiet,
    notify: Notify = _quiet,
    tensorboard: bool = False,
    sweep: str = "",
) -> RunRecord:
    """Train a task under a paradigm on an engine that may serve further runs; see `run`. `sweep` is
    the name of the one that this is a trial of.
    """
    began = datetime.now()
    experiment = task.experiment.model_copy(update={"paradigm": choice})
    measures = Measures(
        task.workload_samples,
        experiment.target_accuracy,
        experiment.target_loss,
        task.chance_accuracy,
    )
    check(join(experiment.output, experiment.name))
    folder = folder_name(experiment.output, experiment.name, choice.label)
    of = f"{sweep}/{experiment.name}" if sweep else experiment.name
    stream = engine.run(task, choice.make(), RunLabels(of, folder.name, choice.label))
    first = next(
        stream
    )  # whatever the user asked for that cannot be is known by now: no record of that
    make_folder(folder)
    with (
        Uploader(folder, notify) as mirror,
        RecordWriter(
            folder,
            experiment.to_yaml(),
            choice.make(),
            measures,
            _about(task, choice),
            began,
            {name: asdict(place) for name, place in engine.places.items()},
        ) as writer,
        _event_log(folder, began, tensorboard) as log,
    ):
        watches = (log, mirror, watch)
        try:
            _write(writer, first, watches, notify)
            for lines in stream:
                _write(writer, lines, watches, notify)
        except RunFailed as failure:
            _end(writer, "failed", str(failure))
        except BaseException as error:
            if measures.ended is None:
                stopped = not isinstance(error, Exception)  # Ctrl-C, or the end of the process
                _end(writer, *(("stopped", "") if stopped else ("failed", repr(error))))
                became = "Stopped" if stopped else "Failed"
                notify(f"{became}. The record up to now: {display_name(folder)}")
            raise
    ended = measures.ended
    assert ended is not None, "a run without an end"
    why = ended.error if ended.status == "failed" else ""
    if why or writer.failure:
        kept = f"The record up to then: {display_name(folder)}" if folder.exists() else ""
        raise RunFailed("\n".join(dict.fromkeys(filter(None, (why, writer.failure, kept)))))
    return load(folder, trust=True)  # it is the user's own


def _event_log(folder: Path, began: datetime, wanted: bool) -> AbstractContextManager[Watch]:
    if not wanted:
        return nullcontext(_quiet)
    from raysync.record.tensorboard import EventLog  # tensorboardX takes its time to import

    return EventLog(folder, began)


def _write(
    writer: RecordWriter, lines: list[Line], watches: Iterable[Watch], notify: Notify
) -> None:
    writer.write(lines)
    for line in lines:
        if isinstance(line, Ended):  # its status is told otherwise
            for fault in line.faults_without_effect:
                notify(f"Nobody met {fault}.")
            continue
        for news in texts_of(line):
            if news.rare:
                notify(f"After {news.at:.1f} s: {news.text}.")
    for watch in watches:
        watch(writer.measures)


def _end(writer: RecordWriter, status: str, error: str) -> None:
    """Complete the record of a run that ended in another way than its engine says."""
    if writer.measures.ended is None:
        with suppress(RunFailed):  # of a record that cannot be written: the writer keeps its reason
            writer.write([Ended(status, writer.measures.now, error)])
    writer.close()


def _about(task: Task, choice: ParadigmChoice) -> dict[str, Any]:
    experiment = task.experiment
    return {
        "engine": experiment.engine,
        "timing": experiment.timing,
        "profile": experiment.profile,
        "paradigm": choice.name,
        "paradigm_label": choice.label,
        "paradigm_parameters": choice.make().parameters(),
        "model": task.model.name,
        "parameters": task.parameters,
        "dataset": task.data.name,
        "tokens": task.data.tokens,
        "workers": experiment.worker_count,
        "seed": experiment.seed,
        "target_accuracy": experiment.target_accuracy,
        "target_loss": experiment.target_loss,
        "chance_accuracy": task.chance_accuracy,
    }
