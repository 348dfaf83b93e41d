"""The meaning of the columns in a table of step times, by their names, then by their values.

A rank's values can be durations, and its name has a number (`rank0`, `gpu 3`, `fast-1`). Without
such names, all columns are ranks whose names mean nothing else, and whose values do not count, run
on or add up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
MOST_NAMED = 8  # the most columns in a message
ENOUGH = 5  # with fewer values, a count cannot be recognised

Kind = Literal["rank", "rank names", "step", "epoch", "seconds", "other", "unknown"]
"""A column's meaning by name: `rank` has one rank's durations in a wide table; `rank names` and
`seconds` are of a long one; `other` is known and none of these: `loss`.
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNITS = {
    **dict.fromkeys(_words("s sec secs second seconds"), 1.0),
    **dict.fromkeys(_words("ms msec msecs millis millisecond milliseconds"), 1e-3),
    # both signs for micro are in use
    **dict.fromkeys(_words("us \u00b5s \u03bcs usec usecs micros microsecond microseconds"), 1e-6),
}
# a unit at the end of a name: `_ms`, ` (ms)`, `Ms` after a small letter
UNIT = re.compile(rf"(?:^|[\s_.\-/(\[]|(?<=[a-z\d])(?=[A-Z]))((?i:{'|'.join(UNITS)}))[)\]]?$")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+")
RANKS = _words(
    "rank worker host hostname node gpu device machine process proc trainer replica pod npu xpu tpu"
    " cuda accelerator"
)
STEPS = _words("step iteration iter itr it batch minibatch")
WORD_KINDS: dict[str, Kind] = {
    **dict.fromkeys(RANKS, "rank names"),
    **dict.fromkeys(STEPS, "step"),
    **dict.fromkeys(_words("epoch epochs"), "epoch"),
}
"""The meaning of a word alone, or beside `FILLERS`: `global_step`, `worker_id`."""
FILLERS = _words("id ids idx index name no nr num number global local world train training")
TIMES = _words("duration dur time elapsed latency took runtime walltime")
OF_A_STEP = STEPS | TIMES | _words("compute computing wall in per")
OTHERS = _words(
    "epoch epochs loss acc accuracy lr rate total totals sum mean avg average max min maximum"
    " minimum median std stddev var variance percentile quantile top count counter counts sample"
    " samples token tokens throughput memory mem util utilization utilisation temp temperature"
    " power note notes comment wait waiting waited lag idle comm communication sync timestamp ts"
    " date datetime start end begin size seed phase ratio speedup overall all index idx id slowest"
    " fastest grad gradient norm data loading spread diff difference delta skew imbalance gap"
    " unnamed cum cumulative running clock level version bytes staleness momentum layer stage"
    " bucket error errors score metric perplexity"
)
PERCENTILE = re.compile(r"p\d{2,3}", re.I)


@dataclass(frozen=True)
class InputColumn:
    """A column, and what its name says."""

    title: str  # the name in the file
    name: str  # without its unit
    scale: float | None  # the seconds of its unit; None: its name has none
    kind: Kind


def parse_title(title: str) -> InputColumn:
    """Say what a title means."""
    unit = UNIT.search(title)
    if unit is None:
        return InputColumn(title, title, None, _kind(title, has_unit=False))
    name = title[: unit.start()].rstrip(" _.-/([")
    return InputColumn(title, name or title, UNITS[unit[1].lower()], _kind(name, has_unit=True))


def _kind(name: str, has_unit: bool) -> Kind:
    words = [word.lower() for word in WORD.findall(name)]
    bare = [word for word in words if word not in FILLERS] or words
    if set(words) <= OF_A_STEP and (has_unit or set(words) & TIMES):
        return "seconds"
    if len(bare) == 1 and bare[0] in WORD_KINDS:
        return WORD_KINDS[bare[0]]
    if set(bare) & OTHERS or PERCENTILE.fullmatch(name):
        return "other"
    *before, last = [word for word in bare if word not in OF_A_STEP] or [""]
    # `rank0`, `0`; a letter and a number, `n1`; a worker of ours, `fast-1`
    is_rank_name = set(before) <= RANKS or len("".join(before)) == 1
    if last.isdecimal() and (is_rank_name or re.fullmatch(r".+-\d+", name)):
        return "rank"
    return "unknown"


def of_kind(columns: Sequence[InputColumn], *kinds: Kind) -> list[InputColumn]:
    """Return the columns of some kinds, in their order."""
    return [column for column in columns if column.kind in kinds]


