"""Measure how workers share the link of the server: what it carries, and how unequal their shares
are.

In a run under BSP all pulls begin at once, with each Release, and all pushes soon one after
another. The link is full until the last has come, so it carries all of their bytes in that time;
and from when each began and had come follow the weights of their shares, as the virtual engine
means them (`network.share_sigma`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from statistics import fmean, median, variance
from typing import Any

import pandas as pd

from raysync.calibration.links import LARGE_BYTES, Links, best_of, run_of
from raysync.config import Experiment
from raysync.core.ids import WorkerId
from raysync.running.engines import Engine

ROUNDS = 14
WARM = 2
"""The number of first rounds that do not count: connections are new."""
PASSES = 50
FULL = 0.9
"""The link of the server binds if it carries less than this part of what those of the workers do
together."""

Span = tuple[float, float]
"""When a transfer began and had come, in seconds."""


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
    pulled_s = pushes.computed_at_s - pushes.busy_s - latency_s
    pulls = _rounds(pushes.clock, pushes.released_at_s, pulled_s)
    if not pulls:
        return None
    count = len(pulls[0])
    ups = _rounds(pushes.clock, pushes.computed_at_s, pushes.pushed_at_s - latency_s)
    both = [rounds for rounds in (pulls, ups) if rounds]
    rate = max(median(count * size / _seconds(spans) for spans in rounds) for rounds in both)
    if best.bandwidth_bytes_per_s and rate > FULL * count * best.bandwidth_bytes_per_s:
        return None
    spread = fmean(variance(map(log, weights_of(spans))) for rounds in both for spans in rounds)
    return Sharing(rate / experiment.cluster.server_shards, sqrt(spread))


def weights_of(spans: Sequence[Span]) -> list[float]:
    """Return the relative weights with which equal transfers shared a link that they filled.

    Args:
        spans: of each, which all were on the link together for some time.
    """
    # A transfer of weight w takes as long as one of weight 1 would take for 1/w of its bytes. How
    # much that is depends on the weights, so they are found by iteration.
    times = sorted({time for span in spans for time in span})
    weights = [1.0] * len(spans)
    for _ in range(PASSES):
        served, served_at = 0.0, {times[0]: 0.0}
        for begin, end in pairwise(times):
            on = [w for w, span in zip(weights, spans, strict=True) if _covers(span, begin, end)]
            served += (end - begin) / sum(on)
            served_at[end] = served
        weights = [1 / (served_at[end] - served_at[begin]) for begin, end in spans]
        mean = exp(fmean(map(log, weights)))
        weights = [weight / mean for weight in weights]
    return weights


def _rounds(clock: pd.Series, begin_s: pd.Series, end_s: pd.Series) -> list[list[Span]]:
    """Return the transfers of each round in which all were on the link together."""
    table = pd.DataFrame({"begin": begin_s, "end": end_s}).groupby(clock)
    rounds = [list(zip(each.begin, each.end, strict=True)) for _, each in table]
    return [
        spans
        for spans in rounds
        if len(spans) > 1 and max(begin for begin, _ in spans) < min(end for _, end in spans)
    ]


def _seconds(spans: Sequence[Span]) -> float:
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def _covers(span: Span, begin: float, end: float) -> bool:
    return span[0] <= begin and end <= span[1]


def _node_of(engine: Engine, actor: str) -> Any:
    place = engine.places.get(actor)
    return None if place is None else place.node_id
