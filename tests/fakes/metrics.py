"""What takes the place of Ray's metrics."""

from math import isnan


class FakeMetric:
    """Takes what Ray's gauge takes, and keeps the series that an endpoint would show."""

    made: list[str] = []
    values: list[tuple[str, float]] = []
    live: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def __init__(self, name, description, tag_keys):
        self.made.append(name)
        self.name, self.tag_keys = name, tag_keys

    def set(self, value, tags):
        assert tuple(tags) == self.tag_keys
        self.values.append((self.name, value))
        series = self.name, tuple(tags.items())
        if isnan(value):
            self.live.pop(series, None)
        else:
            self.live[series] = value


class Broken(FakeMetric):
    """Breaks at its fifth value."""

    def set(self, value, tags):
        super().set(value, tags)
        if len(self.values) > 4:
            raise ConnectionError("no agent on this node")


class FakeTimer:
    """Goes off when a test says so."""

    started: list["FakeTimer"] = []

    def __init__(self, after_s, function):
        self.function = function

    def start(self):
        self.started.append(self)
