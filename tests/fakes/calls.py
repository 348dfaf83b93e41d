"""Ray, as far as the backend's calls go: their values are there at a time, on a clock that only
waiting moves.
"""

from functools import partial
from math import inf
from types import SimpleNamespace

from ray.exceptions import GetTimeoutError

from raysync.cluster import calls as calls_module, ray_backend, ray_processes
from raysync.cluster.transports import object_store


class Reference:
    """What an actor call returns: a value that is there at a time, or an error."""

    def __init__(self, value=None, at=0.0):
        self.value, self.at = value, at


class FakeRay:
    """Takes the place of the module, and of the clock."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in (ray_backend, ray_processes, calls_module, object_store):
            monkeypatch.setattr(module, "ray", self)
        monkeypatch.setattr(ray_backend, "now_s", lambda: self.now)
        monkeypatch.setattr(object_store, "sleep_s", partial(self.wait, [], 1, fetch_local=False))

    def wait(self, references, num_returns=1, timeout=inf, *, fetch_local=True):
        assert not fetch_local, "meanwhile Ray does not notice what else has come"
        soonest = sorted(each.at for each in references)[:num_returns]
        last = soonest[-1] if len(soonest) == num_returns else inf
        self.now = max(self.now, min(last, self.now + timeout))
        ready = [each for each in references if each.at <= self.now][:num_returns]
        return ready, [each for each in references if each not in ready]

    def get(self, references, timeout=inf):
        if any(each.at > self.now + timeout for each in references):
            raise GetTimeoutError
        for each in references:
            if isinstance(each.value, Exception):
                raise each.value
        return [each.value for each in references]


def remote(call):
    return SimpleNamespace(remote=call, options=lambda **_: SimpleNamespace(remote=call))


class Views:
    """What Ray tells of its nodes: whatever `view` is set to."""

    def __init__(self, view=None):
        self.view, self.refreshed = view, 0

    def refresh(self):
        self.refreshed += 1
