"""Every candidate on the same step times, on all cores, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median_low

from raysync.config import ParadigmChoice
from raysync.config.table_columns import listed
from raysync.errors import ConfigError
from raysync.predict.candidates import Candidate, candidates_of, standard_paradigms
from raysync.predict.curves import Axis, Curve, check_axes, curves
from raysync.predict.diagnosis import Diagnosis, diagnose
from raysync.predict.exchange import Exchange
from raysync.predict.intervals import FEWEST, Interval, ratio
from raysync.predict.measured_ranks import MeasuredRanks
from raysync.predict.processes import pool
from raysync.predict.setting import Setting
from raysync.predict.simulation import STEPS_A_BLOCK, Simulation, simulate
from raysync.predict.step_times.rank_step_times import RankStepTimes

Show = Callable[[int, int], None]
"""Receives the number of candidates that are through, and of all."""
HOUR_S = 3600.0
ALIKE = 1.02
"""Ranks whose mean steps differ by at most this factor are equally slow."""
FEWEST_STEPS = 200_000
"""With fewer steps, of all candidates together, one process is faster than several."""


@dataclass(frozen=True)
class PredictionOptions:
    """Assumptions of a prediction beside the step times."""

    batch_size: int | None = None
    """The samples of a step; None: as the source says, or unknown: then steps are counted."""
    steps: int | None = None
    """The workload, in steps a rank on average; None: as many as the shortest rank has."""
    price_per_hour: float | None = None
    """The price of one worker, in any currency."""
    processes: int = 1
    exchange: Exchange | None = None
    axes: tuple[Axis, ...] = ()
    """The axes of the curves of the best few."""


@dataclass(frozen=True)
class Prediction:
    """What one candidate would do."""

    candidate: Candidate
    seconds: float
    steps_per_s: Interval
    """Applied steps, of all workers together."""
    samples_per_s: Interval | None
    """The throughput; None: it is not known how many samples a step has."""
    computing_fraction: float
    """The share of the workers' time in which they compute what is applied."""
    wait_fraction: Interval
    """The share of the workers' time between push and release."""
    staleness_mean: Interval
    staleness_max: int
    """The largest staleness of an applied push, in versions."""
    lead_mean: float
    lead_max: int
    """The largest lead at a release, in clocks ahead of the slowest."""
    dropped: int
    """Pushes that were computed and not applied."""
    lost_worker_hours: Interval
    """Waiting, and computing what was dropped, of all workers in the whole workload."""
    lost_money: Interval | None
    """The price of the lost hours; None: no price was given."""
    worker_hours: float
    waiting: dict[str, float]
    applied: dict[str, int]
    """Rank -> its pushes that were not dropped."""

    @property
    def label(self) -> str:
        return self.candidate.label


@dataclass(frozen=True)
class WithAnotherRank:
    """What one more rank would do to the best candidates."""

    group: str
    """The group that it belongs to; "": ranks have no groups."""
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class WhatIf:
    """What every candidate would make of the step times."""

    times: RankStepTimes
    options: PredictionOptions
    ranks: MeasuredRanks
    predictions: tuple[Prediction, ...]
    with_another: tuple[WithAnotherRank, ...]
    diagnoses: Mapping[str, Diagnosis]
    """Label -> what limits one of the best, where something could."""
    curves: tuple[Curve, ...]
    remarks: tuple[str, ...]

    @property
    def by_rate(self) -> list[Prediction]:
        return _by_rate(self.predictions)

    @property
    def best(self) -> list[Prediction]:
        """The fastest, and the fastest without stale gradients if that is another one."""
        return _best(self.predictions)


def _by_rate(predictions: Iterable[Prediction]) -> list[Prediction]:
    return sorted(predictions, key=lambda prediction: -prediction.steps_per_s.value)


def _best(predictions: Iterable[Prediction]) -> list[Prediction]:
    first, *others = _by_rate(predictions)
    fresh = [prediction for prediction in (first, *others) if not prediction.staleness_max]
    return [first, fresh[0]] if fresh and fresh[0] is not first else [first]


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
    choices = choices or standard_paradigms(len(times.steps))
    candidates = candidates_of(choices, options.exchange)
    predictions = _predicted(ranks, candidates, options, show)
    with_another = []
    for group, more in ranks.with_another():
        fitting = [each.candidate for each in _best(predictions) if more.can_run(each.candidate)]
        if fitting:
            with_another.append(WithAnotherRank(group, _predicted(more, fitting, options)))
    return WhatIf(
        times=times,
        options=options,
        ranks=ranks,
        predictions=predictions,
        with_another=tuple(with_another),
        diagnoses=_diagnoses(ranks, predictions),
        curves=curves(ranks, _followed(predictions), options.axes, options.processes),
        remarks=(*times.remarks, *_remarks(times, ranks, predictions)),
    )


