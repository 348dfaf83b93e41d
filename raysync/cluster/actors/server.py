"""The parameter server actor: a shell around `training.server.model_server`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch

from raysync.cluster.actor_errors import answers
from raysync.cluster.actors.actor_spec import Place, Role
from raysync.cluster.actors.devices import current_place
from raysync.cluster.actors.threads import Threads, use_threads
from raysync.cluster.monitoring import Exporter, UpdateSeconds
from raysync.cluster.run_spec import RunSpec
from raysync.cluster.transports.payloads import Payload, forget_run, incoming, outgoing
from raysync.cluster.transports.transport import Remote, Service
from raysync.decoupled.gossip import store_of
from raysync.decoupled.pipelined_topology import PipelinedPlan
from raysync.decoupled.plan import parts_of
from raysync.engine.messages import (
    ApplyCall,
    CombineCall,
    ForgetCall,
    PublishCall,
    SavedCall,
    SnapshotCall,
    StatisticsCall,
)
from raysync.training.models.initial_model import InitialModel
from raysync.training.server.apply_plan import ApplyPlan
from raysync.training.server.model_server import ModelServer, Store
from raysync.training.server.parameter_store import shard_of
from raysync.training.worker.flat import FlatModel


class Server:
    """The model, or a stage or shard of it. Calls are executed in order."""

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        self._threads, self._role = threads, role
        self._model: ModelServer | None = None
        self._size = 0  # of its vectors, in numbers
        self._exporter = Exporter()
        self._seconds = UpdateSeconds(self._exporter, None)

    def __repr__(self) -> str:
        return str(self._role)

    def serve(self, service: Service) -> None:
        """Execute the calls of a transport."""
        service.run(self)

    def reset(
        self, spec: RunSpec, model: InitialModel, data: npt.NDArray[np.uint8] | None = None
    ) -> Place:
        """Begin or resume a run; `data` is from `snapshot`, None: fresh weights and optimizer."""
        forget_run()
        store = _initial_store(spec, self._role.number - spec.first_server, model)
        self._model, self._size = ModelServer(store), len(store.publish(0))
        if data is not None:
            self._model.restore(data.tobytes())
        self._seconds = UpdateSeconds(self._exporter, spec.metric_labels)
        return current_place(["cpu"])

    @answers
    def combine(self, message: CombineCall, *arrived: Payload) -> float:
        """Combine gradients, the first half of an update; return their norm in this shard."""
        self._use_threads_for(message.plan)
        with self._seconds.timed():
            return self._ready_model.combine(message.plan, incoming(*arrived))

    @answers
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def apply(
        self, message: ApplyCall, *arrived: Any, into: Remote | None = None
    ) -> tuple[Payload | None, int]:
        """Apply an update; return the weights, or `into`, if it publishes them, and the version.

        Args:
            message: the details of the update.
            arrived: the gradients, and with delay compensation the weights that each was computed
                on; or the norms that the shards' `combine` returned.
            into: memory for the weights.
        """
        plan = message.plan
        assert plan is not None, "an update without its details"
        self._use_threads_for(plan)
        with self._seconds.timed():
            inputs = arrived if plan.combined else incoming(*arrived)
            version = self._ready_model.apply(plan, inputs)
        return self._publish(version, 0, into) if message.publishes else None, version

    @answers
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def publish(self, message: PublishCall, into: Remote | None = None) -> tuple[Payload, int]:
        """Return the weights, or `into` with the weights, and their version."""
        self._seconds.flush()
        return self._publish(message.version, message.replica, into), message.version

    def _publish(self, version: int, replica: int, into: Remote | None) -> Payload:
        weights = self._ready_model.publish(version, replica)
        if into is None:
            return outgoing(weights)[0]
        with into.writing() as slot:
            slot.copy_(weights)
        return into

    @answers
    def forget(self, message: ForgetCall) -> None:
        """Forget a worker that has left: its buffers no longer count."""
        self._ready_model.forget(message.worker)

    @answers
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def statistics(self, message: StatisticsCall) -> tuple[Payload, None]:
        """Return its part of the vector that ends with a worker's buffers."""
        return outgoing(self._ready_model.statistics(message.worker))[0], None

    @answers
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def snapshot(
        self, message: SnapshotCall, *arrived: Payload
    ) -> tuple[npt.NDArray[np.uint8], int]:
        """Return its state and parts of vectors as a safetensors file, and its version."""
        data = self._ready_model.snapshot(message.names, incoming(*arrived), message.version)
        # an array: Ray copies `bytes` at each hop
        return np.frombuffer(data, np.uint8), message.version

    @answers
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def saved(self, message: SavedCall) -> tuple[Payload, None]:
        """Return its part of a vector saved with the state, only once."""
        return outgoing(self._ready_model.saved(message.name))[0], None

    def _use_threads_for(self, plan: ApplyPlan) -> None:
        torch.set_num_threads(self._threads.update_count(len(plan.samples), self._size))

    @property
    def _ready_model(self) -> ModelServer:
        assert self._model is not None, "called before reset"
        return self._model


def _initial_store(spec: RunSpec, index: int, model: InitialModel) -> Store:
    """Create a server's part of the model, with initial weights and optimizer."""
    experiment = spec.experiment
    if isinstance(spec.topology, PipelinedPlan):
        paradigm = spec.topology.paradigm
        return store_of(
            paradigm, experiment.update, parts_of(model, experiment.seed, paradigm)[index]
        )
    whole = FlatModel(model.build(experiment.seed), found=model.found)
    cluster = experiment.cluster
    return shard_of(whole, experiment.update, index, cluster.server_shards, cluster.wire.name)
