"""The evaluated models that a run saves: the final one, and perhaps the best one.

Until the run ends they are references to published weights. Then the evaluator, which alone knows
the model, makes files of them: no tensor reaches the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal

from raysync.core.metrics import PrimaryMetric
from raysync.engine.backend import Call

Weights = tuple[Call, ...]  # The publications for one evaluation, in the order of the stages.


@dataclass(frozen=True, slots=True)
class SavedModel:
    which: str  # final or best
    data: bytes  # a safetensors file


class KeptModels:
    """The weights to save, and the files made of them."""

    # `best` keeps the final model, too
    def __init__(self, keep: Literal["final", "best", "none"], primary: PrimaryMetric) -> None:
        self.saved: list[SavedModel] = []
        self._keep = keep
        self._primary = primary
        self._best_value: float | None = None
        self._unsaved: dict[str, Weights] = {}

    @property
    def are_wanted(self) -> bool:
        return self._keep != "none"

    def update(self, weights: Weights, value: float | None) -> None:
        """Make evaluated weights the final ones, and perhaps the best; `value` is the metric's.

        Of equally good models the first is the best; one without a value (None or NaN) never is.
        """
        if not self.are_wanted:
            return
        self._unsaved["final"] = weights
        if self._keep != "best" or value is None or isnan(value):
            return
        if self._best_value is None or self._primary.is_better(value, self._best_value):
            self._best_value, self._unsaved["best"] = value, weights

    def state(self, keep: Callable[[str, Weights], None]) -> dict[str, Any]:
        """Return the checkpoint state; `keep` stores weights under a name."""
        for which, weights in self._unsaved.items():
            keep(f"model {which}", weights)
        return {"best_value": self._best_value, "unsaved": list(self._unsaved)}

    def load_state(self, state: Mapping[str, Any], saved: Callable[[str], Weights]) -> None:
        """Restore `state`'s result; `saved` loads the weights of a name."""
        self._best_value = state["best_value"]
        self._unsaved = {which: saved(f"model {which}") for which in state["unsaved"]}

    @property
    def next_weights(self) -> Weights | None:
        """The weights of the next file."""
        return next(iter(self._unsaved.values()), None)

    def save(self, data: bytes) -> None:
        """Store the file that was made of `next_weights`."""
        which = next(iter(self._unsaved))
        del self._unsaved[which]
        self.saved.append(SavedModel(which, data))

    def give_up(self) -> str:
        """Forget the weights without a file; return their names, for a message."""
        missing = " and ".join(self._unsaved)
        self._unsaved.clear()
        self._keep = "none"
        return missing
