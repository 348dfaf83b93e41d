"""What comes out of Ray's endpoints, as a real Prometheus sees it."""

import json

import pytest

from raysync.record.metrics import REGISTRY
from tests.cluster.prometheus import needs_prometheus


@needs_prometheus
@pytest.mark.ray
def test_every_metric_has_a_series_in_prometheus(metered_runs):
    prometheus = metered_runs.prometheus
    for metric in REGISTRY.values():
        parts = ("_bucket", "_sum", "_count") if metric.buckets else ("",)
        for name in (f"{metric.exported}{part}" for part in parts):
            found = prometheus.history(name)
            assert found, f"no series of {name}"
            for series in found:
                assert set(metric.labels) <= set(series["metric"]), name
    for record in metered_runs.records:
        summary = json.loads((record / "summary.json").read_text())
        print(record.name, summary["updates"])
