"""Runs on Ray whose vectors travel by the real Direct Transport, between CPUs of this machine.

Between GPUs it has not been tested.
"""

import json
from importlib.util import find_spec

import pytest
import torch

from raysync.core.events import Left, Pushed
from raysync.core.journal import Entry
from raysync.core.replay import replay
from raysync.paradigms import rebuild
from tests.builders.cluster import kill_one

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("nixl") is None, reason="NIXL is not installed: pip install 'raysync[nixl]'"
    ),
]

SETTINGS = {
    "workers": [{"name": "fast", "count": 2, "step_s": 0.02}],
    "model": "fashion-cnn",
    "workload": {"samples": 800},
    "update": {"lr": 0.005, "momentum": 0.9, "combine": "sum", "lr_scaling": "none"},
}
"""With batch norm's buffers. One gradient is added to another, in whatever order."""


def replays(record):
    with (record.path / "journal.jsonl").open() as file:
        return replay(file, rebuild).difference is None


def transports(record):
    places = json.loads((record.path / "environment.json").read_text())["places"]
    return {place["transport"] for place in places.values()}


def events(record, kind):
    return [
        entry.event
        for entry in record.journal()
        if isinstance(entry, Entry) and isinstance(entry.event, kind)
    ]


def test_a_model_is_bit_by_bit_that_of_a_run_over_the_object_store_also_if_a_worker_dies(run):
    plain = run(paradigm="bsp", **SETTINGS)
    direct = run(paradigm="bsp", **SETTINGS, cluster={"transport": "nixl"})
    assert transports(plain) == {"object-ref"}
    assert transports(direct) == {"nixl"}
    assert replays(direct)
    assert direct.evaluations.loss.tolist() == plain.evaluations.loss.tolist()
    mine, others = direct.state_dict(), plain.state_dict()
    assert all(torch.equal(mine[name], others[name]) for name in others)

    struck = run(
        paradigm="asp",
        **SETTINGS | {"workload": {"samples": 1600}},
        cluster={"transport": "nixl", "restarts": {"backoff_s": 0.1}},
        strikes={0.3: lambda actor_group: kill_one("Worker")},
    )
    assert struck.summary["status"] == "finished"
    assert replays(struck)
    [left] = events(struck, Left)
    pushes = events(struck, Pushed)
    assert len({(push.worker, push.clock) for push in pushes}) == len(pushes)
    assert any(push.worker == left.worker.replace("#1", "#2") for push in pushes)
    assert sum(push.samples for push in pushes) >= 1600
