"""Run one trial: an experiment inside the placement group that Ray Tune reserved for it.

The bundles of the group are those of `placement.plan`. The trial's function only waits for the
run's lines, so it has an empty head bundle, which Tune merges into the first. A virtual trial is
the function alone: one CPU, one thread of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from math import exp
from pathlib import Path

from ray import tune
from ray.util import get_current_placement_group

from raysync import config
from raysync.cluster.placement import Plan, asked_of_ray, infeasible_together, placed
from raysync.config import Experiment
from raysync.core.journal import Evaluation
from raysync.core.metrics import LARGEST_EXPONENT, PERPLEXITY
from raysync.decoupled.plan import check, placed_as
from raysync.errors import ConfigError
from raysync.record.measures import Measures
from raysync.record.resumption import is_over
from raysync.record.storage import clean, join
from raysync.record.sweeps import RECORDS, newest_record, trial_name
from raysync.recovery import GoesOn
from raysync.resuming import resumption_of
from raysync.runner import Engine, check_metrics, run_in
from raysync.tracking.trackers import check_trackers
from raysync.training.preparation import TrainingPlan, prepare
from raysync.training.task_loading import metrics_of, primary_of
from raysync.tuning.grid import Point, override

REPORTED = (
    "progress",
    "seconds",
    "samples",
    "throughput_samples_per_s",
    "wait_fraction",
    "staleness_max",
    "lead_max",
)
"""The measures of its run so far that a trial reports to Tune at every evaluation, beside the
metrics of the evaluation."""


@dataclass(frozen=True)
class Trials:
    """What all trials of a sweep have in common, and how a point becomes an experiment."""

    folder: Path
    """The folder of the sweep, absolute; behind a URI, the copy of the process that began it."""
    home: Path
    """The working directory of the sweep: relative paths in the file start from there, not from
    Tune's folder of the trial."""
    source: str
    """The path of the experiment file, for errors."""
    text: str
    """The text of the experiment file."""
    overrides: tuple[str, ...]
    uri: str | None = None
    """The sweep's URI, if it has one: trials on any node write their records there."""
    resume: bool = False
    """Whether trials that began before go on from their checkpoints. The processes that wrote their
    records are gone."""
    impossible: dict[str, str] = field(default_factory=dict)
    """Placement that Ray cannot make, as text -> the reason."""

    @property
    def name(self) -> str:
        """The name of the sweep in its file."""
        folder = Path(self.source).parent
        return config.parse(self.text, self.overrides, source=self.source, folder=folder).name

    def experiment(self, point: Point, name: str = "trial") -> Experiment:
        """Return the experiment of a trial, whose records go to the folder of that name.

        Raises:
            ConfigError: the file with these settings is no valid experiment.
        """
        settings = [override(key, value) for key, value in settings_of(point).items()]
        experiment = config.parse(
            self.text,
            [*self.overrides, *settings],
            said="sweep:",
            source=f"{self.source} with {', '.join(settings)}" if settings else self.source,
            folder=Path(self.source).parent,
        )
        # the cluster that Tune runs on
        cluster = experiment.cluster.model_copy(update={"address": "auto"})
        output = join(self.uri or self.folder, RECORDS)
        return experiment.model_copy(
            update={
                "name": name,
                "output": output,
                "cluster": cluster,
                "sweep": None,
                "switch_search": None,
            }
        )

    def goes_on(self, training: TrainingPlan) -> GoesOn | None:
        """Return where a trial goes on that began before; None: it begins.

        Raises:
            ConfigError: its record is damaged, or of another model.
        """
        name = training.experiment.name
        record = newest_record(self.uri or self.folder, name) if self.resume else None
        if record is None or is_over(record):  # it failed behind its end
            return None
        return resumption_of(record, training, print, is_gone=True)

    def check(self, point: Point) -> None:
        """Check a trial before it begins, as far as that needs neither its data nor its model.

        Raises:
            ConfigError: the file with these settings is no valid experiment, or the paradigm would
                ignore a setting, or the task lacks a metric, or a tracker is not installed.
        """
        experiment = self.experiment(point)
        check(experiment, experiment.paradigm.make())
        check_metrics(experiment, metrics_of(experiment), primary_of(experiment))
        check_trackers(experiment)

    def find_impossible(self, points: Iterable[Point]) -> None:
        """Try to place each trial while nothing runs yet: later, a trial that cannot be placed
        would wait for ever.
        """
        placements: dict[str, Plan] = {}
        for point in points:
            experiment = self.experiment(point)
            with suppress(ConfigError):  # `train` raises it again
                if experiment.engine == "ray":
                    placement = placed(as_placed(experiment))
                    placements[repr(placement)] = placement
        for text, placement in placements.items():
            if why := infeasible_together(placement):
                self.impossible[text] = why

    def place(self, experiment: Experiment) -> Plan:
        """Return the placement of a trial's actors.

        Raises:
            ConfigError: the cluster cannot hold it.
        """
        placement = placed(as_placed(experiment))
        if why := self.impossible.get(repr(placement)):
            raise ConfigError(why)
        return placement

    def resources(self, point: Point) -> tune.PlacementGroupFactory:
        """Return the resources that Tune reserves for a trial. A trial that cannot be placed gets
        one CPU: it fails at its start, with the reason.
        """
        try:
            experiment = self.experiment(point)
            if experiment.engine == "ray":
                request = asked_of_ray(self.place(experiment))
                return tune.PlacementGroupFactory([{}, *request.pop("bundles")], **request)
        except ConfigError:
            pass
        return tune.PlacementGroupFactory([{"CPU": 1}])


