"""Every candidate on step times that were measured elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median_low

from raysync.config import ParadigmChoice
from raysync.config.base import listed
from raysync.predict.candidates import Candidate, candidates_of, standard_paradigms
from raysync.predict.compared_candidates import (
    ComparedCandidates,
    Prediction,
    Show,
    compare,
    with_wire,
)
from raysync.predict.curves import Axis, Curve, check_axes, curves
from raysync.predict.exchange import Exchange
from raysync.predict.intervals import FEWEST
from raysync.predict.measured_ranks import MeasuredRanks
from raysync.predict.simulation import STEPS_A_BLOCK
from raysync.predict.step_times.rank_step_times import RankStepTimes

ALIKE = 1.02  # ranks whose mean steps differ by at most this factor are equally slow


@dataclass(frozen=True)
class PredictionOptions:
    """Assumptions of a prediction beside the step times."""

    # the samples of a step; None: as the source says, or unknown: then steps are counted
    batch_size: int | None = None
    # the workload, in steps a rank on average; None: as many as the shortest rank has
    steps: int | None = None
    price_per_hour: float | None = None  # the price of one worker, in any currency
    processes: int = 1
    exchange: Exchange | None = None
    axes: tuple[Axis, ...] = ()  # the axes of the curves of the best few


@dataclass(frozen=True)
class WhatIf:
    """What every candidate would make of the step times."""

    times: RankStepTimes
    options: PredictionOptions
    ranks: MeasuredRanks
    comparison: ComparedCandidates
    curves: tuple[Curve, ...]
    remarks: tuple[str, ...]


def predict(
    times: RankStepTimes,
    options: PredictionOptions,
    choices: Sequence[ParadigmChoice] = (),
    show: Show = lambda done, total: None,
) -> WhatIf:
    """Simulate every candidate.

    Args:
        times: of all ranks.
        options: the workload, the exchange, the axes.
        choices: the paradigms; none: the standard ones.
        show: see `Show`.

    Raises:
        ConfigError: a paradigm does not work with that many workers, or with that exchange.
        RunFailed: a process was lost, by want of memory for example.
    """
    every = times.steps_per_exchange
    steps = options.steps or times.shortest // every * every
    ranks = MeasuredRanks(
        steps=times.between_exchanges,
        batch_size=options.batch_size or times.batch_size,
        steps_each=every * ceil(steps / every),
        exchange=options.exchange,
        steps_per_push=every,
    )
    check_axes(ranks, options.axes)
    tried = choices or standard_paradigms(len(times.steps))
    candidates = candidates_of(tried, options.exchange)

    def refined(found: Sequence[Prediction]) -> Iterable[Candidate]:
        return () if choices else with_wire(ranks, found)

    comparison = compare(ranks, candidates, refined, options.processes, show)
    followed = [one.candidate for one in comparison.followed]
    return WhatIf(
        times=times,
        options=options,
        ranks=ranks,
        comparison=comparison,
        curves=curves(ranks, followed, options.axes, options.processes),
        remarks=(*times.remarks, *_remarks(times, ranks, comparison)),
    )


def slowest(times: RankStepTimes) -> tuple[str, float]:
    """Return the rank with the longest mean step, and its ratio to the middle rank's."""
    means = {rank: fmean(seconds) for rank, seconds in times.steps.items()}
    rank = max(means, key=lambda name: means[name])
    # a mean of two ranks in the middle would be the steps of none
    return rank, means[rank] / median_low(means.values())


def may_hide_waits(times: RankStepTimes) -> bool:
    """Return whether the steps may be equal because ranks wait for each other inside them."""
    means = [fmean(seconds) for seconds in times.steps.values()]
    return times.may_wait and len(means) > 1 and max(means) <= ALIKE * min(means)


def _remarks(
    times: RankStepTimes, ranks: MeasuredRanks, comparison: ComparedCandidates
) -> Iterator[str]:
    steps, fewest = ranks.steps_each, FEWEST * STEPS_A_BLOCK * times.steps_per_exchange
    if may_hide_waits(times):
        yield (
            "If ranks wait for each other inside a step, all steps last as long as the slowest"
            " one, and all paradigms look alike. Stop the clock before gradients are exchanged,"
            " or record the communication in the trace."
        )
    if steps > times.shortest and times.shortest == times.longest:
        yield f"The workload is longer than the {times.shortest:,} steps of a rank: they repeat."
    if steps < fewest:
        yield f"{steps} steps a rank are too few for intervals, which need {fewest}."
    predictions = comparison.predictions
    vague = [one.label for one in predictions if one.samples_per_s.is_wide]
    if vague:
        yield (
            f"The rate of {listed(vague)} is hardly known: its interval is wider than the rate"
            " itself. Longer step times, without single slow steps, narrow it."
        )
    if any(one.dropped for one in predictions):
        yield "Samples per second count applied samples only; dropped pushes do not count."
    if any(one.candidate.choice.name == "balanced" for one in predictions):
        yield "Under balanced, the time of a step is proportional to its batch size."
