"""The interface of both engines: Ray, and a virtual clock."""

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
Notify = Callable[[str], None]  # a sentence that the user should read


class Engine(Protocol):
    """An engine that trains: `cluster.session.Session` or `virtual.engine.VirtualEngine`."""

    @property
    def places(self) -> Mapping[str, Any]:
        """Actor -> a dataclass that says where it ran, in the latest run."""

    @property
    def resumes_exactly(self) -> bool:
        """Whether iterations in flight at a checkpoint continue instead of starting again."""

    @property
    def rosters(self) -> Mapping[int, Roster]:
        """Stage -> roster of the latest run, 0 without stages; empty if in another process."""

    @property
    def models(self) -> Sequence[SavedModel]:
        """The models that the latest run left, available before its last line."""

    def run(
        self,
        training: TrainingPlan,
        paradigm: AnyParadigm,
        labels: RunLabels | None = None,
        checkpoint: Checkpoint | None = None,
        history: Callable[[], Sequence[Line]] = tuple,
    ) -> Iterator[list[Line] | Checkpoint]:
        """Train, and yield the journal's lines in order, and each checkpoint after its line.

        The first report has lines, and the last line is `Ended`. Metrics are published under the
        labels. A run from a checkpoint repeats no lines; `history` reads the lines before it.

        Raises:
            RunLost: a process that the run needs was lost; there is no `Ended`.
        """

    def stop(self) -> None:
        """End the run under way as `stopped`, after a last checkpoint."""


def quiet(_: object) -> None:
    """Take a notification, and do nothing with it."""


@contextmanager
def engine_for(
    experiment: Experiment,
    notify: Notify = quiet,
    address: str | None = None,
    fork_server: ForkServer | None = None,
) -> Iterator[Engine]:
    """Start the engine that an experiment names, for any number of runs, none of them larger.

    `address` is the cluster to join where `cluster.address` is `auto`; None: a private one.
    """
    if experiment.engine == "virtual":
        from raysync.virtual.engine import VirtualEngine

        yield VirtualEngine()
        return
    from raysync.cluster.placement import cpus  # Ray is slow to import
    from raysync.cluster.session import Session

    least = cpus(experiment)
    with Session(notify, address, fork_server=fork_server, least_cpus=least) as session:
        yield session
