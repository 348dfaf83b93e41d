"""The virtual engine: whole runs in this process, on a virtual clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.ids import WorkerId
from raysync.core.journal import Line
from raysync.core.paradigm import AnyParadigm
from raysync.core.roster import Roster
from raysync.core.structs import is_whole
from raysync.decoupled.plan import check
from raysync.engine.checkpoint_state import OUTLIVED_S, files_of
from raysync.engine.checkpointing import Snapshot
from raysync.engine.driver import Driver
from raysync.engine.kept_models import SavedModel
from raysync.engine.topology import rosters_by_stage
from raysync.errors import ConfigError
from raysync.programs.building import spec_of
from raysync.programs.run_spec import RunSpec
from raysync.record.metrics_registry import RunLabels
from raysync.training.data.batch_reader import generators_restored
from raysync.training.models.initial_model import InitialModel
from raysync.training.preparation import TrainingPlan
from raysync.virtual.data_parallel import DataParallelRun
from raysync.virtual.pipelined import PipelinedRun
from raysync.virtual.reenactment import reenact, snapshot
from raysync.virtual.virtual_backend import VirtualBackend
from raysync.virtual.virtual_processes import ProcessEnd

WORLD = "world"  # the one file in a checkpoint of a run in virtual time
# The growth in objects that triggers a collection of the youngest. Python's default suits objects
# that die soon; an iteration's objects live until its push, so collections would find nearly all in
# use. Objects of a push must therefore not be in reference cycles: without cycles they are freed at
# once, and are not in checkpoints, which have every live call.
GARBAGE_OBJECTS = 500_000


class VirtualEngine:
    """Runs tasks in this process."""

    resumes_exactly = True

    def __init__(self) -> None:
        self.places: dict[str, Any] = {}  # empty: all actors are in this process
        self.models: list[SavedModel] = []  # the latest run's; complete before its last report
        self._driver: Driver | None = None

    @property
    def rosters(self) -> Mapping[int, Roster]:
        return {} if self._driver is None else rosters_by_stage(self._driver.topology)

    def run(
        self,
        training: TrainingPlan,
        paradigm: AnyParadigm,
        labels: RunLabels | None = None,
        checkpoint: Checkpoint | None = None,
        history: Callable[[], Sequence[Line]] = tuple,
    ) -> Iterator[list[Line] | Checkpoint]:
        """Train under a paradigm, and yield the journal in order; the last line is an `Ended`.

        Virtual seconds cannot be watched as they pass, so `labels` publish no metrics. A run from a
        checkpoint is reenacted up to there.

        Raises:
            ConfigError: a setting is refused, or the run takes another course; see `reenact`.
        """
        check(training.experiment, paradigm)
        driver = self._driver = driver_of(training, paradigm)
        driver.checkpointer.snapshot = partial(_snapshot, driver, training.experiment)
        if checkpoint is not None:
            _check_state(training.experiment, checkpoint.state)
            driver.faults.skip_kills(checkpoint.state.get(OUTLIVED_S, -1.0))
            [data] = files_of(checkpoint, WORLD, 1)
            reenact(driver, checkpoint.state, data, history(), checkpoint.at)
            driver.checkpointer.number, driver.checkpointer.exists = checkpoint.number, True
        self.models = driver.models
        return _reports(driver)

    def stop(self) -> None:
        """Let the run in progress end as `stopped`, after a last checkpoint."""
        assert self._driver is not None, "no run is under way"
        self._driver.stop()


def run_of(
    spec: RunSpec,
    model: InitialModel,
    servers: Mapping[str, Sequence[bytes]] = MappingProxyType({}),  # see `Checkpoint.servers`
) -> DataParallelRun | PipelinedRun:
    kind = PipelinedRun if spec.is_pipelined else DataParallelRun
    return kind(spec, model, servers)


def driver_of(
    training: TrainingPlan,
    paradigm: AnyParadigm,
    checkpoint: Checkpoint | None = None,
    ends: Mapping[str, Sequence[ProcessEnd]] = MappingProxyType({}),
) -> Driver:
    """Return the driver of a run, from a checkpoint or not, with `ends` of processes to survive."""
    spec = spec_of(training, paradigm)
    run = run_of(spec, training.model, checkpoint.servers if checkpoint else {})
    slots = training.experiment.slots()
    backend = VirtualBackend(
        run.networks(),
        run.actor,
        phase=paradigm.phase,
        computes=spec.trains,
        ends=ends,
        began_at=checkpoint.at if checkpoint else 0.0,
        start_s=lambda worker: slots[WorkerId(worker).slot.place].start_s,
    )
    return spec.driver(backend, checkpoint)


def _snapshot(driver: Driver, experiment: Experiment) -> Snapshot | None:
    """Return the state of a run; None: it is over, or only reenacted."""
    assert isinstance(driver.backend, VirtualBackend), "a run that is not in virtual time"
    if driver.status or driver.backend.is_reenacting:
        return None
    state, data = snapshot(driver)
    return state | {"intervals": _intervals(experiment)}, {WORLD: [data]}


def _intervals(experiment: Experiment) -> list[float | None]:
    setting = experiment.checkpoint
    return [] if setting is None else [setting.every_s, setting.every_progress]


def _check_state(experiment: Experiment, state: Mapping[str, Any]) -> None:
    """Refuse other checkpoint intervals: checkpoints are events of the reenacted run."""
    if not is_whole(state.get("events")):
        raise ConfigError("checkpoint: its state is damaged: it has no number of events.")
    if state.get("intervals") != _intervals(experiment):
        raise ConfigError(
            "checkpoint: a run in virtual time can only be resumed with its original every_s and"
            " every_progress."
        )


def _reports(driver: Driver) -> Iterator[list[Line] | Checkpoint]:
    # a step seeds the generators of NumPy and Python for its batch
    with _rare_collections(), generators_restored() if driver.backend.computes else nullcontext():
        for lines in driver.run():
            yield lines
            while driver.checkpoints:
                yield driver.checkpoints.pop(0)


@contextmanager
def _rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(GARBAGE_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
