"""The metrics of an evaluation: which names are possible, and which direction is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf, isnan
from typing import Any, Literal

Mode = Literal["max", "min"]

RESERVED = ("mark", "progress", "version", "at")
"""Names that a metric cannot have: a line of the journal has these values of an evaluation beside
its metrics."""
LOSS = "loss"
"""The metric that every evaluation has."""
LARGEST_EXPONENT = 709.0
"""The largest exponent of e that a float can hold; a model with a loss that large is about to
diverge."""


@dataclass(frozen=True, slots=True)
class PrimaryMetric:
    """The metric that a task's models are judged by."""

    name: str
    mode: Mode
    """max: a larger value is better; min: a smaller one."""

    @property
    def rises(self) -> bool:
        """Whether a larger value is better."""
        return self.mode == "max"

    def is_better(self, value: float, than: float) -> bool:
        """Say whether a value is better than another; NaN is worse than any number."""
        if isnan(value) or isnan(than):
            return not isnan(value)
        return value > than if self.rises else value < than

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best value; None if there is none. NaN is returned if all are."""
        best: float | None = None
        for value in values:
            if best is None or self.is_better(value, best):
                best = value
        return best


ACCURACY = PrimaryMetric("accuracy", "max")
"""The primary metric of classification; a fraction of 1."""
PERPLEXITY = PrimaryMetric("perplexity", "min")
"""The primary metric of language models: e to the mean cross-entropy, so 1 at best."""
MODES: dict[str, Mode] = {"accuracy": "max", "loss": "min", "perplexity": "min"}
"""Metric -> its direction, where the name alone says it."""


def value_of(metrics: Mapping[str, float], name: str) -> float | None:
    """Return a metric by its name; None if it is missing. A perplexity that the evaluator did not
    return is e to the loss, infinite where a float cannot hold it.
    """
    if name == PERPLEXITY.name and name not in metrics and LOSS in metrics:
        loss = metrics[LOSS]
        return inf if loss > LARGEST_EXPONENT else exp(loss)
    return metrics.get(name)


def known(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that `value_of` finds in metrics of these names."""
    return tuple(dict.fromkeys([*names, PERPLEXITY.name]))


def refusal(metrics: Any) -> str:
    """Say in a clause why these are not the metrics of an evaluation; "" if they are."""
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
