"""From an experiment to an answer: timing, learning rates, comparison, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from raysync.config import ParadigmChoice
from raysync.errors import ConfigError, RunFailed
from raysync.predict.candidates import Candidate, Space
from raysync.predict.finalists import Goal, Tuning, compare, tune
from raysync.predict.remedies import growth
from raysync.predict.runner import Budget, Runner, Show, runner_for
from raysync.predict.runs import Now, Outcome, PlannedRun
from raysync.predict.search import Timed, finalists, named, optuna_library, search
from raysync.predict.setting import Setting
from raysync.predict.world import World
from raysync.results.collection import Criteria
from raysync.results.columns import WHOLE_WORK, Measure, final_measure, time_measure
from raysync.results.ranking import Ranked, Standings
from raysync.results.statistics import estimate

FINALISTS = 5
TIMED, TUNED, COMPARED, CHANGED = 0.2, 0.5, 0.9, 1.0
"""The shares of the budget that are used at the end of each stage, at most."""
TIMED_ALONE = 0.7
"""The share of the budget that timing has where nothing is trained."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search: for how long, with how many seeds, and among which paradigms."""

    budget_s: float
    seeds: int = 3
    processes: int = 1
    choices: tuple[ParadigmChoice, ...] = ()
    """The paradigms that may be advised, as they are; none: about eight, with their parameters."""

    def __post_init__(self) -> None:
        if not 0 < self.budget_s < float("inf"):
            raise ConfigError(
                f"--budget-minutes {self.budget_s / 60:g}: it must be above 0, and finite."
            )
        if self.seeds < 1:
            raise ConfigError(f"--seeds {self.seeds}: one at least; an interval needs two.")


@dataclass(frozen=True)
class Changed:
    change: str
    """Its name in a sentence: with what, or without which worker."""
    standings: Standings
    now_s: float
    """The predicted seconds of what is best today, on the changed cluster."""

    @property
    def best(self) -> str:
        """The best there; today's best unless another is clearly better."""
        return self.standings.first.paradigm


@dataclass(frozen=True)
class Advice:
    """What suits an experiment and its cluster, and what would change that."""

    world: World
    options: SearchOptions
    timed: tuple[Timed, ...]
    contenders: Mapping[str, Candidate]
    """Label -> one of the few best."""
    outcomes: Mapping[str, Mapping[int, Outcome]]
    """Label -> seed -> its run: with gradients, unless nothing was trained."""
    tuning: Tuning | None
    time: Standings
    """The contenders, ranked by the time to the target; by that of the whole work if nothing was
    trained."""
    final: Standings | None
    """The contenders, ranked by the final metric on the validation set; None: nothing was
    trained."""
    changed: tuple[Changed, ...]
    remarks: tuple[str, ...]
    used_s: float
    trained: bool = field(default=True)

    @property
    def best(self) -> Candidate:
        return self.contenders[self.time.first.paradigm]

    @property
    def best_model(self) -> Candidate | None:
        return None if self.final is None else self.contenders[self.final.first.paradigm]

    @property
    def seeds(self) -> list[int]:
        return sorted(next(iter(self.outcomes.values())))

    def mean(self, label: str, key: str) -> float | None:
        values = [each.value(key) for each in self.outcomes[label].values()]
        present = [value for value in values if value is not None]
        return fmean(present) if present else None

    def shares(self, label: str) -> dict[str, int]:
        return self.outcomes[label][self.seeds[0]].shares


def advise(
    world: World, options: SearchOptions, now: Now, show: Show = lambda what, used: None
) -> Advice:
    """Find what suits an experiment and its cluster.

    Args:
        world: the experiment, as it is simulated.
        options: what is asked.
        now: a clock in seconds that all processes share; picklable.
        show: receives what is under way.

    Raises:
        ConfigError: Optuna is not installed, or the budget did not even allow to time BSP.
        RunFailed: no candidate finishes.
    """
    optuna_library()
    budget = Budget(options.budget_s, now)
    with runner_for(world.plan, budget, options.processes, show) as runner:
        return _advise(world, options, runner)


def _advise(world: World, options: SearchOptions, runner: Runner) -> Advice:
    budget, experiment = runner.budget, world.plan.experiment
    seeds = _seeds(experiment.seeds or (experiment.seed,), options.seeds)
    trains = experiment.trains
    space = Space(experiment, options.choices, *world.exchanges)
    timed = search(space, runner, seeds, TIMED if trains else TIMED_ALONE)
    if not timed:
        if budget.is_used(TIMED):
            raise ConfigError(
                f"--budget-minutes {options.budget_s / 60:g}: it was used up before any candidate"
                " had been timed; give more."
            )
        raise RunFailed("\n".join(["No candidate finishes its work.", *_failed(runner)]))
    best = named(timed) if options.choices else finalists(timed, FINALISTS)
    remarks = list(world.remarks)
    contenders = {each.candidate.label: each.candidate for each in best}
    outcomes: dict[str, dict[int, Outcome]] = {
        each.candidate.label: dict(each.outcomes) for each in best
    }
    tuning = None
    if trains:
        trained = _train(world, best, seeds, runner)
        if trained is None:
            remarks.append(
                "The budget did not allow one training of each of the"
                f" {len(best)} finalists: the answer is by timing alone. Give more minutes."
            )
        else:
            tuning, outcomes = trained
            contenders = {each.label: each for each in tuning.contenders}
            remarks += _of_training(tuning, outcomes, seeds)
    criteria = Criteria(world.plan.primary, experiment.target) if tuning else Criteria(None, None)
    measure, final = time_measure(criteria), final_measure(criteria)
    standings = _standings(measure, outcomes)
    if standings.first.value.count == 0:
        remarks.append(
            f"No run reached the target ({experiment.target.words if experiment.target else ''}):"
            " the answer is by the time of the whole work."
        )
        measure = WHOLE_WORK
        standings = _standings(measure, outcomes)
        if standings.first.value.count == 0:
            raise RunFailed("\n".join(["No candidate finishes its training.", *_failed(runner)]))
    changed = _change(world, list(contenders.values()), outcomes, measure, standings, seeds, runner)
    remarks += _failed(runner)
    return Advice(
        world=world,
        options=options,
        timed=tuple(timed),
        contenders=contenders,
        outcomes=outcomes,
        tuning=tuning,
        time=standings,
        final=None if final is None else _standings(final, outcomes),
        changed=changed,
        remarks=tuple(remarks),
        used_s=budget.spent_s,
        trained=tuning is not None,
    )


