"""The private names of Ray that raysync uses: a Ray that moves one is named here, and nobody else
uses any.
"""

import re
import socket
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from ray._private import worker as rays_worker

import raysync
from raysync.cluster.ray_private import PRIVATE_NAMES, cluster_start


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_ray_has_the_name(name):
    module, _, path = name.partition(":")
    if not path:
        assert find_spec(module) is not None
        return
    first, *rest = path.split(".")
    found = getattr(import_module(module), first)
    if rest == ["_actor_id"]:  # of every handle, not of their class
        assert "_actor_id" in found.__init__.__code__.co_varnames or hasattr(found, "_actor_id")
    else:
        reduce(getattr, rest, found)


def test_nobody_else_uses_private_names():
    package = Path(raysync.__file__).parent
    private = re.compile(r"\bray\._(?!_)|\._actor_id\b")
    users = {
        path.relative_to(package).parts[:2]
        for path in package.rglob("*.py")
        if private.search(path.read_text(encoding="utf-8"))
    }
    assert users == {("cluster", "ray_private")}


class SlowRaylet:
    """A raylet that listens once somebody has waited so often, and the clock of these waits."""

    def __init__(self, folder, waits):
        self.path, self.waits, self.at_s = f"{folder}/raylet", waits, 0.0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listen_if_due()

    def listen_if_due(self):
        if not self.waits:
            self.listener.bind(self.path)
            self.listener.listen()

    def now_s(self):
        return self.at_s

    def sleep_s(self, seconds):
        self.at_s += seconds
        self.waits -= 1
        self.listen_if_due()


@pytest.mark.parametrize(("waits", "connects"), [(0, True), (3, True), (10**6, False)])
def test_a_driver_waits_for_its_raylet(monkeypatch, waits, connects):
    """Ray would try ten times, and abort the process."""
    made = []
    with TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        raylet = SlowRaylet(folder, waits)
        monkeypatch.setattr(cluster_start, "now_s", raylet.now_s)
        monkeypatch.setattr(cluster_start, "sleep_s", raylet.sleep_s)
        monkeypatch.setattr(rays_worker, "connect", lambda node, mode: made.append(mode))
        before = rays_worker.connect
        with raylet.listener, cluster_start.raylet_awaited(limit_s=60.0):
            node = SimpleNamespace(raylet_socket_name=raylet.path)
            if connects:
                rays_worker.connect(node, mode=0)
            else:
                with pytest.raises(TimeoutError):
                    rays_worker.connect(node, mode=0)
        assert rays_worker.connect is before
    assert made == [0] * connects
