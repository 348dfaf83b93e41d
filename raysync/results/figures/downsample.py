"""Downsample figures to a few hundred points a trace, however long the run.

Curves retain the minimum and maximum of equal stretches, and so their peaks and both ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

POINTS = 240  # at most, of a trace


def extreme_indices(values: ArrayLike, points: int = POINTS) -> NDArray[np.intp]:
    """Return rising indices: the ends, and minimum and maximum of `points / 2` stretches."""
    y = np.asarray(values, dtype=float)
    if len(y) <= points:
        return np.arange(len(y))
    stretches = np.array_split(np.arange(len(y)), points // 2 - 1)
    extremes = [part[pick(y[part])] for part in stretches for pick in (np.argmin, np.argmax)]
    return np.unique([0, *extremes, len(y) - 1]).astype(np.intp)


def on_common_grid(
    curves: Sequence[tuple[ArrayLike, ArrayLike]], points: int = POINTS
) -> tuple[Floats, Floats]:
    """Put curves on one grid where all overlap, by linear interpolation.

    Args:
        curves: (x, y) of each; x rises.
        points: the most points of the grid.

    Returns:
        The grid, (points,), and the values, (curves, points); empty without overlap.
    """
    arrays = [(np.asarray(x, dtype=float), np.asarray(y, dtype=float)) for x, y in curves]
    if not arrays or any(len(x) == 0 for x, _ in arrays):
        return np.empty(0), np.empty((len(arrays), 0))
    low, high = max(x[0] for x, _ in arrays), min(x[-1] for x, _ in arrays)
    grid = np.unique(np.concatenate([x for x, _ in arrays]))
    grid = grid[(grid >= low) & (grid <= high)]
    values = np.array([np.interp(grid, x, y) for x, y in arrays])
    keep = extreme_indices(values.mean(axis=0), points) if len(grid) else np.arange(0)
    return grid[keep], values[:, keep]


def binned(
    times: Sequence[ArrayLike], values: Sequence[ArrayLike], how: str, bins: int = POINTS // 2
) -> tuple[Floats, Floats]:
    """Bin the values of several runs over time, without bins in which a run has none.

    Args:
        times: one array a run.
        values: one array a run.
        how: whether a bin is the "mean" or the "max" of its values.
        bins: the number of bins.

    Returns:
        The middles of the bins, (bins,), and the values, (runs, bins).
    """
    end = min((float(np.max(np.asarray(when), initial=0.0)) for when in times), default=0.0)
    if end <= 0:
        return np.empty(0), np.empty((len(times), 0))
    edges = np.linspace(0, end, bins + 1)
    rows = []
    for when, what in zip(times, values, strict=True):
        at = np.asarray(when, dtype=float)
        place = np.where(at == end, bins, np.searchsorted(edges, at, side="right")) - 1
        row = pd.Series(np.asarray(what, dtype=float)).groupby(place).agg(how)
        rows.append(row.reindex(range(bins)))
    filled = np.array(rows)
    full = ~np.isnan(filled).any(axis=0)
    return ((edges[1:] + edges[:-1]) / 2)[full], filled[:, full]


def shares_up_to(values: ArrayLike, points: int = POINTS) -> tuple[Floats, Floats]:
    """Return the cumulative distribution: values, and the shares of values up to them."""
    levels, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    shares = np.cumsum(counts) / max(1, counts.sum())
    keep = even_indices(len(levels), points)
    return levels[keep], shares[keep]


def even_indices(count: int, points: int = POINTS) -> NDArray[np.intp]:
    """Return at most `points` of `count` indices, evenly spread from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(points, count)).round()).astype(np.intp)
