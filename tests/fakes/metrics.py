"""What takes the place of Ray's metrics."""


class FakeMetric:
    """Takes what Ray's takes."""

    made: list[str] = []
    values: list[tuple[str, float]] = []

    def __init__(self, name, description, *rest):
        self.made.append(name)
        self.name, self.tag_keys = name, rest[-1]

    def record(self, value, tags):
        assert tuple(tags) == self.tag_keys
        self.values.append((self.name, value))

    def inc(self, value, tags):
        assert value > 0, "Ray takes no 0"
        self.record(value, tags)

    set = observe = record


class Broken(FakeMetric):
    """Breaks at its fifth value."""

    def record(self, value, tags):
        super().record(value, tags)
        if len(self.values) > 4:
            raise ConnectionError("no agent on this node")
