"""The metrics of an evaluation: possible names, and the better direction of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf, isclose, isnan
from typing import Any, Literal

Mode = Literal["max", "min"]

RESERVED = ("mark", "progress", "version", "at")  # A journal's line has these beside the metrics.
LOSS = "loss"  # every evaluation has it
OF_THE_TEST_SET = "test_"  # prefix of metrics on the test set if there is a validation set
FLOAT32_ROUNDING = 2.0**-23
LARGEST_EXPONENT = 709.0  # of e in a float; a model with a larger loss is about to diverge


@dataclass(frozen=True, slots=True)
class PrimaryMetric:
    """The metric that judges a task's models."""

    name: str
    mode: Mode

    @property
    def rises(self) -> bool:
        """Whether a larger value is better."""
        return self.mode == "max"

    def is_better(self, value: float, than: float) -> bool:
        """Compare two values; NaN is worse than any number."""
        if isnan(value) or isnan(than):
            return not isnan(value)
        return value > than if self.rises else value < than

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best value: None of no values, NaN if all are NaN."""
        best: float | None = None
        for value in values:
            if best is None or self.is_better(value, best):
                best = value
        return best


ACCURACY = PrimaryMetric("accuracy", "max")  # a fraction of 1
PERPLEXITY = PrimaryMetric("perplexity", "min")  # e to the mean cross-entropy: 1 at best
# the metrics whose name alone says the direction
MODES: dict[str, Mode] = {"accuracy": "max", "loss": "min", "perplexity": "min"}


def reaches(value: float, bound: float, *, rises: bool) -> bool:
    """Return whether a metric is at a bound or beyond it, to the digits of a float32.

    77 of 100 are 0.76999998 as a mean of float32, and reach 0.77.
    """
    is_beyond = value >= bound if rises else value <= bound
    return is_beyond or isclose(value, bound, rel_tol=FLOAT32_ROUNDING)


def value_of(metrics: Mapping[str, float], name: str) -> float | None:
    """Return a metric, or None; a missing perplexity is e to the loss, infinite beyond a float."""
    if name == PERPLEXITY.name and name not in metrics and LOSS in metrics:
        loss = metrics[LOSS]
        return inf if loss > LARGEST_EXPONENT else exp(loss)
    return metrics.get(name)


def known(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that `value_of` finds in metrics of these names."""
    return tuple(dict.fromkeys([*names, PERPLEXITY.name]))


def refusal(metrics: Any) -> str:
    """Return a clause why these cannot be the metrics of an evaluation; "" if they can."""
    if not isinstance(metrics, Mapping):
        return f"the metrics must be a mapping of names to numbers, got {type(metrics).__name__}"
    for name, value in metrics.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            return f"the name of a metric must be a text that can be printed, got {name!r:.40}"
        if name in RESERVED:
            return f"a metric cannot be called {name!r}: {', '.join(RESERVED)} are reserved"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"metric {name!r} must be a number, got {value!r:.40}"
    if LOSS not in metrics:
        return f"the metrics lack {LOSS!r}"
    return ""
