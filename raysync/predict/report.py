"""What `raysync whatif` and `raysync advise` have found: in words, in tables, as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from raysync.predict.advise import RATES, Advice
from raysync.predict.compared_candidates import ComparedCandidates, Prediction
from raysync.predict.curves import Axis, Curve
from raysync.predict.figures import figures_of
from raysync.predict.intervals import CONFIDENCE, Interval
from raysync.predict.what_if import WhatIf, may_hide_waits, slowest
from raysync.results.columns import (
    DROPPED,
    LEAD_MAX,
    STALENESS,
    STALENESS_MAX,
    WAIT,
    Column,
    TableRow,
    count_form,
    plain_form,
    ratio_text,
    seconds_form,
    share_form,
    shown,
    with_interval,
)
from raysync.results.report_faces import Answer
from raysync.results.sentences import bottleneck
from raysync.results.statistics import Estimate
from raysync.results.tables import Table

BASELINE = "bsp"  # what most trainers do: others are compared with it
SCHEMA = 2
PAGE = "advice.html"
# the share of the applied pushes from which one worker is said to train nearly alone
ALONE = 0.9
LARGER = 1.05  # updates with so many times the samples of BSP's are larger
MOST_BATCHES = 8  # the most batch sizes that a cell shows
LEGEND = (
    "±: half of the 95% bootstrap interval over blocks of simulated time; none is given where it is"
    " narrower than the digits shown."
)
NOT_LEARNED = (
    "The answer is how fast gradients are applied, not how well a model learns from stale or"
    " fewer gradients, or larger batches"
)


COMPUTING = Column(
    "computing_fraction",
    "computing",
    share_form,
    "share of the workers' time in which they compute applied pushes; the rest is waiting and the"
    " transfer of gradients and weights",
)
LEAD = Column(
    "lead_mean",
    "lead",
    plain_form,
    "clocks ahead of the slowest at a release, mean; without a bound it grows with the run",
    narrow=None,
)
BATCHES = Column(
    "batches", "batches", about="samples of a step at the end, worker by worker", narrow=None
)
LOST_HOURS = Column(
    "lost_worker_hours",
    "lost worker-hours",
    about="hours in which workers waited or computed dropped pushes, summed over all workers and"
    " the whole workload",
)
# columns of what a prediction says under their keys
OF_PREDICTION = (COMPUTING, WAIT, STALENESS, STALENESS_MAX, LEAD, LEAD_MAX, DROPPED, LOST_HOURS)


def answer_of(found: WhatIf | Advice) -> Answer:
    comparison = found.comparison
    unit, samples = unit_of(found)
    tables = [paradigm_table(found)]
    if comparison.changes:
        tables.append(_change_table(found))
    if isinstance(found, WhatIf):
        tables += curve_tables(found)
        count = len(found.times.steps)
        name, title = "What if?", f"{count} ranks, {found.times.source}"
        more: dict[str, Any] = {"times": found.times.steps, "curves": found.curves}
    else:
        experiment = found.experiment
        name = f"Advice for {experiment.name}"
        title, more = f"{experiment.subject}, {experiment.worker_count} workers", {}
    return Answer(
        "whatif" if isinstance(found, WhatIf) else "advise",
        name=name,
        title=title,
        question="Which paradigm?",
        sentences=sentences(found),
        tables=tables,
        legend=LEGEND,
        labels=[one.label for one in comparison.predictions],
        figures=figures_of(comparison, unit, samples, **more),
        basis=list(basis(found)),
    )


def unit_of(found: WhatIf | Advice) -> tuple[str, int]:
    """Return what is counted, and its samples: steps where nobody says how many samples one has."""
    if isinstance(found, WhatIf) and found.ranks.batch_size is None:
        return "steps", found.ranks.samples
    return "samples", 1


def price_of(found: WhatIf | Advice) -> float | None:
    return found.options.price_per_hour if isinstance(found, WhatIf) else None


# ---- tables ----


def paradigm_table(found: WhatIf | Advice) -> Table:
    """Return a row of each candidate, and the columns that apply to the answer."""
    predictions, (unit, _) = found.comparison.predictions, unit_of(found)
    waits_alone = all(
        one.computing_fraction >= 0.995 - one.wait_fraction.value for one in predictions
    )
    updates_differ = len({round(one.update_samples) for one in predictions}) > 1
    batches_differ = any(len(set(one.shares.values())) > 1 for one in predictions)
    price = price_of(found)
    rate = Column("rate", f"{unit} per s", about=f"{unit} applied per second", interval=True)
    factor = Column(
        "factor",
        f"× {BASELINE}",
        about=f"this rate, divided by the rate of {BASELINE}",
        optional=True,
    )
    update = Column(
        "update",
        f"{unit} an update",
        count_form,
        "mean; more than under BSP with larger batches, or with local steps",
        narrow="" if updates_differ else None,
    )
    hours = replace(LOST_HOURS, narrow="" if price is None else None)
    columns = [rate, factor, *([] if waits_alone else [COMPUTING])]
    columns += [WAIT, STALENESS, STALENESS_MAX, update, LEAD, LEAD_MAX, DROPPED]
    columns += [*([BATCHES] if batches_differ else []), hours]
    if price is not None:
        about = f"lost worker-hours times the price of {price:g} an hour"
        columns.append(Column("lost_money", "lost money", about=about))
    rows = {one.label: _row(found, one) for one in found.comparison.by_rate}
    return Table("paradigm", shown(columns, rows.values()), rows)


def _row(found: WhatIf | Advice, one: Prediction) -> TableRow:
    price, (_, samples), rate = price_of(found), unit_of(found), one.samples_per_s
    base = [other for other in found.comparison.predictions if other.label == BASELINE]
    values = {column.key: getattr(one, column.key) for column in OF_PREDICTION}
    values |= {
        "rate": rate.times(1 / samples),
        "factor": rate.value / base[0].samples_per_s.value if base else None,
        "update": round(one.update_samples / samples),
        BATCHES.key: _batches(one.shares),
        "lost_money": None if price is None else one.lost_worker_hours.times(price),
    }
    return {
        key: _estimate(value) if isinstance(value, Interval) else value
        for key, value in values.items()
    }


def _estimate(interval: Interval) -> Estimate:
    return Estimate(interval.value, interval.low, interval.high, 1, 1)


def _batches(shares: Mapping[str, int]) -> str:
    sizes = list(map(str, shares.values()))
    return " ".join(sizes[:MOST_BATCHES]) + (" ..." if len(sizes) > MOST_BATCHES else "")


def _change_table(found: WhatIf | Advice) -> Table:
    comparison, (unit, samples) = found.comparison, unit_of(found)
    columns = [
        Column("rate", f"{unit} per s", about=f"{unit} applied per second"),
        Column("factor", "× now", about="how many times as many as now"),
    ]
    rows: dict[str, TableRow] = {}
    for change in comparison.changes:
        now = comparison.get(change.candidate.label).samples_per_s.value
        name = _named(found, f"{change.what}, {change.candidate.label}")
        rate = change.samples_per_s
        rows[name] = {"rate": rate / samples, "factor": rate / now}
    return Table("change", columns, rows)


def curve_tables(answer: WhatIf) -> Iterator[Table]:
    """Yield a table for each axis: the rate of each candidate, and the share of what its ranks
    would compute if they never waited.
    """
    unit, samples = unit_of(answer)
    about = f"{unit} per second, and the share of what its ranks can compute"
    for axis, curves in groupby(answer.curves, key=lambda curve: curve.axis):
        columns = []
        rows: dict[str, dict[str, str]] = {axis.label(at): {} for at in axis.points}
        for curve in curves:
            label = curve.candidate.label
            columns.append(Column(label, label, about=about))
            for point in curve.points:
                rate = ratio_text(point.samples_per_s / samples)
                text = f"{rate}\N{NO-BREAK SPACE}({point.efficiency:.0%})"
                rows[axis.label(point.at)][label] = text
        yield Table(axis.noun, columns, rows)


# ---- sentences ----


def sentences(found: WhatIf | Advice) -> list[str]:
    """Return the answer in words: the fastest, the fastest without staleness, what limits them,
    and what would help.
    """
    comparison, (unit, samples) = found.comparison, unit_of(found)
    first, *fresh = comparison.best
    workers = len(first.applied)
    rate = _estimate(first.samples_per_s.times(1 / samples))
    speed = f"{with_interval(rate, seconds_form)} {unit} per second"
    if workers == 1:
        parts = [f"One worker waits for nobody: it makes {speed}."]
    else:
        parts = [f"{first.label} is the fastest: {speed}."]
        parts += [f"Without stale gradients it is {one.label}." for one in fresh]
        parts += _larger_updates(comparison)
    parts += filter(None, [lone_worker_text(first.label, first.applied), _alone_text(comparison)])
    if isinstance(found, WhatIf):
        parts += _slowest_rank(found)
    for label, diagnosis in comparison.diagnoses.items():
        summary = {"bottleneck": diagnosis.plain(), "seconds": diagnosis.seconds}
        parts.append(f"{label}: {bottleneck(summary)}")
    if isinstance(found, WhatIf):
        parts += map(knee_sentence, found.curves)
    return [_named(found, part) for part in parts]


def _named(found: WhatIf | Advice, text: str) -> str:
    """Return a text with the user's names of ranks in the place of slots."""
    names = found.ranks.names if isinstance(found, WhatIf) else {}
    return re.sub(r"[\w.+-]+-\d+", lambda match: names.get(match[0], match[0]), text)


