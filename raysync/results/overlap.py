"""How long runs on a real clock shared cores with others, from where and when each ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np

from raysync.record.reader import RunRecord

CONTROLLER = "controller"  # it hardly computes
LEAST_SHARE = 0.02  # of a run's time; less is the rounding of the times


@dataclass(frozen=True)
class Occupancy:
    """The machines that a run used, and when."""

    began: float  # seconds since 1970
    trained_from: float
    ended: float
    processes: Mapping[str, int]  # machine -> processes of the run there
    cores: Mapping[str, int]  # machine -> its cores


def shared_shares(records: Sequence[RunRecord]) -> list[float | None]:
    """Return for each run the share of its training with more processes than cores, due to others.

    None: it ran in virtual time, or alone, was resumed, or its record does not say.
    """
    occupancies = [occupancy_of(record) for record in records]
    known = [occupancy for occupancy in occupancies if occupancy is not None]
    return [
        None if occupancy is None else _shared_share(occupancy, known) for occupancy in occupancies
    ]


def _shared_share(own: Occupancy, everyone: Sequence[Occupancy]) -> float | None:
    others = [
        other
        for other in everyone
        if other is not own
        and other.began < own.ended
        and own.trained_from < other.ended
        and not own.processes.keys().isdisjoint(other.processes)
    ]
    ends = [time for other in others for time in (other.began, other.ended)]
    times = sorted([own.trained_from, own.ended, *np.clip(ends, own.trained_from, own.ended)])
    shared_s = sum(
        later - sooner
        for sooner, later in pairwise(times)
        if _is_crowded(own, [other for other in others if other.began <= sooner < other.ended])
    )
    share = shared_s / (own.ended - own.trained_from)
    return share if share >= LEAST_SHARE else None


def _is_crowded(own: Occupancy, others: Sequence[Occupancy]) -> bool:
    """Whether a machine of the run has more processes than cores, some of them of others."""
    for host, count in own.processes.items():
        foreign = sum(other.processes.get(host, 0) for other in others)
        if foreign and count + foreign > own.cores[host]:
            return True
    return False


def occupancy_of(record: RunRecord) -> Occupancy | None:
    """Return where and when a run on Ray computed; None: its record does not say."""
    environment = record.environment
    places, wall_s = environment.get("places"), record.summary.get("wall_seconds")
    trained_s = record.summary.get("seconds")
    if not places or not wall_s or not trained_s or record.summary.get("resumptions"):
        return None
    hosts = {
        name: place
        for name, place in places.items()
        if name != CONTROLLER and isinstance(place, dict) and place.get("host")
    }
    try:
        began = datetime.fromisoformat(environment["requested"]).timestamp()
    except (KeyError, ValueError):  # the record is of an earlier version
        return None
    if not hosts:
        return None
    return Occupancy(
        began,
        trained_from=began + max(0.0, wall_s - trained_s),
        ended=began + wall_s,
        processes=Counter(str(place["host"]) for place in hosts.values()),
        cores={str(place["host"]): _cores(place) for place in hosts.values()},
    )


def _cores(place: Mapping[str, Any]) -> int:
    cores = place.get("cores")
    return cores if isinstance(cores, int) and cores > 0 else 1
