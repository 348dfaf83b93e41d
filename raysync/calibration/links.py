"""Measure the link between a group's worker and the server, and the start of a worker.

The runs have one worker, ASP, and a model that computes in no time. A latency here has the meaning
of the virtual engine: half of an iteration's cost beside computing and the server's work. For it
the worker takes `STEP_S` for a step: calls that follow each other at once cost half as much as
those of a training, between which cores rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory

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

MESSAGE_BYTES = 4_000  # fits into a message
OBJECT_BYTES = 400_000  # too large for a message, so it goes through Ray's object store
LARGE_BYTES = 4_000_000
ITERATIONS = 300
FEWEST = 12  # iterations
LONGEST_S = 10.0  # all iterations together, unless there are only the `FEWEST`
STEP_S = 0.02
STARTS = 3
CLASSES = 10
WARM = 1 / 6  # the first pushes, left out: caches and the object store are cold
ALIKE = 1.1  # links are alike if their latencies and bandwidths differ by at most this factor


# settings that place a group's workers
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


@dataclass(frozen=True, slots=True)
class Links:
    latency_s: float
    bandwidth_bytes_per_s: float | None  # None: a large vector takes no longer than a small one

    def has_more_latency(self, other: Links) -> bool:
        return self.latency_s > ALIKE * other.latency_s

    def has_less_bandwidth(self, other: Links) -> bool:
        rate, top = self.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s
        return rate is not None and (top is None or ALIKE * rate < top)


def best_of(links: Collection[Links]) -> Links:
    """Combine the lowest latency and the highest bandwidth."""
    rates = [link.bandwidth_bytes_per_s for link in links]
    known = [rate for rate in rates if rate is not None]
    return Links(
        min(link.latency_s for link in links), None if len(known) < len(rates) else max(known)
    )


def links_of(
    engine: Engine, experiment: Experiment, group: WorkerGroup, vector_bytes: int
) -> Links:
    """Measure the link between a group's node and the server, for a gradient of `vector_bytes`."""
    # between Release and Pushed: 2 x (latency + bytes / bandwidth) + update
    large_bytes = max(vector_bytes, LARGE_BYTES)  # differences of smaller ones drown in noise
    # an object takes Ray longer than a message: the small vector travels as the model's does
    small_bytes = MESSAGE_BYTES if vector_bytes <= INLINE_BYTES else OBJECT_BYTES
    small_s, large_s, paced_s = (
        _iteration_s(engine, experiment, group, size, step_s) - update_s(size, 1, Update())
        for size, step_s in ((small_bytes, None), (large_bytes, None), (small_bytes, STEP_S))
    )
    if large_s <= small_s:
        return Links(max(0.0, paced_s / 2), None)
    bandwidth = 2 * (large_bytes - small_bytes) / (large_s - small_s)
    return Links(max(0.0, paced_s / 2 - small_bytes / bandwidth), bandwidth)


def start_s_of(engine: Engine, experiment: Experiment, group: WorkerGroup) -> float:
    """Measure the median seconds from a crash until the worker has joined again."""
    # a new process, the import of torch, and a negligible model
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


def _iteration_s(
    engine: Engine,
    experiment: Experiment,
    group: WorkerGroup,
    vector_bytes: int,
    step_s: float | None,
) -> float:
    """Measure the median seconds of an iteration, from Release to Pushed, without computing."""

    def measured_s(iterations: int) -> float:
        with run_of(
            engine, experiment, [(group, 1)], vector_bytes, iterations, step_s=step_s
        ) as record:
            pushes = record.pushes
        between = pushes.pushed_at_s - pushes.released_at_s - pushes.busy_s
        return float(median(between[pushes.clock >= WARM * iterations]))

    between_s = measured_s(FEWEST)
    more = int(min(ITERATIONS, LONGEST_S / max(between_s + (step_s or 0.0), 1e-9)))
    return between_s if more < 2 * FEWEST else measured_s(more)


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
    """Run workers of some groups in their places, and yield the record while its folder exists.

    Each group has the given number of workers; `step_s` None: they compute as fast as they can.
    """
    # a linear layer with biases, of 4 bytes a parameter
    features = max(1, vector_bytes // (4 * CLASSES) - 1)
    with TemporaryDirectory() as folder:
        described = config.validate(
            {
                "name": "calibration",
                "output": folder,
                "paradigm": paradigm,
                "workers": [
                    group.model_dump(mode="json", include=PLACE)
                    | {"count": count, "batch_size": group.devices, "step_s": step_s}
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
        training = prepare(
            described, nn.Sequential(nn.Flatten(), nn.Linear(features, CLASSES)), noise
        )
        yield run_in(engine, training, described.paradigm)


def _noise(features: int) -> Labelled:
    x, y = np.zeros((CLASSES, features), np.float32), np.arange(CLASSES)
    return data_set("noise", (x, y), (x, y), classes=CLASSES)
