"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from labtables import Results, interval_cell, tabulate

from raysync.results.statistics import estimate

sys.path.insert(0, str(Path(__file__).parent))

from queues import BOUNDED, BOUNDS, LAW, RATIOS, TAILS, Row, formula

SIZE = ["slots", "batch", "capacity", "ratio", "tail"]
LIKE_LAW, LIKE_MEASURED, NO_BIAS = 0.1, 0.1, 0.02
"""Versions; shares of what was measured, and of a length. Set before the first run."""


def _of_law(rows: pd.DataFrame, row: Row) -> pd.DataFrame:
    size = (row.slots, row.batch, float(row.capacity), row.ratio, row.tail)
    return rows[(rows[SIZE] == pd.Series(size, SIZE)).all(axis="columns")]


def _cell(values: pd.Series, form: str = ".2f") -> str:
    return interval_cell(estimate(list(values)), form)


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    law, gates = (results.table(f"rollout-queues.{part}") for part in ("law", "gates"))
    rows = [
        {
            "C": row.slots,
            "B": row.batch,
            "q": f"{row.capacity:g}",
            "rho": f"{row.ratio:g}",
            "M": f"{row.tail:g}",
            "law, as published": f"{row.law:g}",
            "by its formula": f"{formula(row):.2f}",
            "measured there": f"{row.published:g}",
            "here": _cell(_of_law(law, row).staleness),
        }
        for row in LAW
    ]
    return {
        "law": tabulate(rows),
        "gates": _gates(gates[gates.bound < 8], 1.1, 4.4),
        **{f"gates {rho} {tail}": _gates(gates, rho, tail) for rho in RATIOS for tail in TAILS},
    }


def _gates(rows: pd.DataFrame, ratio: float, tail: float) -> str:
    own = rows[(rows.ratio == ratio) & (rows["tail"] == tail)]
    base = own[own.gate == "drop-oldest"].samples_per_s.mean()
    return tabulate(
        {
            "gate": f"`{gate}`",
            "bound": bound if gate in BOUNDED else "-",
            "staleness": _cell(group.staleness),
            "largest": group.largest.max(),
            "rate": _cell(group.samples_per_s / base),
            "thrown away": f"{group.dropped.mean():.0%}",
            "length": _cell(group.length, ".3f"),
        }
        for gate in own.gate.unique()
        for bound, group in own[own.gate == gate].groupby("bound")
    )


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    law, gates = (results.table(f"rollout-queues.{part}") for part in ("law", "gates"))
    means = {row: _of_law(law, row).staleness.mean() for row in LAW}
    off = [abs(mean - formula(row)) for row, mean in means.items()]
    measured = [abs(mean / row.published - 1) for row, mean in means.items()]
    bounded = gates[gates.gate.isin(BOUNDED)]
    beyond = (bounded.largest - bounded.bound).groupby(bounded.gate).max()
    long = gates[(gates["tail"] == max(TAILS)) & (gates.bound == 1)]
    evict = long[(long.gate == "evict") & (long.ratio == 1.1)]
    count = long[(long.gate == "count") & (long.ratio == 1.1)]
    order = long[(long.gate == "in-order") & (long.ratio == 1.1)]
    oldest = gates[
        (gates.gate == "drop-oldest") & (gates["tail"] == max(TAILS)) & (gates.ratio == 1.1)
    ]
    base = oldest.samples_per_s.mean()
    bias = (gates.groupby(["gate", "bound", "ratio", "tail"]).length.mean() - 1).abs()
    return {
        "rows": str(sum(one <= LIKE_LAW for one in off)),
        "off": f"{max(off):.2f}",
        "measured": str(sum(one <= LIKE_MEASURED for one in measured)),
        "beyond count": f"{beyond['count']}",
        "beyond evict": f"{beyond['evict']}",
        "beyond in-order": f"{beyond['in-order']}",
        "evict length": _cell(evict.length),
        "evict thrown": f"{evict.dropped.mean():.0%}",
        "evict rate": _cell(evict.samples_per_s / base),
        "oldest length": _cell(oldest.length, ".3f"),
        "oldest thrown": f"{oldest.dropped.mean():.0%}",
        "count length": _cell(count.length, ".3f"),
        "count rate": _cell(count.samples_per_s / base),
        "order rate": _cell(order.samples_per_s / base),
        "biased": ", ".join(
            f"`{gate}` {bound} at M = {tail:g}, rho = {ratio:g}"
            for (gate, bound, ratio, tail), value in bias.items()
            if value >= NO_BIAS
        ),
        "bounds": ", ".join(map(str, BOUNDS)),
    }
