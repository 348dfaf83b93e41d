"""Asks a Prometheus what it knows of raysync."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

from raysync.errors import ConfigError
from raysync.record.metrics import REGISTRY

PATIENCE_S = 10
EVERYTHING = '{__name__=~"ray_raysync_.+"}'


def check_url(url: str, option: str) -> str:
    """An address without a slash at its end.

    Raises:
        ConfigError: it is none.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets that do not match, a port that is no number
        good = False
    if not good:
        raise ConfigError(f"{option} {url}: http://HOST:PORT is expected.")
    return url.rstrip("/")


def known(url: str) -> tuple[set[str], list[str]]:
    """Which metrics of the registry a Prometheus has, by name in the registry, and of which runs.

    Raises:
        ConfigError: there is no Prometheus at that address, or it has none of them.
    """
    series = set(_values(url, "__name__"))
    metrics = {
        metric.name
        for metric in REGISTRY.values()
        if series & {metric.exported, f"{metric.exported}_bucket"}
    }
    if not metrics:
        raise ConfigError(
            f"{url}: a Prometheus, but it knows no metric of raysync. Has a run begun, on the"
            f" cluster that it scrapes?\nIts targets: {url}/targets"
        )
    return metrics, _values(url, "run")


def _values(url: str, label: str) -> list[str]:
    """Of a label, in raysync's series."""
    answer = _ask(f"{url}/api/v1/label/{label}/values?{urlencode({'match[]': EVERYTHING})}", url)
    values = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(values, list):
        raise ConfigError(f"--prometheus {url}: what answers there is no Prometheus.")
    return values


def _ask(question: str, url: str) -> Any:
    try:
        with urlopen(question, timeout=PATIENCE_S) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise ConfigError(
            f"--prometheus {url}: what answers there is no Prometheus, or is not ready ({error})."
        ) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"--prometheus {url}: no answer ({getattr(reason, 'strerror', None) or reason})."
        ) from error
    except ValueError as error:
        raise ConfigError(f"--prometheus {url}: what answers there is no Prometheus.") from error
