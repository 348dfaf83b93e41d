"""Run one trial of a sweep in the placement group that Ray Tune reserved for it.

The group has the bundles of `placement.plan`. The trial's function only waits for the run's lines,
so its head bundle is empty, and Tune merges it into the first. A virtual trial is the function
alone, with one CPU and one thread of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.util import get_current_placement_group

from raysync import config
from raysync.cluster.placement import Plan, feasible_plan, infeasible_together, placement_request
from raysync.config import Experiment, Stop
from raysync.config.base import is_within
from raysync.decoupled.plan import check, placed_as
from raysync.engine.demands import check_metrics
from raysync.errors import ConfigError
from raysync.record.resumption import is_over
from raysync.record.run_end import SIGNAL
from raysync.record.storage import clean, join
from raysync.record.sweeps import RECORDS, Origin, newest_record, note_of, trial_name
from raysync.running.engines import Engine
from raysync.running.recovery import ResumePoint
from raysync.running.resuming import find_resume_point
from raysync.running.run import run_in
from raysync.tracking.observers import check_trackers
from raysync.training.loading import metrics_of, primary_of
from raysync.training.preparation import TrainingPlan, prepare
from raysync.tuning.grid import Point, override
from raysync.tuning.trial_reports import TuneReports

VIRTUAL_GPU_SHARE = 0.25  # of a virtual trial: its GPU mostly waits for its process


@dataclass(frozen=True)
class Trials:
    """The settings that all trials of a sweep share; makes an experiment of a point."""

    # the folder of the sweep, absolute; behind a URI, the copy of the process that began it
    folder: Path
    home: Path  # where relative paths of the file begin, instead of Tune's working directory
    source: str  # the path of the experiment file, for errors
    text: str  # of the experiment file
    overrides: tuple[str, ...]
    uri: str | None = None  # the sweep's URI, if any: trials on any node write their records there
    # whether begun trials resume; then no other process writes their records
    resume: bool = False
    # settings of trials whose point has none: a search's first seed
    fixed: Point = field(default_factory=dict)
    # placement that Ray cannot make, as text -> the reason
    impossible: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, origin: Origin, folder: Path) -> Trials:
        """Return the trials of a sweep, for this process."""
        return cls(folder, Path.cwd(), origin.source, origin.text, origin.overrides)

    @property
    def origin(self) -> Origin:
        return Origin(self.source, self.text, self.overrides)

    @property
    def name(self) -> str:
        """The sweep's name in its file."""
        return experiment_of(self.origin).name

    def experiment(self, point: Point, name: str = "trial") -> Experiment:
        """Return a trial's experiment, with records in the folder `name`."""
        chosen = self.fixed | settings_of(point)
        settings = [override(key, value) for key, value in chosen.items()]
        experiment = config.parse(
            self.text,
            [*self.overrides, *settings],
            prefix="sweep:",
            source=f"{self.source} with {', '.join(settings)}" if settings else self.source,
            folder=Path(self.source).parent,
        )
        for key, path in product(point, experiment.paradigm.set or {}):
            if is_within(key, path) or is_within(path, key):
                raise ConfigError(
                    f"{self.source}: sweep: {key}: it has no effect on"
                    f" {experiment.paradigm.label}, whose `set` has {path}."
                )
        experiment = config.row_of(experiment, experiment.paradigm)
        stop = experiment.stop
        if experiment.sweep is not None and experiment.sweep.stop:
            own = {"when": ()} if stop is None else dict(stop)
            stop = Stop.model_validate(own | {"when": (*own["when"], *experiment.sweep.stop)})
        # a trial joins the cluster that Tune runs on
        cluster = experiment.cluster.model_copy(update={"address": "auto"})
        output = join(self.uri or self.folder, RECORDS)
        return experiment.model_copy(
            update={
                "name": name,
                "output": output,
                "cluster": cluster,
                "stop": stop,
                "sweep": None,
                "switch_search": None,
            }
        )

    def resume_from(self, training: TrainingPlan) -> ResumePoint | None:
        """Find the checkpoint of a trial that began before; None: it begins."""
        name = training.experiment.name
        record = newest_record(self.uri or self.folder, name) if self.resume else None
        if record is None or is_over(record):  # is over: it failed after its end
            return None
        return find_resume_point(record, training, print, is_gone=True)

    def ended_by(self, name: str) -> str:
        """Return the reason why Tune stops a trial, from the note of the sweep's process."""
        note = None
        with suppress(ConfigError):  # the trial runs on a node that cannot reach it
            note = note_of(self.uri or self.folder, name)
        return (note and note.by) or SIGNAL

    def check(self, point: Point) -> None:
        """Check a trial's settings, paradigm, metrics and trackers, without its data or model."""
        experiment = self.experiment(point)
        check(experiment, experiment.make(experiment.paradigm))
        check_metrics(experiment, metrics_of(experiment), primary_of(experiment))
        check_trackers(experiment)

    def find_impossible(self, points: Iterable[Point]) -> None:
        """Find trials that can never be placed, before any runs: they would wait for ever."""
        placements: dict[str, Plan] = {}
        for point in points:
            experiment = self.experiment(point)
            with suppress(ConfigError):  # `train` raises it again
                if experiment.engine == "ray":
                    placement = feasible_plan(adapted(experiment))
                    placements[repr(placement)] = placement
        for text, placement in placements.items():
            if why := infeasible_together(placement):
                self.impossible[text] = why

    def place(self, experiment: Experiment) -> Plan:
        """Place a trial's actors; raise `ConfigError` if the cluster cannot hold them."""
        placement = feasible_plan(adapted(experiment))
        if why := self.impossible.get(repr(placement)):
            raise ConfigError(why)
        return placement

    def resources(self, point: Point) -> tune.PlacementGroupFactory:
        """Return the resources that Tune reserves for a trial."""
        # a trial that cannot be placed gets one CPU, and fails at its start with the reason
        with suppress(ConfigError):
            experiment = self.experiment(point)
            if experiment.engine == "ray":
                request = placement_request(self.place(experiment))
                return tune.PlacementGroupFactory([{}, *request.pop("bundles")], **request)
            uses_gpus = any(group.gpus for group in experiment.workers)
            if uses_gpus and ray.cluster_resources().get("GPU"):
                return tune.PlacementGroupFactory([{"CPU": 1, "GPU": VIRTUAL_GPU_SHARE}])
        return tune.PlacementGroupFactory([{"CPU": 1}])


