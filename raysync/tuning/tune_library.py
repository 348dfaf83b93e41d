"""Create searchers and schedulers of Ray Tune by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import SEARCH_ALG_IMPORT, Searcher

from raysync.config import Named, Sweep
from raysync.config.goal import MEASURED
from raysync.core.metrics import MODES, PrimaryMetric, known
from raysync.errors import ConfigError, unknown_name
from raysync.tuning.grid import Point, space
from raysync.tuning.trial_reports import REPORTED

# the schedulers that only let a trial run, or stop it
SCHEDULERS: dict[str, Callable[..., TrialScheduler]] = {
    "asha": ASHAScheduler,
    "fifo": FIFOScheduler,
    "median_stopping_rule": MedianStoppingRule,
}
PAUSES = "it pauses trials, and gives more work to the better ones"
CLONES = "it replaces the model and settings of a running trial with another trial's"
# scheduler or searcher that a sweep cannot have -> the reason
REFUSED = {
    "bohb": PAUSES,
    "hb_bohb": PAUSES,
    "hyperband": PAUSES,
    "pb2": CLONES,
    "pbt": CLONES,
    "pbt_replay": CLONES,
    "resource_changing": "it changes the cluster of a running trial",
}
SEARCHERS = sorted(set(SEARCH_ALG_IMPORT) - {"variant_generator", "random", *REFUSED})
TUNE_METRICS = ("training_iteration", "time_total_s")  # added by Tune to a trial's reports
SET_BY_SWEEP = {"metric", "mode", "space"}  # parameters of searchers and schedulers
POINTS = "points_to_evaluate"  # the parameter of searchers with their first suggestions


def check_metrics(
    sweep: Sweep, metrics: Sequence[str] | None, primary: PrimaryMetric, source: str
) -> None:
    """Refuse metrics that no trial has, and a stop on one whose better direction nobody knows.

    `metrics` None: unknown before the trials run.
    """
    if metrics is not None and sweep.metric is not None:
        names = (*known(metrics), *REPORTED, *TUNE_METRICS)
        check_metric(sweep.metric, names, f"{source}: sweep.metric")
    for goal in sweep.stop:
        if metrics is not None:
            check_metric(goal.metric, (*known(metrics), *MEASURED), f"{source}: sweep.stop")
        if goal.direction(primary) is None:
            raise ConfigError(
                f"{source}: sweep.stop: say in which direction {goal.metric!r} ends a trial: write"
                f" {{metric: {goal.metric}, value: {goal.value:g}, mode: max}}, or mode: min."
            )


def check_metric(metric: str, names: Collection[str], where: str) -> None:
    if metric not in names:
        raise unknown_name("metric", metric, names, where=where)


def aimed(sweep: Sweep, primary: PrimaryMetric, source: str) -> Sweep:
    """Set the metric and the mode that searcher and scheduler use."""
    metric = primary.name if sweep.metric is None else sweep.metric
    mode = sweep.mode or (MODES | {primary.name: primary.mode}).get(metric)
    if mode is None and (sweep.search or sweep.scheduler):
        raise ConfigError(
            f"{source}: sweep.mode: say which direction of {metric!r} is better: max or min."
        )
    return sweep.model_copy(update={"metric": metric, "mode": mode})


def scheduler(sweep: Sweep, source: str) -> TrialScheduler | None:
    """Create the sweep's scheduler, if any; raise `ConfigError` if it does not fit."""
    if sweep.scheduler is None:
        return None
    name, where = sweep.scheduler.name, f"{source}: sweep.scheduler"
    _check_allowed("scheduler", name, SCHEDULERS, where)
    return _create(SCHEDULERS[name], sweep.scheduler, where)


def searcher(sweep: Sweep, source: str) -> Searcher | None:
    """Create the sweep's searcher, if any; raise `ConfigError` if it does not fit."""
    if sweep.search is None:
        return None
    name, where = sweep.search.name, f"{source}: sweep.search"
    _check_allowed("searcher", name, SEARCHERS, where)
    try:
        return _create(SEARCH_ALG_IMPORT[name](), sweep.search, where)
    except (ImportError, AssertionError) as error:
        raise ConfigError(f"{where}: {name}: {str(error).splitlines()[0].rstrip('.')}.") from error


def searcher_again(
    sweep: Sweep,
    found: Sequence[tuple[Point, float | None]],
    in_flight: Sequence[Point],
    source: str,
) -> Searcher:
    """Create the searcher of a resumed sweep, and give it the earlier trials.

    Args:
        found: the points of ended trials, with their metric; None: it failed, or has none.
        in_flight: the points of unfinished trials, which it suggests first.
        source: the file, for errors.

    Raises:
        ConfigError: see `searcher`; or it accepts no earlier results.
    """
    choice, tried = sweep.search, [*(point for point, _ in found), *in_flight]
    assert choice is not None, "a sweep without a searcher"
    parameters = dict(choice.parameters)
    if "evaluated_rewards" not in parameters:  # the user's rewards belong to the user's POINTS
        untried = [point for point in parameters.get(POINTS, ()) if point not in tried]
        parameters[POINTS] = [*in_flight, *untried]
    if isinstance(seed := parameters.get("seed"), int):
        # with the same seed, its first draws would repeat the earlier trials
        parameters["seed"] = seed + len(tried)
    again = Named(name=choice.name, **parameters)
    search = searcher(sweep.model_copy(update={"search": again}), source)
    assert search is not None, "a sweep without a searcher"
    with quiet():
        search.set_search_properties(sweep.metric, sweep.mode, space(sweep, source))
    try:
        for point, value in found:
            search.add_evaluated_point(point, value, error=value is None)
    except NotImplementedError:
        raise ConfigError(
            f"{source}: sweep.search: {choice.name}: Ray Tune cannot tell it what the"
            f" {len(found)} earlier trials have found, so this sweep cannot be resumed; a sweep"
            " with optuna can."
        ) from None
    return search


@contextmanager
def quiet() -> Iterator[None]:
    loggers = map(logging.getLogger, ("ray.tune", "optuna"))
    levels = {logger: logger.level for logger in loggers}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _check_allowed(kind: str, name: str, allowed: Collection[str], where: str) -> None:
    if why := REFUSED.get(name):
        raise ConfigError(
            f"{where}: {name}: {why}; but a sweep compares its trials, so each must run"
            f" independently. Choose one of {', '.join(allowed)}, or leave it out."
        )
    if name not in allowed:
        raise unknown_name(kind, name, allowed, where=where)


def _create(make: Callable[..., Any], choice: Named, where: str) -> Any:
    parameters: Mapping[str, Any] = signature(make).parameters
    allowed = [name for name in parameters if name not in SET_BY_SWEEP]
    for name in choice.parameters:
        if name not in allowed:
            raise unknown_name("parameter", name, allowed, where=f"{where}: {choice.name}")
    try:
        return make(**choice.parameters)
    except (TypeError, ValueError, AssertionError) as error:  # Tune checks arguments by assertions
        raise ConfigError(f"{where}: {choice.name}: {str(error).rstrip('.')}.") from error
