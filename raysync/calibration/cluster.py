"""Measure all groups of an experiment, one after the other, each in its own place.

A group that says itself how long its steps take keeps that; of the others one worker computes
batches of several sizes. Groups whose workers sit on one node share the measurement of the way to
the server, and of the time to start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raysync.calibration.links import Links, links_of, start_s_of
from raysync.calibration.sharing import Sharing, sharing_of
from raysync.calibration.step_times import StepTimes, step_times
from raysync.calibration.updates import UpdateTimes, update_times
from raysync.config import WorkerGroup
from raysync.running.engines import Engine
from raysync.training.preparation import TrainingPlan

BUSY = 0.25
"""The share of a node's cores that other work may take, without a warning."""
BusyCores = Callable[[str], tuple[float, int]]
"""It takes Ray's id of a node, and returns the cores that are busy there, and those that it has."""


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """What was measured of a group of workers."""

    steps: StepTimes | None
    """How long its steps take; None: the group says so itself."""
    links: Links
    start_s: float
    """Seconds until a worker is ready that is started anew."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a cluster."""

    groups: Mapping[str, MeasuredGroup]
    updates: UpdateTimes
    sharing: Sharing | None
    """How workers share the server's link; None: it has room for all."""


def calibrate(
    engine: Engine,
    training: TrainingPlan,
    notify: Callable[[str], None] = lambda text: None,
    busy_cores: BusyCores | None = None,
) -> Measured:
    """Measure what the virtual engine needs for a training.

    Args:
        engine: a session of the Ray engine.
        training: the training whose model, batch sizes and update are measured.
        notify: is told, in a sentence, what the user should know.
        busy_cores: tells how busy a node is while nothing is measured; None: it is not asked.

    Raises:
        ConfigError: a group cannot be measured where it sits.
    """
    experiment, groups = training.experiment, {}
    of_nodes: dict[str, tuple[Links, float]] = {}
    for group in experiment.workers:
        notify(f"Measuring {group.name}.")
        steps = None if group.emulates_steps else step_times(engine, training, group)
        node = _node_of(engine, group) if steps is not None else ""
        if not node or node not in of_nodes:
            links = links_of(engine, experiment, group, training.vector_bytes)
            node = _node_of(engine, group) or group.name
            if node not in of_nodes:
                of_nodes[node] = links, start_s_of(engine, experiment, group)
                _warn(node, group, notify, busy_cores)
        groups[group.name] = MeasuredGroup(steps, *of_nodes[node])
    alone = {name: measured.links for name, measured in groups.items()}
    sharing = sharing_of(engine, experiment, alone, training.vector_bytes)
    return Measured(groups, update_times(training.vector_bytes, experiment.update), sharing)


def _node_of(engine: Engine, group: WorkerGroup) -> str:
    """Return Ray's id of the node where the group's worker sat in the latest run; "" if there is
    none.
    """
    place = engine.places.get(f"{group.name}-0")
    return "" if place is None else str(place.node_id)


def _warn(
    node: str, group: WorkerGroup, notify: Callable[[str], None], busy_cores: BusyCores | None
) -> None:
    if busy_cores is None:
        return
    busy, cores = busy_cores(node)
    if busy > BUSY * cores:
        notify(
            f"The node of {group.name} is busy with other work ({busy:.1f} of {cores} cores): what"
            " was measured there is slower than it would be alone."
        )
