"""The meaning of the columns in a table of step times: by their names, then by their values.

A column is a rank only if its values can be durations, and its name or its place says so. Names say
it by a number (`rank0`, `gpu 3`, `fast-1`). Where none does, the place does: all columns are ranks
whose names mean nothing else, and whose values do not count, run on or add up.
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
MOST_NAMED = 8
"""The most columns that a message names."""
ENOUGH = 5
"""Of fewer values nobody can say that they count."""


Kind = Literal["rank", "rank names", "step", "epoch", "seconds", "other", "unknown"]
"""What the name of a column says: `rank` is one rank of a wide table, and has its durations; `rank
names` and `seconds` are those of a long one; `other` is known, but none of these: `loss`."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNITS = {
    **dict.fromkeys(_words("s sec secs second seconds"), 1.0),
    **dict.fromkeys(_words("ms msec msecs millis millisecond milliseconds"), 1e-3),
    # both signs for micro are in use
    **dict.fromkeys(_words("us \u00b5s \u03bcs usec usecs micros microsecond microseconds"), 1e-6),
}
UNIT = re.compile(rf"(?:^|[\s_.\-/(\[]|(?<=[a-z\d])(?=[A-Z]))((?i:{'|'.join(UNITS)}))[)\]]?$")
"""A unit at the end of a name: `_ms`, ` (ms)`, `Ms` after a small letter."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+")
RANKS = _words(
    "rank worker host hostname node gpu device machine process proc trainer replica pod npu xpu tpu"
    " cuda accelerator"
)
STEPS = _words("step iteration iter itr it batch minibatch")
ALONE: dict[str, Kind] = {
    **dict.fromkeys(RANKS, "rank names"),
    **dict.fromkeys(STEPS, "step"),
    **dict.fromkeys(_words("epoch epochs"), "epoch"),
}
"""What a word says that stands alone, or beside `BESIDE`: `global_step`, `worker_id`."""
BESIDE = _words("id ids idx index name no nr num number global local world train training")
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

    title: str
    """The name in the file."""
    name: str
    """The name without its unit."""
    scale: float | None
    """The seconds of its unit; None: its name has none."""
    kind: Kind


def column(title: str) -> InputColumn:
    """Return the column of a name."""
    unit = UNIT.search(title)
    if unit is None:
        return InputColumn(title, title, None, _kind(title, has_unit=False))
    name = title[: unit.start()].rstrip(" _.-/([")
    return InputColumn(title, name or title, UNITS[unit[1].lower()], _kind(name, has_unit=True))


def _kind(name: str, has_unit: bool) -> Kind:
    words = [word.lower() for word in WORD.findall(name)]
    bare = [word for word in words if word not in BESIDE] or words
    if set(words) <= OF_A_STEP and (has_unit or set(words) & TIMES):
        return "seconds"
    if len(bare) == 1 and bare[0] in ALONE:
        return ALONE[bare[0]]
    if set(bare) & OTHERS or PERCENTILE.fullmatch(name):
        return "other"
    *before, last = [word for word in bare if word not in OF_A_STEP] or [""]
    # `rank0`, `0`; a letter and a number, `n1`; a worker of ours, `fast-1`
    is_called_so = set(before) <= RANKS or len("".join(before)) == 1
    if last.isdecimal() and (is_called_so or re.fullmatch(r".+-\d+", name)):
        return "rank"
    return "unknown"


def of_kind(columns: Sequence[InputColumn], *kinds: Kind) -> list[InputColumn]:
    """Return the columns of some kinds, in their order."""
    return [each for each in columns if each.kind in kinds]


def titles_of(columns: Sequence[InputColumn]) -> list[str]:
    """Return the titles of columns."""
    return [each.title for each in columns]


def ranks_of(columns: Sequence[InputColumn], values: pd.DataFrame) -> list[InputColumn]:
    """Return the columns of a wide table that are ranks.

    Args:
        columns: of the table.
        values: title -> the numbers of each column; NaN for what is none.

    Raises:
        ValueError: it is in doubt; the message names the column.
    """
    ranks = of_kind(columns, "rank")
    unknown = of_kind(columns, "unknown", "rank names")
    if ranks:
        _check_named(ranks, unknown, values)
    elif place := unknown or of_kind(columns, "seconds"):
        no_ranks = _no_durations(place, place, values)
        ranks = [each for each in place if each.title not in no_ranks]
        if not ranks:
            raise ValueError(f"the column {place[0].title!r} is no rank: its values run on")
    for each in ranks:
        if each.scale != ranks[0].scale:
            raise ValueError(
                f"the columns {ranks[0].title!r} and {each.title!r} must have the same unit in"
                " their names, or none"
            )
    return ranks


def _check_named(
    ranks: Sequence[InputColumn], unknown: Sequence[InputColumn], values: pd.DataFrame
) -> None:
    for each in ranks:
        if runs_on(values[each.title].to_numpy()):
            raise ValueError(
                f"the column {each.title!r} is called like a rank, but it only rises or only falls,"
                " as a counter or a clock does"
            )
    no_ranks = _no_durations(unknown, ranks, values)
    for each in unknown:
        can_be_a_rank = each.scale == ranks[0].scale and (values[each.title] > 0).all()
        if can_be_a_rank and each.title not in no_ranks:
            raise ValueError(
                f"is the column {each.title!r} a rank? Its values could be seconds of a step, but"
                f" it is not called like {ranks[0].title!r}; call it so, or leave it out"
            )


def _no_durations(
    columns: Sequence[InputColumn], ranks: Sequence[InputColumn], values: pd.DataFrame
) -> set[str]:
    """Return the titles of columns whose values count, run on, or come from those of ranks.

    Args:
        columns: to judge.
        ranks: are compared with them; where they are the same, each one with the others.
        values: of the columns.
    """
    if len(values) < ENOUGH or not columns:
        return set()
    numbers, others = values[titles_of(columns)].to_numpy(), values[titles_of(ranks)].to_numpy()
    found = np.array([runs_on(each) for each in numbers.T])
    if (others % 1 != 0).any():
        is_whole = (numbers % 1 == 0).all(axis=0)
        found |= is_whole & [each.scale is None for each in columns]
    own = int(columns is ranks)
    if others.shape[1] - own > 1:
        is_copy = pd.Series([each.tobytes() for each in numbers.T]).duplicated(keep=False)
        varies = np.ptp(numbers, axis=0) > 0
        found |= _are_derived(numbers, others, own) & varies & ~is_copy.to_numpy()
    return {each.title for each, is_found in zip(columns, found, strict=True) if is_found}


def runs_on(values: Sequence[float] | Numbers) -> bool:
    """Say whether values only rise or only fall, by many steps."""
    change = np.diff(values)
    is_monotone = (change >= 0).all() or (change <= 0).all()
    return bool(is_monotone and np.count_nonzero(change) + 1 >= max(ENOUGH, len(change) / 2))


def _are_derived(numbers: Numbers, others: Numbers, own: int) -> Flags:
    """Say of columns whether they are the sum, the mean, the largest or the smallest of others.

    Args:
        numbers: of the columns.
        others: the columns to compare them with.
        own: 1 if each one is itself among the others, else 0.
    """
    total = others.sum(axis=1, keepdims=True) - own * numbers
    mean = total / (others.shape[1] - own)
    most, least = others.max(axis=1, keepdims=True), others.min(axis=1, keepdims=True)
    # ranks that hardly differ are all near their mean: what counts is how near for them
    near = 0.02 * (most - least) + 1e-9 * numbers
    signs = [np.isclose(numbers, total, rtol=1e-3, atol=0), abs(numbers - mean) <= near]
    for end in (most, least):
        signs.append((numbers == end) & ((others == end).sum(axis=1, keepdims=True) > own))
    derived: Flags = np.any([sign.all(axis=0) for sign in signs], axis=0)
    return derived


def listed(titles: Sequence[str]) -> str:
    """Return the names of columns for a message."""
    more = len(titles) - MOST_NAMED
    return ", ".join(titles[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
