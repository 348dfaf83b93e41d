"""Plain training loops, to compare with: one device, and torch's DistributedDataParallel."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from raysync import config
from raysync.training.preparation import TrainingPlan, prepare
from raysync.training.worker.device import try_kernels, use_tf32

LR, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 5e-4
WARM_UP, PIECES = 10, 5
PRECISIONS = ("float32", "tf32", "bf16")


def told(error: Exception) -> str:
    """Return what a cell of a table says of an error: its line that names the cause, the last one
    where there is a traceback of another process.
    """
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    line = lines[-1] if "Traceback" in str(error) else lines[0]
    return f"failed: {type(error).__name__}: {line}".replace("|", "/")


@dataclass(frozen=True)
class Setting:
    """What is trained, and where."""

    kind: str = "cuda"
    """The kind of device: cuda or cpu."""
    model: str = "resnet18"
    shape: tuple[int, ...] = (3, 32, 32)
    samples: int = 10_000
    """The samples of the synthetic training set."""
    batch_size: int = 128
    steps: int = 200
    """The steps of one measurement."""
    precision: str = "tf32"

    def settings(self, workers: int, gpus: float) -> dict[str, Any]:
        """Return the settings of an experiment with that many workers, one device each, of which
        they reserve a share where it is a GPU.
        """
        group: dict[str, Any] = {"count": workers, "precision": self.precision}
        if self.kind == "cuda":
            group["gpus"] = gpus
        parameters = {"shape": list(self.shape), "train": self.samples}
        return {
            "model": self.model,
            "data": {"name": "synthetic", "parameters": parameters, "augment": "crop-flip"},
            "batch_size": self.batch_size,
            "workers": [group],
            "update": {"lr": LR, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY},
            "workload": {"iterations_per_worker": self.steps},
            "evaluation": {"marks": 1},
        }

    def prepared(self, workers: int = 1, gpus: float = 1, **settings: Any) -> TrainingPlan:
        """Prepare a training with that many workers."""
        return prepare(config.validate(self.settings(workers, gpus) | settings))

    def device(self, index: int = 0) -> str:
        """Return the name of a device in torch."""
        return f"{self.kind}:{index}" if self.kind == "cuda" else self.kind


def synchronize(device: str) -> None:
    """Wait until a device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


class Loop:
    """Steps on one device whose samples lie in its own memory, so that nothing is waited for."""

    def __init__(self, setting: Setting, device: str, rank: int | None = None) -> None:
        """
        Args:
            setting: what is trained.
            device: its name in torch.
            rank: that of this process among several, whose gradients are averaged; None: alone.
        """
        use_tf32(setting.precision != "float32")
        try_kernels(True)
        self._batch_size, self.device = setting.batch_size, device
        self._model: nn.Module = setting.prepared().build().to(device).train()
        if rank is not None:
            ids = [rank] if setting.kind == "cuda" else None
            self._model = DistributedDataParallel(self._model, device_ids=ids)
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY
        )
        self._x = torch.randn(setting.samples, *setting.shape, device=device)
        self._y = torch.randint(10, (setting.samples,), device=device)

    def step(self) -> Tensor:
        """Train on one batch; return its loss, which the device may still be computing."""
        batch = torch.randint(len(self._x), (self._batch_size,), device=self.device)
        self._optimizer.zero_grad()
        loss = cross_entropy(self._model(self._x[batch]), self._y[batch])
        loss.backward()
        self._optimizer.step()
        return loss

    def step_s(self, steps: int) -> float:
        """Return the seconds of a step: the median of some pieces of the measurement."""
        for _ in range(WARM_UP):
            self.step()
        piece = max(1, steps // PIECES)
        took = []
        for _ in range(PIECES):
            synchronize(self.device)
            began = time.perf_counter()
            for _ in range(piece):
                self.step()
            synchronize(self.device)
            took.append((time.perf_counter() - began) / piece)
        return median(took)


def plain_samples_per_s(setting: Setting) -> float:
    """Return the samples per second of one device alone."""
    return setting.batch_size / Loop(setting, setting.device()).step_s(setting.steps)


def ddp_samples_per_s(setting: Setting, devices: int) -> float:
    """Return the samples per second of DistributedDataParallel on that many devices: with NCCL on
    GPUs, with gloo on CPUs.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_ddp_process, (folder, setting, devices), nprocs=devices)
        step_s = float(Path(folder, "step_s").read_text())
    return devices * setting.batch_size / step_s


def _ddp_process(rank: int, folder: str, setting: Setting, devices: int) -> None:
    backend = "nccl" if setting.kind == "cuda" else "gloo"
    if setting.kind == "cuda":
        torch.cuda.set_device(rank)
    meeting = f"file://{folder}/meet"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=devices)
    step_s = Loop(setting, setting.device(rank), rank).step_s(setting.steps)
    if rank == 0:
        Path(folder, "step_s").write_text(str(step_s))
    dist.destroy_process_group()
