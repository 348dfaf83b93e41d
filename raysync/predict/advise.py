"""From an experiment to an answer: timing, learning rates, comparison, and what would change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from raysync.config import ParadigmChoice
from raysync.engine.demands import refuse_of_update
from raysync.errors import ConfigError, RunFailed
from raysync.predict.candidates import Candidate, Space
from raysync.predict.finalists import Goal, Tuning, compare, tune
from raysync.predict.remedies import growth
from raysync.predict.runner import Budget, Runner, Show, runner_for
from raysync.predict.runs import Now, Outcome, PlannedRun
from raysync.predict.search import Timed, check_optuna, finalists, search, with_best_servers
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
    """The contenders on a changed cluster."""

    change: str
    """The name of the change in a sentence: with what, or without which worker."""
    standings: Standings
    todays_best_s: float
    """The predicted seconds of what is best today."""


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
    trained: bool = True

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

    def applied(self, label: str) -> Counter[str]:
        """Return slot -> its pushes that were not dropped, of all seeds together."""
        return sum((Counter(each.applied) for each in self.outcomes[label].values()), Counter())

    def shares(self, label: str) -> dict[str, int]:
        return self.outcomes[label][self.seeds[0]].shares


def advise(
    world: World, options: SearchOptions, now: Now, show: Show = lambda what, used: None
) -> Advice:
    """Find what suits an experiment and its cluster.

    Args:
        world: the experiment, as it is simulated.
        options: the budget, the seeds, the paradigms.
        now: a clock in seconds that all processes share; picklable.
        show: see `Show`.

    Raises:
        ConfigError: Optuna is not installed, or the budget did not even allow to time BSP.
        RunFailed: no candidate finishes.
    """
    check_optuna()
    for choice in options.choices:
        refuse_of_update(world.plan.experiment, choice)
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
        raise _untimed_error(options, runner)
    best = with_best_servers(timed) if options.choices else finalists(timed, FINALISTS)
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
                f"The budget did not allow one training of each of the {len(best)} finalists, so"
                " the answer rests on times alone. Set more --budget-minutes."
            )
        else:
            tuning, outcomes = trained
            contenders = {each.label: each for each in tuning.contenders}
            remarks += _training_remarks(tuning, outcomes, seeds)
    criteria = Criteria(world.plan.primary, experiment.target) if tuning else Criteria(None, None)
    measure, final = time_measure(criteria), final_measure(criteria)
    standings = _standings(measure, outcomes)
    if standings.first.value.count == 0:
        remarks.append(
            f"No run reached the target ({experiment.target.words if experiment.target else ''}):"
            " the answer ranks by the time of the whole work."
        )
        measure = WHOLE_WORK
        standings = _standings(measure, outcomes)
        if standings.first.value.count == 0:
            raise RunFailed(
                "\n".join(["No candidate finishes its training.", *_failure_lines(runner)])
            )
    changed = _time_changes(
        world, list(contenders.values()), outcomes, measure, standings, seeds, runner
    )
    remarks += _failure_lines(runner)
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


def _seeds(given: Sequence[int], count: int) -> tuple[int, ...]:
    more = range(max(given) + 1, max(given) + 1 + count)
    return (*given, *more)[:count]


def _untimed_error(options: SearchOptions, runner: Runner) -> ConfigError | RunFailed:
    if runner.budget.is_used(TIMED):
        return ConfigError(
            f"--budget-minutes {options.budget_s / 60:g}: it was used up before any candidate had"
            " been timed; give more."
        )
    return RunFailed("\n".join(["No candidate finishes its work.", *_failure_lines(runner)]))


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


def _training_remarks(
    tuning: Tuning, outcomes: Mapping[str, Mapping[int, Outcome]], seeds: Sequence[int]
) -> list[str]:
    remarks = []
    if len(tuning.rates) < 2:
        remarks.append(
            "The budget did not allow a search for learning rates: all candidates use the"
            " experiment's rate."
        )
    done = len(next(iter(outcomes.values())))
    if done < len(seeds):
        remarks.append(f"The budget allowed {done} of {len(seeds)} seeds.")
    return remarks


def _failure_lines(runner: Runner) -> list[str]:
    """Say why candidates failed, a line for each reason."""
    labels: dict[str, list[str]] = {}
    for label, reason in runner.failures.items():
        labels.setdefault(reason, []).append(label)
    return [f"Failed: {'; '.join(alike)}: {reason}" for reason, alike in labels.items()]


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


def _time_changes(
    world: World,
    contenders: Sequence[Candidate],
    outcomes: Mapping[str, Mapping[int, Outcome]],
    measure: Measure,
    standings: Standings,
    seeds: Sequence[int],
    runner: Runner,
) -> tuple[Changed, ...]:
    """Time the contenders on changed clusters.

    A predicted time to the target is the measured one, times the ratio of the two clusters' times
    for the same work: the number of samples until the target is taken to stay.
    """
    seeds = [seed for seed in seeds if seed in next(iter(outcomes.values()))]
    found = []
    before = _whole_work_s(contenders, "", seeds, runner)
    if before is None:
        return ()
    setting = Setting(world.plan, world.plan.experiment.paradigm)
    for change, _ in growth(setting):
        after = _whole_work_s(contenders, change, seeds, runner)
        if after is None:
            break
        predicted: dict[str, dict[int, float | None]] = {each.label: {} for each in contenders}
        for label, by_seed in predicted.items():
            for seed in seeds:
                value, run = outcomes[label][seed].value(measure.key), (label, seed)
                is_known = value is not None and run in before and run in after
                by_seed[seed] = value * after[run] / before[run] if is_known else None  # type: ignore[operator]
        todays_best = predicted[standings.first.paradigm].values()
        finished = [value for value in todays_best if value is not None]
        if finished:
            found.append(Changed(change, _ranked(measure, predicted), fmean(finished)))
    return tuple(found)


def _whole_work_s(
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
