"""The virtual engine: whole runs in this process, on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raysync.core.ids import WorkerId
from raysync.core.journal import Line
from raysync.core.paradigm import AnyParadigm
from raysync.decoupled.plan import plan_of
from raysync.engine.driver import Driver
from raysync.engine.faults import FaultPlan
from raysync.engine.kept_models import SavedModel
from raysync.paradigms.decoupled import Decoupled
from raysync.record.metrics_registry import RunLabels
from raysync.training.preparation import TrainingPlan
from raysync.virtual.backend import VirtualBackend
from raysync.virtual.data_parallel import DataParallelRun
from raysync.virtual.pipelined import PipelinedRun


class VirtualEngine:
    """Runs tasks in this process."""

    def __init__(self) -> None:
        self.places: dict[str, Any] = {}
        """The places of actors: none, since all are in this process."""
        self.models: list[SavedModel] = []
        """The models that the latest run left, which are there before its last report."""

    def run(
        self, training: TrainingPlan, paradigm: AnyParadigm, labels: RunLabels | None = None
    ) -> Iterator[list[Line]]:
        """Train under a paradigm, and yield the lines of the journal in order; the last line
        is an `Ended`.

        Virtual seconds cannot be watched as they pass, so no metrics are published under the
        labels.
        """
        driver = driver_of(training, paradigm)
        self.models = driver.models
        return driver.run()


def driver_of(training: TrainingPlan, paradigm: AnyParadigm) -> Driver:
    """Return the driver of a run that has not begun."""
    experiment = training.experiment
    run = (
        PipelinedRun(plan_of(training, paradigm))
        if isinstance(paradigm, Decoupled)
        else DataParallelRun(training, paradigm)
    )
    faults = FaultPlan(experiment)
    trains = experiment.timing == "with-gradients"
    slots = experiment.slots()
    backend = VirtualBackend(
        run.paths(),
        run.actor,
        computes=trains,
        start_s=lambda worker: slots[WorkerId(worker).slot].start_s,
    )
    marks = experiment.evaluation.progress_marks() if trains else []
    return Driver(
        run.topology(backend, faults), backend, experiment, faults, marks, training.primary
    )
