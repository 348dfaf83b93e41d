"""The actor of a stage, without Ray."""

import pytest
import torch
from torch import nn

from raysync.cluster.actors.stage_actor import Stage
from raysync.cluster.transports.payloads import outgoing
from raysync.engine.messages import BackwardCall, ForwardCall
from raysync.programs.stage import StageProgram
from tests.builders.actors import begun
from tests.fakes.clock import FakeClock

SETTINGS = {
    "data": {"name": "digits", "train_samples": 100},
    "batch_size": 8,
    "paradigm": {"name": "decoupled", "modules": 2, "groups": 1},
}
ACTIVATION = torch.ones(8, 64)
PASSES = [
    [(ForwardCall(1), []), (BackwardCall(1), [ACTIVATION])],
    [(BackwardCall(1), [ACTIVATION])],
]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("step_s", [None, 80.0])
def test_a_stage_is_busy_while_it_computes_and_not_while_a_gpu_copies(
    monkeypatch, stage, on_gpu, step_s
):
    """It reports all passes since its last push. Its layer takes 3 s, and a GPU 1 s of each pass;
    the stage is half of the network.
    """
    clock = FakeClock(monkeypatch)

    class Slow(nn.Linear):
        def forward(self, x):
            clock.sleep(3.0)
            return super().forward(x)[:, : self.outputs]

    def model():
        layers = [Slow(64, 64), Slow(64, 64)]
        layers[0].outputs, layers[1].outputs = 64, 10
        return nn.Sequential(nn.Flatten(), *layers)

    settings = SETTINGS | {"workers": [{"name": "w", "count": 2, "step_s": step_s}]}
    actor, _ = begun(monkeypatch, Stage, settings, number=stage - 1, model=model)
    if on_gpu:
        monkeypatch.setattr(StageProgram, "device_s", 1.0)
    clock.now, passes = 0.0, PASSES[stage - 1]
    for message, inputs in 2 * passes:  # the second push has none of the first
        _, report = actor.execute(message, [outgoing(each)[0] for each in inputs])
    computed_s = 1.0 * len(passes) if on_gpu else 3.0
    assert report.busy_s == pytest.approx(computed_s if step_s is None else 0.5 * step_s)
