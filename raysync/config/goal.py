"""A value of a metric at which a run ends."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from raysync.config.base import Strict
from raysync.config.target import Target
from raysync.core.metrics import MODES, Mode, PrimaryMetric, reaches

# whatever reaches a value of these has done the same work
OF_WORK = ("progress", "samples", "training_iteration")
SECONDS = "seconds"
# what an evaluation has beside its metrics: share and samples of the work that its model has seen,
# its number, counted from 1, and seconds since the run began
MEASURED = (*OF_WORK, SECONDS)


class StopGoal(Strict):
    """A metric's value at which a run ends: `{metric: loss, value: 0.4, mode: min}`."""

    metric: str = Field(
        min_length=1,
        description=(
            "a metric of the task's evaluations, or `progress`, `samples`, `seconds`,"
            " `training_iteration` (the number of the evaluation)"
        ),
    )
    value: float = Field(description="the value at which the run ends")
    mode: Literal["max", "min"] | None = Field(
        None,
        description=(
            "max: at that value or a larger one; min: or a smaller one; default: the direction in"
            " which the metric is better, if it is known"
        ),
    )

    def better(self, primary: PrimaryMetric) -> Mode | None:
        """Return the direction in which the metric is better, or grows; None: unknown."""
        known = MODES | dict.fromkeys(MEASURED, "max") | {primary.name: primary.mode}
        return known.get(self.metric)

    def direction(self, primary: PrimaryMetric) -> Mode | None:
        """Return the direction in which the run ends; None: unknown."""
        return self.mode or self.better(primary)

    def is_wanted(self, primary: PrimaryMetric) -> bool:
        """Whether a run is to reach it: not so a loss at which a run is given up, or seconds."""
        better = self.better(primary)
        return self.metric != SECONDS and self.mode in (None, better or self.mode)

    def is_met(self, value: float | None, primary: PrimaryMetric) -> bool:
        """Whether the goal is reached; NaN and None do not reach it."""
        if value is None:
            return False
        return reaches(value, self.value, rises=self.direction(primary) == "max")

    def target(self, primary: PrimaryMetric) -> Target | None:
        """Return the goal as a target of training; None: its metric is no quality of a model."""
        if self.metric in MEASURED or not self.is_wanted(primary):
            return None
        bound = "at_least" if self.direction(primary) == "max" else "at_most"
        return Target.model_validate({"metric": self.metric, bound: self.value})

    @property
    def words(self) -> str:
        """The goal in words: `accuracy 0.9`."""
        return f"{self.metric} {self.value:g}"


def _listed(value: object) -> object:
    """Expand `{accuracy: 0.9, progress: 0.5}` and a single goal to a list of goals."""
    if isinstance(value, list | tuple):
        return [goal for goals in value for goal in _as_list(_listed(goals))]
    if not isinstance(value, dict):
        return value
    if "metric" in value and "value" in value:
        return [value]
    return [{"metric": metric, "value": bound} for metric, bound in value.items()]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


Goals = Annotated[tuple[StopGoal, ...], BeforeValidator(_listed)]
