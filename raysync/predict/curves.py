"""Curves: how fast the best candidates are with more workers, other links, batches or local steps.

A point is the rate of a short simulation, once through the measured steps where there is
time for that, without its beginning. The *knee* is where the curve bends:

workers             from there on a further one adds less than a tenth of what it computes
link, batch, steps  from there on the network takes less than a tenth of the speed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import sqrt
from typing import Literal, get_args

from raysync.errors import ConfigError, unknown_name
from raysync.predict.candidates import Candidate
from raysync.predict.diagnosis import network_cause
from raysync.predict.exchange import bytes_per_s
from raysync.predict.measured_ranks import MeasuredRanks
from raysync.predict.processes import map_on
from raysync.predict.setting import Setting
from raysync.predict.variations import takes_local_steps, with_local_steps

AxisName = Literal["workers", "link", "batch", "steps"]
EXAMPLES = {
    "workers": "workers=1..64",
    "link": "link=50mbit..10gbit",
    "batch": "batch=16..512",
    "steps": "steps=1..128",
}
RANGE = re.compile(r"(.+?)\.\.(.+)")
# the largest values on the axes that count something
MOST = {"workers": 10_000, "batch": 2**20, "steps": 100_000}
# the pushes of each worker that do not count, and of all workers together that do, at most
WARM, PUSHES = 20, 3_000
LITTLE = 0.1  # the share of a worker's computing, or of the speed, that makes a knee
FINE = 1.05  # a knee between two rates of links is found to within this factor
MBIT = 8e-6  # the Mbit in a byte


@dataclass(frozen=True)
class Axis:
    name: AxisName
    low: float
    high: float

    @property
    def noun(self) -> str:
        return {"batch": "batch size", "steps": "local steps"}.get(self.name, self.name)

    @property
    def points(self) -> list[float]:
        """Both ends, and values between them, each twice the one before."""
        points = [self.low]
        while 2 * points[-1] < self.high:
            points.append(2 * points[-1])
        return [*points, self.high] if self.high > self.low else points

    def phrase(self, value: float) -> str:
        """Return a value in words."""
        text = self.label(value)
        s = "" if value == 1 else "s"
        return {
            "workers": f"{text} worker{s}",
            "link": f"links of {text}",
            "batch": f"batches of {text}",
            "steps": f"{text} local step{s}",
        }[self.name]

    def label(self, value: float) -> str:
        if self.name != "link":
            return f"{value:,.0f}"
        mbit = MBIT * value
        return f"{mbit:.3g} Mbit/s" if mbit < 1000 else f"{mbit / 1000:.3g} Gbit/s"


@dataclass(frozen=True)
class CurvePoint:
    at: float
    samples_per_s: float
    efficiency: float  # the share of what the ranks would compute if they never waited for anything
    seconds: float  # the time of the whole work


@dataclass(frozen=True)
class Curve:
    axis: Axis
    candidate: Candidate
    points: tuple[CurvePoint, ...]
    knee: float | None  # the value at which it bends; None: it does not
    # the limit at the knee of workers, or at the lowest value of another axis; "": unknown
    limit: str


def curves(
    ranks: MeasuredRanks, candidates: Sequence[Candidate], axes: Sequence[Axis], processes: int
) -> tuple[Curve, ...]:
    """Follow a few candidates along axes, for which `check_axes` has been called."""
    tasks = [(ranks, candidate, axis) for axis in axes for candidate in candidates]
    found = map_on(processes, _curve, tasks)
    return tuple(curve for curve in found if curve is not None)


def _curve(task: tuple[MeasuredRanks, Candidate, Axis]) -> Curve | None:
    """Return the curve; None: the candidate works nowhere on the axis."""
    ranks, candidate, axis = task
    if axis.name == "steps" and not takes_local_steps(candidate.choice):
        return None
    varied = partial(_varied, ranks, candidate, axis.name)
    fitting = [at for at in axis.points if MeasuredRanks.can_run(*varied(at))]
    if not fitting:
        return None
    work = ranks.samples * ranks.steps_each * len(ranks.steps)

    @cache
    def point(at: float) -> CurvePoint:
        changed, variant = varied(at)
        rate = _rate(changed, variant)
        return CurvePoint(at, rate, rate / changed.computed_per_s, work / rate)

    @cache
    def free_rate(at: float) -> float:
        changed, variant = varied(at)
        return _rate(replace(changed, exchange=None), variant)

    def is_past(at: float) -> bool:
        """Return whether the curve bends before a value, or there."""
        if axis.name != "workers":
            free = free_rate(axis.low if axis.name == "link" else at)
            return point(at).samples_per_s >= (1 - LITTLE) * free
        gain = point(2 * at).samples_per_s - point(at).samples_per_s
        return gain < LITTLE * varied(at)[0].computed_per_s

    knee = _knee(fitting, is_past, whole=axis.name != "link")
    hardest = knee if axis.name == "workers" else fitting[0]
    cause = None
    if hardest is not None and (axis.name == "workers" or not is_past(hardest)):
        cause = network_cause(_warm_up(*varied(hardest)))
    return Curve(
        axis=axis,
        candidate=candidate,
        points=tuple(map(point, fitting)),
        knee=knee,
        limit="" if cause is None else cause.what,
    )


def _knee(
    values: Sequence[float], is_past: Callable[[float], bool], *, whole: bool
) -> float | None:
    """Return the least value from which on the curve has bent; None: it has not."""
    past = [is_past(at) for at in values]
    if all(past):
        return values[0]
    if not past[-1]:
        return None
    last = max(number for number, bent in enumerate(past) if not bent)
    low, high = values[last], values[last + 1]
    while high - low > 1 if whole else high > FINE * low:
        middle = (low + high) // 2 if whole else sqrt(low * high)
        low, high = (low, middle) if is_past(middle) else (middle, high)
    return high


def _varied(
    ranks: MeasuredRanks, candidate: Candidate, name: AxisName, at: float
) -> tuple[MeasuredRanks, Candidate]:
    """Return the ranks and the candidate at a value of an axis."""
    if name == "workers":
        return ranks.resized(int(at)), candidate
    if name == "batch":
        return ranks.with_batch(int(at)), candidate
    if name == "steps":
        return ranks, replace(candidate, choice=with_local_steps(candidate.choice, int(at)))
    assert ranks.exchange is not None, "a link that carries nothing"
    return replace(ranks, exchange=ranks.exchange.with_rate(at)), candidate


def _warm_up(ranks: MeasuredRanks, candidate: Candidate) -> Setting:
    return ranks.setting(candidate).sized(WARM * len(ranks.steps))


def _rate(ranks: MeasuredRanks, candidate: Candidate) -> float:
    """Return the samples per second of a short run, without its beginning."""
    count, longest = len(ranks.steps), max(map(len, ranks.steps.values()))
    warm_up = _warm_up(ranks, candidate)
    whole = warm_up.sized(count * (WARM + max(WARM, min(longest, PUSHES // count))))
    warm_up_s, whole_s = warm_up.seconds(), whole.seconds()
    assert warm_up_s, "a run in time only that does not finish"
    assert whole_s, "the same, of more work"
    return (whole.samples - warm_up.samples) / (whole_s - warm_up_s)


# ---- the option --curve ----


def axis_of(text: str) -> Axis:
    """Return the axis of `--curve`: `workers=1..64`, `link=50mbit..10gbit`.

    Raises:
        ConfigError: it is none.
    """
    where = f"--curve {text}"
    name, _, span = text.partition("=")
    names = get_args(AxisName)
    if name not in names:
        raise unknown_name("axis", name, names, where=where, listed=list(EXAMPLES.values()))
    match = RANGE.fullmatch(span.strip())
    if match is None:
        raise ConfigError(f"{where}: a range is missing; write it as {EXAMPLES[name]}.")
    low, high = (_value(name, end.strip(), where) for end in match.groups())
    if low > high:
        raise ConfigError(f"{where}: the end of the range is below its start.")
    return Axis(name, low, high)  # type: ignore[arg-type]


def _value(name: str, text: str, where: str) -> float:
    if name == "link":
        return bytes_per_s(text, where)
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= value <= MOST[name]:
        raise ConfigError(
            f"{where}: {text!r}: a whole number from 1 to {MOST[name]:,} is expected."
        )
    return value


def check_axes(ranks: MeasuredRanks, axes: Sequence[Axis]) -> None:
    """Refuse an axis that needs an exchange or a batch size where there is none.

    Raises:
        ConfigError: it says what to add.
    """
    for axis in axes:
        if axis.name in ("link", "steps") and ranks.exchange is None:
            raise ConfigError(
                f"--curve {axis.name}: it only matters where gradients take time; add --model-bytes"
                " and --link."
            )
        if axis.name == "steps" and ranks.steps_per_push > 1:
            raise ConfigError(
                f"--curve steps: gradients of {ranks.steps_per_push} steps accumulate in the"
                " traces, so steps between exchanges are not varied."
            )
        if axis.name == "batch" and ranks.batch_size is None:
            raise ConfigError(
                "--curve batch: needs --batch-size, the batch size of the measured steps."
            )
