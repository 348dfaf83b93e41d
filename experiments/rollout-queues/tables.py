"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from labtables import Results, markdown

from raysync.results.statistics import Estimate, estimate

sys.path.insert(0, str(Path(__file__).parent))

from queues import BOUNDED, BOUNDS, LAW, RATIOS, TAILS, Row, formula

SIZE = ["slots", "batch", "capacity", "ratio", "tail"]
LIKE_LAW, LIKE_MEASURED, NO_BIAS = 0.1, 0.1, 0.02
"""Versions; shares of what was measured, and of a length. Set before the first run."""


def _read(results: Results, part: str) -> pd.DataFrame:
    return pd.read_csv(results.folder / "results" / f"rollout-queues.{part}.csv")


def _of_law(rows: pd.DataFrame, row: Row) -> pd.DataFrame:
    size = (row.slots, row.batch, float(row.capacity), row.ratio, row.tail)
    return rows[(rows[SIZE] == pd.Series(size, SIZE)).all(axis="columns")]


def _text(value: Estimate, form: str = "{:.2f}") -> str:
    assert value.mean is not None
    if value.low is None or value.high is None:
        return form.format(value.mean)
    low, mean, high = (form.format(number) for number in (value.low, value.mean, value.high))
    return mean if low == high else f"{mean} ({low} to {high})"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    law, gates = _read(results, "law"), _read(results, "gates")
    rows = []
    for row in LAW:
        ours = estimate(list(_of_law(law, row).staleness))
        rows.append(
            [
                f"{row.slots}", f"{row.batch}", f"{row.capacity:g}", f"{row.ratio:g}",
                f"{row.tail:g}", f"{row.law:g}", f"{formula(row):.2f}", f"{row.published:g}",
                _text(ours),
            ]
        )  # fmt: skip
    header = ["C", "B", "q", "rho", "M", "law, as published", "by its formula", "measured there",
              "here"]  # fmt: skip
    return {
        "law": markdown(header, rows),
        "gates": _gates(gates[gates.bound < 8], 1.1, 4.4),
        **{f"gates {rho} {tail}": _gates(gates, rho, tail) for rho in RATIOS for tail in TAILS},
    }  # fmt: skip


def _gates(rows: pd.DataFrame, ratio: float, tail: float) -> str:
    own = rows[(rows.ratio == ratio) & (rows["tail"] == tail)]
    base = own[own.gate == "drop-oldest"].samples_per_s.mean()
    lines = []
    for gate in dict.fromkeys(own.gate):
        for bound in sorted(own[own.gate == gate].bound.unique()):
            group = own[(own.gate == gate) & (own.bound == bound)]
            lines.append(
                [
                    f"`{gate}`", f"{bound}" if gate in BOUNDED else "-",
                    _text(estimate(list(group.staleness))), f"{group.largest.max()}",
                    _text(estimate(list(group.samples_per_s / base))),
                    f"{group.dropped.mean():.0%}", _text(estimate(list(group.length)), "{:.3f}"),
                ]
            )  # fmt: skip
    header = ["gate", "bound", "staleness", "largest", "rate", "thrown away", "length"]
    return markdown(header, lines)


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    law, gates = _read(results, "law"), _read(results, "gates")
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
        "evict length": _text(estimate(list(evict.length)), "{:.2f}"),
        "evict thrown": f"{evict.dropped.mean():.0%}",
        "evict rate": _text(estimate(list(evict.samples_per_s / base))),
        "oldest length": _text(estimate(list(oldest.length)), "{:.3f}"),
        "oldest thrown": f"{oldest.dropped.mean():.0%}",
        "count length": _text(estimate(list(count.length)), "{:.3f}"),
        "count rate": _text(estimate(list(count.samples_per_s / base))),
        "order rate": _text(estimate(list(order.samples_per_s / base))),
        "biased": ", ".join(
            f"`{gate}` {bound} at M = {tail:g}, rho = {ratio:g}"
            for (gate, bound, ratio, tail), value in bias.items()
            if value >= NO_BIAS
        ),
        "bounds": ", ".join(map(str, BOUNDS)),
    }
