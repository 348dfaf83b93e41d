"""The tables of README.md, and the numbers in its prose."""

from __future__ import annotations

import pandas as pd
from labtables import Results, markdown

CALLS = {
    ("call", 0): "an empty call of an actor",
    ("call", 4096): "a call of 4 kB, there and back",
    ("call beside an object", 0): "an empty call, while an object comes from the same host",
}
"""Flows and bytes in links.csv -> what the table calls them."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    return {"runs": _runs(results), "flows": _flows(results), "calls": _calls(results)}


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    both = compared(results)
    error = both.groupby("name").error.agg(["min", "max"])
    errors = {
        f"{name} error": f"{error['min'][name]:+.0%} to {error['max'][name]:+.0%}"
        for name in error.index
    }
    links = _links(results)
    one = links[links.flows == "one"]
    goodput = (8 * one.bytes / one.seconds / one.rate_bit_per_s).groupby(one.way).mean()
    return {
        **errors,
        "runs": f"{len(_table(results, 'measured'))}",
        "error": f"{both.error.abs().max():.0%}",
        "within ten": f"{(both.error.abs() <= 0.1).sum()} of {len(both)}",
        "wait points": f"{both.wait_points.abs().max():.0f}",
        "TCP goodput": f"{goodput['TCP']:.1%}",
        "Ray goodput": f"{goodput['Ray']:.1%}",
    }


def compared(results: Results) -> pd.DataFrame:
    """Return a row for each case and paradigm: real and virtual, and how far these are apart."""
    keys = ["case", "paradigm"]
    values = ["throughput_samples_per_s", "wait_fraction", "staleness_mean"]
    real = _table(results, "measured").groupby(keys, sort=False)[values].agg(["mean", "min", "max"])
    real.columns = [f"{name}_{kind}" for name, kind in real.columns]
    both = real.join(_table(results, "virtual").set_index(keys)[values]).reset_index()
    assert both.throughput_samples_per_s.notna().all(), "run predict.py"
    return both.assign(
        name=both.paradigm.str.partition("(")[0],
        error=both.throughput_samples_per_s / both.throughput_samples_per_s_mean - 1,
        wait_points=100 * (both.wait_fraction - both.wait_fraction_mean),
    )


def _table(results: Results, name: str) -> pd.DataFrame:
    return pd.read_csv(results.folder / "results" / f"{name}.csv")


def _links(results: Results) -> pd.DataFrame:
    return _table(results, "links")


def _runs(results: Results) -> str:
    rows = [
        [
            row.case,
            f"`{row.name}`",
            f"{row.throughput_samples_per_s_mean:.1f} ({row.throughput_samples_per_s_min:.1f} to"
            f" {row.throughput_samples_per_s_max:.1f})",
            f"{row.throughput_samples_per_s:.1f}",
            f"{row.error:+.1%}",
            f"{row.wait_fraction_mean:.1%}",
            f"{row.wait_fraction:.1%}",
            f"{row.wait_points:+.1f}",
            f"{row.staleness_mean_mean:.2f}",
            f"{row.staleness_mean:.2f}",
        ]
        for _, row in compared(results).iterrows()
    ]
    header = [
        "case",
        "paradigm",
        "samples/s: hosts, mean (range)",
        "virtual",
        "error",
        "wait: hosts",
        "virtual",
        "points",
        "staleness: hosts",
        "virtual",
    ]
    return markdown(header, rows)


def _flows(results: Results) -> str:
    """Tabulate the flows that begin at once: the first and the last that has arrived, in the time
    that the busiest link needs.
    """
    links, rows = _links(results), []
    moved = links[~links.flows.str.startswith("call")]
    for (flows, way), chosen in moved.groupby(["flows", "way"], sort=False):
        routes = chosen[["source", "target"]].drop_duplicates()
        most = max(routes.source.value_counts().max(), routes.target.value_counts().max())
        least_s = most * 8 * chosen.bytes.iloc[0] / chosen.rate_bit_per_s.iloc[0]
        by = chosen.groupby("repetition").seconds
        first, last = by.min() / least_s, by.max() / least_s
        spread = (by.max() / by.min()).mean()
        rows.append([flows, way, *map(_mean_and_range, (first, last)), f"{spread:.2f}"])
    return markdown(
        ["flows", "way", "first, mean (range)", "last, mean (range)", "last/first"], rows
    )


def _mean_and_range(values: pd.Series) -> str:
    return f"{values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"


def _calls(results: Results) -> str:
    links = _links(results)
    rows = [
        [
            text,
            _mean_and_range(1000 * links[(links.flows == flows) & (links.bytes == size)].seconds),
        ]
        for (flows, size), text in CALLS.items()
    ]
    return markdown(["call, from host 1 to host 2", "ms, mean (range)"], rows)
