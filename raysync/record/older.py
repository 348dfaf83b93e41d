"""Read what an older raysync wrote, whose targets were `target_accuracy` and `target_loss`, and
whose records do not name the primary metric, nor tell when a gradient was computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysync.core.metrics import ACCURACY, PERPLEXITY

BOUNDS = {"accuracy": "at_least", "loss": "at_most"}
STANDS_FOR = {"computed_at_s": "pushed_at_s"}
"""Column of the pushes that an older record lacks -> the column that stands for it: then a push was
the end of its computation."""
ZERO = ("server_s",)
"""Columns of the pushes that an older record lacks, where they would be 0: their seconds are part
of others."""
OLD_TARGETS = tuple(f"target_{metric}" for metric in BOUNDS)


def settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an experiment file with `target` in place of the older settings."""
    if not any(key in settings for key in OLD_TARGETS):
        return dict(settings)
    data = settings.get("data")
    name = data.get("name") if isinstance(data, Mapping) else data
    target = _target(settings, tokens=name == "text")
    rest = {key: value for key, value in settings.items() if key not in OLD_TARGETS}
    published = rest.get("published")
    if target is not None and isinstance(published, Mapping):
        rest["published"] = _published(published, f"time_to_{target['metric']}_s")
    return {**rest, "target": target}


def _published(published: Mapping[str, Any], time: str) -> dict[str, Any]:
    rows = published.get("rows")
    if not isinstance(rows, Mapping):
        return dict(published)
    renamed = {
        paradigm: (
            {("time_to_target_s" if key == time else key): row[key] for key in row}
            if isinstance(row, Mapping)
            else row
        )
        for paradigm, row in rows.items()
    }
    return {**published, "rows": renamed}


def summary_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary, or what the journal's header says about the run, with the keys of today."""
    if "metric" in summary:
        return dict(summary)
    tokens = summary.get("tokens") is True
    primary = PERPLEXITY if tokens else ACCURACY
    today: dict[str, Any] = {"metric": primary.name, "metric_mode": primary.mode}
    if any(key in summary for key in OLD_TARGETS):
        today["target"] = _target(summary, tokens=tokens)
    times = [f"time_to_{metric}_s" for metric in BOUNDS]
    if any(key in summary for key in times):
        target = today.get("target")
        today["time_to_target_s"] = target and summary.get(f"time_to_{target['metric']}_s")
    old = {*OLD_TARGETS, *times}
    return {key: value for key, value in summary.items() if key not in old} | today


def _target(values: Mapping[str, Any], *, tokens: bool) -> dict[str, Any] | None:
    """Return the target; of two, the one by which runs were judged."""
    for metric in ("loss", "accuracy") if tokens else ("accuracy", "loss"):
        if (value := values.get(f"target_{metric}")) is not None:
            return {"metric": metric, BOUNDS[metric]: value}
    return None
