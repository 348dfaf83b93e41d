"""What is published of a run on Ray, and what a real Prometheus sees of it."""

import json
from types import SimpleNamespace

import pytest

from raysync.cluster import monitoring
from raysync.cluster.monitoring import FIRST_VALUE, Exporter, UpdateSeconds
from raysync.config import validate
from raysync.record.collector import Collector
from raysync.record.measures import Measures
from raysync.record.metrics_registry import REGISTRY, RunLabels
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine
from tests.builders.cluster import TINY
from tests.builders.messages import tells
from tests.cluster.prometheus import needs_prometheus
from tests.fakes.metrics import Broken, FakeMetric

TITLE = RunLabels("the experiment", "the run", "bsp")


@pytest.fixture
def published(monkeypatch):
    """Takes the place of Ray's metrics; [(name, value)]."""

    def use(kind):
        kind.made, kind.values = [], []
        monkeypatch.setattr(
            monitoring, "metrics", SimpleNamespace(Counter=kind, Gauge=kind, Histogram=kind)
        )
        return kind.values

    return use


def train(exporter):
    """A run whose metrics are published; returns what publishes them."""
    experiment = validate(
        TINY | {"engine": "virtual", "timing": "only", "workers": [{"count": 2, "step_s": 0.5}]}
    )
    paradigm = experiment.paradigm.make()
    collector = Collector(TITLE, paradigm.phase, Measures(480))

    def publish(lines):
        exporter.publish(lambda: collector.collect(lines))

    for lines in VirtualEngine().run(prepare(experiment), paradigm):
        publish(lines)
    return publish


def test_metrics_that_cannot_be_exported_are_given_up_and_training_goes_on(published, caplog):
    values = published(Broken)
    train(Exporter())
    assert len(values) == 5, "it is not tried again"
    said = [
        record.message for record in caplog.records if record.name == "raysync.cluster.monitoring"
    ]
    assert said == ["the run publishes no more metrics"]
    assert tells(caplog.text, "agent")


def test_one_exporter_makes_each_metric_once_whatever_the_number_of_runs(published):
    values, exporter = published(FakeMetric), Exporter()
    for _ in range(2):
        train(exporter)
    assert len(FakeMetric.made) == len(set(FakeMetric.made))
    assert sum(
        value for name, value in values if name == "raysync_samples_applied"
    ) == pytest.approx(2 * 480)


def test_gauges_are_set_again_while_nothing_happens(published):
    """Ray forgets a gauge that is not: a controller reports every second, also where it has no
    line.
    """
    values = published(FakeMetric)
    publish = train(Exporter())
    values.clear()
    for _ in range(20):
        publish([])
    assert [name for name, _ in values].count("raysync_workers_live") == 20


def test_the_seconds_of_updates_are_added_up_for_a_second_or_until_they_are_asked_for(
    monkeypatch, published
):
    values, now = published(FakeMetric), SimpleNamespace(s=10.0)
    monkeypatch.setattr(monitoring, "now_s", lambda: now.s)
    seconds, silent = UpdateSeconds(Exporter(), TITLE), UpdateSeconds(Exporter(), None)
    assert values == [("raysync_server_update_seconds", FIRST_VALUE)]
    told = []
    values.clear()
    for took_s in (0.25, 0.5, 0.25, 0.125):
        with seconds.timed(), silent.timed():
            now.s += took_s
        told.append([value for _, value in values])
    assert told == [[], [], [1.0], [1.0]]
    for one in (seconds, seconds, silent):
        one.flush()
    assert values == [
        ("raysync_server_update_seconds", 1.0),
        ("raysync_server_update_seconds", 0.125),
    ]


@needs_prometheus
@pytest.mark.ray
@pytest.mark.timeout(400)  # it may be the one that starts the cluster
def test_every_metric_has_its_series_in_prometheus_and_the_counters_are_the_record(metered_runs):
    prometheus = metered_runs.prometheus
    for metric in REGISTRY.values():
        parts = ("_bucket", "_sum", "_count") if metric.buckets else ("",)
        for name in (f"{metric.exported}{part}" for part in parts):
            found = prometheus.history(name)
            assert found, f"no series of {name}"
            for series in found:
                assert set(metric.labels) <= set(series["metric"]), name
    runs = {series["metric"]["run"] for series in prometheus.history("ray_raysync_workers_live")}
    assert runs == {record.name for record in metered_runs.records}, (
        "without the one that publishes nothing"
    )
    assert (metered_runs.silent / "summary.json").exists()
    for record in metered_runs.records:
        summary = json.loads((record / "summary.json").read_text())
        for name, expected in (
            ("raysync_pushes", summary["pushes"]),
            ("raysync_samples_applied", summary["samples"]),
            ("raysync_updates", summary["updates"]),
            ("raysync_drops", summary["dropped"]),
            ("raysync_switches", len(summary["switches"])),
            ("raysync_busy_seconds", sum(worker["busy_s"] for worker in summary["per_worker"])),
            ("raysync_wait_seconds", sum(worker["wait_s"] for worker in summary["per_worker"])),
        ):
            series = f'last_over_time({REGISTRY[name].exported}{{run="{record.name}"}}[1h])'
            assert prometheus.total(series) == pytest.approx(expected), f"{name} of {record.name}"
