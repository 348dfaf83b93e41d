"""The parameter server's work, on every backend: updates in the order of their versions, none of
them missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from raysync.training.files.state_dict import legible
from raysync.training.files.state_file import CHECKPOINT, State, decode, encode
from raysync.training.server.apply_plan import ApplyPlan
from raysync.training.server.parameter_store import ParameterStore


class MissedUpdate(RuntimeError):
    """An update failed before it reached this server."""


class Store(Protocol):
    """The weights and the optimizer of a model, or those of each replica. Shapes: P parameters, Q
    numbers of float32 that buffers take.
    """

    def apply(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> None:
        """Apply one update: gradients with the buffers behind them, (P + Q,) each in float32."""

    def publish(self, replica: int) -> Tensor:
        """Return the weights that a replica pulls now, or their `MEAN`, (P + Q,); the next update
        may overwrite them.
        """

    def forget(self, worker: str) -> None:
        """Forget a worker that has left: its buffers no longer count."""

    def statistics(self, worker: str) -> Tensor: ...

    def state(self) -> State: ...

    def restore(self, saved: State) -> None: ...


class ModelServer:
    """The model, a stage of it or a shard of it, at one version after another."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.version = 0
        self._broken: Exception | None = None
        self._saved: dict[str, Tensor] = {}
        """The vectors of a snapshot that have not been asked for yet."""

    def combine(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> float:
        assert isinstance(self.store, ParameterStore), "replicas have no shards"
        with self._sound(plan.version - 1):
            return self.store.combine(plan, vectors)

    def apply(self, plan: ApplyPlan, vectors: Sequence[Any]) -> int:
        """Apply one update; return its version.

        Raises:
            MissedUpdate: the model is not at the version before it.
        """
        with self._sound(plan.version - 1):
            self.store.apply(plan, vectors)
            self.version += 1
        return self.version

    def publish(self, version: int, replica: int) -> Tensor:
        """Return the weights (P + Q,) of a replica, or their `MEAN`, at that version; the next
        update may overwrite them.
        """
        with self._sound(version):
            return self.store.publish(replica)

    def forget(self, worker: str) -> None:
        with self._sound(self.version):
            self.store.forget(worker)

    def statistics(self, worker: str) -> Tensor:
        """Return the buffers of a worker's latest push that was applied, behind zeros, (P + Q,);
        the initial ones if there was none.
        """
        with self._sound(self.version):
            return self.store.statistics(worker)

    def snapshot(
        self, names: Sequence[str], vectors: Sequence[Tensor], version: int | None = None
    ) -> bytes:
        """Return the whole state as the contents of a safetensors file.

        Args:
            names: the names of the vectors, all different.
            vectors: what else is to be kept with it: `saved` returns them again.
            version: the version that the model must have; None: the present one.

        Raises:
            ConfigError: the optimizer keeps something that such a file cannot hold.
        """
        return encode(
            {"server": self.state(version), "vectors": dict(zip(names, vectors, strict=True))}
        )

    def restore(self, data: bytes) -> None:
        """Take the state of a snapshot, on a fresh server of the same plan: from then on it is as
        the other one was, bit by bit.

        Raises:
            ConfigError: the file is damaged, or is that of another model or optimizer.
        """
        state = decode(data)
        with legible(CHECKPOINT):
            self.load_state(state["server"])
            self._saved = state["vectors"]

    def state(self, version: int | None = None) -> State:
        """Return all that later calls depend on; its tensors are valid until the next update.

        Args:
            version: the version that the model must have; None: the present one.
        """
        with self._sound(self.version if version is None else version):
            return {"version": self.version, "store": self.store.state()}

    def load_state(self, state: State) -> None:
        """Take what `state` returned: see `restore`."""
        self.store.restore(state["store"])
        self.version = int(state["version"])

    def saved(self, name: str) -> Tensor:
        """Return a vector of the snapshot; it can be asked for once."""
        return self._saved.pop(name)

    @contextmanager
    def _sound(self, version: int) -> Iterator[None]:
        """Raise the error of a failed update again at every later call, so that no published model
        misses the update unnoticed.

        Args:
            version: the version that the model must have. It has another one if the call for an
                update never began, because one of its arguments was lost.
        """
        if self._broken is not None:
            raise self._broken
        try:
            if self.version != version:
                raise MissedUpdate(f"the model is at version {self.version}, not at {version}")
            yield
        except Exception as error:
            self._broken = error
            raise
