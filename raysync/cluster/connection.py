"""The connection to a Ray cluster: an existing one, or a private one on this machine."""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from ray.exceptions import RayError
from ray.util.client import ray as client

from raysync.cluster.clock import within
from raysync.cluster.ray_private.cluster_start import (
    notices_filtered,
    on_loopback,
    private_folder,
    protect_token,
    raylet_awaited,
    temporary_folder,
)
from raysync.cluster.ray_private.fork_server import (
    SHORT_FOLDER,
    ForkServer,
    can_fork,
    forked_by,
    holds_sockets,
)
from raysync.config import Cluster
from raysync.errors import ConfigError, RunFailed

# How much of a private object store is touched before the first run: first touches are about ten
# times slower.
WARM_BYTES = 64 << 20
# Ray's settings of a private cluster. Unused vectors are freed soon: with Ray's default of a second
# the object store grows, on new pages, and rounds slow down. And a run survives the loss of the
# GCS, which by default ends its driver after a minute.
PRIVATE_CONFIG = {
    "free_objects_period_milliseconds": 50,
    "gcs_rpc_server_reconnect_timeout_s": 7 * 24 * 3600,
}

EXIT_S = 5.0  # how long killed processes may take to exit
CONNECT_S = 10.0  # how long the cluster may take to accept a connection
RAYLET_S = 60.0  # how long the raylet of a private cluster may take to accept a connection
SHUTDOWN_S = 10.0  # how long Ray may take to shut down: it takes two seconds
# the ends of messages about an address that a run cannot join
RAY_CLIENT_HINT = (
    "is an address of Ray Client, which raysync does not support: submit a job with `ray job"
    " submit`, or give the address of the GCS, HOST:6379, on a machine of the cluster's network."
)
JOBS_HINT = (
    "is the URL of a Ray dashboard, for `ray job submit` (RAY_API_SERVER_ADDRESS); a run that joins"
    " a cluster by itself needs the address of its GCS, HOST:6379."
)


class Connection:
    """A connection that opens once; closing it ends a private cluster, and no other."""

    def __init__(
        self,
        notify: Callable[[str], None],  # shows the user a sentence
        # the cluster to join where `cluster.address` is `auto`; None: a private one is started
        address: str | None,
        # the fork server of a private cluster; None: it is started with the cluster, if needed
        fork_server: ForkServer | None = None,
    ) -> None:
        self.is_private = False  # whether the cluster was started here
        self._notify = notify
        self._address = address
        self._is_connected = False
        self._fork_server = fork_server
        # the handler of SIGTERM from before Ray's; None: unknown, or left alone
        self._sigterm: Any = None

    def open(self, cluster: Cluster, cpus: float) -> None:
        """Connect, unless connected; a private cluster declares at least `cpus`.

        Raises:
            ConfigError: there is no such cluster.
        """
        address = cluster.address
        if self._is_connected:
            return
        # A cluster that is already joined is used as it is, and left as it was.
        if ray.is_initialized():
            if client.is_connected():
                raise ConfigError(f"cluster.address: ray:// {RAY_CLIENT_HINT}")
            if address != "auto":
                raise ConfigError(
                    f"cluster.address: {address!r}: Ray is already initialised in this process;"
                    " use cluster.address: auto."
                )
            return
        if address == "auto":
            address = self._address or "local"
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address == "local":
            self._start(cluster, math.ceil(cpus), options)
            return
        check_address(address)
        try:
            self._init(address=address, **options)
        except ConnectionError as error:
            raise ConfigError(
                f"cluster.address: no Ray cluster at {address!r} ({one_line(error)}), or the"
                " cluster requires a token: set RAY_AUTH_MODE=token."
            ) from error
        except (RuntimeError, ValueError) as error:  # also another version of Ray
            raise ConfigError(
                f"cluster.address: cannot join {address!r}: {one_line(error)}"
            ) from error

    def cores(self) -> float:
        """Return the CPU cores of the cluster: a private one can declare more than there are."""
        if self.is_private:
            return os.cpu_count() or 1
        return float(ray.cluster_resources().get("CPU", 1))

    def close(self) -> None:
        """Disconnect. A private cluster is gone afterwards, even if Ray is stuck."""
        if not self._is_connected:
            return
        processes = private_processes(self._fork_server) if self.is_private else []
        try:
            # Nothing is killed before this: a driver without its raylet may just exit.
            within(SHUTDOWN_S, ray.shutdown)
        except (TimeoutError, RayError):
            atexit.unregister(ray.shutdown)  # Ray would try again, without a limit
            ends = "its processes are killed" if self.is_private else "the cluster is left as it is"
            self._notify(f"Ray is stuck: it did not shut down within {SHUTDOWN_S:g} s; {ends}.")
        finally:
            self._is_connected = False
            kill(processes)
            if self._fork_server is not None:
                self._fork_server.close()
                self._fork_server = None
            self._restore_sigterm()

    def _start(self, cluster: Cluster, needed: int, options: dict[str, Any]) -> None:
        cores = os.cpu_count() or 1
        if needed > cores:
            self._notify(
                f"{needed} CPUs are declared to Ray on a machine with {cores} cores: the actors"
                " share the cores."
            )
        is_long = not holds_sockets(f"{temporary_folder()}/{'x' * 16}")
        folder = private_folder(SHORT_FOLDER if is_long else temporary_folder())
        options["_temp_dir"] = f"{folder}/ray"
        if is_long:
            self._notify(
                "The path of the temporary folder is too long for Ray's sockets, or not ASCII:"
                f" Ray uses this folder: {options['_temp_dir']}."
            )
        options |= {"num_cpus": max(needed, cores), "include_dashboard": cluster.dashboard}
        self.is_private = True
        try:
            self._start_once(cluster, options)
        except Exception as error:  # Ray raises nothing more precise
            self._notify(f"Ray did not start ({one_line(error)}); a second start follows.")
            self.close()
            try:
                self._start_once(cluster, options)
            except Exception as error:
                raise RunFailed(f"Ray did not start: {one_line(error)}") from error
        ray.get(ray.put(np.zeros(WARM_BYTES, np.uint8)))

    def _start_once(self, cluster: Cluster, options: dict[str, Any]) -> None:
        with ExitStack() as while_starting:
            while_starting.enter_context(on_loopback())
            while_starting.enter_context(raylet_awaited(RAYLET_S))
            if cluster.fork_workers and can_fork():
                self._fork_server = self._fork_server or ForkServer()
                while_starting.enter_context(forked_by(self._fork_server))
            self._init(address="local", _system_config=PRIVATE_CONFIG, **options)

    def _init(self, **options: Any) -> None:
        """Call `ray.init` without its handlers of SIGTERM.

        Ray replaces it twice: by a handler in Python that exits with its own status, and by one in
        C++ that prints a stack trace, and aborts after three seconds.
        """
        if threading.current_thread() is threading.main_thread():
            self._sigterm = signal.getsignal(signal.SIGTERM)
        # a private cluster has processes to end even if Ray starts only in part
        self._is_connected = self.is_private
        try:
            with notices_filtered():
                ray.init(**options)
            self._is_connected = True
            if self.is_private:
                protect_token()
        except SystemExit as stop:  # by Ray's handler, while it starts
            raise SystemExit(128 + signal.SIGTERM) from stop
        finally:
            if self._sigterm is not None:
                signal.signal(
                    signal.SIGTERM, _exit if self._sigterm is signal.SIG_DFL else self._sigterm
                )

    def _restore_sigterm(self) -> None:
        if self._sigterm is not None:
            signal.signal(signal.SIGTERM, self._sigterm)
        self._sigterm = None


