"""Adjustments at the start of a private cluster without an option in Ray."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

from ray._common.utils import get_default_system_temp_dir
from ray._private import ray_constants, worker as rays_worker

from raysync.cluster.clock import now_s, sleep_s

# Kinds of Ray's notices that a run reports better itself, in one line: a lost node, the last log
# lines of its raylet, and a dead process with three guesses why.
SUPPRESSED = ("node_removed", "raylet_died", "worker_died")
POLL_S = 0.1
TOKEN = ".ray/auth_token"  # below the home; Ray writes it when the first cluster starts


def temporary_folder() -> str:
    """Return Ray's default folder for its files."""
    return str(get_default_system_temp_dir())


def private_folder(parent: str) -> str:
    """Return a folder for Ray's files that only this user can enter: Ray opens its sockets to all.

    It is the same for all clusters of a user, so that their files are found.
    """
    folder = Path(parent, f"raysync-{user_id()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != user_id():
        return mkdtemp(prefix="raysync-", dir=parent)  # somebody else has made it
    folder.chmod(0o700)
    return str(folder)


def user_id() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def protect_token() -> None:
    """Let only this user read the token that Ray may have written for its clusters."""
    with suppress(OSError):
        Path.home().joinpath(TOKEN).chmod(0o600)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make a cluster started within bind its sockets to the loopback address.

    Ray does so on systems without multi-machine clusters (Windows and macOS). Elsewhere it replaces
    a requested loopback address by the machine's own, and all interfaces (Ray 2.60).
    """
    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", True)  # another Ray may not have it
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def raylet_awaited(limit_s: float) -> Iterator[None]:
    """Make a driver that connects within wait until its raylet accepts connections.

    Ray tries ten times, a second apart, and then aborts the process in C++ (Ray 2.60).
    """
    before = getattr(rays_worker, "connect", None)
    if before is None:  # another Ray may not have it
        yield
        return

    def connect(node: Any, *arguments: Any, **options: Any) -> Any:
        until_s = now_s() + limit_s
        while not _accepts(str(node.raylet_socket_name)):
            if now_s() >= until_s:
                raise TimeoutError(f"its raylet accepted no connection within {limit_s:g} s")
            sleep_s(POLL_S)
        return before(node, *arguments, **options)

    rays_worker.connect = connect
    try:
        yield
    finally:
        rays_worker.connect = before


def _accepts(address: str) -> bool:
    if not address.startswith("/"):  # not the path of a socket, as on Windows
        return True
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(address) == 0


class _Notices:
    """Ray's subscriber to a cluster's notices, without `SUPPRESSED`."""

    def __init__(self, subscriber: Any) -> None:
        self._subscriber = subscriber

    def subscribe(self) -> None:
        self._subscriber.subscribe()

    def poll(self) -> tuple[Any, Mapping[str, Any] | None]:
        """Return the next notice, or None in its place if the run reports it itself."""
        key, notice = self._subscriber.poll()
        return key, None if notice is not None and notice.get("type") in SUPPRESSED else notice


@contextmanager
def notices_filtered() -> Iterator[None]:
    """Make a driver that connects within print no notice that the run reports itself.

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