def _larger_updates(comparison: ComparedCandidates) -> Iterator[str]:
    """Say which of the best have larger updates than BSP, and what is the fastest without."""
    plain = comparison.plain
    if plain is None:
        return
    for one in comparison.best:
        most = LARGER * plain.update_samples
        if one.update_samples >= most:
            other = next(
                other
                for other in comparison.by_rate
                if other.update_samples < most and other.staleness_max <= one.staleness_max
            )
            yield (
                f"An update of {one.label} has"
                f" {ratio_text(one.update_samples / plain.update_samples)} times the samples of one"
                f" of {plain.label}; with updates no larger it is {other.label}."
            )


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


def _alone_text(comparison: ComparedCandidates) -> str | None:
    """Say that one worker alone is faster than all together; None: it is not."""
    first = comparison.best[0]
    for change in comparison.changes:
        factor = change.samples_per_s / first.samples_per_s.value
        if change.what.endswith(" alone") and factor > 1:
            alone = change.what.removeprefix("with ")
            return f"{alone} is faster than all together, {ratio_text(factor)} times as fast."
    return None


def _slowest_rank(answer: WhatIf) -> Iterator[str]:
    rank, ratio = slowest(answer.times)
    count = len(answer.times.steps)
    if may_hide_waits(answer.times):
        yield (
            "Slow ranks cannot be identified: the steps of all ranks take equally long, and"
            " nothing says how much of them is waiting."
        )
    elif count > 1:
        other = "the other" if count == 2 else "the rank in the middle"
        yield (
            f"The slowest rank is {rank}: its steps take {ratio_text(ratio)} times as long as those"
            f" of {other}."
        )