def titles_of(columns: Sequence[InputColumn]) -> list[str]:
    """Return the titles of columns."""
    return [column.title for column in columns]


def ranks_of(columns: Sequence[InputColumn], values: pd.DataFrame) -> list[InputColumn]:
    """Return the columns of a wide table that are ranks.

    Args:
        values: title -> the numbers of each column, or NaN.

    Raises:
        ValueError: a column is in doubt.
    """
    ranks = of_kind(columns, "rank")
    unknown = of_kind(columns, "unknown", "rank names")
    if ranks:
        _check_ranks(ranks, unknown, values)
    elif candidates := unknown or of_kind(columns, "seconds"):
        no_ranks = _titles_of_no_durations(candidates, candidates, values)
        ranks = [column for column in candidates if column.title not in no_ranks]
        if not ranks:
            raise ValueError(f"the column {candidates[0].title!r} is no rank: its values run on")
    for rank in ranks:
        if rank.scale != ranks[0].scale:
            raise ValueError(
                f"the columns {ranks[0].title!r} and {rank.title!r} must have the same unit in"
                " their names, or none"
            )
    return ranks


def _check_ranks(
    ranks: Sequence[InputColumn], unknown: Sequence[InputColumn], values: pd.DataFrame
) -> None:
    for rank in ranks:
        if is_counter(values[rank.title].to_numpy()):
            raise ValueError(
                f"the column {rank.title!r} is called like a rank, but it only rises or only falls,"
                " as a counter or a clock does"
            )
    no_ranks = _titles_of_no_durations(unknown, ranks, values)
    for other in unknown:
        can_be_a_rank = other.scale == ranks[0].scale and (values[other.title] > 0).all()
        if can_be_a_rank and other.title not in no_ranks:
            raise ValueError(
                f"is the column {other.title!r} a rank? Its values could be seconds of a step, but"
                f" it is not called like {ranks[0].title!r}; call it so, or leave it out"
            )


def _titles_of_no_durations(
    columns: Sequence[InputColumn], ranks: Sequence[InputColumn], values: pd.DataFrame
) -> set[str]:
    """Return the titles of columns whose values count, run on, or come from ranks' values."""
    if len(values) < ENOUGH or not columns:
        return set()
    numbers, others = values[titles_of(columns)].to_numpy(), values[titles_of(ranks)].to_numpy()
    excluded = np.array([is_counter(cells) for cells in numbers.T])
    if (others % 1 != 0).any():
        is_whole = (numbers % 1 == 0).all(axis=0)
        excluded |= is_whole & [column.scale is None for column in columns]
    overlap = int(columns is ranks)
    if others.shape[1] - overlap > 1:
        is_copy = pd.Series([cells.tobytes() for cells in numbers.T]).duplicated(keep=False)
        varies = np.ptp(numbers, axis=0) > 0
        excluded |= _are_derived(numbers, others, overlap) & varies & ~is_copy.to_numpy()
    return {title for title, is_out in zip(titles_of(columns), excluded, strict=True) if is_out}


def is_counter(values: Sequence[float] | Numbers) -> bool:
    """Whether values only rise or only fall, by many steps."""
    change = np.diff(values)
    is_monotone = (change >= 0).all() or (change <= 0).all()
    return bool(is_monotone and np.count_nonzero(change) + 1 >= max(ENOUGH, len(change) / 2))


def _are_derived(numbers: Numbers, others: Numbers, overlap: int) -> Flags:
    """Return which columns are the sum, mean, maximum or minimum of others.

    Args:
        overlap: 1 if the columns are among the others, else 0.
    """
    total = others.sum(axis=1, keepdims=True) - overlap * numbers
    mean = total / (others.shape[1] - overlap)
    most, least = others.max(axis=1, keepdims=True), others.min(axis=1, keepdims=True)
    # ranks that hardly differ are all near their mean, so the tolerance is a part of their range
    near = 0.02 * (most - least) + 1e-9 * numbers
    matches = [np.isclose(numbers, total, rtol=1e-3, atol=0), abs(numbers - mean) <= near]
    for extreme in (most, least):
        is_shared = (others == extreme).sum(axis=1, keepdims=True) > overlap
        matches.append((numbers == extreme) & is_shared)
    derived: Flags = np.any([match.all(axis=0) for match in matches], axis=0)
    return derived


def listed(titles: Sequence[str]) -> str:
    """Return the names of columns for a message."""
    more = len(titles) - MOST_NAMED
    return ", ".join(titles[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
