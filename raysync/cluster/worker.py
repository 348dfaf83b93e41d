"""The worker actor: weights in, gradient out; it knows no paradigm and no other worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from raysync.cluster.actor_errors import signed
from raysync.cluster.actor_spec import Role
from raysync.cluster.clock import now_s, sleep_s
from raysync.cluster.devices import Place, devices_of_actor, here
from raysync.cluster.monitoring import log_ready, log_to_stderr
from raysync.cluster.transport import Payload, incoming, outgoing
from raysync.config import WorkerGroup
from raysync.engine.step_time import StepTime, one_way_s
from raysync.training.batch_reader import BatchReader
from raysync.training.batches import Batches
from raysync.training.gradient import GradientComputation
from raysync.training.initial_model import InitialModel
from raysync.training.precision import refuse_unsupported


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """All that a worker needs to know in one run."""

    slot: str
    group: WorkerGroup
    batches: Batches
    loader_workers: int
    """The processes that read its samples ahead, where these are read one by one."""
    micro_batch: int | None
    """The largest number of samples that a device computes at once; None: all of a batch."""
    batch_size: int
    """Its own batch size, in samples, for which `step_s` and `trace` describe a step."""
    seed: int
    vector_bytes: int
    """The bytes of a push, and of a pull."""
    shards: int
    """The shards of the server."""


class Worker:
    """It computes gradients on its device, or on several."""

    def __init__(self, threads: int, role: Role) -> None:
        torch.set_num_threads(threads)
        self._role = role
        log_to_stderr(str(role))
        self._plan: WorkerPlan | None = None
        self._gradient: GradientComputation | None = None
        self._reader: BatchReader | None = None

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, plan: WorkerPlan, model: InitialModel) -> Place:
        """Begin a run."""
        devices = devices_of_actor(plan.group.devices)
        for name in devices:
            refuse_unsupported(plan.group.precision, name)
        self._plan = plan
        self._step_time = StepTime(plan.group, plan.seed, plan.slot, plan.batch_size)
        task = model.task
        self._gradient = GradientComputation(
            model.build(plan.seed), task, devices, plan.group.precision, plan.micro_batch
        )
        self._reader = BatchReader(model.train_set, task.collate, plan.batches, plan.loader_workers)
        place = here(devices)
        log_ready(model.name, place.devices)
        return place

    @signed()
    def step(
        self, batch: tuple[int, int, *tuple[float, ...]], *weights: Payload
    ) -> tuple[Payload | list[float], ...]:
        """Compute one iteration.

        Args:
            batch: the clock and the size; where faults strike also the factor of its duration, and
                the seconds that they add to each way.
            weights: (P + Q,) from the server, in a part a shard; none: go on with the weights you
                have.

        Returns:
            The gradient with the buffers behind it, (P + Q,), in a part a shard; the loss, and the
            seconds of computing, the emulated part included.
        """
        plan, gradient, reader = self._plan, self._gradient, self._reader
        assert plan is not None, "step before reset"
        assert gradient is not None, "step before reset"
        assert reader is not None, "step before reset"
        clock, batch_size, *fault = batch
        factor, added_s = fault or (1.0, 0.0)
        if weights:  # the backend lets the gradient take its time: another step may come meanwhile
            sleep_s(one_way_s(plan.group.link, plan.vector_bytes, added_s))
        began_s = now_s()
        if weights:
            gradient.read_weights(incoming(*weights))
        loss = gradient.compute(reader, clock, batch_size)
        computed_s = now_s() - began_s
        step_s = self._step_time.seconds(clock, batch_size, factor, computed_s)
        sleep_s(step_s - computed_s)
        return *outgoing(gradient.outgoing(), plan.shards), [loss, now_s() - began_s]

    @signed()
    def restore(self, fields: list[Any], *parts: Payload) -> None:
        """Take the buffers at the end of a vector (P + Q,), which comes in a part a shard: those
        that this slot had when the run was interrupted.
        """
        assert self._gradient is not None, "restore before reset"
        self._gradient.read_buffers(torch.cat(incoming(*parts)))
