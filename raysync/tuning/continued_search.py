"""A searcher of Ray Tune that goes on with the trials which were under way when a sweep was lost.

A sweep that is resumed is a new run of Tune, whose trials have other ids. To its searcher a trial
that goes on is still the one that it has chosen: results are told it under the earlier id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from warnings import catch_warnings

from ray.tune.search import Searcher

from raysync.tuning.grid import Point


class ContinuedSearch(Searcher):  # type: ignore[misc]
    """Suggests the points of earlier trials first, and then those of another searcher."""

    def __init__(self, searcher: Searcher, points: Sequence[Point]) -> None:
        """
        Args:
            searcher: the other one, which may know the earlier trials; Tune saves its state.
            points: of the trials that were under way; `trial` is the earlier id of each.
        """
        super().__init__()
        self.searcher = searcher
        self._points = list(points)
        self._earlier: dict[str, str] = {}
        """Tune's id of a trial that goes on -> its earlier id."""

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """See `Searcher.suggest`."""
        if self._points:
            point = self._points.pop(0)
            self._earlier[trial_id] = point["trial"]
            return dict(point)
        suggestion: dict[str, Any] | None = self.searcher.suggest(trial_id)
        return suggestion

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """See `Searcher.on_trial_result`."""
        with self._earlier_trial(trial_id) as known_as:
            self.searcher.on_trial_result(known_as, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """See `Searcher.on_trial_complete`."""
        with self._earlier_trial(trial_id) as known_as:
            self.searcher.on_trial_complete(known_as, result=result, error=error)

    @contextmanager
    def _earlier_trial(self, trial_id: str) -> Iterator[str]:
        """Give the id under which the searcher knows a trial.

        Of one that goes on it has been told the first results before, of which some searchers warn;
        or it does not know it, since it was saved before it had chosen that.
        """
        if trial_id not in self._earlier:
            yield trial_id
            return
        with catch_warnings(action="ignore"), suppress(KeyError):
            yield self._earlier[trial_id]

    def set_search_properties(self, *args: Any, **spec: Any) -> bool:
        """See `Searcher.set_search_properties`."""
        return bool(self.searcher.set_search_properties(*args, **spec))

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """See `Searcher.set_max_concurrency`."""
        return bool(self.searcher.set_max_concurrency(max_concurrent))

    def save(self, checkpoint_path: str) -> None:
        """See `Searcher.save`."""
        self.searcher.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """See `Searcher.restore`."""
        self.searcher.restore(checkpoint_path)

    def get_state(self) -> dict[str, Any]:
        """See `Searcher.get_state`; Tune saves that of the other searcher beside it."""
        return {"points": self._points, "earlier": self._earlier}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Searcher.set_state`."""
        self._points, self._earlier = state["points"], state["earlier"]

    @property
    def metric(self) -> str:
        """See `Searcher.metric`."""
        return str(self.searcher.metric)

    @property
    def mode(self) -> str:
        """See `Searcher.mode`."""
        return str(self.searcher.mode)
