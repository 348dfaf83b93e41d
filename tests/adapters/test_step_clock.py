"""Step times that a user's own trainer writes, by the clock of the README."""

import os
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from raysync.predict.step_times.rank_step_times import read
from tests.builders import step_clock
from tests.builders.step_clock import StepClock

BATCHES = torch.ones(5, 3, 4)
FILE = "steps-rank0.csv"


@pytest.fixture
def passing(monkeypatch, tmp_path):
    """The time: a forward pass takes as many seconds as were taken before, and one; an exchange of
    gradients a thousand.
    """
    clock, real = SimpleNamespace(now=0.0, passes=0), step_clock.allreduce_hook

    def exchange(group, bucket):
        clock.now += 1000
        return real(group, bucket)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(step_clock, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(step_clock, "allreduce_hook", exchange)
    with mock.patch.dict(os.environ):  # Lightning sets some
        yield clock
    if distributed.is_initialized():
        distributed.destroy_process_group()


def loss_of(model, batch, clock):
    clock.passes += 1
    clock.now += clock.passes
    return model(batch).sum()


EXPECTED = {"rank0": (3.0, 4.0, 5.0)}  # without the first two


def test_a_loop_of_torch_writes_what_a_rank_computes(tmp_path, passing):
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    clock = StepClock(ddp, distributed.get_rank())
    for batch in BATCHES:
        clock.start()
        loss_of(ddp, batch, passing).backward()
    assert read([FILE]).steps == EXPECTED


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_callback_of_lightning_writes_what_a_rank_computes(lightning, passing):
    class StepTimes(lightning.Callback):
        def on_train_start(self, trainer, module):
            self.clock = StepClock(trainer.strategy.model, trainer.global_rank)

        def on_train_batch_start(self, *_):
            self.clock.start()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch):
            return loss_of(self.layer, batch, passing)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=1,
        max_epochs=1,
        callbacks=[StepTimes()],
        **dict.fromkeys(quiet, False),
    )
    trainer.fit(Module(), DataLoader(BATCHES, batch_size=None))
    assert read([FILE]).steps == EXPECTED
