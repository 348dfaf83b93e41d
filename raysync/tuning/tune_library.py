"""Searchers and schedulers of Ray Tune by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import SEARCH_ALG_IMPORT, Searcher

from raysync.config import Named, Sweep
from raysync.errors import ConfigError, unknown_name
from raysync.tuning.trial import REPORTED

SCHEDULERS: dict[str, Callable[..., TrialScheduler]] = {
    "asha": ASHAScheduler,
    "fifo": FIFOScheduler,
    "median_stopping_rule": MedianStoppingRule,
}
"""Those that do not pause trials: a run cannot go on from a checkpoint yet, which HyperBand and PBT
need."""
SEARCHERS = sorted(set(SEARCH_ALG_IMPORT) - {"variant_generator", "random"})
TUNES_OWN = ("training_iteration", "time_total_s")
GIVEN = {"metric", "mode", "space"}
"""What searchers and schedulers are told by the sweep."""


def check_metrics(sweep: Sweep, source: str) -> None:
    """Refuse what no trial reports.

    Raises:
        ConfigError: with the nearest name.
    """
    for where, metric in (("metric", sweep.metric), *(("stop", metric) for metric in sweep.stop)):
        if metric not in (*REPORTED, *TUNES_OWN):
            raise unknown_name(
                "metric", metric, (*REPORTED, *TUNES_OWN), where=f"{source}: sweep.{where}"
            )


def scheduler(sweep: Sweep, source: str) -> TrialScheduler | None:
    """The scheduler that the sweep names.

    Raises:
        ConfigError: there is none of that name, or it does not take these parameters.
    """
    if sweep.scheduler is None:
        return None
    where = f"{source}: sweep.scheduler"
    if sweep.scheduler.name not in SCHEDULERS:
        raise unknown_name("scheduler", sweep.scheduler.name, SCHEDULERS, where=where)
    return _made(SCHEDULERS[sweep.scheduler.name], sweep.scheduler, where)


def searcher(sweep: Sweep, source: str) -> Searcher | None:
    """The searcher that the sweep names.

    Raises:
        ConfigError: there is none of that name, it is not installed, or it does not take these
            parameters.
    """
    if sweep.search is None:
        return None
    name, where = sweep.search.name, f"{source}: sweep.search"
    if name not in SEARCHERS:
        raise unknown_name("searcher", name, SEARCHERS, where=where)
    try:
        return _made(SEARCH_ALG_IMPORT[name](), sweep.search, where)
    except (ImportError, AssertionError) as error:
        raise ConfigError(f"{where}: {name}: {str(error).splitlines()[0]}") from error


def _made(make: Callable[..., Any], choice: Named, where: str) -> Any:
    known: Mapping[str, Any] = signature(make).parameters
    allowed = [name for name in known if name not in GIVEN]
    for name in choice.parameters:
        if name not in allowed:
            raise unknown_name("parameter", name, allowed, where=f"{where}: {choice.name}")
    try:
        return make(**choice.parameters)
    except (
        TypeError,
        ValueError,
        AssertionError,
    ) as error:  # Tune's schedulers check what they are given by assertions
        raise ConfigError(f"{where}: {choice.name}: {error}") from error
