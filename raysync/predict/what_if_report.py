"""What `raysync whatif` has found: in words, in tables, as JSON; and its file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from raysync.predict.curves import Axis, Curve
from raysync.predict.figures import figures_of_what_if
from raysync.predict.intervals import CONFIDENCE, Interval
from raysync.predict.lone_worker import lone_worker_text
from raysync.predict.what_if import Prediction, WhatIf, may_hide_waits, slowest
from raysync.results.columns import plain_form, ratio_text, seconds_form, share_form, with_interval
from raysync.results.report_faces import Answer, Table
from raysync.results.sentences import bottleneck
from raysync.results.tables import Column

BASELINE = "bsp"
"""What most trainers do: others are compared with it."""
SCHEMA = 1
LEGEND = (
    "±: half of the 95% bootstrap interval over blocks of simulated time; none is given where it is"
    " narrower than the digits shown."
)


def answer_of(answer: WhatIf) -> Answer:
    rows = {each.label: each for each in answer.by_rate}
    return Answer(
        "whatif",
        name="What if?",
        title=f"{len(answer.times.steps)} ranks, {answer.times.source}",
        question="Which paradigm?",
        sentences=sentences(answer),
        tables=[
            Table("paradigm", columns_of(answer), rows),
            *([_another_rank_table(answer)] if answer.with_another else []),
            *curve_tables(answer),
        ],
        legend=LEGEND,
        labels=[each.label for each in answer.predictions],
        figures=figures_of_what_if(answer),
        basis=list(basis(answer)),
    )


def columns_of(answer: WhatIf) -> list[Column]:
    """Return the columns that apply to the answer."""
    baseline = _baseline(answer)
    unit = unit_of(answer)
    columns = [Column(f"{unit} per s", f"{unit} applied per second", _rate)]
    if baseline is not None:
        columns.append(
            Column(
                f"× {baseline.label}",
                f"this rate, divided by the rate of {baseline.label}",
                lambda p: ratio_text(p.steps_per_s.value / baseline.steps_per_s.value),
            )
        )
    if answer.ranks.exchange is not None:
        columns.append(
            Column(
                "computing",
                (
                    "share of the workers' time in which they compute applied pushes; the rest is"
                    " waiting and the transfer of gradients and weights"
                ),
                lambda p: format(p.computing_fraction, share_form(p.computing_fraction)),
            )
        )
    columns += [
        Column(
            "wait share",
            "of the workers' time, between push and release",
            lambda p: _with_interval(p.wait_fraction, share_form),
            lambda p: _without_interval(p.wait_fraction, share_form),
        ),
        Column(
            "staleness",
            "model versions between a gradient's weights and its update, mean",
            lambda p: _with_interval(p.staleness_mean, plain_form),
            lambda p: _without_interval(p.staleness_mean, plain_form),
        ),
        Column("max", "the largest staleness", lambda p: f"{p.staleness_max:,}"),
        Column(
            "lead",
            "clocks ahead of the slowest at a release, mean; without a bound it grows with the run",
            lambda p: format(p.lead_mean, plain_form(p.lead_mean)),
            only_in_pages=True,
        ),
        Column("lead max", "the largest lead", lambda p: f"{p.lead_max:,}"),
    ]
    if any(each.dropped for each in answer.predictions):
        columns.append(
            Column("dropped", "pushes that were not applied", lambda p: f"{p.dropped:,}")
        )
    columns.append(
        Column(
            "lost worker-hours",
            (
                "hours in which workers waited or computed dropped pushes, summed over all workers"
                " and the whole workload"
            ),
            lambda p: _with_interval(p.lost_worker_hours, seconds_form),
            lambda p: _without_interval(p.lost_worker_hours, seconds_form),
            only_in_pages=answer.options.price_per_hour is not None,
        )
    )
    if answer.options.price_per_hour is not None:
        columns.append(
            Column(
                "lost money",
                f"lost worker-hours times the price of {answer.options.price_per_hour:g} an hour",
                lambda p: (
                    "-" if p.lost_money is None else _with_interval(p.lost_money, seconds_form)
                ),
                lambda p: (
                    "-" if p.lost_money is None else _without_interval(p.lost_money, seconds_form)
                ),
            )
        )
    return columns


def unit_of(answer: WhatIf) -> str:
    """Return what is counted: samples, or steps where it is not known how many samples one has."""
    return "steps" if answer.ranks.batch_size is None else "samples"


def _rate(prediction: Prediction) -> str:
    return _with_interval(prediction.samples_per_s or prediction.steps_per_s, seconds_form)


def _with_interval(interval: Interval, form: Callable[[float], str]) -> str:
    return with_interval(interval.value, interval.low, interval.high, 1, 1, form)


def _without_interval(interval: Interval, form: Callable[[float], str]) -> str:
    return format(interval.value, form(interval.value))


def _baseline(answer: WhatIf) -> Prediction | None:
    plain = [each for each in answer.predictions if each.candidate.choice.name == BASELINE]
    return plain[0] if plain else None


def sentences(answer: WhatIf) -> list[str]:
    """Return the answer in words: the fastest, the fastest without staleness, the slowest rank."""
    first = answer.by_rate[0]
    parts = [f"{first.label} is the fastest: {_rate(first)} {unit_of(answer)} per second."]
    parts += filter(None, [lone_worker_text(first.label, first.applied)])
    parts += [f"Without stale gradients it is {fresh.label}." for fresh in answer.best[1:]]
    rank, ratio = slowest(answer.times)
    count = len(answer.times.steps)
    if may_hide_waits(answer.times):
        parts.append(
            "Slow ranks cannot be identified: the steps of all ranks take equally long, and"
            " nothing says how much of them is waiting."
        )
    elif count > 1:
        other = "the other" if count == 2 else "the rank in the middle"
        parts.append(
            f"The slowest rank is {rank}: its steps take {ratio_text(ratio)} times as long as those"
            f" of {other}."
        )
    return [*parts, *_bottlenecks(answer), *map(knee_sentence, answer.curves)]


def _bottlenecks(answer: WhatIf) -> list[str]:
    """Say what limits the best candidates, by the names of the ranks."""
    seconds = {each.label: each.seconds for each in answer.predictions}
    said = [
        f"{label}: {bottleneck({'bottleneck': found.plain(), 'seconds': seconds[label]})}"
        for label, found in answer.diagnoses.items()
    ]
    slots = answer.ranks.slots
    return [re.sub(r"[\w.+-]+-\d+", lambda m: slots.get(m[0], m[0]), text) for text in said]


def _another_rank_table(answer: WhatIf) -> Table:
    before = {each.label: each.steps_per_s.value for each in answer.predictions}
    unit = unit_of(answer)
    columns = [
        Column(f"{unit} per s", f"{unit} applied per second", _rate),
        Column(
            "× now",
            "how many times as many as now",
            lambda p: ratio_text(p.steps_per_s.value / before[p.label]),
        ),
    ]
    rows: dict[str, Prediction] = {}
    for larger in answer.with_another:
        what = f"one more of group {larger.group}" if larger.group else "one more rank"
        rows |= {f"{what}, {each.label}": each for each in larger.predictions}
    return Table("with", columns, rows)


def curve_tables(answer: WhatIf) -> Iterator[Table]:
    """Yield a table for each axis: the rate of each candidate, and the share of what its ranks
    would compute if they never waited.
    """
    scale = 1 if answer.ranks.batch_size is not None else 1 / answer.ranks.samples
    about = f"{unit_of(answer)} per second, and the share of what its ranks can compute"

    def cell(curve: Curve, at: float) -> str:
        point = next((each for each in curve.points if each.at == at), None)
        if point is None:
            return "-"
        rate = scale * point.samples_per_s
        return f"{format(rate, seconds_form(rate))}\N{NO-BREAK SPACE}({point.efficiency:.0%})"

    for axis, of_axis in groupby(answer.curves, key=lambda curve: curve.axis):
        columns = [Column(curve.candidate.label, about, partial(cell, curve)) for curve in of_axis]
        yield Table(axis.noun, columns, {axis.label(at): at for at in axis.points})


def knee_sentence(curve: Curve) -> str:
    """Return where a curve bends, and what limits it there."""
    axis, label, first = curve.axis, curve.candidate.label, curve.points[0].at
    where = f"{label}: from {axis.phrase(curve.knee or first)} on"
    high, limit = axis.phrase(curve.points[-1].at), _limit(curve)
    if axis.name == "workers":
        if curve.knee is None:
            return f"{label}: each further worker helps, also of {high}."
        return f"{where} a further one adds little{f'; the limit: {limit}' if limit else ''}."
    if curve.knee is None:
        return f"{label}: also with {high} the network matters: {limit}."
    if curve.knee == first:
        return f"{where} the network hardly matters."
    return f"{where} the network hardly matters; before: {limit}."


def _limit(curve: Curve) -> str:
    known = curve.limit.removesuffix(" (network.link)")
    return known or ("" if curve.axis.name == "workers" else "its links and servers together")


def basis(answer: WhatIf) -> Iterator[str]:
    """Yield the grounds and limits of the answer."""
    times = answer.times
    count = len(times.steps)
    steps = f"{times.shortest:,}"
    if times.longest > times.shortest:
        steps += f" to {times.longest:,}"
    yield (
        f"Step times: {times.source}; {count} rank{'s' * (count > 1)} of {steps} steps. Workload:"
        f" {count * answer.ranks.steps_each:,} steps"
        + (
            f" of {answer.ranks.batch_size:,} samples."
            if answer.ranks.batch_size is not None
            else "."
        )
    )
    yield from answer.remarks
    yield (
        "Simulated on the virtual clock: a step takes its measured time under every paradigm."
        f" {_exchange(answer)}"
    )
    yield from _extrapolations(answer)
    yield (
        "The answer is how fast gradients are applied, not how well a model learns from stale or"
        " fewer gradients; to train, use raysync compare."
    )


def _exchange(answer: WhatIf) -> str:
    """Say what carries gradients."""
    exchange = answer.ranks.exchange
    if exchange is None:
        return (
            "Exchanging gradients takes no time here; to include it, give --model-bytes and --link."
        )
    where = "each rank" if exchange.nodes is None else f"each of {exchange.nodes} nodes"
    rate = Axis("link", 1, 1).label(exchange.link.bandwidth_bytes_per_s or 0.0)
    ways = [f"{count} server{'s' * (count > 1)}" for count in exchange.servers]
    own = "".join(f", {rank} of its own" for rank in exchange.of_ranks)
    return (
        f"Gradients of {exchange.vector_bytes:,} bytes travel over links of {rate} ({where} and"
        f" each server{own}), by {', '.join([*ways, *exchange.collectives])}; nothing overlaps with"
        " computing."
    )


def _extrapolations(answer: WhatIf) -> Iterator[str]:
    """Say where a curve goes beyond what was measured."""
    count = len(answer.ranks.steps)
    for axis in dict.fromkeys(curve.axis for curve in answer.curves):
        if axis.name == "workers" and axis.high > count:
            yield (
                f"Extrapolated: {count} ranks were measured; further ranks repeat their steps,"
                " from another start."
            )
        if axis.name == "batch":
            yield (
                f"Extrapolated: batches of {answer.ranks.batch_size} were measured; the time of a"
                " step is taken as proportional to its batch size."
            )


def write(answer: WhatIf, path: Path) -> None:
    faces = answer_of(answer)
    text = faces.html() if path.suffix == ".html" else faces.markdown()
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def as_json(answer: WhatIf) -> str:
    return json.dumps(_plain(answer), indent=2, allow_nan=False)


def _plain(answer: WhatIf) -> dict[str, Any]:
    times = answer.times
    return {
        "whatif": SCHEMA,
        "source": times.source,
        "ranks": [
            {
                "rank": rank,
                "steps": len(seconds),
                "mean_s": fmean(seconds),
                "max_s": max(seconds),
                "exposed_s": None if times.exposed_s is None else times.exposed_s[rank],
            }
            for rank, seconds in times.steps.items()
        ],
        "steps": answer.ranks.steps_each,
        "batch_size": answer.ranks.batch_size,
        "steps_per_exchange": times.steps_per_exchange,
        "price_per_hour": answer.options.price_per_hour,
        "confidence": CONFIDENCE,
        "remarks": list(answer.remarks),
        "paradigms": [_plain_prediction(each) for each in answer.predictions],
        "curves": [_plain_curve(curve) for curve in answer.curves],
        "with_one_more": [
            {"group": each.group, "paradigms": list(map(_plain_prediction, each.predictions))}
            for each in answer.with_another
        ],
    }


def _plain_curve(curve: Curve) -> dict[str, Any]:
    return {
        "axis": curve.axis.name,
        "candidate": curve.candidate.label,
        "knee": curve.knee,
        "limit": curve.limit or None,
        "points": [asdict(point) for point in curve.points],
    }


def _plain_prediction(prediction: Prediction) -> dict[str, Any]:
    paradigm = {
        "paradigm": prediction.label,
        "parameters": prediction.candidate.choice.make().parameters(),
    }
    measures = asdict(prediction)
    del measures["candidate"]
    return paradigm | measures
