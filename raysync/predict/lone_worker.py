"""A paradigm that is fast since one worker makes nearly all of the updates' pushes."""

from __future__ import annotations

from collections.abc import Mapping

ALONE = 0.9
"""The share of the applied pushes from which one worker is said to train nearly alone."""


def lone_worker_text(label: str, applied: Mapping[str, int]) -> str | None:
    """Say that one of several workers trains nearly alone; None: none does.

    Args:
        label: the paradigm.
        applied: worker -> its pushes that were applied.
    """
    total = sum(applied.values())
    if len(applied) < 2 or not total:
        return None
    first = max(applied, key=applied.__getitem__)
    if applied[first] < ALONE * total:
        return None
    return (
        f"Under {label} that is nearly {first} alone: {applied[first]:,} of {total:,} applied"
        f" pushes are its own, so the other {len(applied) - 1} hardly take part."
    )
