"""`raysync dashboards`: write Grafana dashboards beside Ray's own, and check a Prometheus."""

from __future__ import annotations

import json
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import typer

from raysync.cli.app import app
from raysync.cli.console import console
from raysync.errors import ConfigError
from raysync.record.metrics_registry import ON_REQUEST, REGISTRY
from raysync.record.storage import written

TIMEOUT_S = 10
NO_PROMETHEUS = "the server at that address is no Prometheus"
ALL_SERIES = '{__name__=~"ray_raysync_.+"}'
# Ray's head adds its own dashboards to the folder, and settings to start Prometheus and Grafana
NEXT = """\
Written: {folder}/dashboards
export RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR={folder}/dashboards
ray start --head
prometheus --config.file=/tmp/ray/session_latest/metrics/prometheus/prometheus.yml \
--storage.tsdb.path={folder}/prometheus
GF_PATHS_DATA={folder}/grafana GF_PATHS_LOGS={folder}/grafana grafana server \
--homepath /usr/share/grafana --config /tmp/ray/session_latest/metrics/grafana/grafana.ini"""

Folder = Annotated[
    Path | None, typer.Argument(metavar="DIR", show_default=False, help="Folder to write to.")
]
Prometheus = Annotated[
    str, typer.Option(metavar="URL", help="For --check: the address of Prometheus.")
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help=(
            "Ask Prometheus whether it knows raysync's metrics (after writing, if DIR is given)."
        ),
    ),
]


@app.command()
def dashboards(
    folder: Folder = None, prometheus: Prometheus = "http://localhost:9090", check: Check = False
) -> None:
    """Write Grafana dashboards to DIR, and print how to start Ray, Prometheus and Grafana."""
    prometheus = check_url(prometheus, "--prometheus")
    if folder is None and not check:
        raise ConfigError("dashboards: name the folder DIR to write to, or give --check.")
    if folder is not None:
        _write(folder.expanduser().resolve())
    if check:
        metrics, runs = known(prometheus)
        missing = [metric for metric in REGISTRY.values() if metric.name not in metrics]
        rare = [metric.name for metric in missing if ON_REQUEST in metric.help]
        others = [metric.name for metric in missing if metric.name not in rare]
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        console.print_plain(
            f"{prometheus} knows {len(metrics)} of {len(REGISTRY)} metrics of raysync, of {count}"
            + (f"; missing so far: {', '.join(others)}" if others else "")
            + (f"; only with per_worker_histograms: {', '.join(rare)}" if rare else "")
        )


def _write(folder: Path) -> None:
    boards = folder / "dashboards"
    with written(folder):
        boards.mkdir(parents=True, exist_ok=True)
        for file in (files("raysync") / "dashboards").iterdir():
            (boards / file.name).write_bytes(file.read_bytes())
    console.print_plain(NEXT.format(folder=quote(str(folder))))


def check_url(url: str, option: str) -> str:
    """Check an address, and remove the slash at its end."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets that do not match, or a port that is no number
        is_address = False
    if not is_address:
        raise ConfigError(f"{option} {url}: http://HOST:PORT is expected.")
    return url.rstrip("/")


def known(url: str) -> tuple[set[str], list[str]]:
    """Ask a Prometheus for its raysync metrics, by registry name, and for its runs.

    Raises:
        ConfigError: there is no Prometheus at that address, or it has none of the metrics.
    """
    series = set(_label_values(url, "__name__"))
    metrics = {
        metric.name
        for metric in REGISTRY.values()
        if series & {metric.exported, f"{metric.exported}_bucket"}
    }
    if not metrics:
        raise ConfigError(
            f"{url}: this Prometheus has no metric of raysync. Has a run begun on the cluster"
            " that it scrapes?\n"
            f"Its targets: {url}/targets"
        )
    return metrics, _label_values(url, "run")


def _label_values(url: str, label: str) -> list[str]:
    query = urlencode({"match[]": ALL_SERIES})
    answer = _read_json(f"{url}/api/v1/label/{label}/values?{query}", url)
    values = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(values, list):
        raise ConfigError(f"--prometheus {url}: {NO_PROMETHEUS}.")
    return values


def _read_json(query_url: str, url: str) -> Any:
    try:
        with urlopen(query_url, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except HTTPError as error:
        problem = f"{NO_PROMETHEUS}, or is not ready ({error})"
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        problem = f"no answer ({getattr(reason, 'strerror', None) or reason})"
    except ValueError:
        problem = NO_PROMETHEUS
    raise ConfigError(f"--prometheus {url}: {problem}.")
