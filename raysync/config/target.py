"""The target of an experiment: a metric of the evaluations, and the value to reach."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from raysync.config.base import Strict
from raysync.core.metrics import reaches


class Target(Strict):
    """The target that paradigms are compared by: the time until an evaluation meets it. Give either
    `at_least` or `at_most`.
    """

    metric: str = Field(
        min_length=1,
        description=(
            "a metric of the task's evaluations: `accuracy` (a fraction of 1), `loss` (mean"
            " cross-entropy in nats), `perplexity`, ..."
        ),
    )
    at_least: float | None = Field(
        None, description="met where the metric is as large as that, or larger"
    )
    at_most: float | None = Field(
        None, description="met where the metric is as small as that, or smaller"
    )

    @model_validator(mode="after")
    def _has_one_bound(self) -> Target:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(
                "give either at_least or at_most, such as {metric: accuracy, at_least: 0.9}"
            )
        if self.metric == "accuracy" and not (self.at_least and 0 < self.at_least <= 1):
            raise ValueError(
                f"an accuracy is a fraction of 1: give at_least above 0, to 1; got {self.words}"
            )
        if self.metric in ("loss", "perplexity") and self.rises:
            raise ValueError(f"a smaller {self.metric} is better: give at_most; got {self.words}")
        return self

    @property
    def value(self) -> float:
        """The value to reach."""
        value = self.at_least if self.at_least is not None else self.at_most
        assert value is not None, "a target without a bound"
        return value

    @property
    def rises(self) -> bool:
        """Whether a larger value is better."""
        return self.at_least is not None

    @property
    def words(self) -> str:
        """The target in words: `accuracy at least 0.9`."""
        return f"{self.metric} at {'least' if self.rises else 'most'} {self.value:g}"

    def is_met(self, value: float | None) -> bool:
        """Whether a value of the metric meets the target; NaN and None do not."""
        if value is None:
            return False
        return reaches(value, self.value, rises=self.rises)

    def plain(self) -> dict[str, Any]:
        """Return the target as in the file."""
        return self.model_dump(exclude_none=True)
