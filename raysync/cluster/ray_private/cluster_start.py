"""What a private cluster needs of Ray at its start that Ray has no option for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ray._common.utils import get_default_system_temp_dir
from ray._private import ray_constants, worker as rays_worker

TOLD_HERE = ("node_removed", "raylet_died", "worker_died")
"""The kinds of Ray's notices that a run tells better itself, and in one line: that a node is gone,
the last twenty lines that its raylet logged, and that a process died, with three guesses why."""


def temporary_folder() -> str:
    """Return the folder in which Ray has its files unless it is told another."""
    return str(get_default_system_temp_dir())


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make a cluster that is started within bind its sockets to this machine's loopback address.

    That is what Ray does where it holds clusters of several machines for impossible (Windows and
    macOS); asked for the loopback address anywhere else, it takes the machine's own one instead,
    and all interfaces (Ray 2.60).
    """
    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", True)  # another Ray may not have it
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


class _Notices:
    """Ray's subscriber to the notices of a cluster, without those that are told here."""

    def __init__(self, subscriber: Any) -> None:
        self._subscriber = subscriber

    def subscribe(self) -> None:
        self._subscriber.subscribe()

    def poll(self) -> tuple[Any, Mapping[str, Any] | None]:
        """Return the next notice; None in its place if it is told here."""
        key, notice = self._subscriber.poll()
        return key, None if notice is not None and notice.get("type") in TOLD_HERE else notice


@contextmanager
def notices_filtered() -> Iterator[None]:
    """Make a driver that connects within print no notice of Ray's that is told here.

    Ray prints them on standard output, whatever `log_to_driver` says (Ray 2.60).
    """
    before = getattr(rays_worker, "listen_error_messages", None)
    if before is None:  # another Ray may not have it
        yield
        return

    def listen(worker: Any, stopped: threading.Event) -> None:
        filtered = SimpleNamespace(
            gcs_error_subscriber=_Notices(worker.gcs_error_subscriber),
            current_job_id=worker.current_job_id,
        )
        before(filtered, stopped)

    rays_worker.listen_error_messages = listen
    try:
        yield
    finally:
        rays_worker.listen_error_messages = before
