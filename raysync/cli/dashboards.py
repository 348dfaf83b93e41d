"""`raysync dashboards`: what Prometheus and Grafana need to show raysync's runs on a Ray
cluster.
"""

from __future__ import annotations

from configparser import ConfigParser
from dataclasses import dataclass
from importlib.resources import files
from io import StringIO
from pathlib import Path
from shlex import join
from typing import Annotated, Any

import typer
import yaml

from raysync.cli.app import app, console
from raysync.cli.prometheus import check_url, known
from raysync.errors import ConfigError
from raysync.record.metrics import REGISTRY

RAY_FOLDER = "/tmp/ray"
"""Where Ray keeps its sessions, unless `ray start --temp-dir` says otherwise."""
DISCOVERY = "prom_metrics_service_discovery.json"
"""In that folder: Ray's list of its endpoints, always up to date."""
BOARDS = "grafana/dashboards"
SCRAPE_S = 10
"""As often as Ray's processes report."""

Folder = Annotated[Path | None, typer.Argument(metavar="DIR", show_default=False, help="Where to.")]
Prometheus = Annotated[str, typer.Option(metavar="URL", help="Where Prometheus is, or will be.")]
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
        help="With --ray URL, where Ray asks for a token: the file that has it.",
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help=(
            "Ask Prometheus whether it knows raysync's metrics (after writing, if a DIR is named)."
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
        raise ConfigError("dashboards: a DIR to write to is missing (or --check).")
    if folder is not None:
        _write(folder.expanduser().resolve(), prometheus, _cluster(ray, ray_token))
    if check:
        metrics, runs = known(prometheus)
        missing = ", ".join(name for name in REGISTRY if name not in metrics)
        of_runs = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        say(
            f"{prometheus} knows {len(metrics)} of {len(REGISTRY)} metrics of raysync, of {of_runs}"
            + (f"; not, or not yet: {missing}" if missing else "")
        )


def say(text: str) -> None:
    """As it is: paths and names are not markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Cluster:
    """What there is to know of a Ray cluster."""

    discovery: dict[str, Any]
    """How Prometheus learns of Ray's endpoints: part of its scrape configuration."""
    boards: Path | None
    """Ray's own dashboards, where this machine has them."""


def _cluster(ray: str, token: Path | None) -> Cluster:
    if "://" in ray:
        if token is not None and not token.is_file():
            raise ConfigError(f"--ray-token {token}: there is no such file.")
        bearer = (
            {"authorization": {"type": "Bearer", "credentials_file": str(token.absolute())}}
            if token
            else {}
        )
        question = {
            "url": f"{check_url(ray, '--ray')}/api/prometheus/sd",
            "refresh_interval": f"{SCRAPE_S}s",
            **bearer,
        }
        return Cluster({"http_sd_configs": [question]}, None)
    if token is not None:
        raise ConfigError("--ray-token: only with --ray http://HEAD:8265; a folder asks for none.")
    folder = Path(ray).expanduser().absolute()
    if ":" in ray or folder.is_file():
        raise ConfigError(
            f"--ray {ray}: Ray's temporary folder ({RAY_FOLDER}) or http://HEAD:8265 is expected."
        )
    discovery = {"files": [str(folder / DISCOVERY)], "refresh_interval": f"{SCRAPE_S}s"}
    return Cluster(
        {"file_sd_configs": [discovery]}, folder / "session_latest/metrics/grafana/dashboards"
    )


def _write(folder: Path, prometheus: str, cluster: Cluster) -> None:
    try:
        for name, text in _files(folder, prometheus, cluster).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror or error}).") from error
    say(
        "\n".join(
            (
                f"Written: {folder}",
                join(
                    [
                        "prometheus",
                        f"--config.file={folder}/prometheus.yml",
                        f"--storage.tsdb.path={folder}/prometheus",
                    ]
                ),
                join(
                    [
                        "grafana",
                        "server",
                        "--homepath",
                        "/usr/share/grafana",
                        "--config",
                        f"{folder}/grafana/grafana.ini",
                    ]
                ),
            )
        )
    )


def _files(folder: Path, prometheus: str, cluster: Cluster) -> dict[str, str]:
    """Path in the folder -> what it holds."""
    return {
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
    """Grafana with its files in that folder; whoever opens it may look without logging in, as with
    Ray's settings.
    """
    settings = ConfigParser(interpolation=None)
    settings.read_dict(
        {
            "paths": {
                "data": folder / "data",
                "logs": folder / "data" / "log",
                "provisioning": folder / "provisioning",
            },
            "auth.anonymous": {"enabled": "true", "org_role": "Viewer"},
            "security": {"allow_embedding": "true"},  # in the Ray dashboard
        }
    )
    text = StringIO()
    settings.write(text)
    return text.getvalue()


def _data_source(prometheus: str) -> dict[str, Any]:
    """Under the name by which the Ray dashboard asks for it."""
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "Prometheus",
                "type": "prometheus",
                "url": prometheus,
                "access": "proxy",
                "isDefault": True,
                "jsonData": {"timeInterval": f"{SCRAPE_S}s"},
            }
        ],
    }


def _providers(ours: Path, rays: Path | None) -> dict[str, Any]:
    """Folders of dashboards that Grafana reads, again and again."""
    folders = {"raysync": ours, "Ray": rays}
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