def check_address(address: str) -> None:
    """Check that Ray may answer at HOST:PORT: Ray itself would try for minutes (2.60).

    Raises:
        ConfigError: nothing answers, or something that is not Ray.
    """
    if address.startswith("http"):
        raise ConfigError(f"cluster.address: {address!r} {JOBS_HINT}")
    if address.startswith("ray://"):
        raise ConfigError(f"cluster.address: {address!r} {RAY_CLIENT_HINT}")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        connection = HTTPConnection(host.strip("[]"), int(port), timeout=CONNECT_S)
        connection.connect()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cluster.address: no Ray cluster at {address!r} ({reason}).") from error
    # Ray's own ports speak gRPC, which is not HTTP/1.
    with closing(connection), suppress(OSError, HTTPException):
        connection.request("GET", "/")
        connection.getresponse()
        raise ConfigError(f"cluster.address: {address!r} answers in HTTP, so it {JOBS_HINT}")


def one_line(error: Exception) -> str:
    """Return an error's message without line breaks, of which Ray's have many."""
    return " ".join(str(error).split()) or type(error).__name__


def _exit(number: int, _: object) -> None:
    """Exit as on Ctrl-C, so that records are completed."""
    raise SystemExit(128 + number)


def private_processes(fork_server: ForkServer | None) -> list[psutil.Process]:
    """List the Ray processes that this process started, and their descendants.

    A child is Ray's if its command line contains Ray's folder; the user's children are left out.
    Worker processes are children of the fork server.
    """
    folder = str(Path(ray.__file__).parent)
    roots = [child for child in psutil.Process().children() if folder in " ".join(_command(child))]
    if fork_server is not None:
        with suppress(psutil.Error):
            roots.append(psutil.Process(fork_server.pid))
    return [one for process in roots for one in (process, *_descendants(process))]


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes, also frozen ones; missing ones are ignored."""
    killed = list(processes)
    for process in killed:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(killed, timeout=EXIT_S)


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(process.children(recursive=True))
    return []
