"""Measure this machine for a cluster profile: the costs of a step, a transfer and an update.

    flops_per_s             operations of a step (torch's count) / its seconds, one thread
    update_s, _bytes_per_s  from updates of one and of eight gradients, in this process
    latency_s, bandwidth    from the time between Release and Pushed that is not computing, on Ray,
                            with one worker under ASP: 2 x (latency + bytes / bandwidth) + update,
                            for a vector of 4 kB and for the model's
                            (at least 4 MB: differences of smaller ones drown in noise)
    start_s                 from a worker that crashes and is started anew, on Ray

So latency has the meaning that the virtual engine gives it: half of what an iteration costs beside
computing and the server's work, including calls and the controller's share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
import yaml
from torch import nn
from torch.utils.benchmark import Timer

from raysync import config
from raysync.config import Experiment, Update
from raysync.core.events import Joined, Left
from raysync.core.ids import worker_id, worker_slot
from raysync.core.journal import Entry
from raysync.record.reader import RunRecord
from raysync.runner import Engine, run_in
from raysync.training.cost import step_flops, step_s
from raysync.training.data import Labelled, data_set
from raysync.training.parameter_store import ParameterStore
from raysync.training.preparation import TrainingPlan, prepare

SMALL_BYTES = 4_000
LARGE_BYTES = 4_000_000
GRADIENTS = 8
ITERATIONS = 300
STARTS = 3
"""How often a worker is started anew."""
WARM = 50
"""The number of first pushes that do not count, because caches and the object store are cold."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What `calibrate` measured."""

    step_s: float
    """Seconds of a batch of the experiment's model, one thread."""
    flops_per_s: float
    latency_s: float
    bandwidth_bytes_per_s: float | None
    """None if a large vector takes no longer than a small one."""
    update_s: float
    update_bytes_per_s: float
    start_s: float
    """Seconds until a worker is ready that is started anew: its process, the import of torch, and a
    model so small that it takes no time."""


def calibrate(engine: Engine, training: TrainingPlan) -> Measured:
    """Measure the costs that the virtual engine needs for a training.

    Args:
        engine: a session of the Ray engine.
        training: the training whose model, batch size and update are measured.
    """
    seconds = step_s(training.model, training.experiment.batch_size)
    one_s, eight_s = (
        _update_s(training.vector_bytes, count, training.experiment.update)
        for count in (1, GRADIENTS)
    )
    reading_s = max(1e-9, (eight_s - one_s) / (GRADIENTS - 1))
    update_s = max(0.0, one_s - reading_s)
    small_s = _between_s(engine, SMALL_BYTES) - _update_s(
        SMALL_BYTES, 1, training.experiment.update
    )
    large_bytes = max(training.vector_bytes, LARGE_BYTES)
    large_s = _between_s(engine, large_bytes) - _update_s(
        large_bytes, 1, training.experiment.update
    )
    bandwidth = 2 * (large_bytes - SMALL_BYTES) / (large_s - small_s) if large_s > small_s else None
    return Measured(
        step_s=seconds,
        flops_per_s=step_flops(training.model, training.experiment.batch_size) / seconds,
        latency_s=max(0.0, small_s / 2),
        bandwidth_bytes_per_s=bandwidth,
        update_s=update_s,
        update_bytes_per_s=training.vector_bytes / reading_s,
        start_s=_start_s(engine),
    )


def profile(experiment: Experiment, measured: Measured, about: str) -> str:
    """Write the text of a cluster profile: the experiment's workers, where they set none with the
    measured rate, and with the measured time to start.
    """
    workers = []
    for group in experiment.workers:
        settings = group.model_dump(mode="json", exclude_defaults=True, exclude={"name", "count"})
        rate = {} if group.emulates_steps else {"flops_per_s": _rounded(measured.flops_per_s)}
        start = {"start_s": _rounded(measured.start_s)}
        workers.append({"name": group.name, "count": group.count, **start, **settings, **rate})
    link = {
        "latency_s": measured.latency_s,
        "bandwidth_bytes_per_s": measured.bandwidth_bytes_per_s,
    }
    network = {
        "link": {name: _rounded(value) for name, value in link.items() if value is not None},
        "update_s": _rounded(measured.update_s),
        "update_bytes_per_s": _rounded(measured.update_bytes_per_s),
    }
    text = {"about": about, "workers": workers, "network": network}
    return yaml.safe_dump(text, sort_keys=False, width=120)


def _rounded(value: float) -> float:
    """Round to three digits: the measurement is no more precise."""
    return float(f"{value:.3g}")


def _update_s(vector_bytes: int, gradients: int, update: Update) -> float:
    """Measure the seconds of one update of a store, with one thread: a median."""
    size = vector_bytes // 4
    store = ParameterStore(torch.zeros(size), size, update)
    vectors = [torch.full((size,), 1e-6) for _ in range(gradients)]
    workers = [worker_id(worker_slot("w", index), 1) for index in range(gradients)]
    stale, bases = [2] * gradients, vectors if update.delay_compensation is not None else []

    def once() -> None:
        store.apply(vectors, [1] * gradients, workers, 0.0, staleness=stale, bases=bases)
        store.publish()

    return float(
        Timer("once()", globals={"once": once}, num_threads=1)
        .blocked_autorange(min_run_time=0.2)
        .median
    )


def _between_s(engine: Engine, vector_bytes: int) -> float:
    """Measure the seconds between Release and Pushed that are not computing, for a model of that
    size: a median.
    """
    with _run(engine, vector_bytes, ITERATIONS) as record:
        pushes = record.pushes
    between = pushes.pushed_at_s - pushes.released_at_s - pushes.busy_s
    return float(median(between[pushes.clock >= WARM]))


def _start_s(engine: Engine) -> float:
    """Measure the seconds from a crash until the worker has joined again: a median."""
    crashes = [
        {"kind": "crash", "worker": "w-0", "at_clock": clock, "rejoin_after_s": 0}
        for clock in range(1, STARTS + 1)
    ]
    with _run(engine, SMALL_BYTES, STARTS + 2, crashes) as record:
        events = [line.event for line in record.journal() if isinstance(line, Entry)]
    left = [event.at for event in events if isinstance(event, Left)]
    _, *joined = [event.at for event in events if isinstance(event, Joined)]
    return median(back - gone for gone, back in zip(left, joined, strict=True))


@contextmanager
def _run(
    engine: Engine, vector_bytes: int, iterations: int, faults: Sequence[Mapping[str, object]] = ()
) -> Iterator[RunRecord]:
    """Run one worker with a model of that size, and yield the record while there is one."""
    features = max(1, vector_bytes // 40 - 1)
    with TemporaryDirectory() as folder:
        experiment = config.validate(
            {
                "name": "calibration",
                "output": folder,
                "paradigm": "asp",
                "batch_size": 1,
                "workers": [{"name": "w"}],
                "workload": {"iterations_per_worker": iterations},
                "evaluation": {"marks": 1},
                "faults": list(faults),
            }
        )
        training = prepare(
            experiment, nn.Sequential(nn.Flatten(), nn.Linear(features, 10)), _noise(features)
        )
        yield run_in(engine, training, experiment.paradigm)


def _noise(features: int) -> Labelled:
    """Return a few samples of that many features."""
    x, y = np.zeros((10, features), np.float32), np.arange(10)
    return data_set("noise", (x, y), (x, y), classes=10)