def train(point: Point, trials: Trials) -> None:
    """Run a trial; Tune calls this in a process of its own."""
    import torch

    with chdir(trials.home) if trials.home.is_dir() else nullcontext():
        experiment = trials.experiment(point, name_of(point, tune.get_context().get_trial_id()))
        if experiment.engine == "virtual":
            torch.set_num_threads(1)  # it has one CPU
        training = prepare(experiment)
        for remark in training.remarks:
            print(remark)
        try:
            with _engine(trials, experiment) as engine:
                run_in(
                    engine,
                    training,
                    experiment.paradigm,
                    watch=_Reporter(experiment.timing == "only"),
                    notify=print,
                    sweep=trials.name,
                    goes_on=trials.goes_on(training),
                )
        finally:
            clean()  # the process can be killed, or serve many trials


def as_placed(experiment: Experiment) -> Experiment:
    """Return an experiment as its actors are placed, which also depends on its paradigm."""
    return placed_as(experiment, experiment.paradigm.make())


def settings_of(point: Point) -> Point:
    """Return the settings of a point, without the number of the trial."""
    return {key: value for key, value in point.items() if key != "trial"}


def name_of(point: Point, trial_id: str) -> str:
    """Name the folder of a trial: by the number of a point of the grid, or by the id that Tune gave
    to a searcher's point.
    """
    return trial_name(point["trial"]) if "trial" in point else trial_id


@contextmanager
def _engine(trials: Trials, experiment: Experiment) -> Iterator[Engine]:
    if experiment.engine == "virtual":
        from raysync.virtual.engine import VirtualEngine

        yield VirtualEngine()
        return
    from raysync.cluster.session import Session

    trials.place(experiment)  # raises for a trial that cannot be placed, which has only one CPU
    with Session(notify=print, within=get_current_placement_group()) as session:
        yield session


class _Reporter:
    """Reports each evaluation to Tune; of a run without evaluations, its end."""

    def __init__(self, timing_only: bool) -> None:
        self._timing_only = timing_only
        self._reported = 0

    def __call__(self, measures: Measures) -> None:
        for evaluation in measures.evaluations[self._reported :]:
            tune.report({**_report_of(measures), **_report_of_evaluation(evaluation, measures)})
        self._reported = len(measures.evaluations)
        if self._timing_only and measures.ended is not None:
            tune.report(_report_of(measures))


def _report_of(measures: Measures) -> dict[str, float]:
    return {
        "progress": measures.progress,
        "seconds": measures.seconds,
        "samples": measures.samples,
        "throughput_samples_per_s": measures.throughput_samples_per_s,
        "wait_fraction": measures.wait_fraction,
        "staleness_max": measures.staleness_max,
        "lead_max": measures.lead_max,
    }


def _report_of_evaluation(evaluation: Evaluation, measures: Measures) -> dict[str, float]:
    """Describe an evaluation with its own time: several can be reported together."""
    perplexity = evaluation.value(PERPLEXITY.name)
    assert perplexity is not None, "an evaluation without a loss"
    return {
        **evaluation.metrics,
        PERPLEXITY.name: min(perplexity, exp(LARGEST_EXPONENT)),
        "progress": evaluation.progress,
        "samples": round(evaluation.progress * measures.workload_samples),
        "seconds": max(0.0, evaluation.at - (measures.started_at or 0.0)),
    }
