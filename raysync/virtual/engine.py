"""The virtual engine: whole runs in this process, on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from raysync.core.journal import Line
from raysync.core.paradigm import AnyParadigm
from raysync.decoupled.plan import plan_of
from raysync.engine.driver import Driver
from raysync.engine.faults import FaultPlan
from raysync.engine.kept_models import SavedModel
from raysync.paradigms.decoupled import Decoupled
from raysync.record.metrics_registry import RunLabels
from raysync.training.preparation import TrainingPlan
from raysync.training.state_file import State
from raysync.virtual.backend import VirtualBackend
from raysync.virtual.data_parallel import DataParallelRun
from raysync.virtual.pipelined import PipelinedRun
from raysync.virtual.reenactment import reenact, snapshot


class VirtualEngine:
    """Runs tasks in this process."""

    def __init__(self) -> None:
        self.places: dict[str, Any] = {}
        """The places of actors: none, since all are in this process."""
        self.models: list[SavedModel] = []
        """The models that the latest run left, which are there before its last report."""
        self._driver: Driver | None = None

    def run(
        self, training: TrainingPlan, paradigm: AnyParadigm, labels: RunLabels | None = None
    ) -> Iterator[list[Line]]:
        """Train under a paradigm, and yield the lines of the journal in order; the last line
        is an `Ended`.

        Virtual seconds cannot be watched as they pass, so no metrics are published under the
        labels.
        """
        return self._run(driver_of(training, paradigm))

    def snapshot(self) -> tuple[State, bytes]:
        """Return where the run under way stands: see `reenactment.snapshot`."""
        assert self._driver is not None, "no run is under way"
        return snapshot(self._driver)

    def resume(
        self,
        training: TrainingPlan,
        paradigm: AnyParadigm,
        state: State,
        data: bytes,
        lines: Sequence[Line],
    ) -> Iterator[list[Line]]:
        """Go on with a run, and yield those lines of its journal that follow, as if it had never
        been interrupted.

        Args:
            training: as at its beginning.
            paradigm: likewise, fresh.
            state: what `snapshot` returned.
            data: what `snapshot` returned.
            lines: the journal up to there.

        Raises:
            ConfigError: see `reenact`.
        """
        driver = driver_of(training, paradigm)
        reenact(driver, state, data, lines)
        return self._run(driver)

    def _run(self, driver: Driver) -> Iterator[list[Line]]:
        self._driver, self.models = driver, driver.models
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
    backend = VirtualBackend(run.paths(), run.actor, computes=trains)
    marks = experiment.evaluation.progress_marks() if trains else []
    return Driver(
        run.topology(backend, faults), backend, experiment, faults, marks, training.primary
    )