def knee_sentence(curve: Curve) -> str:
    """Return where a curve bends, and what limits it there."""
    axis, label, first = curve.axis, curve.candidate.label, curve.points[0].at
    where = f"{label}: from {axis.phrase(curve.knee or first)} on"
    high, limit = axis.phrase(curve.points[-1].at), curve.limit.removesuffix(" (network.link)")
    if axis.name == "workers":
        rates = [point.samples_per_s for point in curve.points]
        if curve.points[0].at == 1 and len(rates) > 1 and max(rates[1:]) < rates[0]:
            return f"{label}: one worker alone is the fastest, and further ones slow it down."
        if curve.knee is None:
            return f"{label}: each further worker helps, also of {high}."
        return f"{where} a further one adds little{f'; the limit: {limit}' if limit else ''}."
    limit = limit or "its links and servers together"
    if curve.knee is None:
        return f"{label}: also with {high} the network matters: {limit}."
    if curve.knee == first:
        return f"{where} the network hardly matters."
    return f"{where} the network hardly matters; before: {limit}."


# ---- grounds and limits ----


def basis(found: WhatIf | Advice) -> Iterator[str]:
    """Yield the grounds and limits of the answer."""
    yield from _basis_of_ranks(found) if isinstance(found, WhatIf) else _basis_of_advice(found)


def _basis_of_advice(advice: Advice) -> Iterator[str]:
    yield from advice.remarks
    few = ", ".join(one.label for one in advice.finalists)
    tried = len(advice.comparison.predictions)
    yield (
        f"{tried} candidates were timed on the virtual clock; the sweep has {advice.trials} trials"
        f" of {few}."
    )
    if advice.experiment.trains:
        rates = ", ".join(f"{factor:g}" for factor in RATES)
        yield (
            f"{NOT_LEARNED}; the sweep trains them, each with {rates} times the learning rate of"
            " the file. Where the best is the first or the last of them, add rates beyond it."
        )
    else:
        yield f"{NOT_LEARNED}."
    yield "An experiment's step times and network are taken as they are given."


