"""How step times vary from step to step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from raysync.config.base import Strict


class Jitter(Strict):
    """How a worker's step times vary from step to step: by a random factor with mean 1."""

    distribution: Literal["none", "normal", "lognormal", "exponential", "pareto", "empirical"] = (
        Field("lognormal", description="distribution of the factor that multiplies a step's time")
    )
    sigma: float = Field(
        0.0,
        ge=0,
        le=2,
        description=(
            "normal: standard deviation of the factor; lognormal: of its logarithm; the others need"
            " none"
        ),
    )
    tail: float = Field(
        2.5,
        gt=1,
        description=(
            "pareto, for the rare, very long steps of machines that others use: exponent of the"
            " tail; the share of factors above x falls as x to the power of minus that, so a small"
            " one is heavy. Up to 2 the variance is infinite"
        ),
    )
    samples: tuple[Annotated[float, Field(strict=True, gt=0)], ...] = Field(
        (),
        description=(
            "empirical: numbers such as measured step times: each step draws one, over the mean of"
            " all"
        ),
    )

    @model_validator(mode="after")
    def _has_samples(self) -> Jitter:
        if (self.distribution == "empirical") != bool(self.samples):
            raise ValueError(
                "distribution: empirical and samples go together; got distribution:"
                f" {self.distribution} and {len(self.samples)} samples"
            )
        return self
