"""Measure how workers share the link of the server: what it carries, and how unequal their shares
are.

In a run under BSP all pulls begin at once, with each Release. The link is full until the last has
come, so it carries all of their bytes in that time; and from when each has come follow the weights
of their shares, as the virtual engine means them (`network.share_sigma`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean, median, variance
from typing import Any

from raysync.calibration.links import LARGE_BYTES, Links, best_of, run_of
from raysync.config import Experiment
from raysync.core.ids import WorkerId
from raysync.running.engines import Engine

ROUNDS = 14
WARM = 2
"""The number of first rounds that do not count: connections are new."""
FULL = 0.9
"""The link of the server binds if it carries less than this part of what those of the workers do
together."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How transfers share the link of a server."""

    bytes_per_s: float
    sigma: float
    """The standard deviation of the logarithms of their weights."""


def sharing_of(
    engine: Engine, experiment: Experiment, links: Mapping[str, Links], vector_bytes: int
) -> Sharing | None:
    """Measure how the workers share the link of the server.

    Args:
        engine: a session of the Ray engine.
        experiment: says where server and workers sit.
        links: group -> the way from one of its workers alone; only the groups with the best count,
            since a slower link of their own would limit the others' shares.
        vector_bytes: the size of the model's gradient.

    Returns:
        None if it binds nobody: workers are beside the server, are one, or have the link of the
        server to themselves as far as can be seen. A link that the workers of one node share is
        taken for the server's.
    """
    if experiment.cluster.server_placement != "apart":
        return None  # their links are those of workers
    best = best_of(links.values())
    groups = [
        group for group in experiment.workers if not links[group.name].has_less_bandwidth(best)
    ]
    if sum(group.count for group in groups) < 2:
        return None
    size = max(vector_bytes, LARGE_BYTES)
    workers = [(group, group.count) for group in groups]
    with run_of(engine, experiment, workers, size, ROUNDS, paradigm="bsp") as record:
        pushes = record.pushes
    home = _node_of(engine, "server-0")
    away = {slot for slot in engine.places if home is None or _node_of(engine, slot) != home}
    is_away = pushes.worker.map(lambda worker: WorkerId(worker).slot in away)
    pushes = pushes[(pushes.clock >= WARM) & is_away]
    latency_s = pushes.worker.map(lambda worker: links[WorkerId(worker).slot.group].latency_s)
    pulls_s = pushes.computed_at_s - pushes.busy_s - pushes.released_at_s - latency_s
    rounds = [list(times.clip(lower=1e-9)) for _, times in pulls_s.groupby(pushes.clock)]
    count = len(rounds[0]) if rounds else 0
    if count < 2:
        return None
    rate = median(count * size / max(times) for times in rounds)
    if best.bandwidth_bytes_per_s and rate > FULL * count * best.bandwidth_bytes_per_s:
        return None
    spread = fmean(variance(map(log, weights_of(times))) for times in rounds)
    return Sharing(rate / experiment.cluster.server_shards, sqrt(spread))


def weights_of(seconds: Sequence[float]) -> list[float]:
    """Return the weights with which equal transfers shared a link that they filled.

    Args:
        seconds: when each had come; all began at 0.

    Returns:
        Their weights in that order, in the weight of the last to come.
    """
    # A transfer of weight w has come when one of weight 1 would have been served 1/w of a value.
    # Backwards from the end, each weight follows from those of all that came later.
    rate = len(seconds) / max(seconds)
    order = sorted(range(len(seconds)), key=seconds.__getitem__, reverse=True)
    weights, served, weight = [0.0] * len(seconds), 1.0, 0.0
    for index, before in zip(order, [*order[1:], None], strict=True):
        weights[index] = 1 / served
        weight += weights[index]
        since_s = seconds[index] - (0.0 if before is None else seconds[before])
        served -= rate * since_s / weight
    return weights


def _node_of(engine: Engine, actor: str) -> Any:
    place = engine.places.get(actor)
    return None if place is None else place.node_id
