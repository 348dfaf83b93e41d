"""The settings of `raysync switch-search`."""

from __future__ import annotations

from pydantic import Field, model_validator

from raysync.config.base import Repeats, Strict

CONVERGED = "converged_accuracy"
RESULTS = ("final_", "best_")  # prefixes of a metric's results in `summary.json`


class Known(Strict):
    """The results of earlier runs of the first phase alone."""

    value: float = Field(
        description="mean of the search's target over these runs; an accuracy as a fraction of 1"
    )
    seconds: float | None = Field(
        None, gt=0, description="mean duration of these runs; costs are multiples of it"
    )


class SwitchSearch(Strict):
    """Search for the smallest share of the work under `first` that keeps the quality of the model;
    Sync-Switch, section IV-B1.
    """

    target: str = Field(
        description="the result that must not get worse: `converged_accuracy`, or `final_METRIC` or"
        " `best_METRIC` of a metric of the task, such as `final_accuracy`; a run without it,"
        " diverged or never converged, fails its fraction"
    )
    threshold: float = Field(
        0.01,
        ge=0,
        description=(
            "how much worse the target may be than with `first` alone, in the target's unit; for"
            " an accuracy: a fraction of 1"
        ),
    )
    first_repeats: Repeats = Field(
        3, description="runs of `first` alone, with seeds `seed`, `seed + 1`, ..."
    )
    candidate_repeats: Repeats = Field(
        3, description="runs of each fraction that is tried, with the same seeds"
    )
    candidates_max: int = Field(
        5, ge=1, le=20, description="the most fractions that are tried: 1/2, 1/4, ..."
    )
    known: Known | None = Field(None, description="with --recurring, instead of runs of `first`")
    concurrent: int | None = Field(
        None,
        ge=1,
        description=(
            "most trainings at once; default: as many as the cluster holds, on Ray without sharing"
            " cores"
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _has_target(cls, value: object) -> object:
        if isinstance(value, dict) and "target" not in value:
            raise ValueError(
                "give its target, which must not get worse: final_accuracy, converged_accuracy,"
                " best_accuracy, or final_ or best_ and another metric of the task."
            )
        return value

    @model_validator(mode="after")
    def _values_fit_target(self) -> SwitchSearch:
        if not self.metric:
            raise ValueError(
                "target: must be converged_accuracy, or final_ or best_ and a metric of the task,"
                f" such as final_accuracy; got {self.target!r}"
            )
        if self.metric == "accuracy":
            if self.threshold >= 1:
                raise ValueError(f"threshold: must be below 1, as accuracies; got {self.threshold}")
            if self.known is not None and not 0 <= self.known.value <= 1:
                raise ValueError(
                    f"known.value: an accuracy is a fraction of 1; got {self.known.value}"
                )
        return self

    @property
    def metric(self) -> str:
        """The metric of the target; "" if it names none."""
        if self.target == CONVERGED:
            return "accuracy"
        prefix = next((prefix for prefix in RESULTS if self.target.startswith(prefix)), None)
        return "" if prefix is None else self.target.removeprefix(prefix)
