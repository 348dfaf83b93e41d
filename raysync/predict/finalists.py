"""Train the few best: the learning rate of each by the same rule, then all on common seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysync.config import Target
from raysync.core.metrics import PrimaryMetric
from raysync.predict.candidates import Candidate
from raysync.predict.runner import Runner
from raysync.predict.runs import Outcome, PlannedRun

FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25)
"""The learning rates that every finalist is trained with, in this order, times the experiment's."""


@dataclass(frozen=True)
class Goal:
    """What a model is judged by, on the validation set."""

    target: Target
    primary: PrimaryMetric

    @property
    def final_key(self) -> str:
        """The key in `summary.json` that says how good the model became."""
        return f"final_{self.primary.name}"


@dataclass(frozen=True)
class Tuning:
    contenders: tuple[Candidate, ...]
    """Every finalist at its best rate for time and, if another, its best for the final metric."""
    rates: tuple[float, ...]
    """The rates that all of them were trained with."""


def tune(
    finalists: Sequence[Candidate], lr: float, goal: Goal, runner: Runner, seed: int, until: float
) -> Tuning:
    """Choose the learning rates of all finalists by one rule.

    Each finalist is trained with the same rates on one seed, which the comparison does not use. The
    rate whose model meets the target first is best for the time, the rate whose last model is best
    on the validation set for the final metric. A rate that the time did not allow for all finalists
    counts for none.
    """
    trained: dict[float, list[Outcome | None]] = {}
    for factor in FACTORS:
        rate = factor * lr
        set_lr = None if factor == 1.0 else rate
        tasks = [PlannedRun(each.with_lr(set_lr), seed, trains=True) for each in finalists]
        outcomes = runner.all(tasks, until, f"Learning rate {rate:g}")
        if None in outcomes:
            break
        trained[rate] = outcomes
    contenders: dict[str, Candidate] = {}
    for index, finalist in enumerate(finalists):
        of_rates = {rate: outcomes[index] for rate, outcomes in trained.items()}
        for rate in _best_rates(of_rates, goal) or (lr,):
            contender = finalist.with_lr(None if rate == lr else rate)
            contenders[contender.label] = contender
    return Tuning(tuple(contenders.values()), tuple(trained))


def _best_rates(outcomes: dict[float, Outcome | None], goal: Goal) -> tuple[float, ...]:
    sign = -1.0 if goal.primary.rises else 1.0
    best = []
    for key, direction in (("time_to_target_s", 1.0), (goal.final_key, sign)):
        values = {
            rate: direction * value
            for rate, outcome in outcomes.items()
            if outcome is not None and (value := outcome.value(key)) is not None
        }
        if values:
            best.append(min(values, key=lambda rate: values[rate]))
    return tuple(dict.fromkeys(best))


def compare(
    contenders: Sequence[Candidate], runner: Runner, seeds: Sequence[int], until: float
) -> dict[str, dict[int, Outcome]]:
    """Train all contenders with every seed, one seed after the other.

    Returns:
        Label -> seed -> the outcome. A seed that the time did not allow for all contenders counts
        for none, so that they have the same seeds.
    """
    compared: dict[str, dict[int, Outcome]] = {each.label: {} for each in contenders}
    for seed in seeds:
        tasks = [PlannedRun(each, seed, trains=True) for each in contenders]
        outcomes = runner.all(tasks, until, f"Training with seed {seed}")
        if None in outcomes:
            break
        for candidate, outcome in zip(contenders, outcomes, strict=True):
            assert outcome is not None, "an outcome that is missing"
            compared[candidate.label][seed] = outcome
    return compared
