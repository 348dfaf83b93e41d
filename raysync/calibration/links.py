"""Measure what lies between a group of workers and the server, and how long a worker takes to
start.

Runs of one worker of the group in its own place, under ASP, with models that take no time:

    latency_s, bandwidth    from the time between Release and Pushed that is not computing:
                            2 x (latency + bytes / bandwidth) + update, for a vector of 4 kB and for
                            the model's (at least 4 MB: differences of smaller ones drown in noise)
    start_s                 from a worker that crashes and is started anew

So latency has the meaning that the virtual engine gives it: half of what an iteration costs beside
computing and the server's work, including calls and the controller's share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

from raysync import config
from raysync.calibration.updates import update_s
from raysync.config import Experiment, Update, WorkerGroup
from raysync.core.events import Joined, Left
from raysync.core.journal import Entry
from raysync.record.reader import RunRecord
from raysync.running.engines import Engine
from raysync.running.run import run_in
from raysync.training.data.data_set import Labelled, data_set
from raysync.training.preparation import prepare

SMALL_BYTES = 4_000
LARGE_BYTES = 4_000_000
ITERATIONS = 300
STARTS = 3
"""How often a worker is started anew."""
WARM = 50
"""The number of first pushes that do not count, because caches and the object store are cold."""


@dataclass(frozen=True, slots=True)
class Links:
    """The way between a worker and the server."""

    latency_s: float
    bandwidth_bytes_per_s: float | None
    """The bandwidth; None: a large vector takes no longer than a small one."""


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
    small_s, large_s = (
        _between_s(engine, experiment, group, size) - update_s(size, 1, Update())
        for size in (SMALL_BYTES, large_bytes)
    )
    bandwidth = 2 * (large_bytes - SMALL_BYTES) / (large_s - small_s) if large_s > small_s else None
    return Links(max(0.0, small_s / 2), bandwidth)


def start_s_of(engine: Engine, experiment: Experiment, group: WorkerGroup) -> float:
    """Measure the seconds from a crash until the worker has joined again: a median. That is its
    process, the import of torch, and a model so small that it takes no time.
    """
    slot = f"{group.name}-0"
    crashes = [
        {"kind": "crash", "worker": slot, "at_clock": clock, "rejoin_after_s": 0}
        for clock in range(1, STARTS + 1)
    ]
    with _run(engine, experiment, group, SMALL_BYTES, STARTS + 2, crashes) as record:
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
    with _run(engine, experiment, group, vector_bytes, ITERATIONS) as record:
        pushes = record.pushes
    between = pushes.pushed_at_s - pushes.released_at_s - pushes.busy_s
    return float(median(between[pushes.clock >= WARM]))


@contextmanager
def _run(
    engine: Engine,
    experiment: Experiment,
    group: WorkerGroup,
    vector_bytes: int,
    iterations: int,
    faults: Sequence[Mapping[str, object]] = (),
) -> Iterator[RunRecord]:
    """Run one worker of a group with a model of that size, and yield the record while there is one.

    It sits where the group's workers sit, and computes as fast as it can.
    """
    features = max(1, vector_bytes // 40 - 1)
    with TemporaryDirectory() as folder:
        described = config.validate(
            {
                "name": "calibration",
                "output": folder,
                "paradigm": "asp",
                "batch_size": group.devices,
                "workers": [_placed(group)],
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
