"""Every paradigm on the same step times, on all cores, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import Any

from pydantic import ValidationError

from raysync.config import Experiment, ParadigmChoice
from raysync.config.base import by_name
from raysync.config.durations import Steps
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError
from raysync.predict.intervals import FEWEST, Interval, ratio
from raysync.predict.processes import pool
from raysync.predict.simulation import (
    STEPS_A_BLOCK,
    Simulation,
    experiment_of,
    paradigm_of,
    ranks_of,
    simulate,
    with_another,
)
from raysync.predict.step_times.rank_step_times import RankStepTimes

Show = Callable[[int, int], None]
"""Receives the number of paradigms that are through, and of all."""
HOUR_S = 3600.0
ALIKE = 1.02
"""Ranks whose mean steps differ by at most this factor are equally slow."""
ASSUMED_BATCH = 120
"""The samples of a step where only steps are counted: `balanced` divides them."""
ONE_PROCESS = 100_000
"""So many steps, of all paradigms together, are simulated sooner than processes start."""


@dataclass(frozen=True)
class PredictionOptions:
    """What a prediction assumes that the step times do not say."""

    batch_size: int | None = None
    """Samples of a step; None: as the source says; if it does not, only steps are counted."""
    steps: int | None = None
    """The workload, in steps a rank on average; None: as many as the shortest rank has."""
    price_per_hour: float | None = None
    """The price of one worker, in any currency."""
    processes: int = 1


@dataclass(frozen=True)
class Prediction:
    """What one paradigm would do."""

    choice: ParadigmChoice
    seconds: float
    """The seconds of the whole workload."""
    steps_per_s: Interval
    """Applied steps, of all workers together."""
    samples_per_s: Interval | None
    """The throughput; None: it is not known how many samples a step has."""
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
    """Rank -> the share of its time that it waits."""

    @property
    def label(self) -> str:
        """The paradigm and its parameters."""
        return self.choice.label


@dataclass(frozen=True)
class Larger:
    """What one more rank would do to the best paradigms."""

    group: str
    """The group that it belongs to; "": ranks have no groups."""
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class WhatIf:
    """What every paradigm would make of the step times."""

    times: RankStepTimes
    options: PredictionOptions
    batch_size: int | None
    steps: int
    """The workload, in steps a rank on average."""
    predictions: tuple[Prediction, ...]
    larger: tuple[Larger, ...]
    remarks: tuple[str, ...]

    @property
    def by_rate(self) -> list[Prediction]:
        """The paradigms, the fastest first."""
        return _by_rate(self.predictions)

    @property
    def best(self) -> list[Prediction]:
        """The fastest, and the fastest without stale gradients if that is another one."""
        return _best(self.predictions)


def _by_rate(predictions: Iterable[Prediction]) -> list[Prediction]:
    return sorted(predictions, key=lambda each: -each.steps_per_s.value)


def _best(predictions: Iterable[Prediction]) -> list[Prediction]:
    first, *others = _by_rate(predictions)
    fresh = [each for each in (first, *others) if not each.staleness_max]
    return [first, fresh[0]] if fresh and fresh[0] is not first else [first]


def standard_paradigms(workers: int) -> tuple[ParadigmChoice, ...]:
    """Return the paradigms that are tried unless others are named, with usual parameters.

    SSP at the bounds that papers compare; K-sync and Hybrid wait for half of the workers; backup
    workers are one in twenty, as Chen et al. (2016) have it (4 of 100); Sync-Switch's share is that
    of its paper's first setup.
    """
    half = max(1, workers // 2)
    specs: list[dict[str, Any]] = [
        {"name": "bsp"},
        {"name": "balanced"},
        {"name": "ssp", "staleness": 1},
        {"name": "ssp", "staleness": 3},
        {"name": "ssp", "staleness": 10},
        {"name": "lagtuner", "bound": "hard"},
        {"name": "lagtuner", "bound": "literal"},
        {"name": "k-sync", "k": half},
        {"name": "backup-workers", "backups": max(1, round(workers / 20))},
        {"name": "hybrid", "k": half, "staleness_tolerance": 3},
        {"name": "sync-switch", "fraction": 0.0625},
        {"name": "asp"},
    ]
    choices = map(ParadigmChoice.model_validate, specs)
    return tuple(each for each in choices if not each.make().infeasible_reason(workers))


def paradigms_in(texts: Sequence[str]) -> tuple[ParadigmChoice, ...]:
    """Return the paradigms that `--paradigm` names: `ssp`, or `{name: ssp, staleness: 3}`.

    Raises:
        ConfigError: there is no such paradigm, or one is named twice.
    """
    choices: list[ParadigmChoice] = []
    for text in texts:
        where = f"--paradigm {text}"
        value = by_name(read_yaml(text, where))
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise ConfigError(f"{where}: write a name, or {{name: ssp, staleness: 3}}.")
        try:
            choices.append(ParadigmChoice.model_validate(value))
        except ValidationError as error:
            raise ConfigError(f"{where}: {error.errors()[0]['ctx']['error']}") from error
    labels = [choice.label for choice in choices]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(f"--paradigm {twice}: it is named twice.")
    return tuple(choices)


def predict(
    times: RankStepTimes,
    options: PredictionOptions,
    choices: Sequence[ParadigmChoice] = (),
    show: Show = lambda done, total: None,
) -> WhatIf:
    """Simulate every paradigm.

    Args:
        times: of all ranks.
        options: what is asked.
        choices: the paradigms; none: the standard ones.
        show: see `Show`.

    Raises:
        ConfigError: a paradigm does not work with that many workers.
        RunFailed: a process was lost, by want of memory for example.
    """
    batch_size = options.batch_size or times.batch_size
    steps = options.steps or times.shortest
    choices = choices or standard_paradigms(len(times.steps))
    for choice in choices:  # all are checked before the first one begins
        paradigm_of(choice, len(times.steps))

    def predicted(
        ranks: Steps, choices: Sequence[ParadigmChoice], show: Show = lambda done, total: None
    ) -> tuple[Prediction, ...]:
        experiment = experiment_of(ranks, batch_size=batch_size or ASSUMED_BATCH, steps_each=steps)
        results = {}
        for result in _simulations(experiment, choices, options.processes):
            results[result.choice.label] = result
            show(len(results), len(choices))
        names = ranks_of(experiment, ranks)
        return tuple(
            _prediction(results[choice.label], experiment, names, options, batch_size)
            for choice in choices
        )

    predictions = predicted(times.steps, choices, show)
    count = len(times.steps) + 1
    best = [each.choice for each in _best(predictions)]
    fitting = [choice for choice in best if not choice.make().infeasible_reason(count)]
    larger = tuple(
        Larger(group, predicted(ranks, fitting))
        for group, ranks in (with_another(times.steps) if fitting else ())
    )
    remarks = (*times.remarks, *_remarks(times, steps, predictions))
    return WhatIf(
        times=times,
        options=options,
        batch_size=batch_size,
        steps=steps,
        predictions=predictions,
        larger=larger,
        remarks=remarks,
    )


def _simulations(
    experiment: Experiment, choices: Sequence[ParadigmChoice], processes: int
) -> Iterator[Simulation]:
    """Yield the simulations as they are through."""
    steps = experiment.workload_samples(0) // experiment.batch_size * len(choices)
    processes = min(processes, len(choices))
    if processes < 2 or steps < ONE_PROCESS:
        for choice in choices:
            yield simulate(experiment, choice)
        return
    with pool(processes) as executor:
        for future in as_completed([executor.submit(simulate, experiment, c) for c in choices]):
            yield future.result()


def _prediction(
    result: Simulation,
    experiment: Experiment,
    ranks: Mapping[str, str],
    options: PredictionOptions,
    batch_size: int | None,
) -> Prediction:
    summary, blocks, workers = result.summary, result.blocks, experiment.worker_count
    seconds = summary["seconds"]
    rate = ratio(summary["throughput_samples_per_s"], blocks, "samples", "seconds")
    lost = ratio(result.lost_s / summary["samples"], blocks, "lost_s", "samples")
    lost = lost.times(summary["samples"] / HOUR_S)
    waiting_s = workers * seconds * summary["wait_fraction"]
    return Prediction(
        choice=result.choice,
        seconds=seconds,
        steps_per_s=rate.times(1 / experiment.batch_size),
        samples_per_s=None if batch_size is None else rate,
        wait_fraction=ratio(waiting_s / seconds, blocks, "wait_s", "seconds").times(1 / workers),
        staleness_mean=ratio(summary["staleness_mean"], blocks, "staleness", "applied"),
        staleness_max=summary["staleness_max"],
        lead_mean=result.lead_mean,
        lead_max=summary["lead_max"],
        dropped=summary["dropped"],
        lost_worker_hours=lost,
        lost_money=None if options.price_per_hour is None else lost.times(options.price_per_hour),
        worker_hours=workers * seconds / HOUR_S,
        waiting={ranks[slot]: share for slot, share in result.waiting.items()},
    )


def slowest(times: RankStepTimes) -> tuple[str, float]:
    """Return the rank with the longest steps, and how many times as long they are as those of the
    rank in the middle (of two, the other one); both by their mean.
    """
    means = {rank: fmean(seconds) for rank, seconds in times.steps.items()}
    rank = max(means, key=lambda each: means[each])
    # a mean of two ranks in the middle would be the steps of none
    return rank, means[rank] / median_low(means.values())


def is_hidden(times: RankStepTimes) -> bool:
    """Say whether the steps may be equal because ranks wait for each other inside them."""
    means = [fmean(seconds) for seconds in times.steps.values()]
    return times.may_wait and len(means) > 1 and max(means) <= ALIKE * min(means)


def _remarks(times: RankStepTimes, steps: int, predictions: Iterable[Prediction]) -> Iterator[str]:
    if is_hidden(times):
        yield (
            "Where ranks wait for each other inside a step, all steps last as long as the slowest,"
            " and no paradigm can be told from another: stop the clock before gradients are"
            " exchanged, or let the trace have the communication."
        )
    if steps > times.shortest and times.shortest == times.longest:
        yield f"The workload is longer than the {times.shortest:,} steps of a rank: they repeat."
    if steps < FEWEST * STEPS_A_BLOCK:
        yield (
            f"{steps} steps a rank are too few for intervals; there are some from"
            f" {FEWEST * STEPS_A_BLOCK} on."
        )
    if any(each.dropped for each in predictions):
        yield "Samples per second are those that were applied; dropped pushes do not count."
    if any(each.choice.name == "balanced" for each in predictions):
        yield "Under balanced, a step takes as much longer as its batch is larger."
