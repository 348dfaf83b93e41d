"""The settings of `raysync switch-search`."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from raysync.config.base import Strict

Target = Literal["final_accuracy", "converged_accuracy", "best_accuracy"]


class Known(Strict):
    """The results of earlier runs of the first phase alone."""

    accuracy: float = Field(
        ge=0, le=1, description="mean of the search's target over these runs; a fraction of 1"
    )
    seconds: float | None = Field(
        None, gt=0, description="mean duration of these runs; costs are multiples of it"
    )


class SwitchSearch(Strict):
    """Search for the smallest share of the work under `first` that keeps the accuracy; Sync-Switch,
    section IV-B1.
    """

    target: Target = Field(
        description="the accuracy that must not get worse; a run without it, diverged or never "
        "converged, fails its fraction"
    )
    threshold: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="how far the target can be below that of `first` alone; a fraction of 1",
    )
    first_repeats: int = Field(
        3, ge=1, description="runs of `first` alone, with seeds `seed`, `seed + 1`, ..."
    )
    candidate_repeats: int = Field(
        3, ge=1, description="runs of each fraction that is tried, with the same seeds"
    )
    candidates_max: int = Field(
        5, ge=1, le=20, description="the most fractions that are tried: 1/2, 1/4, ..."
    )
    known: Known | None = Field(None, description="with --recurring, in place of runs of `first`")
    concurrent: int | None = Field(
        None,
        ge=1,
        description="most trainings at once; default: as many as the cluster holds. Set 1 if "
        "they would slow each other down",
    )

    @model_validator(mode="before")
    @classmethod
    def _aims(cls, value: object) -> object:
        if isinstance(value, dict) and "target" not in value:
            *others, last = get_args(Target)
            raise ValueError(
                f"give its target, which must not get worse: {', '.join(others)} or {last}."
            )
        return value