def _diagnoses(ranks: MeasuredRanks, predictions: Sequence[Prediction]) -> dict[str, Diagnosis]:
    seconds = {each.candidate: each.seconds for each in predictions}
    found = {
        each.label: diagnose(ranks.setting(each), seconds[each]) for each in _followed(predictions)
    }
    return {label: each for label, each in found.items() if each is not None}


def _followed(predictions: Sequence[Prediction]) -> list[Candidate]:
    """Return the candidates whose curves are followed: the best, and what most trainers do."""
    plain = [each for each in predictions if each.candidate.is_synchronous]
    followed = {each.label: each.candidate for each in (*_best(predictions), *plain[:1])}
    return list(followed.values())


def _predicted(
    ranks: MeasuredRanks,
    candidates: Sequence[Candidate],
    options: PredictionOptions,
    show: Show = lambda done, total: None,
) -> tuple[Prediction, ...]:
    """Simulate candidates; all are checked before the first one begins."""
    settings = [ranks.setting(candidate) for candidate in candidates]
    found = []
    for candidate, simulation in zip(
        candidates, simulations(settings, options.processes), strict=True
    ):
        found.append(_prediction(candidate, simulation, ranks, options))
        show(len(found), len(candidates))
    return tuple(found)


def simulations(settings: Sequence[Setting], processes: int) -> Iterator[Simulation]:
    """Yield what came out of each setting, in their order."""
    pushes = sum(setting.pushes for setting in settings)
    processes = min(processes, len(settings))
    if processes < 2 or pushes < FEWEST_STEPS:
        yield from map(_simulated, settings)
        return
    with pool(processes) as executor:
        yield from executor.map(_simulated, settings)


def _simulated(setting: Setting) -> Simulation:
    found = simulate(setting.training, setting.choice)
    assert found is not None, "a simulation that was given up"
    if found.summary["status"] != "finished":
        error = found.summary["error"]
        raise ConfigError(f"--paradigm {setting.choice.label}: the run failed: {error}.")
    return found


def _prediction(
    candidate: Candidate, result: Simulation, ranks: MeasuredRanks, options: PredictionOptions
) -> Prediction:
    summary, blocks, workers = result.summary, result.blocks, len(ranks.steps)
    seconds = summary["seconds"]
    rate = ratio(summary["throughput_samples_per_s"], blocks, "samples", "seconds")
    lost = ratio(result.lost_s / summary["samples"], blocks, "lost_s", "samples")
    lost = lost.times(summary["samples"] / HOUR_S)
    waiting_s = workers * seconds * summary["wait_fraction"]
    dropped_s = result.lost_s - waiting_s
    busy_s = sum(each["busy_s"] for each in summary["per_worker"])
    return Prediction(
        candidate=candidate,
        seconds=seconds,
        steps_per_s=rate.times(1 / ranks.samples),
        samples_per_s=None if ranks.batch_size is None else rate,
        computing_fraction=(busy_s - dropped_s) / (workers * seconds),
        wait_fraction=ratio(waiting_s / seconds, blocks, "wait_s", "seconds").times(1 / workers),
        staleness_mean=ratio(summary["staleness_mean"], blocks, "staleness", "applied"),
        staleness_max=summary["staleness_max"],
        lead_mean=result.lead_mean,
        lead_max=summary["lead_max"],
        dropped=summary["dropped"],
        lost_worker_hours=lost,
        lost_money=None if options.price_per_hour is None else lost.times(options.price_per_hour),
        worker_hours=workers * seconds / HOUR_S,
        waiting={ranks.slots[slot]: share for slot, share in result.waiting.items()},
        applied={ranks.slots[slot]: count for slot, count in result.applied.items()},
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
    times: RankStepTimes, ranks: MeasuredRanks, predictions: Iterable[Prediction]
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
    vague = [each.label for each in predictions if each.steps_per_s.is_wide]
    if vague:
        yield (
            f"The rate of {listed(vague)} is hardly known: its interval is wider than the rate"
            " itself. Longer step times, without single slow steps, narrow it."
        )
    if any(each.dropped for each in predictions):
        yield "Samples per second count applied samples only; dropped pushes do not count."
    if any(each.candidate.choice.name == "balanced" for each in predictions):
        yield "Under balanced, the time of a step is proportional to its batch size."
