"""A tracker: a callback that turns a run into rows, plain data that any process can receive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import override

from raysync.core.journal import Evaluation
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord
from raysync.record.writer import MODEL_FILES
from raysync.tracking.callback import Callback, RunStart

ROW_EVERY = 0.01  # progress between rows of measures without an evaluation
MOST_LEADS = 64  # with more members, leads are omitted: nobody could read their curves
EVALUATION = "evaluation/"  # the prefix of an evaluation's metrics
# settings of a file that do not concern a single run
OF_OTHER_RUNS = ("paradigms", "seeds", "sweep", "switch_search", "published")
FILES = (
    "config.yaml",
    "environment.json",
    "journal.jsonl",
    "pushes.parquet",
    "evaluations.parquet",
    "summary.json",
)


@dataclass(frozen=True)
class Beginning:
    folder: str  # of the run's record
    name: str  # of that folder
    group: str  # of its experiment or sweep
    tags: tuple[str, ...]  # the paradigm's label, the engine and, in a sweep, the name of the trial
    config: Mapping[str, Any]  # its settings by dotted key, `workers.0.count`; secrets are masked
    began: float  # when the run was requested, in seconds since 1970


@dataclass(frozen=True)
class Row:
    """Metrics at one moment of a run."""

    samples: int  # samples applied: the step, so paradigms are compared at the same work
    seconds: float  # since the run began; virtual on the virtual engine
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Ending:
    """The end of a run."""

    status: str  # `finished`, `diverged`, `failed` or `stopped`
    samples: int  # applied
    summary: Mapping[str, Any]  # the texts and numbers in its `summary.json`
    files: Sequence[str]  # paths
    models: Sequence[str]  # paths


class Sink(Protocol):
    """The destination of a tracker's rows. Any of its methods may raise any error."""

    def begin(self, run: Beginning) -> None: ...

    def rewind(self, samples: int) -> bool:
        """Forget all evaluations, and measures after `samples`; return whether that is possible."""

    def log(self, row: Row) -> None: ...

    def flush(self) -> None: ...

    def end(self, run: Ending) -> None:
        """Log the end of the run, and send all that is left."""

    def close(self) -> None:
        """Release open resources; `end` may not have been called, or may have failed."""


class Tracker(Callback):
    """Logs each evaluation with the measures; also measures at each hundredth of the work."""

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self._sink = sink
        self._resumptions = 0
        self._evaluation_count = 0  # evaluations that were logged, or need not be
        self._evaluation_progress = -1.0  # the progress of the latest evaluation that was logged
        self._row_progress = -1.0  # the progress of the latest row of measures
        self._repeated_until = -1.0  # logged evaluations up to this progress are lost and repeated

    @override
    def on_start(self, run: RunStart) -> None:
        self._sink.begin(beginning_of(run))

    @override
    def on_progress(self, measures: Measures) -> None:
        # not in `on_evaluation`: a resumed run may have lost evaluations, and repeat them
        if len(measures.resumptions) > self._resumptions:
            self._rewind(measures)
        is_due = self._log_evaluations(measures) and measures.progress >= self._row_progress
        if is_due or measures.ended or measures.progress >= self._row_progress + ROW_EVERY:
            self._row_progress = measures.progress
            self._sink.log(measures_row(measures))
            self._sink.flush()

    def _rewind(self, measures: Measures) -> None:
        self._resumptions = len(measures.resumptions)
        if self._sink.rewind(measures.samples):
            self._evaluation_count, self._evaluation_progress, self._row_progress = 0, -1.0, -1.0
        else:
            self._evaluation_count = min(self._evaluation_count, len(measures.evaluations))
            self._repeated_until = self._evaluation_progress

    def _log_evaluations(self, measures: Measures) -> bool:
        """Log new evaluations; return whether there are any."""
        new = [
            evaluation
            for evaluation in measures.evaluations[self._evaluation_count :]
            if evaluation.progress > self._repeated_until
        ]
        self._evaluation_count = len(measures.evaluations)
        for evaluation in new:
            self._sink.log(evaluation_row(evaluation, measures.workload_samples))
            self._evaluation_progress = evaluation.progress
        return bool(new)

    @override
    def on_end(self, record: RunRecord) -> None:
        self._sink.end(ending_of(record))

    def close(self) -> None:
        self._sink.close()


def beginning_of(run: RunStart) -> Beginning:
    experiment = run.experiment
    trial = () if run.group == experiment.name else (experiment.name,)
    config = {
        key: value
        for key, value in experiment.plain().items()
        if key not in (*OF_OTHER_RUNS, "track", "callbacks")
    }
    config["paradigm"].pop("instead_of", None)  # the run has no such setting
    label = experiment.label
    return Beginning(
        folder=str(run.folder),
        name=run.name,
        group=run.group,
        tags=(label, experiment.engine, *trial),
        config={"paradigm_label": label, **dict(_flattened("", config))},
        began=run.began.timestamp(),
    )


def _flattened(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, inner in value.items():
        yield from _flattened(f"{path}.{key}" if path else str(key), inner)


def evaluation_row(evaluation: Evaluation, workload_samples: int) -> Row:
    return Row(
        round(evaluation.progress * workload_samples),
        evaluation.at,
        {f"{EVALUATION}{name}": value for name, value in evaluation.metrics.items()},
    )


def measures_row(measures: Measures) -> Row:
    summary, leads = measures.summary(), measures.leads
    metrics = {
        tag: summary[key]
        for tag, key in (
            ("run/samples_per_s", "throughput_samples_per_s"),
            ("run/wait_share", "wait_fraction"),
            ("staleness/mean", "staleness_mean"),
            ("staleness/max", "staleness_max"),
            ("lead/max", "lead_max"),
        )
        if summary[key] is not None
    }
    if len(leads) <= MOST_LEADS:
        metrics |= {
            f"lead/{worker.replace('#', '.')}": float(lead) for worker, lead in leads.items()
        }
    return Row(measures.samples, measures.now, metrics)


def ending_of(record: RunRecord) -> Ending:
    summary, folder = record.summary, record.path
    return Ending(
        status=str(summary["status"]),
        samples=int(summary["samples"]),
        summary={
            key: value
            for key, value in summary.items()
            if isinstance(value, str | int | float) and value != ""
        },
        files=[str(folder / name) for name in FILES if (folder / name).is_file()],
        models=[str(folder / name) for name in MODEL_FILES.values() if (folder / name).is_file()],
    )
