"""The virtual engine: whole runs in this process, on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raysync.core.checkpoint import Checkpoint
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

    resumes_exactly = False

    def __init__(self) -> None:
        self.places: dict[str, Any] = {}
        """The places of actors: none, since all are in this process."""
        self.models: list[SavedModel] = []
        """The models that the latest run left, which are there before its last report."""
        self._driver: Driver | None = None

    def run(
        self,
        training: TrainingPlan,
        paradigm: AnyParadigm,
        labels: RunLabels | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Iterator[list[Line] | Checkpoint]:
        """Train under a paradigm, and yield the lines of the journal in order; the last line
        is an `Ended`.

        Virtual seconds cannot be watched as they pass, so no metrics are published under the
        labels.
        """
        driver = self._driver = driver_of(training, paradigm, checkpoint)
        self.models = driver.models
        return _reports(driver)

    def stop(self) -> None:
        """Let the run under way end as `stopped`, after a last checkpoint."""
        assert self._driver is not None, "no run is under way"
        self._driver.stop()


def _reports(driver: Driver) -> Iterator[list[Line] | Checkpoint]:
    for lines in driver.run():
        yield lines
        while driver.checkpoints:
            yield driver.checkpoints.pop(0)


def driver_of(
    training: TrainingPlan, paradigm: AnyParadigm, checkpoint: Checkpoint | None = None
) -> Driver:
    """Return the driver of a run that has not begun, or goes on from a checkpoint."""
    experiment = training.experiment
    run = (
        PipelinedRun(plan_of(training, paradigm))
        if isinstance(paradigm, Decoupled)
        else DataParallelRun(training, paradigm, checkpoint.servers if checkpoint else {})
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
        run.topology(backend, faults),
        backend,
        experiment,
        faults,
        marks,
        training.primary,
        checkpoint,
    )