def _basis_of_ranks(answer: WhatIf) -> Iterator[str]:
    times = answer.times
    count = len(times.steps)
    steps = f"{times.shortest:,}"
    if times.longest > times.shortest:
        steps += f" to {times.longest:,}"
    size = answer.ranks.batch_size
    yield (
        f"Step times: {times.source}; {count} rank{'s' * (count > 1)} of {steps} steps. Workload:"
        f" {count * answer.ranks.steps_each:,} steps"
        f"{'' if size is None else f' of {size:,} samples'}."
    )
    yield from answer.remarks
    yield (
        "Simulated on the virtual clock: a step takes its measured time under every paradigm."
        f" {_exchange(answer)}"
    )
    yield from _extrapolations(answer)
    yield f"{NOT_LEARNED}; to train, use raysync compare."


def _exchange(answer: WhatIf) -> str:
    """Say what carries gradients."""
    exchange = answer.ranks.exchange
    if exchange is None:
        return (
            "Exchanging gradients takes no time here; to include it, give --model-bytes and --link,"
            " or the --profile of a cluster."
        )
    where = "each rank" if exchange.nodes is None else f"each of {exchange.nodes} nodes"
    bytes_per_s = exchange.link.bandwidth_bytes_per_s
    rate = Axis("link", 1, 1).label(bytes_per_s) if bytes_per_s else "any rate"
    ways = [f"{count} server{'s' * (count > 1)}" for count in exchange.servers]
    own = "".join(f", {rank} of its own" for rank in exchange.of_ranks)
    calls = ""
    if exchange.calls:
        calls = (
            f" Calls cost what the profile says: {1000 * exchange.link.latency_s:.3g} ms each way,"
            f" and {1000 * exchange.calls['push_s']:.3g} ms of the coordinator for each push; an"
            f" update takes {1000 * exchange.calls['update_s']:.3g} ms beside reading gradients."
        )
    return (
        f"Gradients of {exchange.vector_bytes:,} bytes travel over links of {rate} ({where} and"
        f" each server{own}), by {', '.join([*ways, *exchange.collectives])}; nothing overlaps with"
        f" computing.{calls}"
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


# ---- files ----


def write(found: WhatIf | Advice, path: Path) -> None:
    faces = answer_of(found)
    text = faces.html() if path.suffix == ".html" else faces.markdown()
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def as_json(found: WhatIf | Advice) -> str:
    comparison = found.comparison
    head = _json_of_ranks(found) if isinstance(found, WhatIf) else _json_of_advice(found)
    body = {
        "confidence": CONFIDENCE,
        "answer": sentences(found),
        "basis": list(basis(found)),
        "paradigms": [_json_of(found, one) for one in comparison.predictions],
        "changes": [
            {
                "what": _named(found, change.what),
                "paradigm": change.candidate.label,
                "factor": change.samples_per_s
                / comparison.get(change.candidate.label).samples_per_s.value,
            }
            for change in comparison.changes
        ],
        "limits": {label: diagnosis.plain() for label, diagnosis in comparison.diagnoses.items()},
    }
    return json.dumps(head | body, indent=2, allow_nan=False)


def _json_of_advice(advice: Advice) -> dict[str, Any]:
    return {
        "advise": SCHEMA,
        "experiment": advice.experiment.name,
        "finalists": [one.label for one in advice.finalists],
        "trials": advice.trials,
    }


def _json_of_ranks(answer: WhatIf) -> dict[str, Any]:
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
        "curves": [
            {
                "axis": curve.axis.name,
                "candidate": curve.candidate.label,
                "knee": curve.knee,
                "limit": curve.limit or None,
                "points": [asdict(point) for point in curve.points],
            }
            for curve in answer.curves
        ],
    }


def _json_of(found: WhatIf | Advice, one: Prediction) -> dict[str, Any]:
    price, measures = price_of(found), asdict(one)
    del measures["candidate"]
    if isinstance(found, WhatIf):
        rate = one.samples_per_s.times(1 / found.ranks.samples)
        measures["steps_per_s"] = asdict(rate)
        if found.ranks.batch_size is None:
            measures |= {"samples_per_s": None, "update_samples": None}
    return {
        "paradigm": one.label,
        "parameters": one.candidate.choice.make().parameters(),
        **measures,
        "lost_money": None if price is None else asdict(one.lost_worker_hours.times(price)),
    }
