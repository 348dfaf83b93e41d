"""The Grafana dashboards: what they name exists, everything is shown, and `raysync dashboards`
writes them.

What the expressions return is tested with a real Prometheus in tests/cluster/test_expressions.py.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboards.__main__ import generated
from raysync.cli.dashboards import NEXT, check_url
from raysync.errors import ConfigError
from raysync.record.metrics_registry import CLOCKS, REGISTRY
from tests.builders.messages import naming, tells
from tests.cluster.boards import BOARDS, PANELS, asked, choices


def exported_by(metric):
    """Its series; not `_sum`: Ray approximates it by the middles of the buckets."""
    parts = ("_bucket", "_count") if metric.buckets else ("",)
    return {f"{metric.exported}{part}" for part in parts}


EXPORTED = set().union(*map(exported_by, REGISTRY.values()))

# ---- the dashboards ----


def test_the_committed_json_is_what_the_script_makes():
    assert {path.name: text for path, text in generated().items()} == {
        path.name: path.read_text(encoding="utf-8")
        for path in Path(next(iter(generated()))).parent.iterdir()
    }, "run python -m dashboards"


def metrics_in(texts):
    return {name for text in texts for name in re.findall(r"\bray_\w+", text)}


def test_every_metric_that_is_named_exists_and_all_of_the_registry_are_shown():
    from ray.dashboard.modules.metrics.grafana_dashboard_factory import (
        generate_default_grafana_dashboard,
    )
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    shown = metrics_in(one.expression for one in asked())
    named = shown | metrics_in(series for _, series, _ in choices())
    ours = {name for name in named if name.startswith("ray_raysync_")}
    assert ours <= EXPORTED
    text, _ = generate_default_grafana_dashboard()
    assert named - ours <= {f"ray_{name}" for name in METRICS_GAUGES} | metrics_in([text])
    missing = {name for name, metric in REGISTRY.items() if not shown & exported_by(metric)}
    assert not missing


def test_only_labels_that_a_metric_has_are_asked_for():
    """By which it is grouped, or selected."""
    labels = {
        name: set(metric.labels) | {"le"}
        for metric in REGISTRY.values()
        for name in (metric.exported, f"{metric.exported}_bucket")
    }
    for one in asked():
        for name, selector in re.findall(r"\b(ray_raysync_\w+)(?:\{(.*?)\})?", one.expression):
            asked_for = set(re.findall(r"(\w+)=", selector))
            assert asked_for <= labels[name], one
        ours = re.findall(r"by \(([\w, ]+)\) \(\w*\(?(ray_raysync_\w+)", one.expression)
        for by, name in ours:
            assert set(by.split(", ")) <= labels[name], one


def test_quantiles_of_counts_are_whole():
    """Prometheus interpolates within buckets: it makes 0.475 versions of pushes that are never
    stale.
    """
    counts = [metric.exported for metric in REGISTRY.values() if metric.buckets == CLOCKS]
    quantiles = [one.expression for one in asked() if "histogram_quantile" in one.expression]
    of_counts = [one for one in quantiles if any(name in one for name in counts)]
    assert of_counts
    for expression in of_counts:
        assert expression.startswith("ceil (histogram_quantile(")
        assert expression.endswith(" - 0.5)")


def test_nothing_is_divided_by_nothing():
    """An infinity leaves no axis to a panel. A share of what contains it is 1 at most."""
    divisions = [
        one.expression.split(" / ", 1)
        for one in asked()
        if " / " in one.expression and "ray_raysync_" in one.expression
    ]
    assert divisions
    for part, whole in divisions:
        assert part in whole or whole.endswith(" > 0)"), part


def test_lines_that_a_run_has_on_request_alone_say_so_and_stand_beside_others():
    """Histograms by worker are off unless asked for: their panels show the means then."""
    rare = [
        metric.exported
        for metric in REGISTRY.values()
        if metric.kind == "histogram" and "worker" in metric.labels
    ]
    found = 0
    for _, panel in PANELS:
        is_rare = [bool(re.search("|".join(rare), each["expr"])) for each in panel["targets"]]
        if any(is_rare):
            found += 1
            assert not all(is_rare), panel["title"]
            assert "per_worker_histograms" in panel["description"]
    assert found


def test_legends_name_labels_that_are_left():
    for one in asked():
        left = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([\w, ]+)\)", one.expression))))
        assert set(re.findall(r"\{\{(\w+)\}\}", one.legend)) <= left, one


@pytest.mark.parametrize("board", BOARDS)
def test_a_panel_says_what_is_seen(board):
    for panel in (panel for name, panel in PANELS if name == board):
        targets = panel["targets"]
        for key in ("legendFormat", "expr", "refId"):
            assert len({target[key] for target in targets}) == len(targets), panel["title"]
        assert panel["title"]
        shown = metrics_in(target["expr"] for target in targets)
        helps = [metric.help for metric in REGISTRY.values() if shown & exported_by(metric)]
        assert all(text in panel["description"] for text in helps)
        assert panel["type"] == "heatmap" or panel["fieldConfig"]["defaults"]["unit"]


def test_panels_fill_the_width_and_do_not_overlap():
    for board in BOARDS.values():
        taken = [
            (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
            for panel in board["panels"]
            for column in range(panel["gridPos"]["w"])
            for line in range(panel["gridPos"]["h"])
        ]
        height = 1 + max(line for _, line in taken)
        assert sorted(taken) == [(column, line) for column in range(24) for line in range(height)]


def test_dashboards_are_told_apart_and_lead_to_one_another():
    uids = {board["uid"] for board in BOARDS.values()}
    assert uids == {"raysync-run", "raysync-sweep", "raysync-fleet"}
    for board in BOARDS.values():
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))
        assert board["tags"] == board["links"][0]["tags"] == ["raysync"]
        source = board["templating"]["list"][0]
        assert source["name"] == source["type"] == "datasource"
        assert source["current"]["text"] == "Prometheus"


# ---- the command ----


def test_the_dashboards_are_written_and_ray_is_told_where_they_are(tmp_path, call):
    folder = tmp_path / "a folder"
    for _ in range(2):  # again: over what is there
        code, out, _ = call("dashboards", str(folder))
        assert code == 0
    assert f"RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR='{folder}'/dashboards" in out
    assert {
        path.name: json.loads(path.read_text()) for path in (folder / "dashboards").iterdir()
    } == BOARDS


def test_ray_writes_what_is_to_be_started():
    """The files and the variable that the command names are Ray's."""
    from ray.dashboard.modules.metrics import metrics_head

    source = Path(metrics_head.__file__).read_text(encoding="utf-8")
    assert metrics_head.GRAFANA_DASHBOARD_OUTPUT_DIR_ENV_VAR in NEXT
    for name in re.findall(r"\w+\.(?:ini|yml)", NEXT):
        assert f'"{name}"' in source


