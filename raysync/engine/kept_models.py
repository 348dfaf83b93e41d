"""Which of the evaluated models a run keeps: the final one, and perhaps the best one.

Until the run ends they are references to published weights. The evaluator then makes files of them,
since only it knows the model. So no tensor comes here, but the contents of at most two files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal

from raysync.core.metrics import PrimaryMetric
from raysync.engine.backend import Call

Weights = tuple[Call, ...]
"""What the servers published for one evaluation, in the order of the stages."""


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model that a run leaves."""

    which: str
    """`final` or `best`."""
    data: bytes
    """The contents of its safetensors file."""


class KeptModels:
    """The weights to keep, and the models that were made of them."""

    def __init__(self, keep: Literal["final", "best", "none"], primary: PrimaryMetric) -> None:
        """
        Args:
            keep: the experiment's setting; `best` keeps the final model, too.
            primary: the metric by which a model is the best.
        """
        self.saved: list[SavedModel] = []
        """The models, once the evaluator has made files of them."""
        self._keep = keep
        self._primary = primary
        self._best_value: float | None = None
        self._unsaved: dict[str, Weights] = {}

    @property
    def are_wanted(self) -> bool:
        """Whether the run is to leave a model at all."""
        return self._keep != "none"

    def take(self, weights: Weights, value: float | None) -> None:
        """Take in an evaluation: its weights are now the final ones, and perhaps the best. Of
        equally good models the first is the best; one without a value (NaN) never is.

        Args:
            weights: what was evaluated.
            value: that of the primary metric; None if it was not measured.
        """
        if not self.are_wanted:
            return
        self._unsaved["final"] = weights
        if self._keep != "best" or value is None or isnan(value):
            return
        if self._best_value is None or self._primary.is_better(value, self._best_value):
            self._best_value, self._unsaved["best"] = value, weights

    def state(self, keep: Callable[[str, Weights], None]) -> dict[str, Any]:
        """Return what a checkpoint needs of it, JSON-native; `keep` keeps weights under a name."""
        for which, weights in self._unsaved.items():
            keep(f"model {which}", weights)
        return {"best_value": self._best_value, "unsaved": list(self._unsaved)}

    def load_state(self, state: Mapping[str, Any], saved: Callable[[str], Weights]) -> None:
        """Go on from what `state` returned; `saved` returns what was kept under a name."""
        self._best_value = state["best_value"]
        self._unsaved = {which: saved(f"model {which}") for which in state["unsaved"]}

    @property
    def next_weights(self) -> Weights | None:
        """The weights of which a file is to be made next; None if there are none."""
        return next(iter(self._unsaved.values()), None)

    def save(self, data: bytes) -> None:
        """Take in the file that was made of `next_weights`."""
        which = next(iter(self._unsaved))
        del self._unsaved[which]
        self.saved.append(SavedModel(which, data))

    def give_up(self) -> str:
        """Forget the weights that no file was made of; return which they were, for a message."""
        missing = " and ".join(self._unsaved)
        self._unsaved.clear()
        self._keep = "none"
        return missing
