"""A clock that only sleeping moves, for all that runs on Ray."""

from raysync.cluster import clock


class FakeClock:
    """Takes the place of the module that `raysync.cluster.clock` reads and sleeps by."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(clock, "time", self)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
