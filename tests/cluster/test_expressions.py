"""Every expression of every dashboard, asked of a real Prometheus that scraped Ray while two runs
trained.
"""

import json
from math import isfinite

import pytest

import raysync
from raysync.cli.dashboards import known
from raysync.record.metrics_registry import REGISTRY
from tests.cluster.boards import BOARDS, PANELS, asked, choices
from tests.cluster.prometheus import needs_prometheus

# The runs that are asked about, too.
pytestmark = [needs_prometheus, pytest.mark.ray, pytest.mark.timeout(600)]

MEASURED_GPU = ("ray_node_gpu", "ray_node_gram")
"""Ray publishes these for GPUs that it can measure. There may be none here; that they are spelt as
Ray does is tested in tests/unit/test_dashboards.py."""
CHOSEN = {
    "__rate_interval": "10s",
    "__range": "10m",
    "experiment": ".+",
    "paradigm": ".+",
    "node": ".+",
}


def has_data(prometheus, expression, run=".+"):
    """Whether it has ever been a number since the runs began. An expression that is none is an
    error.
    """
    series = prometheus.history(expression, **CHOSEN, run=run)
    return any(isfinite(float(value)) for one in series for _, value in one["values"])


def test_every_expression_of_every_dashboard_has_data(metered_runs):
    prometheus = metered_runs.prometheus
    names = [record.name for record in metered_runs.records]
    for one in asked():
        # What it falls back to always has data.
        expression = one.expression.partition(" or on() ")[0]
        runs = names if 'run="$run"' in expression else [".+"]
        if not any(name in expression for name in MEASURED_GPU):
            assert any(has_data(prometheus, expression, run) for run in runs), f"no data: {one}"
        if not all(has_data(prometheus, one.expression, run) for run in runs):
            assert one.says_why_empty, f"empty in a normal run, and does not say why: {one}"


def test_the_table_of_a_sweep_is_the_records(metered_runs):
    """The runs are over, and their cluster is gone."""
    [table] = [panel for _, panel in PANELS if panel["type"] == "table"]
    for record in metered_runs.records:
        run = raysync.load(record)
        summary, pushes = run.summary, run.pushes
        there_s = sum(pushes.pushed_at_s - pushes.released_at_s + pushes.wait_s)
        shown = {}
        for target in table["targets"]:
            found = metered_runs.prometheus.query(target["expr"], **CHOSEN, run=record.name)
            assert [(one["metric"]["run"], one["metric"]["experiment"]) for one in found] == [
                (record.name, "metered")
            ]
            shown[target["legendFormat"]] = float(found[0]["value"][1])
        assert shown == pytest.approx(
            {
                "progress": 1,
                "trained for": summary["seconds"],
                "primary metric": summary["final_accuracy"],
                "evaluation loss (nats)": summary["final_loss"],
                "to the target": summary["time_to_target_s"],
                "samples/s": summary["throughput_samples_per_s"],
                "waited": sum(pushes.wait_s) / there_s,
                "staleness, 95 %": shown["staleness, 95 %"],
                "updates": summary["updates"],
                "workers": 3,
            },
            abs=1e-6,
        )
        stale = pushes.staleness.dropna().quantile(0.95, interpolation="inverted_cdf")
        assert stale == shown["staleness, 95 %"] or stale > 3, (
            "it is exact as far as buckets hold one number"
        )


def test_there_is_something_to_choose_from(metered_runs):
    for name, series, label in choices():
        found = metered_runs.prometheus.history(f"group by ({label}) ({series})", **CHOSEN)
        values = {one["metric"][label] for one in found}
        assert values, name
        if name == "run":
            assert values == {record.name for record in metered_runs.records}


def test_a_prometheus_is_asked_what_it_knows(metered_runs):
    metrics, runs = known(metered_runs.prometheus.url)
    assert metrics == set(REGISTRY)
    assert set(runs) == {record.name for record in metered_runs.records}


def test_ray_leaves_the_dashboards_alone_that_lie_beside_its_own(metered_runs):
    folder = metered_runs.folder / "watching/dashboards"
    there = {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")
    }
    assert {name: there[name] for name in BOARDS} == BOARDS
    assert there["default_grafana_dashboard.json"]["uid"] == "rayDefaultDashboard"
    uids = [board["uid"] for board in there.values()]
    assert len(uids) == len(set(uids))
