"""What the guide has for other trainers: torch's own data parallelism with unequal batches, in real
processes over gloo, learns what our balanced BSP learns.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from raysync import config
from raysync.core.events import Pushed
from raysync.training.preparation import prepare
from tests.builders.virtual import entries, learn, weights_of

SIZES, ROUNDS = (20, 8, 4), 6
GUIDE = Path(__file__).parents[2] / "raysync" / "predict" / "README.md"
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
import sys
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

kind, rank, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=3)
model = torch.load(f"{folder}/model.pt", weights_only=False)
batches = torch.load(f"{folder}/batches-{rank}.pt")
optimizer = torch.optim.SGD(model.parameters(), lr=3 * 0.05, momentum=0.9)
if kind == "ddp":
    parallel, backward = DistributedDataParallel(model), torch.Tensor.backward
else:
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 3
    parallel, optimizer = accelerator.prepare(model, optimizer)
    backward = accelerator.backward
for x, y in batches:
    optimizer.zero_grad()
    backward(scaled(cross_entropy(parallel(x), y), rank))
    optimizer.step()
if rank == 0:
    torch.save([parameter.detach() for parameter in model.parameters()], f"{folder}/learned.pt")
dist.destroy_process_group()
"""


def pasted():
    """Return what the guide says to paste."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    [block] = [block for block in blocks if "BATCH_SIZES" in block]
    return block


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
    torch.save(training.build(), tmp_path / "model.pt")
    for rank, (slot, size) in enumerate(shares.items()):
        reader = training.reader(slot)
        read = [reader.read(clock, [size])[0] for clock in range(ROUNDS)]
        torch.save(read, tmp_path / f"batches-{rank}.pt")
    (tmp_path / "process.py").write_text(pasted() + PROCESS)
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


def test_the_shares_of_a_global_batch_are_disjoint_and_scale_to_its_mean():
    scope = {}
    exec(compile(pasted(), "guide", "exec"), scope)
    assert scope["BATCH_SIZES"] == SIZES
    scaled, batches = scope["scaled"], scope["UnequalBatches"]
    losses = (1.0, 3.0, 7.0)
    mean = sum(scaled(loss, rank) for rank, loss in enumerate(losses)) / 3
    assert mean == pytest.approx((20 * 1.0 + 8 * 3.0 + 4 * 7.0) / 32)
    by_rank = [list(batches(100, rank)) for rank in range(3)]
    assert [len(batch) for batch in by_rank[0]] == [20] * 3
    drawn = [index for rank in by_rank for batch in rank for index in batch]
    assert len(set(drawn)) == len(drawn) == 96
    other = batches(100, 0)
    other.set_epoch(1)
    assert list(other) != by_rank[0]
