"""Logs and metrics of a running actor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock, Timer
from typing import Any

from ray.util import metrics

from raysync.cluster.clock import now_s
from raysync.config import Experiment
from raysync.core.journal import Line
from raysync.core.paradigm import AnyParadigm
from raysync.record.collector import Collected, Key
from raysync.record.event_text import texts_of
from raysync.record.metrics_registry import REGISTRY, RunLabels
from raysync.record.series import RunSeries

LOGGER = "raysync"
LOG_FORMAT = "%(asctime)s %(levelname)s %(actor)s at_s=%(at_s)s kind=%(kind)s %(message)s"
# how long a server adds up its seconds: publishing those of each update is slow
PUBLISH_EVERY_S = 1.0
# How long the last values of a run stay: Ray reports and Prometheus asks every 10 s
LINGER_S = 60.0
MOST_RUNS = 8  # in one process; of short runs the oldest leave earlier
SERIES = {
    name: (metric.help, labels)
    for metric in REGISTRY.values()
    for name, labels in metric.series.items()
}


def log_to_stderr(actor: str) -> None:
    """Set up the log of an actor's process."""
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    # With `ray.init(logging_config=...)` records go to Ray's handlers, which write JSON.
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter(LOG_FORMAT, defaults={"actor": actor, "at_s": "-", "kind": "-"})
        )
        logger.addHandler(handler)


def log_begin(
    paradigm: AnyParadigm, experiment: Experiment, workload_samples: int, labels: RunLabels | None
) -> None:
    """Log the beginning of a run: its experiment (of a trial SWEEP/TRIAL) and its record's name."""
    name = f"{labels.experiment}/{labels.run}" if labels else experiment.name
    parameters = ", ".join(f"{name}={value}" for name, value in paradigm.parameters().items())
    logging.getLogger(LOGGER).info(
        "%s begins: %s, %d workers, %d samples, seed %d, under %s",
        name,
        experiment.subject,
        experiment.worker_count,
        workload_samples,
        experiment.seed,
        f"{paradigm.name}({parameters})" if parameters else paradigm.name,
        extra={"kind": "begin", "at_s": 0.0, "worker": ""},
    )


def log_ready(model: str, devices: Sequence[str]) -> None:
    logging.getLogger(LOGGER).info(
        "ready to train %s on %s",
        model,
        ", ".join(devices),
        extra={"kind": "ready", "at_s": 0.0, "worker": ""},
    )


def log_events(lines: Iterable[Line]) -> None:
    """Log the rare events of these lines."""
    logger = logging.getLogger(LOGGER)
    for line in lines:
        for event in texts_of(line):
            if event.rare:
                logger.info(
                    event.text,
                    extra={"kind": event.kind, "at_s": round(event.at, 3), "worker": event.worker},
                )


class Exporter:
    """The metrics of this process; the first error is logged, and ends publishing, not training.

    Behaviour of Ray 2.60 (measured): a process sends its values to its node's agent periodically,
    and when it ends, also by `ray.kill`. A counter or histogram stays until the agent ends; a gauge
    until it is set to NaN, or its process has ended for two periods. So all series are published as
    gauges, whatever they are in the registry. A cluster's agents tell 2,000 series of a name apart
    in their life, ended ones too, and mix up any further ones.
    """

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}  # name of a series -> Ray's metric
        # the values of a run's labels -> its series, and when they were published; the latest last
        self._runs: dict[tuple[str, ...], tuple[RunSeries, float]] = {}
        self._lock = Lock()
        self._timer: Timer | None = None  # ends the series of runs that no other follows
        self._has_failed = False

    def publish(self, collect: Callable[[], Collected]) -> None:
        """Publish what `collect` returns; its errors count as Ray's."""
        with self._lock, self._giving_up():
            if self._has_failed:
                return
            collected = collect()
            series, _ = self._runs.pop(collected.run, (RunSeries(), 0.0))
            self._runs[collected.run] = series, now_s()
            self._set(series.add(collected))
            self._end_runs()
            if self._timer is None:
                self._start_timer()

    def _end_runs(self) -> None:
        """End the series of all runs but those that go on, or have just ended."""
        for run, (series, published_at_s) in list(self._runs.items()):
            if len(self._runs) > MOST_RUNS or now_s() >= published_at_s + LINGER_S:
                del self._runs[run]
                self._set(series.end())

    def _start_timer(self) -> None:
        self._timer = Timer(LINGER_S, self._end_runs_later)
        self._timer.daemon = True
        self._timer.start()

    def _end_runs_later(self) -> None:
        with self._lock, self._giving_up():
            self._end_runs()
            self._timer = None
            if self._runs:
                self._start_timer()

    def _set(self, values: Mapping[Key, float]) -> None:
        for (name, labels), value in values.items():
            help_text, keys = SERIES[name]
            if name not in self._gauges:
                self._gauges[name] = metrics.Gauge(name, help_text, keys)
            self._gauges[name].set(value, dict(zip(keys, labels, strict=True)))

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Publish nothing more after an error."""
        try:
            yield
        except Exception:
            self._has_failed = True
            logging.getLogger(__name__).exception("the run publishes no more metrics")


class UpdateSeconds:
    """The seconds of a server's updates, counted in its process to save round trips."""

    def __init__(self, exporter: Exporter, labels: RunLabels | None) -> None:
        self._exporter = exporter
        self._run = None if labels is None else labels.values
        self._unpublished_s = 0.0
        self._published_at_s = now_s()
        if self._run is not None:
            self._publish(0.0)  # it is divided by the counted updates, which begin with 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of an update, or of a part of one."""
        began_s = now_s()
        yield
        if self._run is None:
            return
        ended_s = now_s()
        self._unpublished_s += ended_s - began_s
        if ended_s >= self._published_at_s + PUBLISH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Publish new seconds; called with each publication of weights, so at the end too."""
        if self._run is not None and self._unpublished_s > 0:
            self._publish(self._unpublished_s)
            self._unpublished_s, self._published_at_s = 0.0, now_s()

    def _publish(self, seconds: float) -> None:
        assert self._run is not None, "a run without labels publishes nothing"
        changes = Collected(self._run, {("raysync_server_update_seconds", self._run): seconds})
        self._exporter.publish(lambda: changes)
