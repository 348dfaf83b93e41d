"""The conditions that end a run before its workload does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from raysync.config.base import Strict
from raysync.config.goal import Goals

if TYPE_CHECKING:
    from raysync.config.experiment import Experiment


class Stop(Strict):
    """End the run before its workload is done, at the first of these conditions. Its status is
    `finished`: the model at that time is evaluated on all test samples, and kept.
    """

    patience: int | None = Field(
        None,
        ge=1,
        description=(
            "end after that many evaluations in a row without a better `metric` than the best"
            " before; the evaluation of the initial model counts as the first"
        ),
    )
    metric: str | None = Field(
        None,
        min_length=1,
        description="for `patience`: a metric of the task's evaluations; default: the primary one",
    )
    mode: Literal["max", "min"] | None = Field(
        None,
        description=(
            "for `patience`, max: a larger metric is better; min: a smaller one; default: the"
            " direction of the primary metric, of the target, of accuracy, loss and perplexity"
        ),
    )
    min_delta: float = Field(
        0.0, ge=0, description="for `patience`: a metric is better only by more than that"
    )
    at_target: bool = Field(
        False, description="true: end at the first evaluation that meets `target`"
    )
    when: Goals = Field(
        (),
        description=(
            "end at the first evaluation at which a metric has a value: `{accuracy: 0.9}`,"
            " `{progress: 0.5}`, `{metric: f1, value: 0.8, mode: max}`, or a list of such"
        ),
    )
    after_s: float | None = Field(
        None,
        gt=0,
        description="end that many seconds after the run began: virtual ones on the virtual engine",
    )

    @model_validator(mode="after")
    def _has_condition(self) -> Stop:
        if self.patience is None and self.after_s is None and not self.at_target and not self.when:
            raise ValueError(
                "give patience, at_target: true, when, or after_s, such as {patience: 5}"
            )
        if self.patience is None:
            for name in ("metric", "mode", "min_delta"):
                if getattr(self, name):
                    raise ValueError(f"{name} is for patience; give patience, too")
        return self

    @property
    def needs_evaluations(self) -> bool:
        """Whether a condition depends on the model, and not only on time."""
        return self.patience is not None or self.at_target or bool(self.when)


def check_stop(experiment: Experiment) -> None:
    """Refuse conditions that nothing in the run can meet."""
    if experiment.stop is None:
        return
    if experiment.stop.at_target and experiment.target is None:
        raise ValueError(
            "stop.at_target: there is no target; give one, such as target:"
            " {metric: accuracy, at_least: 0.9}"
        )
    if experiment.stop.needs_evaluations and not experiment.trains:
        raise ValueError("stop: nothing is evaluated with timing: only; give after_s alone")
