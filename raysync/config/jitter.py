"""How step times vary from step to step."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from raysync.config.base import Strict
from raysync.config.bounded_file import path_of
from raysync.config.number_files import numbers_in
from raysync.paradigms.class_loading import may_import


def samples_of(samples: object) -> object:
    """Read the numbers of a text file; anything but a path is returned as it is.

    Raises:
        ValueError: there is no such file, it holds no numbers, or one of them is not above 0.
    """
    if isinstance(samples, str | Path):
        if not may_import():
            raise ValueError(f"a record holds the numbers themselves; got {str(samples)!r}")
        return numbers_in(path_of(samples), "samples", "numbers")
    if isinstance(samples, list | tuple):
        for number, sample in enumerate(samples, 1):
            if isinstance(sample, int | float) and not 0 < sample < inf:
                raise ValueError(f"sample {number} is {sample:g}; it must be above 0 and finite")
    return samples


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
            "pareto: exponent of the tail; the share of factors above x falls as x to the power of"
            " minus that, so a small one is heavy. Up to 2 the variance is infinite"
        ),
    )
    samples: Annotated[
        tuple[Annotated[float, Field(strict=True)], ...], BeforeValidator(samples_of)
    ] = Field(
        (),
        description=(
            "empirical: numbers, or a text file of them, such as measured step times: each step"
            " draws one, over the mean of all"
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
