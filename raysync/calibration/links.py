"""Measure what lies between a group of workers and the server, and how long a worker takes to
start.

Runs of one worker of the group in its own place, under ASP, with models that take no time:

    latency_s, bandwidth    from the time between Release and Pushed that is not computing:
                            2 x (latency + bytes / bandwidth) + update, for a small vector and for
                            the model's (at least 4 MB: differences of smaller ones drown in noise)
    start_s                 from a worker that crashes and is started anew

So latency has the meaning that the virtual engine gives it: half of what an iteration costs beside
computing and the server's work, including calls and the controller's share. The small vector is an
object of its own if the model's is, since Ray takes longer for that than for what fits a message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

from raysync import config
from raysync.calibration.updates import update_s
from raysync.cluster.transports.transport import INLINE_BYTES
from raysync.config import Experiment, Update, WorkerGroup
from raysync.core.events import Joined, Left
from raysync.core.journal import Entry
from raysync.record.reader import RunRecord
from raysync.running.engines import Engine
from raysync.running.run import run_in
from raysync.training.data.data_set import Labelled, data_set
from raysync.training.preparation import prepare

MESSAGE_BYTES = 4_000
"""The size of a vector that travels inside a message."""
OBJECT_BYTES = 400_000
"""The size of a small vector that is an object of its own."""
LARGE_BYTES = 4_000_000
ITERATIONS = 300
FEWEST = 12
LONGEST_S = 10.0
"""How long the iterations may take together, unless there are few."""
STARTS = 3
"""How often a worker is started anew."""
WARM = 1 / 6
"""The part of the pushes that does not count, because caches and the object store are cold."""
ALIKE = 1.1
"""Two ways are alike if their latencies and bandwidths differ by at most this factor."""


@dataclass(frozen=True, slots=True)
class Links:
    """The way between a worker and the server."""

    latency_s: float
    bandwidth_bytes_per_s: float | None
    """The bandwidth; None: a large vector takes no longer than a small one."""

    def has_more_latency(self, other: Links) -> bool:
        """Whether its latency is longer than the other's."""
        return self.latency_s > ALIKE * other.latency_s

    def has_less_bandwidth(self, other: Links) -> bool:
        """Whether its bandwidth is less than the other's."""
        rate, top = self.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s
        return rate is not None and (top is None or ALIKE * rate < top)


def best_of(links: Collection[Links]) -> Links:
    """Return a way that is as good as the best of some, in latency and in bandwidth."""
    rates = [each.bandwidth_bytes_per_s for each in links]
    known = [rate for rate in rates if rate is not None]
    return Links(
        min(each.latency_s for each in links), None if len(known) < len(rates) else max(known)
    )


def links_of(
    engine: Engine, experiment: Experiment, group: WorkerGroup, vector_bytes: int
) -> Links:
    """Measure the way between a group's node and the server.

    Args:
        engine: a session of the Ray engine.
        experiment: says where the server sits, and what an update is.
        group: the workers.
        vector_bytes: the size of the model's gradient.
    """
    large_bytes = max(vector_bytes, LARGE_BYTES)
    small_bytes = MESSAGE_BYTES if vector_bytes <= INLINE_BYTES else OBJECT_BYTES
    small_s, large_s = (
        _between_s(engine, experiment, group, size) - update_s(size, 1, Update())
        for size in (small_bytes, large_bytes)
    )
    if large_s <= small_s:
        return Links(max(0.0, small_s / 2), None)
    bandwidth = 2 * (large_bytes - small_bytes) / (large_s - small_s)
    return Links(max(0.0, small_s / 2 - small_bytes / bandwidth), bandwidth)


def start_s_of(engine: Engine, experiment: Experiment, group: WorkerGroup) -> float:
    """Measure the seconds from a crash until the worker has joined again: a median. That is its
    process, the import of torch, and a model so small that it takes no time.
    """
    slot = f"{group.name}-0"
    crashes = [
        {"kind": "crash", "worker": slot, "at_clock": clock, "rejoin_after_s": 0}
        for clock in range(1, STARTS + 1)
    ]
    workers = [(group, 1)]
    with run_of(engine, experiment, workers, MESSAGE_BYTES, STARTS + 2, crashes) as record:
        events = [line.event for line in record.journal() if isinstance(line, Entry)]
    left = [event.at for event in events if isinstance(event, Left)]
    _, *joined = [event.at for event in events if isinstance(event, Joined)]
    return median(back - gone for gone, back in zip(left, joined, strict=True))


def _between_s(
    engine: Engine, experiment: Experiment, group: WorkerGroup, vector_bytes: int
) -> float:
    """Measure the seconds between Release and Pushed that are not computing, for a model of that
    size: a median.
    """
    between_s, iterations = 0.0, FEWEST
    while iterations:
        with run_of(engine, experiment, [(group, 1)], vector_bytes, iterations) as record:
            pushes = record.pushes
        between = pushes.pushed_at_s - pushes.released_at_s - pushes.busy_s
        between_s = float(median(between[pushes.clock >= WARM * iterations]))
        more = int(min(ITERATIONS, LONGEST_S / max(between_s, 1e-9)))
        iterations = more if iterations == FEWEST <= more / 2 else 0
    return between_s


@contextmanager
def run_of(
    engine: Engine,
    experiment: Experiment,
    workers: Sequence[tuple[WorkerGroup, int]],
    vector_bytes: int,
    iterations: int,
    faults: Sequence[Mapping[str, object]] = (),
    paradigm: str = "asp",
    step_s: float | None = None,
) -> Iterator[RunRecord]:
    """Run so many workers of groups with a model of that size, and yield the record while there is
    one.

    They sit where the groups' workers sit, and compute as fast as they can, or for `step_s`.
    """
    features = max(1, vector_bytes // 40 - 1)
    with TemporaryDirectory() as folder:
        described = config.validate(
            {
                "name": "calibration",
                "output": folder,
                "paradigm": paradigm,
                "workers": [
                    _placed(group) | {"count": count, "batch_size": group.devices, "step_s": step_s}
                    for group, count in workers
                ],
                "workload": {"iterations_per_worker": iterations},
                "evaluation": {"marks": 1},
                "faults": list(faults),
                "cluster": experiment.cluster.model_dump(
                    mode="json", exclude={"min_workers", "metrics", "wire"}
                ),
            }
        )
        noise = _noise(features)
        training = prepare(described, nn.Sequential(nn.Flatten(), nn.Linear(features, 10)), noise)
        yield run_in(engine, training, described.paradigm)


PLACE = {
    "name",
    "cpus",
    "gpus",
    "devices_per_worker",
    "accelerator_type",
    "label_selector",
    "fallback_label_selectors",
    "resources",
}
"""The settings of a group that say where its workers sit."""


def _placed(group: WorkerGroup) -> dict[str, Any]:
    """Return one worker in the place of a group, which emulates nothing."""
    return group.model_dump(mode="json", include=PLACE)


def _noise(features: int) -> Labelled:
    """Return a few samples of that many features."""
    x, y = np.zeros((10, features), np.float32), np.arange(10)
    return data_set("noise", (x, y), (x, y), classes=10)
