"""Torch's own ways to train with one or several processes on one device, fed as raysync's workers.

Every process reads the batches of a worker slot with raysync's reader, and copies each to the
device by raysync's upload while the device computes the step before.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gpu_ways import INNER_LR, LOCAL_STEPS, OUTER_LR
from gpu_workload import MOMENTUM, Workload
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raysync.training.data.batch_structure import batch_to
from raysync.training.preparation import TrainingPlan
from raysync.training.worker.device import Device, try_kernels
from raysync.training.worker.precision import computing_in

TIMEOUT = timedelta(seconds=60)
Training = tuple[nn.Module, torch.optim.Optimizer]


@dataclass(frozen=True)
class Place:
    """One process of several."""

    rank: int
    count: int
    meeting: str
    """A file of `dist.FileStore`."""
    workload: Workload


Peer = Callable[[nn.Module, Place], AbstractContextManager[Training]]
"""Takes a model on its device; in its context model and optimizer exchange what they do."""


@contextmanager
def alone(model: nn.Module, place: Place) -> Iterator[Training]:
    """Train without any exchange; with a model that several processes share this is Hogwild."""
    yield model, place.workload.optimizer(model)


@contextmanager
def ddp(model: nn.Module, place: Place) -> Iterator[Training]:
    """Average gradients by DistributedDataParallel."""
    backend, on_gpu = ddp_backend(place.workload.kind, place.count), place.workload.kind == "cuda"
    store = dist.FileStore(place.meeting, place.count)
    dist.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.count, timeout=TIMEOUT
    )
    wrapped = DistributedDataParallel(model, device_ids=[0] if on_gpu else None)
    yield wrapped, place.workload.optimizer(wrapped)
    dist.destroy_process_group()


def ddp_backend(kind: str, processes: int) -> str:
    """Return torch's backend: NCCL refuses several processes on a GPU."""
    return "nccl" if kind == "cuda" and processes == 1 else "gloo"


@contextmanager
def torchft_diloco(model: nn.Module, place: Place) -> Iterator[Training]:
    """Average the changes of local steps by torchft's DiLoCo, each process a replica group."""
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    meeting = dist.FileStore(place.meeting, place.count)
    lighthouse = None
    if place.rank == 0:
        lighthouse = LighthouseServer(
            bind="[::]:0", min_replicas=place.count, join_timeout_ms=60_000
        )
        meeting.set("lighthouse", lighthouse.address())
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=place.count,
        use_async_quorum=False,
        timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=meeting.get("lighthouse").decode(),
        replica_id=f"replica{place.rank}",
        hostname="localhost",
    )
    inner = torch.optim.AdamW(model.parameters(), lr=INNER_LR)
    outer = torch.optim.SGD(model.parameters(), lr=OUTER_LR, momentum=MOMENTUM, nesterov=True)
    try:
        with DiLoCo(manager, [model], inner, outer, sync_every=LOCAL_STEPS):
            yield model, inner
    finally:
        manager.shutdown(wait=False)
        if lighthouse is not None:
            lighthouse.shutdown()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    training: TrainingPlan,
    slot: str,
    workload: Workload,
    steps: int,
) -> list[float]:
    """Train on the batches of a worker slot; return the moment of each step.

    A step's loss is read one step later, so that the device always has work.
    """
    device, reader = Device(workload.device), training.reader(slot)

    def drawn(clock: int) -> Any:
        [batch] = reader.read(clock, [workload.batch_size])
        return batch_to(batch, device.upload)

    at_s, read_loss, batch = [], None, drawn(0)
    for clock in range(steps):
        optimizer.zero_grad()
        with computing_in(workload.precision, torch.device(device.name)):
            loss = training.task.loss(model, batch)
        loss.backward()
        optimizer.step()
        later = device.read_later(loss.detach())
        batch = drawn(clock + 1)
        if read_loss is not None:
            read_loss()
        read_loss = later
        at_s.append(time.monotonic())
    return at_s


def moments_of(
    peer: Peer,
    training: TrainingPlan,
    workload: Workload,
    steps: int,
    *,
    shares_model: bool = False,
) -> pd.DataFrame:
    """Train with a process for each worker slot; return `worker` and `at_s`, a row a step.

    Args:
        shares_model: all processes train one model, as in Hogwild, instead of one each.
    """
    slots = list(training.groups)
    model = training.build().to(workload.device).share_memory() if shares_model else None
    barrier = mp.get_context("spawn").Barrier(len(slots))
    with tempfile.TemporaryDirectory() as folder:
        given = (peer, training, workload, steps, folder, barrier, model)
        mp.spawn(_process, given, nprocs=len(slots))
        tables = [
            pd.DataFrame({"worker": slot, "at_s": json.loads(Path(folder, slot).read_text())})
            for slot in slots
        ]
    return pd.concat(tables, ignore_index=True)


def _process(
    rank: int,
    peer: Peer,
    training: TrainingPlan,
    workload: Workload,
    steps: int,
    folder: str,
    barrier: Any,
    shared: nn.Module | None,
) -> None:
    slots = list(training.groups)
    cores = len(os.sched_getaffinity(0)) if workload.kind == "cuda" else 1  # a trial is small
    torch.set_num_threads(max(1, cores // len(slots)))
    try_kernels(True)
    model = training.build().to(workload.device) if shared is None else shared
    place = Place(rank, len(slots), f"{folder}/meeting", workload)
    with peer(model.train(), place) as (module, optimizer):
        barrier.wait()
        at_s = train(module, optimizer, training, slots[rank], workload, steps)
        barrier.wait()
    Path(folder, slots[rank]).write_text(json.dumps(at_s))