def _seeds(own: Sequence[int], count: int) -> tuple[int, ...]:
    more = range(max(own) + 1, max(own) + 1 + count)
    return (*own, *more)[:count]


def _train(
    world: World, best: Sequence[Timed], seeds: Sequence[int], runner: Runner
) -> tuple[Tuning, dict[str, dict[int, Outcome]]] | None:
    """Tune and compare; None: the time was up before there was one seed of all."""
    plan = world.plan
    assert plan.experiment.target is not None, "a world that trains without a target"
    goal = Goal(plan.experiment.target, plan.primary)
    candidates = [each.candidate for each in best]
    tuning = tune(candidates, plan.experiment.update.lr, goal, runner, max(seeds) + 1, TUNED)
    compared = compare(tuning.contenders, runner, seeds, COMPARED)
    return (tuning, compared) if all(compared.values()) else None


def _of_training(
    tuning: Tuning, outcomes: Mapping[str, Mapping[int, Outcome]], seeds: Sequence[int]
) -> list[str]:
    remarks = []
    if len(tuning.rates) < 2:
        remarks.append("The budget did not allow to try learning rates: all have the experiment's.")
    done = len(next(iter(outcomes.values())))
    if done < len(seeds):
        remarks.append(f"The budget allowed {done} of {len(seeds)} seeds.")
    return remarks


def _failed(runner: Runner) -> list[str]:
    """Say why candidates failed, a line for each reason."""
    labels: dict[str, list[str]] = {}
    for label, reason in runner.failures.items():
        labels.setdefault(reason, []).append(label)
    return [f"Failed: {'; '.join(own)}: {reason}" for reason, own in labels.items()]


def _standings(measure: Measure, outcomes: Mapping[str, Mapping[int, Outcome]]) -> Standings:
    return _ranked(
        measure,
        {
            label: {seed: outcome.value(measure.key) for seed, outcome in runs.items()}
            for label, runs in outcomes.items()
        },
    )


def _ranked(measure: Measure, values: Mapping[str, dict[int, float | None]]) -> Standings:
    sign = -1.0 if measure.rises else 1.0
    ranked = [
        Ranked(label, estimate(list(seeds.values())), seeds) for label, seeds in values.items()
    ]
    ranked.sort(key=lambda row: (-row.share, sign * (row.value.mean or 0.0)))
    return Standings(measure, tuple(ranked))


def _change(
    world: World,
    contenders: Sequence[Candidate],
    outcomes: Mapping[str, Mapping[int, Outcome]],
    measure: Measure,
    standings: Standings,
    seeds: Sequence[int],
    runner: Runner,
) -> tuple[Changed, ...]:
    """Time the contenders on clusters that are changed.

    A time to the target is predicted: the measured one, times the ratio of the two clusters' times
    for the same work. So the number of samples until then is taken to stay.
    """
    seeds = [seed for seed in seeds if seed in next(iter(outcomes.values()))]
    found = []
    today = _times(contenders, "", seeds, runner)
    setting = Setting(world.plan, world.plan.experiment.paradigm)
    for change, _ in growth(setting) if today is not None else ():
        then = _times(contenders, change, seeds, runner)
        if then is None:
            break
        predicted: dict[str, dict[int, float | None]] = {}
        for candidate in contenders:
            label = candidate.label
            predicted[label] = {}
            for seed in seeds:
                value = outcomes[label][seed].value(measure.key)
                before, after = (times.get((label, seed)) for times in (today or {}, then))
                known = value is not None and before and after
                predicted[label][seed] = value * after / before if known else None  # type: ignore[operator]
        best = predicted[standings.first.paradigm].values()
        now = [value for value in best if value is not None]
        if now:
            found.append(Changed(change, _ranked(measure, predicted), fmean(now)))
    return tuple(found)


def _times(
    contenders: Sequence[Candidate], change: str, seeds: Sequence[int], runner: Runner
) -> dict[tuple[str, int], float] | None:
    """Return (label, seed) -> the seconds of the whole work; None: the time was up."""
    keys = [(each, seed) for each in contenders for seed in seeds]
    tasks = [PlannedRun(each, seed, change=change) for each, seed in keys]
    outcomes = runner.all(tasks, CHANGED, "Changing the cluster")
    if runner.budget.is_used(CHANGED):
        return None
    seconds = {
        (candidate.label, seed): outcome.value("seconds")
        for (candidate, seed), outcome in zip(keys, outcomes, strict=True)
        if outcome is not None
    }
    return {key: value for key, value in seconds.items() if value}
