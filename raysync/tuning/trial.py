"""One trial: an experiment inside the placement group that Tune reserved for it.

The bundles of the group are those of `placement.plan`; the function itself, which only waits for
the run's lines, has an empty head bundle, which Tune lays into the first. A virtual trial is the
function alone: one CPU, one thread of torch.
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
from raysync.decoupled.plan import check, placed_as
from raysync.errors import ConfigError
from raysync.record.measures import LARGEST_EXPONENT, Measures
from raysync.record.storage import clean, join
from raysync.record.sweeps import RECORDS, trial_name
from raysync.runner import Engine, run_in
from raysync.tuning.grid import Point, override

REPORTED = (
    "accuracy",
    "loss",
    "perplexity",
    "progress",
    "seconds",
    "samples",
    "throughput_samples_per_s",
    "wait_fraction",
    "staleness_max",
    "lead_max",
)
"""What a trial tells Tune at every evaluation: the evaluation, and the measures of its run so
far."""


@dataclass(frozen=True)
class Trials:
    """What all trials of a sweep have in common."""

    folder: Path
    """Of the sweep, absolute; where that is behind a URI, the copy of the process that began it."""
    home: Path
    """Where the sweep was started: relative paths of the file count from there, not from Tune's
    folder of the trial."""
    source: str
    text: str
    """The experiment file."""
    overrides: tuple[str, ...]
    uri: str | None = None
    """Where the sweep is, if it is behind one: trials on any node write their records there."""
    impossible: dict[str, str] = field(default_factory=dict)
    """Placements that Ray cannot make, as text -> why."""

    @property
    def name(self) -> str:
        """Of the sweep, as its file says."""
        return config.parse(self.text, self.overrides, source=self.source).name

    def experiment(self, point: Point, name: str = "trial") -> Experiment:
        """The experiment of a trial, whose records go to the folder of that name.

        Raises:
            ConfigError: the file with these settings is none.
        """
        settings = [override(key, value) for key, value in settings_of(point).items()]
        made = config.parse(
            self.text,
            [*self.overrides, *settings],
            said="sweep:",
            source=f"{self.source} with {', '.join(settings)}" if settings else self.source,
        )
        cluster = made.cluster.model_copy(update={"address": "auto"})  # the one that Tune runs on
        output = join(self.uri or self.folder, RECORDS)
        return made.model_copy(
            update={
                "name": name,
                "output": output,
                "cluster": cluster,
                "sweep": None,
                "switch_search": None,
            }
        )

    def check(self, point: Point) -> None:
        """Refuse a trial before it begins, as far as that needs neither its data nor its model.

        Raises:
            ConfigError: the file with these settings is none, or its paradigm would ignore one.
        """
        experiment = self.experiment(point)
        check(experiment, experiment.paradigm.make())

    def find_impossible(self, points: Iterable[Point]) -> None:
        """Try to place each trial while nothing runs yet: later, one that cannot be placed would
        wait for ever.
        """
        tried: dict[str, Plan] = {}
        for point in points:
            experiment = self.experiment(point)
            with suppress(ConfigError):  # `train` raises it again
                if experiment.engine == "ray":
                    made = placed(as_placed(experiment))
                    tried[repr(made)] = made
        self.impossible.update(
            {text: why for text, made in tried.items() if (why := infeasible_together(made))}
        )

    def place(self, experiment: Experiment) -> Plan:
        """Where its actors go.

        Raises:
            ConfigError: the cluster cannot hold it.
        """
        made = placed(as_placed(experiment))
        if why := self.impossible.get(repr(made)):
            raise ConfigError(why)
        return made

    def resources(self, point: Point) -> tune.PlacementGroupFactory:
        """What Tune reserves. A trial that cannot be gets little: it fails at its start, with the
        reason.
        """
        try:
            experiment = self.experiment(point)
            if experiment.engine == "ray":
                asked = asked_of_ray(self.place(experiment))
                return tune.PlacementGroupFactory([{}, *asked.pop("bundles")], **asked)
        except ConfigError:
            pass
        return tune.PlacementGroupFactory([{"CPU": 1}])


def train(point: Point, trials: Trials) -> None:
    """The function that Tune runs in a process of its own."""
    import torch

    from raysync.training.task import prepare

    with chdir(trials.home) if trials.home.is_dir() else nullcontext():
        experiment = trials.experiment(point, name_of(point, tune.get_context().get_trial_id()))
        if experiment.engine == "virtual":
            torch.set_num_threads(1)  # as many as it has CPUs
        task = prepare(experiment)
        try:
            with _engine(trials, experiment) as engine:
                run_in(
                    engine,
                    task,
                    experiment.paradigm,
                    watch=_Reporter(experiment.timing == "only"),
                    notify=print,
                    sweep=trials.name,
                )
        finally:
            clean()  # the process may be killed, or serve many trials


def as_placed(experiment: Experiment) -> Experiment:
    """Return an experiment as its actors are placed, which is a matter of its paradigm, too."""
    return placed_as(experiment, experiment.paradigm.make())


def settings_of(point: Point) -> Point:
    """Without the number."""
    return {key: value for key, value in point.items() if key != "trial"}


def name_of(point: Point, trial_id: str) -> str:
    """Of a trial's folder: the number of a point of the grid, or the id that Tune gave to a
    searcher's.
    """
    return trial_name(point["trial"]) if "trial" in point else trial_id


@contextmanager
def _engine(trials: Trials, experiment: Experiment) -> Iterator[Engine]:
    if experiment.engine == "virtual":
        from raysync.virtual.engine import VirtualEngine

        yield VirtualEngine()
        return
    from raysync.cluster.session import Session

    trials.place(experiment)  # what cannot be placed was given no room
    with Session(notify=print, within=get_current_placement_group()) as session:
        yield session


class _Reporter:
    """Tells Tune of each evaluation; of a run without any, of its end."""

    def __init__(self, timing_only: bool) -> None:
        self._timing_only = timing_only
        self._told = 0

    def __call__(self, measures: Measures) -> None:
        for one in measures.evaluations[self._told :]:
            tune.report({**_so_far(measures), **_of(one, measures)})
        self._told = len(measures.evaluations)
        if self._timing_only and measures.ended is not None:
            tune.report(_so_far(measures))


def _so_far(measures: Measures) -> dict[str, float]:
    return {
        "progress": measures.progress,
        "seconds": measures.seconds,
        "samples": measures.samples,
        "throughput_samples_per_s": measures.throughput_samples_per_s,
        "wait_fraction": measures.wait_fraction,
        "staleness_max": measures.staleness_max,
        "lead_max": measures.lead_max,
    }


def _of(evaluation: Evaluation, measures: Measures) -> dict[str, float]:
    """What was evaluated, at its own time: several evaluations may be told of together."""
    return {
        "accuracy": evaluation.accuracy,
        "loss": evaluation.loss,
        "perplexity": exp(min(evaluation.loss, LARGEST_EXPONENT)),
        "progress": evaluation.progress,
        "samples": round(evaluation.progress * measures.workload_samples),
        "seconds": max(0.0, evaluation.at - (measures.started_at or 0.0)),
    }
