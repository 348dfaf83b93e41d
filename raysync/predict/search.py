"""Search candidates by timing: many of them, in time only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from raysync.config import ParadigmChoice
from raysync.errors import ConfigError
from raysync.predict.candidates import SYNCHRONOUS, Candidate, Space
from raysync.predict.runner import Runner
from raysync.predict.runs import Outcome, PlannedRun
from raysync.results.ranking import ALIKE

if TYPE_CHECKING:
    import optuna

CANDIDATES = 96
"""The candidates that are timed at most."""
IN_VAIN = 24
"""After so many trials in a row without a new candidate the search is over."""
STARTUP_TRIALS = 20
"""The trials until TPE has a model; it draws these at random, beside the enqueued ones."""
PLAIN = Candidate(ParadigmChoice(name=SYNCHRONOUS))


@dataclass(frozen=True)
class Timed:
    candidate: Candidate
    outcomes: Mapping[int, Outcome]
    """Seed -> its run."""

    @property
    def seconds(self) -> float:
        return self.mean("seconds")

    @property
    def staleness(self) -> float:
        return self.mean("staleness_mean")

    def mean(self, key: str) -> float:
        return fmean(each.value(key) or 0.0 for each in self.outcomes.values())


def check_optuna() -> None:
    """Check that Optuna is installed, and silence it.

    Raises:
        ConfigError: it is not; the message says how to install it.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "raysync advise searches with Optuna, which is not installed: pip install"
            " 'raysync[advise]'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def search(space: Space, runner: Runner, seeds: Sequence[int], until: float) -> list[Timed]:
    """Time candidates: the standard ones, then those that Optuna suggests.

    Its multi-objective TPE (Ozaki et al. 2020) minimises the seconds of the workload and the
    staleness of its gradients together, since timing cannot say what staleness costs.

    Args:
        space: the candidates.
        runner: makes the runs, each candidate with every seed.
        seeds: common to all candidates.
        until: the share of the budget at which the search ends.

    Returns:
        The candidates whose runs all finished, in the order in which they were tried.
    """
    import optuna

    sampler = optuna.samplers.TPESampler(seed=seeds[0] % 2**32, n_startup_trials=STARTUP_TRIALS)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    for parameters in space.standard():
        study.enqueue_trial(parameters)
    timed: dict[str, Timed | None] = {}
    in_vain = 0
    while len(timed) < CANDIDATES and in_vain < IN_VAIN:
        trials = [study.ask() for _ in range(runner.width)]
        candidates = [space.suggest(trial) for trial in trials]
        new = {
            each.label: each for each in candidates if each is not None and each.label not in timed
        }
        in_vain = 0 if new else in_vain + len(trials)
        timed |= _time(list(new.values()), runner, seeds, until)
        if runner.budget.is_used(until):
            break
        for trial, candidate in zip(trials, candidates, strict=True):
            _report(study, trial, None if candidate is None else timed[candidate.label])
    return [each for each in timed.values() if each is not None]


def _time(
    candidates: Sequence[Candidate], runner: Runner, seeds: Sequence[int], until: float
) -> dict[str, Timed | None]:
    """Return label -> the timed candidate; None where a run did not finish."""
    tasks = [PlannedRun(candidate, seed) for candidate in candidates for seed in seeds]
    outcomes = runner.all(tasks, until, "Timing candidates")
    found: dict[str, Timed | None] = {}
    for index, candidate in enumerate(candidates):
        of_candidate = outcomes[index * len(seeds) : (index + 1) * len(seeds)]
        by_seed = {
            seed: outcome
            for seed, outcome in zip(seeds, of_candidate, strict=True)
            if outcome is not None and outcome.status == "finished"
        }
        all_finished = len(by_seed) == len(seeds)
        found[candidate.label] = Timed(candidate, by_seed) if all_finished else None
    return found


def _report(study: optuna.Study, trial: optuna.Trial, timed: Timed | None) -> None:
    from optuna.trial import TrialState

    if timed is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, [timed.seconds, timed.staleness])


def finalists(timed: Sequence[Timed], most: int) -> list[Timed]:
    """Return the few that are worth training.

    They are the fastest, the freshest and some between, of the Pareto front of time and staleness;
    and plain BSP, which all others are compared with. Of candidates that take the same time the one
    that was tried first counts, so the simpler one.
    """
    front: list[Timed] = []
    for one in sorted(timed, key=lambda one: one.staleness):
        if not front or one.seconds < (1 - ALIKE) * front[-1].seconds:
            if front and front[-1].staleness == one.staleness:
                front.pop()
            front.append(one)
    plain = [each for each in timed if each.candidate == PLAIN]
    places = max(1, most - len([each for each in plain if each not in front]))
    if len(front) > places:
        last = len(front) - 1
        chosen = {round(place * last / max(1, places - 1)) for place in range(places)}
        front = [front[index] for index in sorted(chosen)] if places > 1 else [front[-1]]
    return [*(each for each in plain if each not in front), *front]


def with_best_servers(timed: Sequence[Timed]) -> list[Timed]:
    """Return each paradigm, since the user has chosen them, with the servers that suit it best."""
    best: dict[str, Timed] = {}
    for one in timed:
        label = one.candidate.choice.label
        if label not in best or one.seconds < (1 - ALIKE) * best[label].seconds:
            best[label] = one
    return list(best.values())
