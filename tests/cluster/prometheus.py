"""A real Prometheus that scrapes a real Ray cluster; the binary is Debian's, which `.ci/run`
fetches.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from threading import Event
from time import monotonic, time
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

BINARY = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    BINARY is None, reason="no prometheus on PATH (Debian: apt-get install prometheus)"
)

DEADLINE_S = 120
"""For whatever must come true; two queues of experiments may run beside."""
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - {{job_name: ray, file_sd_configs: [{{files: [{discovery}], refresh_interval: 1s}}]}}
"""
SETTLED = "min_over_time(sum(ray_raysync_updates_total)[3s:1s])"
"""What was there for so long has all of the same moment beside it: Ray reports every second, but
not all at once."""
ROOT = Path(__file__).parents[2]

WORKERS = [{"name": "fast", "count": 2, "step_s": 0.02}, {"name": "slow", "step_s": 0.25}]
TINY = {
    "name": "metered",
    "model": "mlp",
    "data": {"name": "digits", "train_samples": 320, "test_samples": 50},
    "batch_size": 8,
    "evaluation": {"marks": 4},
    "target": {"metric": "loss", "at_most": 100.0},  # the initial model has it
    "workers": WORKERS,
    "cluster": {"metrics": {"per_worker_histograms": True}},
}
RUNS = (
    TINY
    | {"workload": {"samples": 320}, "paradigm": {"name": "lagtuner", "s_lower": 1, "s_upper": 4}},
    TINY
    | {
        "workload": {"samples": 2400},
        "paradigm": {"name": "sync-switch", "online": "elastic", "window": 2, "windows": 1},
    },
)
"""A few seconds each. In the second the slow worker is found, suspended, its push is dropped, and
the phase changes."""
SILENT = TINY | {"workload": {"samples": 24}, "paradigm": "bsp", "cluster": {"metrics": False}}


@dataclass
class Prometheus:
    """One that runs."""

    url: str
    began: float = field(default_factory=time)
    """Unix seconds."""

    def query(self, expression: str, **labels: str) -> list[dict[str, Any]]:
        """What it is now: `{"metric": labels, "value": [unix seconds, text]}` for each series.
        `$name` in the expression is replaced by `labels[name]`.

        Raises:
            ValueError: Prometheus does not understand it.
        """
        return self._ask("query", query=_filled(expression, labels))

    def history(self, expression: str, **labels: str) -> list[dict[str, Any]]:
        """What it was, each second since this Prometheus began, as a Grafana panel asks: `values`
        in place of `value`.
        """
        return self._ask(
            "query_range", query=_filled(expression, labels), start=self.began, end=time(), step=1
        )

    def until(self, holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait for that, or fail."""
        end = monotonic() + deadline_s
        while not holds():
            assert monotonic() < end, f"not within {deadline_s:g} s: {what}"
            Event().wait(0.2)

    def total(self, expression: str) -> float:
        """The sum of all series of it, now; 0 of none."""
        return sum(float(series["value"][1]) for series in self.query(expression))

    def _ask(self, what: str, **parameters: Any) -> list[dict[str, Any]]:
        try:
            with urlopen(f"{self.url}/api/v1/{what}?{urlencode(parameters)}", timeout=30) as answer:
                return json.load(answer)["data"]["result"]
        except HTTPError as error:
            raise ValueError(f"{parameters['query']}: {json.load(error)['error']}") from error


def _filled(expression: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        expression = expression.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return expression


@contextmanager
def scraping(discovery: Path, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus on a free port, with Ray's own service-discovery file.

    Args:
        discovery: `prom_metrics_service_discovery.json` in Ray's session folder; it may come later.
        folder: for its data and its configuration.
    """
    (folder / "prometheus.yml").write_text(CONFIG.format(discovery=discovery))
    command = [
        BINARY,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = ""
            for line in process.stderr:
                port = port or "".join(re.findall(r'msg="Listening on" address=\S+:(\d+)', line))
                if "ready to receive web requests" in line:
                    break
            assert port, "it did not start"
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.communicate()


@dataclass
class Metered:
    """Runs on a Ray cluster, as a Prometheus saw them."""

    prometheus: Prometheus
    records: list[Path]
    folder: Path
    """With everything."""
    silent: Path
    """The record of one before them that publishes nothing."""


@contextmanager
def metered(folder: Path, *experiments: dict[str, Any], **environment: str) -> Iterator[Metered]:
    """Train those one after the other, in one session on a cluster of its own in another process,
    with Ray's dashboard.

    Ray reports every second there, and the cluster is gone afterwards, while the Prometheus still
    answers: ask for `history`. It has seen the last value of every counter.

    Args:
        folder: for everything.
        experiments: as in a file, of one cast of workers; `output` is added.
        environment: variables of that process.
    """
    whole = [experiment | {"output": str(folder / "runs")} for experiment in (SILENT, *experiments)]
    command = [sys.executable, "-m", "tests.cluster.metered", json.dumps(whole)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            session = Path(json.loads(process.stdout.readline()))
            with scraping(session / "prom_metrics_service_discovery.json", folder) as prometheus:
                silent, *records = [Path(json.loads(process.stdout.readline())) for _ in whole]
                updates = sum(
                    json.loads((record / "summary.json").read_text())["updates"]
                    for record in records
                )
                prometheus.until(
                    lambda: prometheus.total(SETTLED) >= updates, "the last update is seen"
                )
                process.communicate()  # its standard input ends, and so does the cluster
                yield Metered(prometheus, records, folder, silent)
        finally:
            process.terminate()
            process.communicate()
