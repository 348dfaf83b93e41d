"""The engines that train: on Ray, and on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from raysync.cluster.ray_private.fork_server import ForkServer
from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Line
from raysync.core.paradigm import AnyParadigm
from raysync.core.roster import Roster
from raysync.engine.kept_models import SavedModel
from raysync.record.measures import Measures
from raysync.record.metrics_registry import RunLabels
from raysync.training.preparation import TrainingPlan

WatchCallback = Callable[[Measures], None]
Notify = Callable[[str], None]
"""Receives a sentence that the user should read."""


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
