"""Create searchers and schedulers of Ray Tune by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from math import ceil, isfinite
from typing import Any

from pydantic import ValidationError
from ray.tune.error import TuneError
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import SEARCH_ALG_IMPORT, Searcher
from ray.tune.search.sample import Float, Integer

from raysync.config import Distribution, Named, Sweep
from raysync.config.resume_changes import PERTURBABLE, is_perturbable
from raysync.core.metrics import MODES, PrimaryMetric, known
from raysync.errors import ConfigError, unknown_name
from raysync.tuning.grid import domain, plain
from raysync.tuning.trial_reports import REPORTED

SCHEDULERS: dict[str, Callable[..., TrialScheduler]] = {
    "asha": ASHAScheduler,
    "fifo": FIFOScheduler,
    "hb_bohb": HyperBandForBOHB,
    "hyperband": HyperBandScheduler,
    "median_stopping_rule": MedianStoppingRule,
    "pbt": PopulationBasedTraining,
}
PAUSING = ("hb_bohb", "hyperband", "pbt")
"""The schedulers that pause trials, or clone them: each trial then takes a checkpoint at each
evaluation. The others only let a trial run, or stop it."""
REFUSED = {
    "pb2": "its model of the settings is not tested here",
    "pbt_replay": "it replays the settings of one trial, which raysync cannot change on its way",
    "resource_changing": "the actors of a trial are those of its experiment",
}
"""Tune's schedulers that a sweep cannot have -> the reason."""
MUTATIONS = "hyperparam_mutations"
SEARCHERS = sorted(set(SEARCH_ALG_IMPORT) - {"variant_generator", "random"})
TUNE_METRICS = ("training_iteration", "time_total_s")
"""The metrics that Tune itself adds to a trial's reports."""
SET_BY_SWEEP = {"metric", "mode", "space", "custom_explore_fn"}
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
        ConfigError: there is no scheduler of that name, it does not accept these parameters, or it
            does not go with the searcher.
    """
    if sweep.scheduler is None:
        return None
    name, where = sweep.scheduler.name, f"{source}: sweep.scheduler"
    if why := REFUSED.get(name):
        raise ConfigError(f"{where}: {name}: {why}; choose one of {', '.join(SCHEDULERS)}.")
    if name not in SCHEDULERS:
        raise unknown_name("scheduler", name, SCHEDULERS, where=where)
    search = None if sweep.search is None else sweep.search.name
    if name == "pbt" and search is not None:
        raise ConfigError(
            f"{where}: pbt chooses settings itself, and Tune runs it without a searcher: leave"
            f" `search: {search}` out, and give `sample` and `samples`."
        )
    if name == "hb_bohb" and search != "bohb":
        raise ConfigError(
            f"{where}: hb_bohb goes with `search: bohb` only; got {search or 'none'}."
        )
    if name != "pbt":
        return _create(SCHEDULERS[name], sweep.scheduler, where)
    mutations = _mutations(sweep, sweep.scheduler, source)
    return _create(
        SCHEDULERS[name],
        Named(name=name, **{**sweep.scheduler.parameters, MUTATIONS: mutations}),
        where,
        custom_explore_fn=partial(_within, _bounds(mutations)),
    )


def pausing_scheduler(sweep: Sweep) -> str:
    """Return the name of the sweep's scheduler if it pauses trials, or else an empty text."""
    name = "" if sweep.scheduler is None else sweep.scheduler.name
    return name if name in PAUSING else ""


def checkpoints_kept(sweep: Sweep) -> int | None:
    """Return how many checkpoints of each trial Tune keeps; None: all.

    A trial is cloned from the checkpoint of its last perturbation, and may be further by then.
    """
    if sweep.scheduler is None or sweep.scheduler.name != "pbt":
        return 2
    parameters = sweep.scheduler.parameters
    if parameters.get("time_attr") != TUNE_METRICS[0]:
        return None
    interval = float(parameters.get("perturbation_interval", 60.0))
    return 2 * ceil(interval) + 1


def _mutations(sweep: Sweep, chosen: Named, source: str) -> dict[str, Any]:
    """Return the values, or Tune's distribution, of each setting that a clone may change.

    Raises:
        ConfigError: a setting is not varied by the sweep, or cannot change on the way; or its
            values are neither a list nor a distribution.
    """
    where = f"{source}: sweep.scheduler: pbt: {MUTATIONS}"
    given = chosen.parameters.get(MUTATIONS)
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            f"{where}: say what clones may change: setting -> list of values, or a distribution as"
            " in sweep.sample."
        )
    made: dict[str, Any] = {}
    for key, values in given.items():
        if not is_perturbable(key):
            raise ConfigError(
                f"{where}: {key} cannot change in the middle of a run. What can: "
                f"{', '.join(PERTURBABLE)}."
            )
        if key not in sweep.grid and key not in sweep.sample:
            raise ConfigError(
                f"{where}: {key} is neither in sweep.grid nor in sweep.sample, so all trials would"
                " begin with the same value."
            )
        if isinstance(values, list):
            made[key] = [plain(value) for value in values]
            continue
        try:
            distribution = Distribution.model_validate(values)
        except ValidationError as error:
            raise ConfigError(
                f"{where}: {key}: a list of values, or a distribution such as {{loguniform: [0.001,"
                f" 1]}}; got {values!r}."
            ) from error
        made[key] = domain(key, distribution, source)
    return made


def _bounds(mutations: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the bounds of each distribution that has some."""
    return {
        key: (values.lower, values.upper)
        for key, values in mutations.items()
        if isinstance(values, Float | Integer) and isfinite(values.lower) and isfinite(values.upper)
    }


def _within(bounds: Mapping[str, tuple[float, float]], settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings that were perturbed, each within its bounds: Tune multiplies by a factor."""
    clipped = {
        key: min(max(settings[key], lowest), largest) for key, (lowest, largest) in bounds.items()
    }
    return settings | clipped


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


def _create(make: Callable[..., Any], choice: Named, where: str, **more: Any) -> Any:
    parameters: Mapping[str, Any] = signature(make).parameters
    allowed = [name for name in parameters if name not in SET_BY_SWEEP]
    for name in choice.parameters:
        if name not in allowed:
            raise unknown_name("parameter", name, allowed, where=f"{where}: {choice.name}")
    try:
        return make(**choice.parameters, **more)
    # Tune's schedulers check their parameters by assertions, or with an error of their own
    except (TypeError, ValueError, AssertionError, TuneError) as error:
        raise ConfigError(f"{where}: {choice.name}: {error}") from error
