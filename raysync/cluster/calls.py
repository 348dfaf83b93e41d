"""Ray calls, as the driver sees them: a report to wait for, and references to values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from typing_extensions import override

from raysync.cluster.shards import Parts
from raysync.cluster.transports.transport import IssuedCall, Lease, Patch, Upload
from raysync.engine.backend import Failure

if TYPE_CHECKING:
    from raysync.cluster.ray_backend import RayBackend


class RayCall:
    """A call of one actor, or of all shards of one."""

    def __init__(
        self,
        backend: RayBackend,
        # references that are ready when it is done; the first has its answer
        report: Sequence[Any],
        *values: Parts,
        is_file: bool = False,  # its first value is its answer, in a list with one a shard
        upload: Upload | None = None,  # of its first value to a server; None: no worker's call
        leases: tuple[Lease, ...] = (),  # the memory of its first value, if the driver lent any
        # the leases of its inputs, held until it is known to be done
        reads: tuple[Lease, ...] = (),
    ) -> None:
        self.leases, self.reads = leases, reads
        self._backend, self._values, self._is_file = backend, values, is_file
        self.report, self.upload = report, upload

    @property
    def answer(self) -> Any:
        try:
            return ray.get(list(self.parts)) if self._is_file else ray.get(list(self.report))[0]
        except RayError as error:
            return self._backend.processes.failure_of(error)

    def value(self, index: int) -> Parts:
        return self._values[index]

    @property
    def is_done(self) -> bool:
        references = list(self.report)
        ready, _ = ray.wait(references, num_returns=len(references), timeout=0, fetch_local=False)
        return len(ready) == len(references)

    def watch(self, then: Callable[[Any], None], argument: Any) -> None:
        self._backend.watch_references(self, then, argument)

    def failure_within(self, patience_s: float) -> Failure | None:
        try:
            ray.get(list(self.report), timeout=patience_s)
        except GetTimeoutError:
            raise
        except RayError as error:
            return self._backend.processes.failure_of(error)
        return None

    def follow(self, retry: IssuedCall, patched: Patch) -> None:
        assert isinstance(retry, RayCall), "a retry over a pipe"
        self.leases += retry.leases
        self.report = patched(tuple(self.report), tuple(retry.report))
        self._values = tuple(map(patched, self._values, retry._values))

    @property
    def parts(self) -> Parts:
        """The parts of its first value."""
        return self._values[0]


class Delayed(RayCall):
    """The transfer time of a value over an emulated link; no actor is called."""

    def __init__(self, backend: RayBackend, at: float) -> None:
        super().__init__(backend, ())
        self.at = at

    @property
    def is_done(self) -> bool:
        return self.at <= self._backend.now

    @override
    def watch(self, then: Callable[[Any], None], argument: Any) -> None:
        self._backend.schedule(self.at, then, argument)

    @property
    @override
    def answer(self) -> None:
        return None


class Spawned(RayCall):
    """The start of a worker; its answer is the `Place`."""

    def __init__(self, backend: RayBackend, report: Sequence[Any], worker: str) -> None:
        super().__init__(backend, report)
        self._worker = worker

    @property
    @override
    def answer(self) -> Any:
        place = super().answer
        if not isinstance(place, Failure):
            self._backend.processes.started(self._worker, place)
        return place
