"""A worker's step, without a cluster."""

from types import SimpleNamespace

import pytest
import torch

from raysync import config
from raysync.cluster import worker as worker_module
from raysync.cluster.names import Role
from raysync.cluster.worker import Worker, WorkerPlan


@pytest.mark.parametrize(("batch", "pulls", "delay_s", "busy_s"), [
    ((7, 8), True, 2 * (0.1 + 400 / 2000), 0.5),
    ((7, 8, 3.0, 0.25), True, 2 * (0.1 + 400 / 2000 + 0.25), 1.5),
    ((7, 8, 3.0, 0.25), False, 0.1 + 400 / 2000 + 0.25, 1.5),
    ((7, 2), True, 2 * (0.1 + 400 / 2000), 0.125),
])
def test_a_worker_waits_for_its_link_before_it_computes_and_is_not_busy_then(monkeypatch, batch, pulls, delay_s, busy_s):
    slept = []
    monkeypatch.setattr(worker_module, "now_s", lambda: sum(slept))
    monkeypatch.setattr(worker_module, "sleep_s", lambda seconds: slept.append(max(0.0, seconds)))
    group = config.WorkerGroup(step_s=0.5, link=config.Link(latency_s=0.1, bandwidth_bytes_per_s=2000))
    worker = Worker(threads=torch.get_num_threads(), role=Role("worker-0"))
    worker._plan = WorkerPlan("w-0", group, None, None, batch_size=8, seed=0, vector_bytes=400, shards=1)
    read = []

    def compute(batches, clock, size):
        assert (clock, size) == batch[:2]
        assert slept == [pytest.approx(delay_s)], "both ways, before it begins"
        return 0.5

    worker._gradient = SimpleNamespace(read_weights=read.append, compute=compute, outgoing=lambda: torch.zeros(4))
    *_, (loss, busy) = worker.step(batch, *([bytes(16)] if pulls else []))
    assert (loss, busy) == (0.5, pytest.approx(busy_s))
    assert len(read) == pulls
