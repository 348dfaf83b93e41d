"""The logs of actors: quiet, a line for each thing that matters, with what it is about as fields of
the record.

Where Ray's own structured logging is on (`ray.init(logging_config=...)`), the records go through
its handlers and the fields become keys of its JSON; otherwise a line of text goes to the actor's
stderr, which the dashboard shows as its log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from raysync.config import Experiment
from raysync.core.journal import Line
from raysync.core.paradigm import AnyParadigm
from raysync.record.event_text import texts_of
from raysync.record.metrics import RunLabels

LOGGER = "raysync"
LINE = "%(asctime)s %(levelname)s %(actor)s at_s=%(at_s)s kind=%(kind)s %(message)s"


def log_to_stderr(actor: str) -> None:
    """Called once in an actor's process, before it logs.

    Args:
        actor: what it is, without blanks.
    """
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter(LINE, defaults={"actor": actor, "at_s": "-", "kind": "-"})
        )
        logger.addHandler(handler)


def log_begin(
    paradigm: AnyParadigm, experiment: Experiment, workload_samples: int, labels: RunLabels | None
) -> None:
    """A run begins: its experiment (of a trial SWEEP/TRIAL) and the name of its record."""
    name = f"{labels.experiment}/{labels.run}" if labels else experiment.name
    parameters = ", ".join(f"{name}={value}" for name, value in paradigm.parameters().items())
    logging.getLogger(LOGGER).info(
        "%s begins: %s on %s, %d workers, %d samples, seed %d, under %s",
        name,
        experiment.model.name,
        experiment.data.name,
        experiment.worker_count,
        workload_samples,
        experiment.seed,
        f"{paradigm.name}({parameters})" if parameters else paradigm.name,
        extra={"kind": "begin", "at_s": 0.0, "worker": ""},
    )


def log_ready(model: str, devices: Sequence[str]) -> None:
    """A worker can begin."""
    logging.getLogger(LOGGER).info(
        "ready to train %s on %s",
        model,
        ", ".join(devices),
        extra={"kind": "ready", "at_s": 0.0, "worker": ""},
    )


def log_events(lines: Iterable[Line]) -> None:
    """What is rare in them, as it happened."""
    logger = logging.getLogger(LOGGER)
    for line in lines:
        for news in texts_of(line):
            if news.rare:
                logger.info(
                    news.text,
                    extra={"kind": news.kind, "at_s": round(news.at, 3), "worker": news.worker},
                )
