"""Where the time of one push goes: each part alone, in the order of a step on Ray.

What is put into the object store goes into memory that nobody has touched yet: Ray frees it once a
second. In a run it may have been used before, and a put is faster then.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
import torch
from plain_training import Loop, Setting, synchronize

from raysync.cluster.transports.payloads import incoming, outgoing
from raysync.config import WorkerGroup
from raysync.training.server.apply_plan import ApplyPlan
from raysync.training.server.parameter_store import ParameterStore
from raysync.training.worker.device import try_kernels
from raysync.training.worker.gradient import GradientComputation

REPEATS, FIRST = 30, 3


def ms(work: Callable[[], object], device: str) -> float:
    """Return the median milliseconds of a call and of what it starts on the device."""
    took = []
    for _ in range(FIRST + REPEATS):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        took.append(1000 * (time.perf_counter() - began))
    return median(took[FIRST:])


def budget(
    setting: Setting, put: Callable[[Any], Any], get: Callable[[Any], Any]
) -> Mapping[str, float]:
    """Measure the parts of a push.

    Args:
        setting: what is trained.
        put: puts an array into the object store, and returns a reference.
        get: returns the array of a reference.

    Returns:
        Part -> milliseconds; drawing and plain torch are shown beside the parts of a push.
    """
    training, device = setting.prepared(), setting.device()
    [slot] = training.groups
    reader = training.reader(slot)
    computation = GradientComputation(
        training.build(), training.task, [device], WorkerGroup(precision=setting.precision)
    )
    initial = computation.model.initial()
    clocks = iter(range(10**9))
    try_kernels(True)  # as a worker does, and plain torch below

    def publish(vector: torch.Tensor) -> None:
        put(outgoing(vector)[0])

    weights = put(np.array(initial.cpu().numpy()))
    measured = {
        "draw a batch and augment it": ms(
            lambda: list(reader.read(next(clocks), [setting.batch_size])), "cpu"
        ),
        "weights: from the object store onto the device": ms(
            lambda: computation.read_weights(incoming(get(weights))), device
        ),
        "draw, batch up, forward, backward": ms(
            lambda: computation.compute(reader, next(clocks), setting.batch_size), device
        ),
        "forward, backward and update, plain torch": 1000
        * Loop(setting, device).step_s(setting.steps),
        "gradient: from the device": ms(computation.outgoing, device),
    }
    gradient = computation.outgoing().clone()
    measured["gradient: into the object store, cold"] = ms(lambda: publish(gradient), "cpu")
    store = ParameterStore(initial.cpu(), computation.model.size, training.experiment.update)

    def update(pushes: int) -> None:
        samples = [setting.batch_size] * pushes
        plan = ApplyPlan([None] * pushes, samples, 0.0, "", [0] * pushes, version=1)
        store.apply(plan, [gradient] * pushes)

    alone = ms(lambda: update(1), "cpu")
    measured["server: an update by one gradient"] = alone
    measured["server: each further gradient"] = max(0.0, (ms(lambda: update(5), "cpu") - alone) / 4)
    published = store.publish()
    measured["server: weights into the object store, cold"] = ms(lambda: publish(published), "cpu")
    return measured
