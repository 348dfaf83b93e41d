"""The live series of one run, as Prometheus sees them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import inf, nan

from raysync.record.collector import Collected, Key
from raysync.record.metrics_registry import REGISTRY

ENDED = nan  # the value that ends a series


class RunSeries:
    """Adds up the changes of a run's metrics. A key here has a name of `Metric.series`."""

    def __init__(self) -> None:
        self._values: dict[Key, float] = {}
        self._gauges: frozenset[Key] = frozenset()
        self._counts: dict[Key, list[int]] = {}  # histogram -> observations by bucket

    def add(self, collected: Collected) -> Mapping[Key, float]:
        """Return the series that changes set, with their values; `ENDED` are missing gauges."""
        changed: dict[Key, float] = {}
        for (name, labels), increment in collected.counters.items():
            [total] = REGISTRY[name].series
            changed[total, labels] = self._values.get((total, labels), 0.0) + increment
        for key, observed in collected.histograms.items():
            changed |= self._observe(key, observed)
        self._values |= changed | collected.gauges
        missing = self._gauges - collected.gauges.keys()
        for key in missing:
            del self._values[key]
        self._gauges = frozenset(collected.gauges)
        return changed | collected.gauges | dict.fromkeys(missing, ENDED)

    def end(self) -> Mapping[Key, float]:
        """Return all series of the run, to be ended."""
        return dict.fromkeys(self._values, ENDED)

    def _observe(self, key: Key, observed: Iterable[float]) -> dict[Key, float]:
        (name, labels), values = key, list(observed)
        bounds = REGISTRY[name].buckets
        counts = self._counts.setdefault(key, [0] * (len(bounds) + 1))
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        series: dict[Key, float] = {
            (f"{name}_sum", labels): self._values.get((f"{name}_sum", labels), 0.0) + sum(values),
            (f"{name}_count", labels): sum(counts),
        }
        for index, (bound, below) in enumerate(
            zip((*bounds, inf), accumulate(counts), strict=True)
        ):
            # An empty bucket equals the one before it, and tells only where that one ends that
            # follows. Ray's agent tells 2,000 series of a name apart in its life, no more.
            if any(counts[index : index + 2]) or bound == inf:
                le = "+Inf" if bound == inf else str(bound)
                series[f"{name}_bucket", (*labels, le)] = below
        return series
