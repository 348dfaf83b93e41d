"""What `raysync advise` writes for other trainers: torch's own data parallelism with unequal
batches, in real processes over gloo, learns what our balanced BSP learns.
"""

import os
import subprocess
import sys

import pytest
import torch
from raysync.predict.snippets import snippets
from torch import nn

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.events import Pushed
from raysync.predict.candidates import Candidate
from raysync.training.preparation import prepare
from tests.builders.virtual import entries, learn, weights_of

SIZES, ROUNDS = (20, 8, 4), 6
BALANCED = ParadigmChoice(name="balanced")
SETTINGS = {
    "engine": "virtual",
    "model": {"name": "mlp", "hidden": [8]},
    "data": {"name": "digits", "train_samples": 600},
    "workers": [
        {"name": f"w{n}", "batch_size": size, "per_sample_s": 1 / size}
        for n, size in enumerate(SIZES)
    ],
    "update": {"lr": 0.05, "momentum": 0.9},
    "workload": {"iterations_per_worker": ROUNDS},
}

PROCESS = """
import importlib.util, sys
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

kind, rank, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=3)
spec = importlib.util.spec_from_file_location("advised", f"{folder}/advised_{kind}.py")
advised = importlib.util.module_from_spec(spec)
spec.loader.exec_module(advised)
model = torch.load(f"{folder}/model.pt", weights_only=False)
batches = torch.load(f"{folder}/batches-{rank}.pt")
optimizer = torch.optim.SGD(model.parameters(), lr=advised.LEARNING_RATE, momentum=0.9)
loss_of = lambda model, batch: cross_entropy(model(batch[0]), batch[1])
if kind == "ddp":
    advised.train(model, optimizer, batches, loss_of)
else:
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 3
    advised.train(accelerator, model, optimizer, batches, loss_of)
if rank == 0:
    torch.save([parameter.detach() for parameter in model.parameters()], f"{folder}/learned.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "accelerate"])
def test_three_unequal_ranks_learn_what_balanced_bsp_learns(kind, tmp_path):
    if kind == "accelerate":
        pytest.importorskip("accelerate")
    training = prepare(config.validate(SETTINGS))
    lines, driver = learn(training, "balanced")
    pushed = [entry.event for entry in entries(lines, Pushed)]
    assert {event.samples for event in pushed} == set(SIZES)
    assert len(pushed) == len(SIZES) * ROUNDS
    shares = training.experiment.batch_sizes
    for name, text in snippets(training.experiment, Candidate(BALANCED), shares).items():
        (tmp_path / name).write_text(text)
    torch.save(training.build(), tmp_path / "model.pt")
    for rank, (slot, size) in enumerate(shares.items()):
        reader = training.reader(slot)
        read = [reader.read(clock, [size])[0] for clock in range(ROUNDS)]
        torch.save(read, tmp_path / f"batches-{rank}.pt")
    (tmp_path / "process.py").write_text(PROCESS)
    environment = os.environ | {"WORLD_SIZE": "3", "ACCELERATE_USE_CPU": "true"}
    processes = [
        subprocess.Popen(
            [sys.executable, "process.py", kind, str(rank), str(tmp_path)],
            cwd=tmp_path,
            env=environment
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        problems = [process.communicate(timeout=150)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], "\n".join(problems)
    learned = torch.load(tmp_path / "learned.pt")
    ours = weights_of(driver)
    learned = torch.cat([parameter.reshape(-1) for parameter in learned])
    began = torch.cat([each.detach().reshape(-1) for each in training.build().parameters()])
    assert (ours - learned).abs().max().item() < 1e-5
    assert (ours - began).abs().max().item() > 1e-3


class Step(nn.Module):
    """A module as Lightning calls it."""

    global_rank = 1

    def training_step(self, batch, index):
        return {"loss": batch.mean(), "more": index} if index else batch.mean()


def test_the_class_for_lightning_scales_what_its_step_returns(monkeypatch):
    """Without Lightning: only the base class of an annotation is its own."""
    text = snippets(
        config.validate(SETTINGS), Candidate(BALANCED), {"w0-0": 20, "w1-0": 8, "w2-0": 4}
    )["advised_lightning.py"]
    stand_in = type(sys)("lightning")
    stand_in.LightningModule = nn.Module
    monkeypatch.setitem(sys.modules, "lightning", stand_in)
    scope = {}
    exec(compile(text, "lightning", "exec"), scope)
    module = scope["unequal"](Step)()
    loss = torch.tensor([2.0])
    assert module.training_step(loss, 0).item() == pytest.approx(2 * 8 * 3 / 32)
    output = module.training_step(loss, 1)
    assert (output["loss"].item(), output["more"]) == (pytest.approx(2 * 8 * 3 / 32), 1)
