"""Create searchers and schedulers of Ray Tune by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import SEARCH_ALG_IMPORT, Searcher

from raysync.config import Named, Sweep
from raysync.core.metrics import MODES, PrimaryMetric, known
from raysync.errors import ConfigError, unknown_name
from raysync.tuning.trial import REPORTED

SCHEDULERS: dict[str, Callable[..., TrialScheduler]] = {
    "asha": ASHAScheduler,
    "fifo": FIFOScheduler,
    "median_stopping_rule": MedianStoppingRule,
}
"""The schedulers that only let a trial run, or stop it."""
PAUSING = {"hyperband", "hb_bohb", "pbt", "pbt_replay", "pb2", "resource_changing"}
"""Tune's schedulers that pause, clone or change trials under way: they need Tune to save a trial at
a moment that it chooses. A run takes its checkpoints when its experiment says so."""
SEARCHERS = sorted(set(SEARCH_ALG_IMPORT) - {"variant_generator", "random"})
TUNE_METRICS = ("training_iteration", "time_total_s")
"""The metrics that Tune itself adds to a trial's reports."""
SET_BY_SWEEP = {"metric", "mode", "space"}
"""Parameters of searchers and schedulers that the sweep sets."""


def check_metrics(sweep: Sweep, metrics: Sequence[str] | None, source: str) -> None:
    """Refuse metrics that no trial reports.

    Args:
        sweep: names metrics.
        metrics: those of the task; None: they are not known before the trials run.
        source: the file, for errors.

    Raises:
        ConfigError: the message has the nearest name.
    """
    if metrics is None:
        return
    names = (*known(metrics), *REPORTED, *TUNE_METRICS)
    chosen = [] if sweep.metric is None else [("metric", sweep.metric)]
    for where, metric in (*chosen, *(("stop", metric) for metric in sweep.stop)):
        if metric not in names:
            raise unknown_name("metric", metric, names, where=f"{source}: sweep.{where}")


def aimed(sweep: Sweep, primary: PrimaryMetric, source: str) -> Sweep:
    """Return the sweep with the metric and the mode that searcher and scheduler go by.

    Raises:
        ConfigError: the sweep names a metric of which it is not known which direction is better.
    """
    metric = primary.name if sweep.metric is None else sweep.metric
    mode = sweep.mode or (MODES | {primary.name: primary.mode}).get(metric)
    if mode is None and (sweep.search or sweep.scheduler):
        raise ConfigError(
            f"{source}: sweep.mode: say which direction of {metric!r} is better: max or min."
        )
    return sweep.model_copy(update={"metric": metric, "mode": mode})


def scheduler(sweep: Sweep, source: str) -> TrialScheduler | None:
    """Create the scheduler that the sweep names.

    Raises:
        ConfigError: there is no scheduler of that name, or it does not accept these parameters.
    """
    if sweep.scheduler is None:
        return None
    where = f"{source}: sweep.scheduler"
    if sweep.scheduler.name in PAUSING:
        raise ConfigError(
            f"{where}: {sweep.scheduler.name} pauses, clones or changes trials under way, which"
            f" raysync's cannot do; choose one of {', '.join(SCHEDULERS)}."
        )
    if sweep.scheduler.name not in SCHEDULERS:
        raise unknown_name("scheduler", sweep.scheduler.name, SCHEDULERS, where=where)
    return _create(SCHEDULERS[sweep.scheduler.name], sweep.scheduler, where)


def searcher(sweep: Sweep, source: str) -> Searcher | None:
    """Create the searcher that the sweep names.

    Raises:
        ConfigError: there is no searcher of that name, it is not installed, or it does not accept
            these parameters.
    """
    if sweep.search is None:
        return None
    name, where = sweep.search.name, f"{source}: sweep.search"
    if name not in SEARCHERS:
        raise unknown_name("searcher", name, SEARCHERS, where=where)
    try:
        return _create(SEARCH_ALG_IMPORT[name](), sweep.search, where)
    except (ImportError, AssertionError) as error:
        raise ConfigError(f"{where}: {name}: {str(error).splitlines()[0]}") from error


def _create(make: Callable[..., Any], choice: Named, where: str) -> Any:
    parameters: Mapping[str, Any] = signature(make).parameters
    allowed = [name for name in parameters if name not in SET_BY_SWEEP]
    for name in choice.parameters:
        if name not in allowed:
            raise unknown_name("parameter", name, allowed, where=f"{where}: {choice.name}")
    try:
        return make(**choice.parameters)
    # Tune's schedulers check their parameters by assertions
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"{where}: {choice.name}: {error}") from error
