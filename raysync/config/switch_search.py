"""What `raysync switch-search` looks for."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from raysync.config.base import Strict

Target = Literal["final_accuracy", "converged_accuracy", "best_accuracy"]


class Known(Strict):
    """What earlier runs of the first phase alone came to."""

    accuracy: float = Field(
        ge=0, le=1, description="their mean, of the search's target; a fraction of 1"
    )
    seconds: float | None = Field(None, gt=0, description="their mean; costs are multiples of it")


class SwitchSearch(Strict):
    """The smallest share of the work under `first` that keeps the accuracy; Sync-Switch, section
    IV-B1.
    """

    target: Target = Field(
        description="what must not get worse; a run without one, diverged or never converged, "
        "fails its fraction"
    )
    threshold: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="by how much it may be below that of `first` alone; a fraction of 1",
    )
    first_repeats: int = Field(
        3, ge=1, description="runs of `first` alone, with seeds `seed`, `seed + 1`, ..."
    )
    candidate_repeats: int = Field(
        3, ge=1, description="runs of each fraction that is tried, with the same seeds"
    )
    candidates_max: int = Field(
        5, ge=1, le=20, description="fractions that are tried at most: 1/2, 1/4, ..."
    )
    known: Known | None = Field(None, description="with --recurring, in place of runs of `first`")
    concurrent: int | None = Field(
        None,
        ge=1,
        description="trainings at once, at most; default: what the cluster "
        "holds. 1, if they would slow each other down",
    )

    @model_validator(mode="before")
    @classmethod
    def _aims(cls, value: object) -> object:
        if isinstance(value, dict) and "target" not in value:
            *others, last = get_args(Target)
            raise ValueError(
                f"give its target, what must not get worse: {', '.join(others)} or {last}."
            )
        return value
