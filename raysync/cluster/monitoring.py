"""Logs and metrics of a running actor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ray.util import metrics

from raysync.cluster.clock import now_s
from raysync.config import Experiment
from raysync.core.journal import Line
from raysync.core.paradigm import AnyParadigm
from raysync.record.collector import Collected
from raysync.record.event_text import texts_of
from raysync.record.metrics_registry import REGISTRY, RunLabels

LOGGER = "raysync"
LOG_FORMAT = "%(asctime)s %(levelname)s %(actor)s at_s=%(at_s)s kind=%(kind)s %(message)s"
# how long a server adds up its seconds: publishing those of each update is slow
PUBLISH_EVERY_S = 1.0
FIRST_VALUE = 1e-9  # the first value of a counter, since 0 is not published


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

    Behaviour of Ray 2.60 (measured): a process sends changes to its node's agent periodically, and
    when it ends, also by `ray.kill`. A gauge that is not set again within two intervals vanishes,
    so a running run sets its gauges repeatedly. A counter stays until the agent ends. NaN is not
    published. A histogram's `_sum` is made of the middles of its buckets: for means, divide the
    counters of seconds and pushes.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._has_failed = False

    def publish(self, collect: Callable[[], Collected]) -> None:
        """Publish what `collect` returns; its errors count as Ray's."""
        if self._has_failed:
            return
        try:
            collected = collect()
            for (name, labels), increment in collected.counters.items():
                self._metric(name).inc(increment or FIRST_VALUE, _tags(name, labels))
            for (name, labels), value in collected.gauges.items():
                self._metric(name).set(value, _tags(name, labels))
            for (name, labels), values in collected.histograms.items():
                metric, tags = self._metric(name), _tags(name, labels)
                for value in values:
                    metric.observe(value, tags)
        except Exception:
            self._has_failed = True
            logging.getLogger(__name__).exception("the run publishes no more metrics")

    def _metric(self, name: str) -> Any:
        if name not in self._metrics:  # a second one would be the same, with the first description
            self._metrics[name] = _create_metric(name)
        return self._metrics[name]


class UpdateSeconds:
    """The seconds of a server's updates, counted in its process to save round trips."""

    def __init__(self, exporter: Exporter, labels: RunLabels | None) -> None:
        self._exporter = exporter
        self._key = None if labels is None else ("raysync_server_update_seconds", labels.values)
        self._unpublished_s = 0.0
        self._published_at_s = now_s()
        if self._key is not None:
            self._publish(0.0)  # it is divided by the counted updates, which begin with 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of an update, or of a part of one."""
        began_s = now_s()
        yield
        if self._key is None:
            return
        ended_s = now_s()
        self._unpublished_s += ended_s - began_s
        if ended_s >= self._published_at_s + PUBLISH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Publish new seconds; called with each publication of weights, so at the end too."""
        if self._key is not None and self._unpublished_s > 0:
            self._publish(self._unpublished_s)
            self._unpublished_s, self._published_at_s = 0.0, now_s()

    def _publish(self, seconds: float) -> None:
        assert self._key is not None, "a run without labels publishes nothing"
        key = self._key
        self._exporter.publish(lambda: Collected(counters={key: seconds}))


def _create_metric(name: str) -> Any:
    metric = REGISTRY[name]
    match metric.kind:
        case "counter":
            return metrics.Counter(name, metric.help, metric.labels)
        case "gauge":
            return metrics.Gauge(name, metric.help, metric.labels)
        case "histogram":
            return metrics.Histogram(name, metric.help, list(metric.buckets), metric.labels)


def _tags(name: str, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(REGISTRY[name].labels, labels, strict=True))
