"""The parameter server's work, on every backend: updates in order of version, without a gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from raysync.training.formats.state_dict import legible
from raysync.training.formats.state_file import CHECKPOINT, FileMemory, State, decode, encode
from raysync.training.server.apply_plan import ApplyPlan
from raysync.training.server.parameter_store import ParameterStore


class MissedUpdate(RuntimeError):
    """An update failed before it reached this server."""


class Store(Protocol):
    """The weights and the optimizer of a model, or of each replica.

    Shapes: P parameters, Q float32 numbers of all buffers.
    """

    def apply(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> None:
        """Apply one update: gradients with the buffers behind them, (P + Q,) each in float32."""

    def publish(self, replica: int) -> Tensor:
        """Return a replica's weights or their `MEAN`, (P + Q,), valid until the next update."""

    def forget(self, worker: str) -> None:
        """Discard the buffers of a worker that has left."""

    def statistics(self, worker: str) -> Tensor: ...

    def state(self) -> State: ...

    def restore(self, saved: State) -> None: ...


class ModelServer:
    """The model, a stage of it or a shard of it, at one version after another."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.version = 0
        self._first_error: Exception | None = None
        self._saved: dict[str, Tensor] = {}  # vectors of a snapshot that have not been read yet
        self._snapshot = FileMemory()

    def combine(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> float:
        assert isinstance(self.store, ParameterStore), "replicas have no shards"
        with self._at_version(plan.version - 1):
            return self.store.combine(plan, vectors)

    def apply(self, plan: ApplyPlan, vectors: Sequence[Any]) -> int:
        """Apply one update and return its version, or raise MissedUpdate after a gap."""
        with self._at_version(plan.version - 1):
            self.store.apply(plan, vectors)
            self.version += 1
        return self.version

    def publish(self, version: int, replica: int) -> Tensor:
        """Return a replica's weights or their `MEAN`, (P + Q,), valid until the next update."""
        with self._at_version(version):
            return self.store.publish(replica)

    def forget(self, worker: str) -> None:
        with self._at_version(self.version):
            self.store.forget(worker)

    def statistics(self, worker: str) -> Tensor:
        """Return zeros (P,) and the buffers of a worker's latest applied push, or initial ones."""
        with self._at_version(self.version):
            return self.store.statistics(worker)

    def snapshot(
        self, names: Sequence[str], vectors: Sequence[Tensor], version: int | None = None
    ) -> memoryview:
        """Return the whole state as a safetensors file, valid until the next snapshot.

        Args:
            version: what the state must have; None: any.
            vectors: saved along; `saved` returns them by their unique names.

        Raises:
            ConfigError: the optimizer has state that such a file cannot hold.
        """
        saved = dict(zip(names, vectors, strict=True))
        return encode({"server": self.state(version), "vectors": saved}, self._snapshot)

    def restore(self, data: bytes | memoryview) -> None:
        """Restore a snapshot, bit by bit, on a fresh server of the same plan.

        Raises:
            ConfigError: the file is damaged, or belongs to another model or optimizer.
        """
        state = decode(data)
        with legible(CHECKPOINT):
            self.load_state(state["server"])
            self._saved = state["vectors"]

    def state(self, version: int | None = None) -> State:
        """Return the state of later calls, at `version` if given; valid until the next update."""
        with self._at_version(self.version if version is None else version):
            return {"version": self.version, "store": self.store.state()}

    def load_state(self, state: State) -> None:
        self.store.restore(state["store"])
        self.version = int(state["version"])

    def saved(self, name: str) -> Tensor:
        """Return a vector of the snapshot, once."""
        return self._saved.pop(name)

    @contextmanager
    def _at_version(self, version: int) -> Iterator[None]:
        """Check the version, and raise the error of a failed update again at every later call."""
        # No published model may miss an update unnoticed. The version is wrong if the call for an
        # update never began, because one of its arguments was lost.
        if self._first_error is not None:
            raise self._first_error
        try:
            if self.version != version:
                raise MissedUpdate(f"the model is at version {self.version}, not at {version}")
            yield
        except Exception as error:
            self._first_error = error
            raise
