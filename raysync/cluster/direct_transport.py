"""Ray Direct Transport over NIXL, as far as raysync uses it (Ray 2.60, where it is alpha).

What an actor returns stays in its memory, and another actor that gets the reference as an argument
reads it from there: GPU memory over NVLink or InfiniBand, other memory within a node or over the
network. That is one-sided: who is read from takes no part, and if it dies, so does what it held.

Of GPUs nothing here has been tested: only the way between the memories of CPUs has.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import ray

from raysync.errors import ConfigError

NIXL = "nixl"
"""Ray's name of the transport."""
EXTRA = "pip install 'raysync[nixl]'"
SINCE = "2.60"
"""The version of Ray whose behaviour this was written for, and the first that is let through."""


def refuse_unavailable(where: str) -> None:
    """Refuse a run whose vectors could not travel so to or from this process.

    Args:
        where: names the process, or the machine, for the user.

    Raises:
        ConfigError: NIXL is not installed here, or Ray is too old.
    """
    if _release(ray.__version__) < _release(SINCE):
        raise ConfigError(
            f"cluster.transport: nixl: {where} has Ray {ray.__version__}; Ray {SINCE} is the first"
            " that it was written for. With object-ref any will do."
        )
    if find_spec("nixl") is None:
        raise ConfigError(
            f"cluster.transport: nixl: the package nixl is not installed where {where} runs."
            f" Install it on every node: {EXTRA}. With object-ref nothing is needed."
        )


def start_here(where: str, device: str, *, on_gpu: bool) -> None:
    """Get this actor ready to be read from, and to read.

    Args:
        where: names it.
        device: the torch device that it computes on.
        on_gpu: whether all vectors are in the memory of GPUs.

    Raises:
        ConfigError: see `refuse_unavailable`; NIXL does not start, or there is no GPU for vectors.
    """
    refuse_unavailable(where)
    if on_gpu and device == "cpu":
        raise ConfigError(
            f"cluster.server_gpus: {where} computes on a CPU: with the model on a GPU the server,"
            " every worker and the evaluator need one, which torch sees. Leave server_gpus out, or"
            " give each group gpus above 0."
        )
    try:
        _manager().get_nixl_agent()
    except Exception as error:
        raise ConfigError(
            f"cluster.transport: nixl: it does not start where {where} runs"
            f" ({type(error).__name__}: {error}). With object-ref nothing is needed."
        ) from error


def register(vector: Any) -> None:
    """Let others read the memory of a tensor, until `release`."""
    from ray.experimental import register_nixl_memory

    register_nixl_memory(vector)


def release(vector: Any) -> None:
    """Take back what `register` did, once no reference to it is left."""
    from ray.experimental import deregister_nixl_memory

    deregister_nixl_memory(vector)


def trust_actors() -> None:
    """Let Ray take for granted, in this process, that actors can be read from.

    Otherwise it asks the actor at every call, and waits for the answer: so one frozen actor would
    stop the driver for good. All have said so when the run began, or they came back: `start_here`.
    """
    _manager().actor_has_tensor_transport = lambda actor: True


def _manager() -> Any:
    """Return Ray's own object for the transport in this process; it has no public name."""
    from ray.experimental.rdt.util import get_tensor_transport_manager

    return get_tensor_transport_manager(NIXL.upper())


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
