"""Experiments for runs on Ray, and what is asked about their actors."""

import os
from functools import partial

import psutil
import torch

from raysync.core.events import Left
from raysync.core.journal import Entry
from raysync.core.replay import replay
from raysync.paradigms import rebuild
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


def kill_one(target):
    """Kill a worker, server or evaluator of this session's clusters. An actor that is called over
    pipes does not take other calls meanwhile, so it cannot be asked for its process.
    """
    for process in psutil.Process().children(recursive=True):
        if kind_of(process) == target:
            process.kill()
            return
    raise AssertionError(f"no {target}")


def replayed(record):
    """What a fresh machine makes of the journal of a run, which is what the run made of it."""
    with (record.path / "journal.jsonl").open() as file:
        again = replay(file, partial(rebuild, trust=True))
    assert again.difference is None
    return again


def lines_of(record, kind):
    """The lines of a journal that are of a kind."""
    return [line for line in record.journal() if isinstance(line, kind)]


def left(record):
    """The entries of workers that left."""
    return [entry for entry in lines_of(record, Entry) if isinstance(entry.event, Left)]


def same_model(record, other):
    """Whether two runs have trained the same model, bit by bit."""
    mine, others = record.state_dict(), other.state_dict()
    return all(torch.equal(mine[name], others[name]) for name in others)
