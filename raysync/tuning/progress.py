"""How a sweep stands: what becomes of its trials, while it goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ray import tune
from ray.tune.experiment import Trial


@dataclass(frozen=True)
class SweepProgress:
    """Trials by what has become of them."""

    running: int
    done: int
    """Ended, failed ones too."""
    failed: int
    progress: float
    """Of all trials, in trials."""

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> SweepProgress:
        """Count them."""
        counts = Counter(trial.status for trial in trials)
        done = counts[Trial.TERMINATED] + counts[Trial.ERROR]
        under_way = sum(_progress(trial) for trial in trials if trial.status == Trial.RUNNING)
        return cls(counts[Trial.RUNNING], done, counts[Trial.ERROR], done + under_way)


def _progress(trial: Trial) -> float:
    return min(1.0, float((trial.last_result or {}).get("progress", 0.0)))


class Listener(Protocol):
    """Who hears of the trials of this process."""

    def progressed(self, status: SweepProgress) -> None:
        """Some times a second."""

    def started(self, trial: Trial) -> None:
        """It has its resources."""

    def ended(self, trial: Trial) -> None:
        """It came to its end, or Tune had seen enough of it."""

    def failed(self, trial: Trial) -> None:
        """It broke."""


_listeners: list[Listener] = []
"""Of this process. Tune pickles its callbacks with the experiment, so what they tell cannot be part
of them."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within, it hears."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class TuneCallback(tune.Callback):
    """Tune's callback that tells the listeners. An interrupted sweep ends without a word about the
    trials under way.
    """

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Tune has looked after its trials."""
        for listener in _listeners:
            listener.progressed(SweepProgress.of(trials))

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """It begins."""
        for listener in _listeners:
            listener.started(trial)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """By itself, by the scheduler, or by a rule to stop."""
        for listener in _listeners:
            listener.ended(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """It raised, or its process died."""
        for listener in _listeners:
            listener.failed(trial)
