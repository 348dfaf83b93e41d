"""`raysync dashboards`: write files for Prometheus and Grafana, and check a Prometheus."""

from __future__ import annotations

import json
from configparser import ConfigParser
from dataclasses import dataclass
from http.client import HTTPException
from importlib.resources import files
from io import StringIO
from pathlib import Path
from shlex import join
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import typer
import yaml

from raysync.cli.app import app
from raysync.cli.console import console
from raysync.errors import ConfigError
from raysync.record.metrics_registry import ON_REQUEST, REGISTRY
from raysync.record.storage import written

RAY_FOLDER = "/tmp/ray"
"""The folder of Ray's sessions, unless `ray start --temp-dir` says otherwise."""
DISCOVERY = "prom_metrics_service_discovery.json"
"""Ray's list of its endpoints in that folder, always up to date."""
BOARDS = "grafana/dashboards"
SCRAPE_S = 10  # Ray's processes report this often
TIMEOUT_S = 10
ALL_SERIES = '{__name__=~"ray_raysync_.+"}'

Folder = Annotated[
    Path | None, typer.Argument(metavar="DIR", show_default=False, help="Folder to write to.")
]
Prometheus = Annotated[
    str, typer.Option(metavar="URL", help="Address at which Prometheus runs, or will run.")
]
Ray = Annotated[
    str,
    typer.Option(
        "--ray",
        metavar="FOLDER|URL",
        help=(
            "On the head node: Ray's temporary folder. Elsewhere: the address of the Ray dashboard,"
            " http://HEAD:8265, which Prometheus then asks for the endpoints."
        ),
    ),
]
Token = Annotated[
    Path | None,
    typer.Option(
        "--ray-token",
        metavar="FILE",
        show_default=False,
        help="With --ray URL, if Ray requires a token: the file that holds it.",
    ),
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
    folder: Folder = None,
    prometheus: Prometheus = "http://localhost:9090",
    ray: Ray = RAY_FOLDER,
    ray_token: Token = None,
    check: Check = False,
) -> None:
    """Write Grafana dashboards, their provisioning, and a prometheus.yml for a Ray cluster, ready
    to be started.
    """
    prometheus = check_url(prometheus, "--prometheus")
    if folder is None and not check:
        raise ConfigError("dashboards: name the folder DIR to write to, or give --check.")
    if folder is not None:
        _write(folder.expanduser().resolve(), prometheus, _monitored_cluster(ray, ray_token))
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


@dataclass(frozen=True)
class MonitoredCluster:
    """The parts of a Ray cluster's configuration for Prometheus and Grafana."""

    discovery: dict[str, Any]
    """The discovery of Ray's endpoints, a part of a scrape configuration."""
    boards: Path | None
    """The folder of Ray's own dashboards, if this machine has them."""


def _monitored_cluster(ray: str, token: Path | None) -> MonitoredCluster:
    if "://" in ray:
        if token is not None and not token.is_file():
            raise ConfigError(f"--ray-token {token}: there is no such file.")
        bearer = (
            {"authorization": {"type": "Bearer", "credentials_file": str(token.absolute())}}
            if token
            else {}
        )
        endpoint = {
            "url": f"{check_url(ray, '--ray')}/api/prometheus/sd",
            "refresh_interval": f"{SCRAPE_S}s",
            **bearer,
        }
        return MonitoredCluster({"http_sd_configs": [endpoint]}, None)
    if token is not None:
        raise ConfigError("--ray-token: only with --ray http://HEAD:8265; a folder needs none.")
    folder = Path(ray).expanduser().absolute()
    if ":" in ray or folder.is_file():
        raise ConfigError(
            f"--ray {ray}: Ray's temporary folder ({RAY_FOLDER}) or http://HEAD:8265 is expected."
        )
    discovery = {"files": [str(folder / DISCOVERY)], "refresh_interval": f"{SCRAPE_S}s"}
    return MonitoredCluster(
        {"file_sd_configs": [discovery]}, folder / "session_latest/metrics/grafana/dashboards"
    )


def _write(folder: Path, prometheus: str, cluster: MonitoredCluster) -> None:
    with written(folder):
        for name, text in _files(folder, prometheus, cluster).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    start_prometheus = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/prometheus",
    ]
    start_grafana = ["grafana", "server", "--homepath", "/usr/share/grafana"]
    start_grafana += ["--config", f"{folder}/grafana/grafana.ini"]
    lines = (f"Written: {folder}", join(start_prometheus), join(start_grafana))
    console.print_plain("\n".join(lines))


def _files(folder: Path, prometheus: str, cluster: MonitoredCluster) -> dict[str, str]:
    return {  # path in the folder -> text
        "prometheus.yml": _yaml(
            {
                "global": {"scrape_interval": f"{SCRAPE_S}s"},
                "scrape_configs": [{"job_name": "ray", **cluster.discovery}],
            }
        ),
        "grafana/grafana.ini": _grafana_ini(folder / "grafana"),
        "grafana/provisioning/datasources/raysync.yml": _yaml(_data_source(prometheus)),
        "grafana/provisioning/dashboards/raysync.yml": _yaml(
            _providers(folder / BOARDS, cluster.boards)
        ),
        **{
            f"{BOARDS}/{file.name}": file.read_text(encoding="utf-8")
            for file in (files("raysync") / "dashboards").iterdir()
            if file.name.endswith(".json")
        },
    }


def _grafana_ini(folder: Path) -> str:
    settings = ConfigParser(interpolation=None)
    settings.read_dict(
        {
            "paths": {
                "data": folder / "data",
                "logs": folder / "data" / "log",
                "provisioning": folder / "provisioning",
            },
            # without a login, as in Ray's own settings
            "auth.anonymous": {"enabled": "true", "org_role": "Viewer"},
            "security": {"allow_embedding": "true"},  # the Ray dashboard embeds the panels
        }
    )
    text = StringIO()
    settings.write(text)
    return text.getvalue()


def _data_source(prometheus: str) -> dict[str, Any]:
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "Prometheus",  # the Ray dashboard expects this name
                "type": "prometheus",
                "url": prometheus,
                "access": "proxy",
                "isDefault": True,
                "jsonData": {"timeInterval": f"{SCRAPE_S}s"},
            }
        ],
    }


def _providers(raysync_boards: Path, ray_boards: Path | None) -> dict[str, Any]:
    folders = {"raysync": raysync_boards, "Ray": ray_boards}
    return {
        "apiVersion": 1,
        "providers": [
            {"name": name, "folder": name, "type": "file", "options": {"path": str(path)}}
            for name, path in folders.items()
            if path
        ],
    }


def _yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False)


def check_url(url: str, option: str) -> str:
    """Remove the slash at an address's end; refuse what is no address."""
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
        raise ConfigError(f"--prometheus {url}: the server at that address is no Prometheus.")
    return values


def _read_json(query_url: str, url: str) -> Any:
    try:
        with urlopen(query_url, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise ConfigError(
            f"--prometheus {url}: the server at that address is no Prometheus, or is not ready"
            f" ({error})."
        ) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"--prometheus {url}: no answer ({getattr(reason, 'strerror', None) or reason})."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"--prometheus {url}: the server at that address is no Prometheus."
        ) from error
