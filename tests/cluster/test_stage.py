"""The actor of a stage, without Ray."""

from types import SimpleNamespace

import pytest
import torch

from raysync import config
from raysync.cluster.actors import stage_actor as stage_module
from raysync.cluster.actors.actor_spec import Role
from raysync.cluster.actors.stage_actor import StageActor
from raysync.cluster.actors.threads import Threads
from raysync.emulation.step_time import StepTime
from raysync.engine.messages import BackwardCall


@pytest.mark.parametrize(
    ("device_s", "step_s", "busy_s"),
    [(0.0, None, 3.0), (1.0, None, 1.0), (1.0, 8.0, 4.0), (0.0, 8.0, 4.0)],
    ids=["on a CPU", "on a GPU", "an emulated one on a GPU", "an emulated one on a CPU"],
)
def test_a_stage_is_busy_while_it_computes_and_not_while_a_gpu_copies(
    monkeypatch, device_s, step_s, busy_s
):
    """The call takes 3 s, of which a GPU computes for 1 s; the stage is half of the network."""
    clock = [0.0]

    def sleep(seconds):
        clock[0] += max(0.0, seconds)

    monkeypatch.setattr(stage_module, "now_s", lambda: clock[0])
    monkeypatch.setattr(stage_module, "sleep_s", sleep)
    stage = StageActor(threads=Threads(torch.get_num_threads()), role=Role("stage"))
    group = config.WorkerGroup(step_s=step_s)
    stage._batch_size, stage._share = 8, 0.5
    stage._step_time = StepTime(group, 0, "w-0", 8)
    stage._work = SimpleNamespace(device_s=device_s)
    with stage._timed(BackwardCall(1), 1.0, travels=False):
        sleep(3.0)
    assert stage._busy_s == pytest.approx(busy_s)
