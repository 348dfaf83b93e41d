"""Measure all groups of an experiment, one after the other, each in its own place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from raysync.calibration.links import Links, links_of, start_s_of
from raysync.calibration.rounds import push_s_of
from raysync.calibration.sharing import Sharing, sharing_of
from raysync.calibration.step_times import StepTimes, step_times
from raysync.calibration.updates import UpdateTimes, update_times
from raysync.config import WorkerGroup
from raysync.running.engines import Engine
from raysync.training.preparation import TrainingPlan

BUSY = 0.25  # other work may take this share of a node's cores without a warning
# Ray's id of a node -> its busy cores, and all of its cores
BusyCores = Callable[[str], tuple[float, int]]


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    # None: the group emulates its steps, so its settings say how long they take
    steps: StepTimes | None
    links: Links
    start_s: float  # seconds until a restarted worker is ready

    def without(self, push_s: float) -> MeasuredGroup:
        """Return it with the latency of its link alone, which was measured with a push's time."""
        latency_s = max(0.0, self.links.latency_s - push_s / 2)
        return replace(self, links=replace(self.links, latency_s=latency_s))


@dataclass(frozen=True, slots=True)
class Measured:
    groups: Mapping[str, MeasuredGroup]
    updates: UpdateTimes
    sharing: Sharing | None  # None: the server's link has room for all workers
    push_s: float  # the coordinator's seconds for each push


def calibrate(
    engine: Engine,
    training: TrainingPlan,
    notify: Callable[[str], None] = lambda text: None,
    busy_cores: BusyCores | None = None,
) -> Measured:
    """Measure what the virtual engine needs for a training.

    Groups on one node share the measurements of the link to the server and of the start.

    Args:
        notify: receives sentences that the user should read.
        busy_cores: reads the load of a node while no run is under way; None: no warnings.

    Raises:
        ConfigError: a group cannot be measured where it sits.
    """
    experiment, groups = training.experiment, {}
    by_node: dict[str, tuple[Links, float]] = {}
    for group in experiment.workers:
        notify(f"Measuring {group.name}.")
        steps = None if group.emulates_steps else step_times(engine, training, group)
        # a group's node is known once it has run: here, if its steps were measured
        node = _node_of(engine, group) if steps is not None else ""
        if node not in by_node:
            links = links_of(engine, experiment, group, training.vector_bytes)
            node = _node_of(engine, group) or group.name
            if node not in by_node:
                by_node[node] = links, start_s_of(engine, experiment, group)
                _warn_if_busy(node, group, notify, busy_cores)
        groups[group.name] = MeasuredGroup(steps, *by_node[node])
    alone = {name: measured.links for name, measured in groups.items()}
    notify("Measuring rounds of all workers.")
    sharing = sharing_of(engine, experiment, alone, training.vector_bytes)
    push_s = push_s_of(engine, experiment, alone)
    return Measured(
        groups={name: group.without(push_s) for name, group in groups.items()},
        updates=update_times(training.vector_bytes, experiment.update),
        sharing=sharing,
        push_s=push_s,
    )


def _node_of(engine: Engine, group: WorkerGroup) -> str:
    """Return Ray's id of the node of the group's worker in the latest run, or ""."""
    place = engine.places.get(f"{group.name}-0")
    return "" if place is None else str(place.node_id)


def _warn_if_busy(
    node: str, group: WorkerGroup, notify: Callable[[str], None], busy_cores: BusyCores | None
) -> None:
    if busy_cores is None:
        return
    busy, cores = busy_cores(node)
    if busy > BUSY * cores:
        notify(
            f"The node of {group.name} is busy with other work ({busy:.1f} of {cores} cores): its"
            " measured times are longer than on an idle node."
        )
