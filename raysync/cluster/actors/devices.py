"""The place of an actor, and its torch devices."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import ray
import torch

from raysync.cluster.actors.actor_spec import Place
from raysync.config import WorkerGroup
from raysync.errors import ConfigError
from raysync.training.worker.compiling import refuse_without_compiler
from raysync.training.worker.device import limit_memory, refuse_without_kernels
from raysync.training.worker.precision import refuse_unsupported


def current_place(devices: Sequence[str]) -> Place:
    """Return the calling actor's place, with the models of its GPUs."""
    context = ray.get_runtime_context()
    models = [describe_gpu(name) if name.startswith("cuda") else name for name in devices]
    return Place(
        actor_id=context.get_actor_id(),
        node_id=context.get_node_id(),
        address=ray.util.get_node_ip_address(),
        gpus=tuple(context.get_accelerator_ids().get("GPU", ())),
        devices=tuple(models),
        host=platform.node(),
        cores=os.cpu_count() or 1,
    )


def describe_gpu(name: str) -> str:
    """Describe a GPU for the record, such as

    cuda:0 NVIDIA A100-SXM4-40GB, 40 GiB, compute capability 8.0, CUDA 13.0, cuDNN 91002
    """
    facts = torch.cuda.get_device_properties(name)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return (
        f"{name} {facts.name}, {facts.total_memory / 2**30:.0f} GiB, compute capability"
        f" {facts.major}.{facts.minor}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
    )


def devices_of_actor(replicas: int = 1) -> list[str]:
    """Return a torch device of the calling actor for each replica: its GPUs from Ray, or the CPU.

    Raises:
        ConfigError: torch does not see these GPUs, or has no code for them.
    """
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    if not gpus or not torch.cuda.is_available():
        return ["cpu"] * replicas
    names = [
        f"cuda:{number}" for number in numbers_in_torch(gpus, torch.cuda.device_count())[:replicas]
    ]
    for name in names:
        refuse_without_kernels(name)
    return names


def ready_devices(group: WorkerGroup, replicas: int = 1) -> list[str]:
    """Return and prepare the devices of the calling worker or stage.

    Raises:
        ConfigError: they lack the precision, or the compiler; or see `devices_of_actor`.
    """
    names = devices_of_actor(replicas)
    for name in names:
        refuse_unsupported(group.precision, name)
        limit_memory(name, group.gpus)
        if group.compile:
            refuse_without_compiler(name)
    return names


def numbers_in_torch(gpus: Sequence[str], visible: int) -> list[int]:
    """Convert Ray's GPU numbers to torch's; torch sees `visible` GPUs.

    Raises:
        ConfigError: torch does not see them all.
    """
    # Ray shows an actor only its own GPUs, which torch numbers from 0. But with
    # RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES (images for serving models set it) torch sees all
    # GPUs of the node, under Ray's numbers.
    if len(gpus) == visible:
        return list(range(visible))
    if all(name.isdecimal() and int(name) < visible for name in gpus):
        return [int(name) for name in gpus]
    raise ConfigError(
        f"gpus: Ray gave GPU {', '.join(gpus)} to a process in which torch sees {visible},"
        " numbered from 0. Unset RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES on the nodes, or"
        " start Ray there with no more GPUs than torch sees."
    )
