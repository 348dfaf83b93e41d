"""The table of README.md and the numbers in its prose, from results/tasks.md."""

from __future__ import annotations

from labtables import Results, rows_of, tabulate

EXAMPLE, METRIC, PARADIGM, UNTRAINED, VIRTUAL, RAY = range(6)
"""Columns of the first table."""
BYTES, AFTER_ONE, AFTER_FOUR = 3, 4, 6
"""Columns of the second."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    trained, apart = _written(results)
    rows = [
        {
            "example": row[EXAMPLE],
            "metric": row[METRIC],
            "untrained": row[UNTRAINED],
            "BSP, virtual": row[VIRTUAL],
            "BSP, Ray": row[RAY],
            "apart after 1 round": proof[AFTER_ONE],
            "after 4": proof[AFTER_FOUR],
            "bytes a push": proof[BYTES],
        }
        for row in trained
        if row[PARADIGM] == "bsp"
        for proof in apart
        if proof[EXAMPLE] == row[EXAMPLE]
    ]
    return {"examples": tabulate(rows)}


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    _, apart = _written(results)
    pushed = {row[EXAMPLE]: row[BYTES] for row in apart}
    return {
        "after one": max((row[AFTER_ONE] for row in apart), key=float),
        "after four": max((row[AFTER_FOUR] for row in apart), key=float),
        "LoRA": pushed["tagging, LoRA"],
        "full": pushed["tagging, DistilBERT"],
    }


def _written(results: Results) -> tuple[list[list[str]], list[list[str]]]:
    trained, apart = rows_of(results.measured()["tasks"])
    return trained, apart
