"""Experiments for runs on Ray, and what is asked about their actors."""

import os

import psutil

from tests.chaos.processes import kind_of

TINY = {
    "name": "test",
    "model": "mlp",
    "data": {"name": "digits", "train_samples": 320, "test_samples": 50},
    "batch_size": 8,
    "workload": {"samples": 480},
    "workers": [{"name": "fast", "count": 2}, {"name": "slow"}],
    "evaluation": {"marks": 4},
}
"""Its actors are kept between runs, also by those that have `UNEQUAL` for workers: the same slots
with the same resources. Other slots, bundles or shards would need an actor group of their own."""
UNEQUAL = [{"name": "fast", "count": 2, "step_s": 0.01}, {"name": "slow", "step_s": 0.03}]
LONGER = {"workers": UNEQUAL, "workload": {"samples": 1600}}
"""So long that something can be broken on the way."""


def pid_of(ray, actor):
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


def rss_mib(pid):
    return psutil.Process(pid).memory_info().rss / 2**20


def kill_one(target):
    """Kill a worker, server or evaluator of this session's clusters. An actor that is called over
    pipes does not take other calls meanwhile, so it cannot be asked for its process.
    """
    for process in psutil.Process().children(recursive=True):
        if kind_of(process) == target:
            process.kill()
            return
    raise AssertionError(f"no {target}")