def train(point: Point, trials: Trials) -> None:
    """Run a trial; Tune calls this in a process of its own."""
    import torch

    with chdir(trials.home) if trials.home.is_dir() else nullcontext():
        experiment = trials.experiment(point, tune.get_context().get_trial_name())
        if experiment.engine == "virtual":
            torch.set_num_threads(1)  # a virtual trial has one CPU
        training = prepare(experiment)
        for remark in training.remarks:
            print(remark)
        if experiment.trains:
            print(training.rate_in_force(experiment.paradigm))
        reports = TuneReports(
            timing_only=experiment.timing == "only",
            ended_by=lambda: trials.ended_by(experiment.name),
        )
        try:
            resume_from = trials.resume_from(training)
            with _engine(trials, experiment) as engine:
                run_in(
                    engine,
                    training,
                    experiment.paradigm,
                    watch=reports.watch,
                    notify=reports.notify,
                    sweep=trials.name,
                    resume_from=resume_from,
                )
            reports.close()
        finally:
            clean()  # the process can be killed, or serve many trials


def experiment_of(origin: Origin) -> Experiment:
    folder = Path(origin.source).parent
    return config.parse(origin.text, origin.overrides, source=origin.source, folder=folder)


def adapted(experiment: Experiment) -> Experiment:
    """Adapt an experiment to its placement, which also depends on its paradigm."""
    return placed_as(experiment, experiment.make(experiment.paradigm))


def settings_of(point: Point) -> Point:
    return {key: value for key, value in point.items() if key != "trial"}


def folder_of(trial: Trial) -> str:
    """Name a trial and its folder by its number in the grid, or by Tune's id."""
    number = trial.config.get("trial", trial.trial_id)
    return trial_name(number) if isinstance(number, int) else str(number)


@contextmanager
def _engine(trials: Trials, experiment: Experiment) -> Iterator[Engine]:
    if experiment.engine == "virtual":
        from raysync.virtual.engine import VirtualEngine

        yield VirtualEngine()
        return
    from raysync.cluster.session import Session

    trials.place(experiment)  # raises for a trial that cannot be placed, which has only one CPU
    with Session(notify=print, placement_group=get_current_placement_group()) as session:
        yield session
