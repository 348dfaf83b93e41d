"""What the columns of a table of step times are: by their names, and by their values.

A column is a rank only if its values can be seconds of a step, and its name or its place says so.
Names say it by a number (`rank0`, `gpu 3`, `fast-1`). Where none does, the place does: all columns
are ranks whose names mean nothing else, and whose values do not count, run on or add up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
MOST_SHOWN = 8
"""The most columns that a message names."""
ENOUGH = 5
"""Of fewer values nobody can say that they count."""


class Kind(Enum):
    """What the name of a column says."""

    RANK = auto()
    """The steps of one rank: `rank0`."""
    RANK_NAMES = auto()
    """The ranks of a long table: `host`."""
    STEP = auto()
    EPOCH = auto()
    SECONDS = auto()
    """The durations of a long table: `duration_ms`."""
    OTHER = auto()
    """Known, and none of these: `loss`."""
    UNKNOWN = auto()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNITS = {
    unit: scale
    for scale, units in (
        (1.0, "s sec secs second seconds"),
        (1e-3, "ms msec msecs millis millisecond milliseconds"),
        (1e-6, "us \u00b5s \u03bcs usec usecs micros microsecond microseconds"),
        (1e-9, "ns nsec nsecs nanos nanosecond nanoseconds"),
    )
    for unit in units.split()
}
"""Unit -> its seconds. Both signs for micro are in use."""
UNIT = re.compile(rf"(?:^|[\s_.\-/(\[]|(?<=[a-z\d])(?=[A-Z]))((?i:{'|'.join(UNITS)}))[)\]]?$")
"""A unit at the end of a name: `_ms`, ` (ms)`, `Ms` after a small letter."""
PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+")
RANKS = _words(
    "rank worker host hostname node gpu device machine process proc trainer replica pod npu xpu tpu"
    " cuda accelerator"
)
STEPS = _words("step iteration iter itr it batch minibatch")
NUMBERED = _words("id ids idx index name no nr num number global local world train training")
"""What may stand beside such a word: `global_step`, `worker_id`."""
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


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    """The name in the file."""
    cells: Sequence[Any]
    scale: float | None
    """The seconds of its unit; None: its name has none."""
    kind: Kind
    name: str
    """The name without its unit."""

    @cached_property
    def numbers(self) -> Numbers | None:
        """The values; None: one is no finite number."""
        try:
            values = np.array([float(cell) for cell in self.cells])
        except (TypeError, ValueError, OverflowError):
            return None
        return values if bool(np.isfinite(values).all()) else None


def column(title: str, cells: Sequence[Any]) -> Column:
    """Return a column with what its name says."""
    match = UNIT.search(title)
    name = title if match is None else title[: match.start()].rstrip(" _.-/([")
    scale = None if match is None else UNITS[match[1].lower()]
    kind = _kind(name, match is not None)
    return Column(title, cells, scale, kind, name or title)


def _kind(name: str, has_unit: bool) -> Kind:
    words = [piece.lower() for piece in PIECE.findall(name)]
    bare = [word for word in words if word not in NUMBERED] or words
    plain = [word for word in bare if word not in OF_A_STEP]
    if set(words) <= OF_A_STEP and (has_unit or set(words) & TIMES):
        return Kind.SECONDS
    if len(bare) == 1 and bare[0] in STEPS:
        return Kind.STEP
    if bare in (["epoch"], ["epochs"]):
        return Kind.EPOCH
    if len(bare) == 1 and bare[0] in RANKS:
        return Kind.RANK_NAMES
    if set(plain) & OTHERS or re.fullmatch(r"[pq]\d{1,3}", name, re.I):
        return Kind.OTHER
    is_numbered = bool(plain) and (plain[-1].isdecimal() or len(plain[-1]) == 1)
    if is_numbered and (set(plain[:-1]) <= RANKS or _is_of_a_group(name, plain)):
        return Kind.RANK if plain[-1].isdecimal() or len(plain) > 1 else Kind.UNKNOWN
    return Kind.UNKNOWN


def _is_of_a_group(name: str, words: Sequence[str]) -> bool:
    """Say whether a name is that of a worker, `fast-1`, or a letter and a number: `n1`."""
    return bool(re.fullmatch(r".+-\d+", name)) or (len(words) == 2 and len(words[0]) == 1)


def ranks_of(columns: Sequence[Column]) -> tuple[list[Column], list[Column]]:
    """Return the columns of a wide table that are ranks, and those that are none.

    Raises:
        ValueError: it is in doubt; the message names the column.
    """
    ranks = [each for each in columns if each.kind is Kind.RANK]
    unnamed = [each for each in columns if each.kind in (Kind.UNKNOWN, Kind.RANK_NAMES)]
    if ranks:
        _check_named(ranks, unnamed)
    else:
        place = unnamed or [each for each in columns if each.kind is Kind.SECONDS]
        compared = _Compared(place)
        whys = [compared.why_no_rank(each) for each in place]
        ranks = [each for each, why in zip(place, whys, strict=True) if not why]
        if place and not ranks:
            raise ValueError(f"the column {place[0].title!r} is no rank: {whys[0]}")
    if len({each.scale is None for each in ranks}) > 1:
        with_unit = next(each for each in ranks if each.scale is not None)
        without = next(each for each in ranks if each.scale is None)
        raise ValueError(
            f"the column {with_unit.title!r} has a unit in its name, {without.title!r} has none"
        )
    chosen = set(map(id, ranks))
    return ranks, [each for each in columns if id(each) not in chosen]


def _check_named(ranks: Sequence[Column], others: Sequence[Column]) -> None:
    for each in ranks:
        if (values := each.numbers) is not None and (why := _runs_on(values)):
            raise ValueError(f"the column {each.title!r} is called like a rank, but {why}")
    compared = _Compared(ranks)
    for each in others:
        values = each.numbers
        can_be = values is not None and len(values) and values.min() > 0
        if can_be and each.scale == ranks[0].scale and not compared.why_no_rank(each):
            raise ValueError(
                f"is the column {each.title!r} a rank? Its values could be seconds of a step, but"
                f" it is not called like {ranks[0].title!r}; call it so, or leave it out"
            )


class _Compared:
    """Columns that may be ranks, with which others and each other are compared."""

    def __init__(self, columns: Sequence[Column]) -> None:
        known = [each.numbers for each in columns]
        self._numbers = [numbers for numbers in known if numbers is not None]
        self._ids = {id(each) for each in columns if each.numbers is not None}
        self._fractions = [not _is_whole(numbers) for numbers in self._numbers]
        self._copies = Counter(numbers.tobytes() for numbers in self._numbers)
        if self._numbers:
            rows = np.sort(np.array(self._numbers), axis=0)
            self._total, self._least, self._most = rows.sum(axis=0), rows[:2], rows[-2:]

    def why_no_rank(self, column: Column) -> str:
        """Say how the values of a column show that it counts, runs on or adds up; "": they do
        not.
        """
        values = column.numbers
        if values is None or len(values) < ENOUGH:
            return ""
        if why := _runs_on(values):
            return why
        if column.scale is None and _is_whole(values) and any(self._fractions):
            return "it has whole numbers, and others have fractions"
        return self._why_derived(values, id(column) in self._ids)

    def _why_derived(self, values: Numbers, is_compared: bool) -> str:
        count = len(self._numbers) - is_compared
        if (
            count < 2
            or self._copies[values.tobytes()] > is_compared
            or values.min() == values.max()
        ):
            return ""
        total = self._total - values if is_compared else self._total
        least, most = self._least[0], self._most[-1]
        spread = most - least
        if is_compared:
            least = np.where(values == least, self._least[1], least)
            most = np.where(values == most, self._most[0], most)
        if np.allclose(values, total, rtol=1e-3, atol=0):
            return "it is the sum of the others"
        # ranks that hardly differ are all near their mean: what counts is how near for them
        if bool((abs(values - total / count) <= 0.02 * spread + 1e-9 * values).all()):
            return "it is the mean of the others"
        if bool((values == most).all()) or bool((values == least).all()):
            return "it is the largest or the smallest of the others"
        return ""


def _is_whole(values: Numbers) -> bool:
    return bool(np.isclose(values, np.round(values), rtol=1e-9, atol=0).all())


def _runs_on(values: Numbers) -> str:
    """Say how numbers show that they are no durations but a count or a clock; "": they do not."""
    if len(np.unique(values)) < max(ENOUGH, len(values) / 2):
        return ""
    change = np.diff(values)
    if (change >= 0).all():
        return "it never falls, as a counter or a clock does"
    if (change <= 0).all():
        return "it never rises, as a countdown does"
    return ""


def check_durations(title: str, of_ranks: Iterable[Sequence[float]]) -> None:
    """Refuse durations of a long table that run on in each of its ranks.

    Raises:
        ValueError: they do.
    """
    whys = [_runs_on(np.array(values)) for values in of_ranks]
    if whys and all(whys):
        raise ValueError(f"the column {title!r} has no durations: {whys[0]}, in every rank")


def shown(titles: Sequence[str]) -> str:
    """Return the names of columns for a message."""
    more = len(titles) - MOST_SHOWN
    return ", ".join(titles[:MOST_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
