"""The connection to a Ray cluster: one that is there, or a private one on this machine."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from typing import Any

import numpy as np
import ray

from raysync.config import Cluster
from raysync.errors import ConfigError

WARM_BYTES = 64 << 20
"""How much of a private object store is touched before the first run: first touches are about ten times slower."""
FREE_EVERY_MS = 50
"""How often a private cluster frees vectors that nobody needs any more. Ray's default, a second, makes the object store hold
all that a second brings: with 25 million parameters five times as much memory, always new pages, and slower rounds."""

ANSWER_S = 10.0
"""How long the cluster may take to accept a connection."""
OF_JOBS = "is where jobs are submitted to (RAY_API_SERVER_ADDRESS); a run that joins a cluster by itself needs HOST:6379."


class Connection:
    """Opened once; closing it leaves a cluster that was there as it was, and takes a private one down."""

    def __init__(self, notify: Callable[[str], None], address: str | None) -> None:
        """
        Args:
            notify: is told, in a sentence, what the user should know.
            address: the cluster to join where `cluster.address` is `auto`; None: a private one.
        """
        self.private = False
        """Whether the cluster was started here."""
        self._notify = notify
        self._address = address
        self._connected = False

    def open(self, cluster: Cluster, cpus: float) -> None:
        """Connect, if that is not done yet.

        Args:
            cluster: says which one.
            cpus: that a private one must declare at least.

        Raises:
            ConfigError: there is no such cluster.
        """
        address = cluster.address
        if self._connected:
            return
        if ray.is_initialized():  # a cluster that is already joined is joined as it is, and left as it was
            if address != "auto":
                raise ConfigError(f"cluster.address: Ray is already connected here; {address!r} cannot be had, only auto.")
            return
        if address == "auto":
            address = self._address or "local"
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address == "local":
            self._start(cluster, math.ceil(cpus), options)
            return
        knock(address)
        try:
            ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"cluster.address: no Ray cluster at {address!r} ({reason}).") from error
        self._connected = True

    def close(self) -> None:
        """Disconnect."""
        if self._connected:
            ray.shutdown()
        self._connected = False

    def _start(self, cluster: Cluster, needed: int, options: dict[str, Any]) -> None:
        cores = os.cpu_count() or 1
        if needed > cores:
            self._notify(f"{needed} CPUs are declared to Ray on a machine of {cores}: its cores are shared.")
        self.private = self._connected = True
        ray.init(address="local", num_cpus=max(needed, cores), include_dashboard=cluster.dashboard,
                 _node_ip_address="127.0.0.1", _system_config={"free_objects_period_milliseconds": FREE_EVERY_MS}, **options)
        ray.get(ray.put(np.zeros(WARM_BYTES, np.uint8)))


def knock(address: str) -> None:
    """Ask who is there, where the address says host and port: Ray itself would try for minutes (2.60).

    Raises:
        ConfigError: nobody, or somebody else.
    """
    if address.startswith("http"):
        raise ConfigError(f"cluster.address: {address!r} {OF_JOBS}")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        connection = HTTPConnection(host.strip("[]"), int(port), timeout=ANSWER_S)
        connection.connect()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cluster.address: no Ray cluster at {address!r} ({reason}).") from error
    with closing(connection), suppress(OSError, HTTPException):  # Ray's own ports speak gRPC, which is no HTTP/1
        connection.request("GET", "/")
        connection.getresponse()
        raise ConfigError(f"cluster.address: what answers at {address!r} speaks HTTP, as the Ray dashboard, which {OF_JOBS}")
