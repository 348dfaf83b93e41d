"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

import pandas as pd
import yaml
from labtables import Results, interval_cell, range_text, tabulate

from raysync.results.statistics import Estimate, estimate

CALLS = {
    ("call", 0): "an empty call of an actor",
    ("call", 4096): "a call of 4 kB, there and back",
    ("call beside an object", 0): "an empty call, while an object comes from the same host",
}
"""Flows and bytes in network.links.csv -> what the table calls them."""

CLAIMED = 0.05
"""The error that the claim allows."""
CHANGED = ("one slow link, 4 MB", "two shards with workers, 4 MB")
"""The cases in which links differ, or servers are beside workers."""

VERDICTS = ("holds", "does not", "undecided")
THROUGHPUT = "throughput_samples_per_s"
VALUES = {THROUGHPUT: "rate", "wait_fraction": "wait", "staleness_mean": "staleness"}
"""Column of both tables -> its name here."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    return {
        "cases": _cases(results),
        "runs": _runs(results),
        "flows": _flows(results),
        "calls": _calls(results),
        "faults": _faults(results),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    both = compared(results)
    errors = both.error.abs()
    judged = [_judged(error) for error in both.interval]
    of_names = both.groupby("name").error.agg(["min", "max"])
    links = results.table("network.links")
    one = links[links.flows == "one"]
    goodput = (8 * one.bytes / one.seconds / one.rate_bit_per_s).groupby(one.way).mean()
    profile = yaml.safe_load(
        (results.folder / "results/profiles/4MB-100-100-100-100.yaml").read_text(encoding="utf-8")
    )
    network = profile["network"]
    return {
        **{
            f"{name} error": f"{low:+.0%} to {high:+.0%}"
            for name, low, high in of_names.itertuples()
        },
        "apart": f"{errors[~both.case.isin(CHANGED)].max():.0%}",
        **{f"interval {verdict}": str(judged.count(verdict)) for verdict in VERDICTS},
        "mean error": f"{errors.mean():.0%}",
        "error": f"{errors.max():.0%}",
        "within five": f"{(errors <= CLAIMED).sum()} of {len(both)}",
        "within ten": f"{(errors <= 0.1).sum()} of {len(both)}",
        "wait points": f"{both.wait_points.abs().max():.1f}",
        "waits within three": f"{(both.wait_points.abs() <= 3).sum()} of {len(both)}",
        "TCP goodput": f"{goodput['TCP']:.1%}",
        "Ray goodput": f"{goodput['Ray']:.1%}",
        "latency": f"{1000 * network['link']['latency_s']:.1f} ms",
        "alone": f"{8e-6 * network['link']['bandwidth_bytes_per_s']:.1f} Mbit/s",
        "together": f"{8e-6 * network['server_bandwidth_bytes_per_s']:.1f} Mbit/s",
        "sigma": f"{network['share_sigma']:.2f}",
    }


def compared(results: Results) -> pd.DataFrame:
    """Return a row for each case and paradigm: real and virtual, and how far these are apart."""
    keys = ["case", "paradigm"]
    measured = results.table("network.measured").groupby(keys, sort=False)
    real = measured[list(VALUES)].agg(["mean", "min", "max", "size"])
    real.columns = [f"{VALUES[name]}_{kind}" for name, kind in real.columns]
    virtual = results.table("network.virtual").groupby(keys)[list(VALUES)].mean()
    both = real.join(virtual.rename(columns=VALUES)).reset_index()
    assert both.rate.notna().all(), "run predict.py"
    turns = measured[THROUGHPUT].apply(list)
    return both.assign(
        interval=[
            _error(row.rate, estimate(turns[row.case, row.paradigm])) for row in both.itertuples()
        ],
        name=both.paradigm.str.partition("(")[0],
        error=both.rate / both.rate_mean - 1,
        wait_points=100 * (both.wait - both.wait_mean),
    )


def _error(virtual: float, real: Estimate) -> Estimate:
    """Return the error of a virtual rate, with the interval that the mean of the turns leaves."""
    assert real.mean is not None, "no turns"
    mean, low, high = (virtual / rate - 1 for rate in (real.mean, real.high, real.low))
    return Estimate(mean, low, high, real.count, real.total)


def _judged(error: Estimate) -> str:
    """Say what the interval of an error over the turns means for the claim."""
    assert error.low is not None, "one turn"
    assert error.high is not None, "one turn"
    if error.low >= -CLAIMED and error.high <= CLAIMED:
        return "holds"
    return "does not" if error.low > CLAIMED or error.high < -CLAIMED else "undecided"


def _cases(results: Results) -> str:
    """Tabulate the errors of each case: one for each paradigm."""
    rows = []
    for case, part in compared(results).groupby("case", sort=False):
        errors = [f"`{row['name']}` {row.error:+.1%}" for _, row in part.iterrows()]
        judged = [_judged(error) for error in part.interval]
        rows.append(
            {
                "case": case,
                "virtual less hosts": ", ".join(errors),
                "points of wait, worst": f"{max(part.wait_points, key=abs):+.1f}",
                "5 % holds": judged.count("holds"),
                "does not": judged.count("does not"),
                "undecided": judged.count("undecided"),
            }
        )
    return tabulate(rows)


def _runs(results: Results) -> str:
    return tabulate(
        {
            "case": row.case,
            "paradigm": f"`{row.name}`",
            "samples/s, mean (range)": (
                f"{row.rate_mean:.1f} ({row.rate_min:.1f} to {row.rate_max:.1f})"
            ),
            "virtual": f"{row.rate:.1f}",
            "error": interval_cell(row.interval, "+.1%"),
            "waits: hosts, virtual": f"{row.wait_mean:.1%}, {row.wait:.1%}",
            "points": f"{row.wait_points:+.1f}",
            "staleness: hosts, virtual": f"{row.staleness_mean:.2f}, {row.staleness:.2f}",
        }
        for row in compared(results).itertuples()
    )


def _flows(results: Results) -> str:
    """Tabulate the flows that begin at once: the first and the last that has arrived, in the time
    that the busiest link needs.
    """
    links, rows = results.table("network.links"), []
    moved = links[~links.flows.str.startswith("call")]
    for (flows, way), chosen in moved.groupby(["flows", "way"], sort=False):
        routes = chosen[["source", "target"]].drop_duplicates()
        most = max(routes.source.value_counts().max(), routes.target.value_counts().max())
        least_s = most * 8 * chosen.bytes.iloc[0] / chosen.rate_bit_per_s.iloc[0]
        by = chosen.groupby("repetition").seconds
        rows.append(
            {
                "flows": flows,
                "way": way,
                "first, mean (range)": _mean_and_range(by.min() / least_s),
                "last, mean (range)": _mean_and_range(by.max() / least_s),
                "last/first": f"{(by.max() / by.min()).mean():.2f}",
            }
        )
    return tabulate(rows)


def _mean_and_range(values: pd.Series) -> str:
    return f"{values.mean():.2f} ({range_text(values)})"


def _calls(results: Results) -> str:
    by = results.table("network.links").groupby(["flows", "bytes"]).seconds
    return tabulate(
        {
            "call, from host 1 to host 2": text,
            "ms, mean (range)": _mean_and_range(1000 * by.get_group(call)),
        }
        for call, text in CALLS.items()
    )


def _faults(results: Results) -> str:
    """Tabulate what came of the faults; rounds end with the same model whatever happens."""
    rows = results.table("network.faults", dtype=str, keep_default_na=False)
    [whole] = rows[(rows.fault == "none") & (rows.paradigm == "bsp")].model
    bits = {"": "-", whole: "the same"}
    return tabulate(
        {
            "fault": row.fault,
            "paradigm": f"`{row.paradigm}`",
            "the run": f"{row.ended}, {row.seconds} s",
            "pushes": row.pushes,
            "twice": row.twice,
            "missing": row.missing,
            "bits of the model": bits.get(row.model, "others") if row.paradigm == "bsp" else "-",
        }
        for row in rows.itertuples()
    )
