"""Runs on all cores, within a budget of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from raysync.config import Experiment
from raysync.predict.processes import pool
from raysync.predict.runs import Now, Outcome, PlannedRun, perform
from raysync.training.preparation import TrainingPlan, prepare

Show = Callable[[str, float], None]
"""Receives the name of a stage, and the share of the budget that is used."""


class Budget:
    """The time that an answer may take. Stages have shares of what is left once all is loaded."""

    def __init__(self, seconds: float, now: Now) -> None:
        self.now = now
        self._begin = self._loaded = now()
        self._end = self._begin + seconds

    def mark_loaded(self) -> None:
        self._loaded = min(self.now(), self._end)

    @property
    def spent_s(self) -> float:
        return self.now() - self._begin

    def end_of(self, share: float) -> float:
        """Return the time of the clock at which a share is used."""
        return self._loaded + share * (self._end - self._loaded)

    def is_used(self, share: float) -> bool:
        return self.now() >= self.end_of(share)

    @property
    def used_share(self) -> float:
        return min(1.0, self.spent_s / (self._end - self._begin))


class Runner:
    def __init__(
        self,
        plan: TrainingPlan,
        budget: Budget,
        executor: ProcessPoolExecutor | None,
        width: int,
        show: Show,
    ) -> None:
        self.plan, self.budget, self.width = plan, budget, width
        self._executor, self._show = executor, show
        self.failures: dict[str, str] = {}
        """Label of a candidate -> why the first of its failed runs failed, in one line."""

    def all(self, tasks: Sequence[PlannedRun], until: float, what: str) -> list[Outcome | None]:
        """Make runs, and return what they came to, in their order; None: see `perform`.

        Args:
            tasks: the runs.
            until: the share of the budget at which runs are given up.
            what: names the stage, for the user.
        """
        limited = [replace(task, stop_at=self.budget.end_of(until)) for task in tasks]
        outcomes = []
        for task, outcome in zip(tasks, self._outcomes(limited), strict=True):
            outcomes.append(outcome)
            if outcome is not None and outcome.status == "failed":
                label = task.candidate.with_lr(None).label
                self.failures.setdefault(label, outcome.error)
            self._show(what, self.budget.used_share)
        return outcomes

    def _outcomes(self, tasks: Sequence[PlannedRun]) -> Iterator[Outcome | None]:
        now = self.budget.now
        if self._executor is None:
            yield from (perform(self.plan, task, now) for task in tasks)
            return
        for future in [self._executor.submit(_perform_in_pool, task, now) for task in tasks]:
            yield future.result()


@contextmanager
def runner_for(plan: TrainingPlan, budget: Budget, processes: int, show: Show) -> Iterator[Runner]:
    """Start a runner.

    Args:
        plan: the training; several processes load it again, from its experiment alone.
        budget: the time of all runs together.
        processes: their number; with one, runs are made in this process.
        show: see `Show`.
    """
    if processes < 2:
        yield Runner(plan=plan, budget=budget, executor=None, width=1, show=show)
        return
    with pool(processes, _load, plan.experiment) as executor:
        for future in [executor.submit(_wait_until_loaded) for _ in range(processes)]:
            future.result()
        budget.mark_loaded()
        yield Runner(plan=plan, budget=budget, executor=executor, width=processes, show=show)


_plans: list[TrainingPlan] = []
"""The plan of this process of a pool."""


def _load(experiment: Experiment) -> None:
    """Load the training in a process of a pool, which has one core."""
    import torch

    torch.set_num_threads(1)
    _plans.append(prepare(experiment, for_balanced=True))


def _wait_until_loaded() -> None:
    """Return once the process has loaded the training."""


def _perform_in_pool(task: PlannedRun, now: Now) -> Outcome | None:
    return perform(_plans[0], task, now)
