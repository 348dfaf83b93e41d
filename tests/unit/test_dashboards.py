"""The Grafana dashboards: what they name exists, everything is shown, and `raysync dashboards`
writes them.

What the expressions return is tested with a real Prometheus in tests/cluster/test_expressions.py.
"""

import json
import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from hypothesis import given, strategies as st

from dashboards.__main__ import generated
from dashboards.panels import series
from raysync import cli
from raysync.cli.dashboards import NEXT, check_url
from raysync.errors import ConfigError
from raysync.record.metrics_registry import CLOCKS, REGISTRY
from tests.builders.messages import tells
from tests.cluster.boards import BOARDS, PANELS, asked, choices

EXPORTED = {
    f"{metric.exported}{part}"
    for metric in REGISTRY.values()
    for part in (("_bucket", "_count") if metric.buckets else ("",))
}
"""Not `_sum`: Ray approximates it by the middles of the buckets."""
# ---- the dashboards ----


def test_the_committed_json_is_what_the_script_makes():
    assert {path.name: text for path, text in generated().items()} == {
        path.name: path.read_text(encoding="utf-8")
        for path in Path(next(iter(generated()))).parent.iterdir()
    }, "run python -m dashboards"


@pytest.mark.parametrize("board", BOARDS)
def test_the_types_of_grafana_know_every_field(board):
    """A field that they do not know, or know as something else, does not come back."""
    register_default_plugins()
    read = Dashboard.from_json(BOARDS[board])
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == BOARDS[board]


def rays_own():
    """The metrics that Ray's agents publish, and those of Ray's own dashboard."""
    from ray.dashboard.modules.metrics.grafana_dashboard_factory import (
        generate_default_grafana_dashboard,
    )
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    text, _ = generate_default_grafana_dashboard()
    return {f"ray_{name}" for name in METRICS_GAUGES} | set(re.findall(r"\bray_\w+", text))


def test_every_metric_that_is_named_exists():
    named = {name for one in asked() for name in re.findall(r"\bray_\w+", one.expression)}
    named |= {name for _, series, _ in choices() for name in re.findall(r"\bray_\w+", series)}
    ours = {name for name in named if name.startswith("ray_raysync_")}
    assert ours <= EXPORTED
    assert named - ours <= rays_own()


def test_every_metric_of_the_registry_is_shown():
    shown = " ".join(one.expression for one in asked())
    assert not [
        metric.name
        for metric in REGISTRY.values()
        if not re.search(rf"\b{metric.exported}(_bucket)?\b", shown)
    ]


def test_a_metric_that_the_registry_lacks_cannot_be_asked_for():
    with pytest.raises(KeyError):
        series("raysync_pusches")


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
    asked_for = [
        one
        for one in asked()
        if "histogram_quantile" in one.expression and any(name in one.expression for name in counts)
    ]
    assert asked_for
    for one in asked_for:
        assert one.expression.startswith("ceil (histogram_quantile(")
        assert one.expression.endswith(" - 0.5)")


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
    asked_for = re.compile("|".join(name.exported for name in REGISTRY.values() if is_rare(name)))
    panels = [(panel, [each["expr"] for each in panel["targets"]]) for _, panel in PANELS]
    rare = [(panel, exprs) for panel, exprs in panels if asked_for.search(" ".join(exprs))]
    assert rare
    for panel, expressions in rare:
        assert not all(asked_for.search(each) for each in expressions), panel["title"]
        assert "per_worker_histograms" in panel["description"]


def is_rare(metric):
    return metric.kind == "histogram" and "worker" in metric.labels


def test_legends_name_labels_that_are_left():
    for one in asked():
        left = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([\w, ]+)\)", one.expression))))
        assert set(re.findall(r"\{\{(\w+)\}\}", one.legend)) <= left, one


@pytest.mark.parametrize("what", ["legendFormat", "expr", "refId"])
def test_the_expressions_of_a_panel_differ(what):
    for name, panel in PANELS:
        of_panel = [target[what] for target in panel["targets"]]
        assert len(of_panel) == len(set(of_panel)), f"{name}: {panel['title']}"


@pytest.mark.parametrize(
    ("board", "panel"),
    PANELS,
    ids=lambda value: value if isinstance(value, str) else value["title"],
)
def test_a_panel_says_what_is_seen(board, panel):
    assert panel["title"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    helps = [
        metric.help
        for metric in REGISTRY.values()
        if any(
            re.search(rf"\b{metric.exported}(_bucket)?\b", target["expr"])
            for target in panel["targets"]
        )
    ]
    assert all(text in panel["description"] for text in helps)
    if panel["type"] != "heatmap":
        assert panel["fieldConfig"]["defaults"]["unit"]


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
    assert {board["uid"] for board in BOARDS.values()} == {
        "raysync-run",
        "raysync-sweep",
        "raysync-fleet",
    }
    for board in BOARDS.values():
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))
        assert board["tags"] == board["links"][0]["tags"] == ["raysync"]
        source = board["templating"]["list"][0]
        assert (source["name"], source["type"], source["current"]["text"]) == (
            "datasource",
            "datasource",
            "Prometheus",
        )


# ---- the command ----


@pytest.fixture
def call(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["raysync", "dashboards", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return call


def test_the_dashboards_are_written_and_ray_is_told_where_they_are(tmp_path, call):
    folder = tmp_path / "a folder"
    for _ in range(2):  # again: over what is there
        code, out, _ = call(folder)
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
    code, out, _ = call("--check", "--prometheus", url)
    assert code == 0
    assert tells(out, f"{url} 2 {len(REGISTRY)} 2")
    assert not {"raysync_pushes,", "raysync_step_busy_seconds,"} & set(out.split())
    *_, missing, on_request = out.split(";")
    assert tells(missing, "raysync_updates")
    assert tells(on_request, "per_worker_histograms raysync_step_wait_seconds")
    url = serves(values(*EXPORTED), values("a"))
    _, out, _ = call("--check", "--prometheus", url)
    assert tells(out, f"{url} {len(REGISTRY)} {len(REGISTRY)} 1")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (values(), "raysync"),
        ((200, b"<html>"), "address Prometheus"),
        ((200, b"[]"), "address Prometheus"),
        ((200, b'{"data": 1}'), "address Prometheus"),
        ((200, b"\xff"), "address Prometheus"),
        ((404, b""), "HTTP Error 404"),
        ((503, b""), "HTTP Error 503"),
    ],
)
def test_what_is_no_prometheus_of_ours_is_answered_in_two_lines(call, serves, answer, says):
    code, _, err = call("--check", "--prometheus", serves(answer))
    assert code == 2
    assert tells(err, says)
    assert len(err.strip().splitlines()) <= 2


@given(st.text(max_size=20))
def test_any_text_is_an_address_or_a_mistake(text):
    for url in (text, f"http://{text}"):
        with suppress(ConfigError):
            assert check_url(url, "--prometheus").startswith("http")
