"""Measure the capacity of the server's link, and how unequally workers share it.

Under BSP all pulls begin together, and all pushes nearly so. The link is full until the last one
ends, so it carries all of their bytes in that time. The begin and the end of each transfer give the
weight of its share (`network.share_sigma`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from statistics import fmean, median, variance

import pandas as pd

from raysync.calibration.links import LARGE_BYTES, Links, best_of, run_of
from raysync.config import Experiment, WorkerGroup
from raysync.core.ids import WorkerId
from raysync.running.engines import Engine

ROUNDS = 14
WARM = 2  # first rounds, left out: connections are new
PASSES = 50  # until the weights are settled
# the server's link binds if it carries less than this share of the workers' links together
FULL = 0.9

# the part of a vector that a transfer carries, and its begin and end in seconds
Span = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Sharing:
    bytes_per_s: float
    sigma: float  # the standard deviation of the logarithms of the transfers' weights


def sharing_of(
    engine: Engine, experiment: Experiment, links: Mapping[str, Links], vector_bytes: int
) -> Sharing | None:
    """Measure the capacity of a server's link, and how unequally workers share it.

    Args:
        links: group -> the link of one of its workers alone. Only groups with the best bandwidth
            take part: a slower link of their own would limit the others' shares.
        vector_bytes: the size of the model's gradient.

    Returns:
        None if the link does not bind: all actors are on one node, or it has room for all workers.
            A link that the workers of one node share counts as the server's.
    """
    best = best_of(links.values())
    groups = [
        group for group in experiment.workers if not links[group.name].has_less_bandwidth(best)
    ]
    if sum(group.count for group in groups) < 2:
        return None
    size, link_rate = max(vector_bytes, LARGE_BYTES), best.bandwidth_bytes_per_s
    pulls, pushes = _transfers(engine, experiment, groups, links, size, link_rate)
    if not pulls:
        return None
    servers = experiment.cluster.server_shards
    rate = max(
        median(size / servers * _vectors_per_s(spans) for spans in rounds)
        for rounds in (pulls, pushes)
        if rounds
    )
    if link_rate is not None and rate > FULL * len(pulls[0]) / servers * link_rate:
        return None
    if not pushes:  # with unequal latencies, pushes may not overlap
        return Sharing(rate, experiment.network.share_sigma)
    return Sharing(rate, sqrt(fmean(variance(map(log, weights_of(spans))) for spans in pushes)))


def _transfers(
    engine: Engine,
    experiment: Experiment,
    groups: Sequence[WorkerGroup],
    links: Mapping[str, Links],
    size: int,
    link_rate: float | None,
) -> tuple[list[list[Span]], list[list[Span]]]:
    """Return the pulls and the pushes of each round, without their latencies."""
    workers = [(group, group.count) for group in groups]
    # A step lasts until the pulls are over: their acknowledgements would slow pushes down.
    step_s = size / link_rate if link_rate is not None else None
    with run_of(engine, experiment, workers, size, ROUNDS, paradigm="bsp", step_s=step_s) as record:
        pushes, slots = record.pushes, list(record.config.slots())
    pushes = pushes[pushes.clock >= WARM]
    part_of = _travelling_parts(engine, experiment, slots)
    parts = pushes.worker.map(lambda worker: part_of[WorkerId(worker).slot])
    latency_s = pushes.worker.map(lambda worker: links[WorkerId(worker).slot.group].latency_s)
    computed_s = pushes.computed_at_s
    pulled_s = computed_s - pushes.busy_s - latency_s
    return (
        _rounds(pushes.clock, parts, pushes.released_at_s, pulled_s),
        _rounds(pushes.clock, parts, computed_s, pushes.pushed_at_s - latency_s),
    )


def _travelling_parts(
    engine: Engine, experiment: Experiment, slots: Sequence[str]
) -> dict[str, float]:
    """Return slot -> the part of a vector that travels between its worker and the servers."""
    nodes = {actor: place.node_id for actor, place in engine.places.items()}
    hosts = Counter(slots[host] for host in experiment.cluster.hosts(len(slots)))
    if len({nodes[slot] for slot in slots}) == 1 and hosts:
        return dict.fromkeys(slots, 0.0)
    if hosts:  # a part stays on the node of each worker that hosts a server
        return {slot: 1 - hosts[slot] / experiment.cluster.server_shards for slot in slots}
    return {slot: float(nodes[slot] != nodes["server-0"]) for slot in slots}


def weights_of(spans: Sequence[Span]) -> list[float]:
    """Return the relative weights of transfers that filled a link.

    Args:
        spans: the transfers, which all overlapped for some time.
    """
    # A transfer of weight w takes as long as one of weight 1 would take for 1/w of its bytes. How
    # much that is depends on the weights, so they are found by iteration.
    times = sorted({time for _, *span in spans for time in span})
    weights = [1.0] * len(spans)
    for _ in range(PASSES):
        served, served_at = 0.0, {times[0]: 0.0}
        for begin, end in pairwise(times):
            active = [
                weight
                for weight, (_, since, until) in zip(weights, spans, strict=True)
                if since <= begin and end <= until
            ]
            served += (end - begin) / sum(active)
            served_at[end] = served
        weights = [part / (served_at[end] - served_at[begin]) for part, begin, end in spans]
        mean = exp(fmean(map(log, weights)))
        weights = [weight / mean for weight in weights]
    return weights


def _rounds(
    clock: pd.Series, parts: pd.Series, begin_s: pd.Series, end_s: pd.Series
) -> list[list[Span]]:
    """Return the transfers of each round in which all of them overlapped."""
    table = pd.DataFrame({"part": parts, "begin": begin_s, "end": end_s})
    table = table[table.part > 0]
    rounds = [
        list(zip(rows.part, rows.begin, rows.end, strict=True)) for _, rows in table.groupby(clock)
    ]
    return [
        spans
        for spans in rounds
        if len(spans) > 1 and max(span[1] for span in spans) < min(span[2] for span in spans)
    ]


def _vectors_per_s(spans: Sequence[Span]) -> float:
    parts, begins, ends = zip(*spans, strict=True)
    return float(sum(parts) / (max(ends) - min(begins)))