class Answers(BaseHTTPRequestHandler):
    """As the server's `known` says."""

    def do_GET(self):
        assert parse_qs(urlsplit(self.path).query)["match[]"] == ['{__name__=~"ray_raysync_.+"}']
        status, body = self.server.known[self.path.split("/")[4]]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def serves():
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()

        def serves(names, runs=(200, b'{"data": []}')):
            server.known = {"__name__": names, "run": runs}
            return f"http://127.0.0.1:{server.server_port}"

        yield serves
        server.shutdown()


def values(*names):
    return 200, json.dumps({"status": "success", "data": names}).encode()


def test_a_prometheus_says_what_it_knows(call, serves):
    known = values(
        "ray_raysync_pushes_total", "ray_raysync_step_busy_seconds_bucket", "ray_raysync_else"
    )
    url = serves(known, values("a", "b"))
    code, out, _ = call("dashboards", "--check", "--prometheus", url)
    assert code == 0
    assert tells(out, f"{url} 2 {len(REGISTRY)} 2")
    assert not {"raysync_pushes,", "raysync_step_busy_seconds,"} & set(out.split())
    *_, missing, on_request = out.split(";")
    assert tells(missing, "raysync_updates")
    assert tells(on_request, "per_worker_histograms raysync_step_wait_seconds")
    url = serves(values(*EXPORTED), values("a"))
    _, out, _ = call("dashboards", "--check", "--prometheus", url)
    assert tells(out, f"{url} {len(REGISTRY)} {len(REGISTRY)} 1")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (values(), "raysync"),
        *(
            ((200, body), "address Prometheus")
            for body in (b"<html>", b"[]", b'{"data": 1}', b"\xff")
        ),
        ((404, b""), "HTTP Error 404"),
        ((503, b""), "HTTP Error 503"),
    ],
)
def test_what_is_no_prometheus_of_ours_is_answered_in_two_lines(call, serves, answer, says):
    code, _, err = call("dashboards", "--check", "--prometheus", serves(answer))
    assert code == 2
    assert tells(err, says)
    assert len(err.strip().splitlines()) <= 2


@pytest.mark.parametrize(
    "url",
    ["", "x", "there:9090", "ftp://there", "http://", "http://[::1", "http://a:b", "http://a:0"],
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ConfigError, match=naming(f"--prometheus {url}")):
        check_url(url, "--prometheus")
    assert check_url("http://[::1]:9090/", "--prometheus") == "http://[::1]:9090"
