"""What is published of a run on Ray, and what a real Prometheus sees of it."""

import json
from types import SimpleNamespace

import pytest

from raysync.cluster import monitoring
from raysync.cluster.monitoring import LINGER_S, MOST_RUNS, Exporter, UpdateSeconds
from raysync.config import validate
from raysync.record.collector import Collector
from raysync.record.measures import Measures
from raysync.record.metrics_registry import REGISTRY, RUN, RunLabels
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine
from tests.builders.cluster import TINY
from tests.builders.messages import tells
from tests.builders.processes import said_by
from tests.cluster.prometheus import needs_prometheus
from tests.fakes.metrics import Broken, FakeMetric, FakeTimer

TITLE = RunLabels("the experiment", "the run", "bsp")
LABELS = tuple(zip(RUN, TITLE.values, strict=True))


@pytest.fixture
def published(monkeypatch):
    """Takes the place of Ray's metrics; [(name, value)]."""
    FakeTimer.started = []
    monkeypatch.setattr(monitoring, "Timer", FakeTimer)

    def use(kind):
        kind.made, kind.values, kind.live = [], [], {}
        monkeypatch.setattr(monitoring, "metrics", SimpleNamespace(Gauge=kind))
        return kind.values

    return use


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=10.0)
    monkeypatch.setattr(monitoring, "now_s", lambda: now.s)
    return now


SETTINGS = {"engine": "virtual", "timing": "only", "workers": [{"count": 2, "step_s": 0.5}]}
TRAINING = prepare(validate(TINY | SETTINGS))


def train(exporter, labels=TITLE, per_worker_histograms=False):
    """A run whose metrics are published."""
    paradigm = TRAINING.experiment.paradigm.make()
    collector = Collector(labels, paradigm.phase, Measures(480), per_worker_histograms)
    for lines in VirtualEngine().run(TRAINING, paradigm):
        exporter.publish(lambda lines=lines: collector.collect(lines))


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
    assert [value for name, value in values if name == "raysync_samples_applied_total"][-1] == 960


def live_runs():
    return {dict(labels)["run"] for _, labels in FakeMetric.live}


def test_live_series_do_not_grow_with_the_number_of_trials(published, clock):
    """In one process, however short the trials are; each of the last ones ends with the last."""
    published(FakeMetric)
    exporter, counts = Exporter(), []
    for trial in range(60):
        train(exporter, RunLabels("sweep", f"trial-{trial}", "bsp"))
        counts.append(len(FakeMetric.live))
    alone = counts[0]
    assert alone <= 30, "of two workers"
    assert max(counts) == max(counts[:MOST_RUNS]) == MOST_RUNS * alone
    assert live_runs() == {f"trial-{trial}" for trial in range(60 - MOST_RUNS, 60)}
    clock.s += LINGER_S
    train(exporter, RunLabels("sweep", "another", "bsp"))
    assert live_runs() == {"another"}
    assert len(FakeMetric.live) == alone


def test_the_series_of_a_run_end_a_while_behind_it_also_if_no_other_follows(published, clock):
    published(FakeMetric)
    train(Exporter())
    for later_s in (LINGER_S / 2, LINGER_S):
        assert FakeMetric.live[("raysync_progress_ratio", LABELS)] == 1, "its last values are there"
        clock.s += later_s
        FakeTimer.started[-1].function()
    assert not FakeMetric.live
    assert len(FakeTimer.started) == 2, "there is nothing left to end"


def test_histograms_by_worker_are_published_on_request(published):
    names = []
    for per_worker_histograms in (False, True):
        published(FakeMetric)
        train(Exporter(), per_worker_histograms=per_worker_histograms)
        names.append(set(FakeMetric.made))
    assert names[1] - names[0] == {
        name
        for metric in REGISTRY.values()
        if metric.kind == "histogram" and "worker" in metric.labels
        for name in metric.series
    }
    assert names[0] < names[1]


def test_the_seconds_of_updates_are_added_up_for_a_second_or_until_they_are_asked_for(
    clock, published
):
    values = published(FakeMetric)
    seconds, silent = UpdateSeconds(Exporter(), TITLE), UpdateSeconds(Exporter(), None)
    assert values == [("raysync_server_update_seconds_total", 0.0)]
    told = []
    values.clear()
    for took_s in (0.25, 0.5, 0.25, 0.125):
        with seconds.timed(), silent.timed():
            clock.s += took_s
        told.append([value for _, value in values])
    assert told == [[], [], [1.0], [1.0]]
    for one in (seconds, seconds, silent):
        one.flush()
    assert values == [
        ("raysync_server_update_seconds_total", 1.0),
        ("raysync_server_update_seconds_total", 1.125),
    ]


@pytest.mark.ray
@pytest.mark.slow
def test_ray_shows_zeros_and_forgets_what_is_set_to_nan():
    """In a process that goes on; another Ray may differ."""
    assert said_by("tests.cluster.endpoint")["shown"] == [[["first"], ["second"], ["first"]]]


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
