"""The tables of README.md: rows carried over from the page of 2026-11-20, whose records are gone, beside published ones."""

from __future__ import annotations

import pandas as pd
from labtables import Results, markdown

NAMES = {"bsp": "synchronous (`bsp`)", "asp": "asynchronous (`asp`)"}


def tables(results: Results) -> dict[str, str]:
    """By the names of their marks."""
    measured = pd.read_csv(results.folder / "results" / "carried-over.csv", dtype=str).set_index(["experiment", "paradigm"])
    return {experiment: _table(results, measured.loc[experiment], experiment) for experiment in ("mnist", "fashion-mnist")}


def _table(results: Results, measured: pd.DataFrame, experiment: str) -> str:
    published = results.published(experiment).rows
    rows = []
    for paradigm, name in NAMES.items():
        mine, theirs = measured.loc[paradigm], published[paradigm]
        rows.append([name, f"{mine.accuracy_percent} ± {mine.accuracy_percent_sd}", f"{100 * theirs['final_accuracy']:.2f}",
                     f"{mine.seconds} ± {mine.seconds_sd}", f"{theirs['seconds']:.2f}", f"{int(mine.samples_per_s):,}",
                     mine.wait_share, f"{mine.staleness_mean} / {mine.staleness_max}", mine.seeds])
    return markdown(["baseline", "accuracy %, measured", "published", "seconds, measured", "published", "samples/s",
                     "wait share", "staleness mean / max", "seeds"], rows)
