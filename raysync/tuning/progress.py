"""Follow the trials of a sweep while Ray Tune runs them: show their progress, note their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import cloudpickle, tune
from ray.tune.experiment import Trial

from raysync.config.base import value_text
from raysync.errors import ConfigError
from raysync.record.sweeps import TrialNote, write_note
from raysync.running.engines import Notify
from raysync.tuning.trial import settings_of


@dataclass(frozen=True)
class SweepProgress:
    """The number of trials in each state."""

    running: int
    done: int
    """Trials that have ended, including failed ones."""
    failed: int
    progress: float
    """Progress of all trials together; each counts 1 when it is done."""

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> SweepProgress:
        """Count the trials."""
        counts = Counter(trial.status for trial in trials)
        done = counts[Trial.TERMINATED] + counts[Trial.ERROR]
        under_way = sum(_progress(trial) for trial in trials if trial.status == Trial.RUNNING)
        return cls(counts[Trial.RUNNING], done, counts[Trial.ERROR], done + under_way)


def _progress(trial: Trial) -> float:
    return min(1.0, float((trial.last_result or {}).get("progress", 0.0)))


Show = Callable[[SweepProgress], None]
"""Receives the progress of a sweep, some times a second."""


class TuneCallback(tune.Callback):
    """Ray Tune's callback of one sweep. It notes beside the records which trials began, ended and
    failed. An interrupted sweep ends without a call for the trials under way.

    Tune pickles its callbacks with the experiment. This one holds functions of the process that
    shows the sweep, so its pickle is a callback that does nothing.
    """

    def __init__(self, folder: Path, notify: Notify, show: Show) -> None:
        """
        Args:
            folder: the folder of the sweep.
            notify: receives a sentence about each trial that failed.
            show: receives the progress, some times a second.
        """
        self.done = 0
        """Trials that have ended, including failed ones."""
        self.mistakes: list[str] = []
        """The messages of the trials that could not begin."""
        self._folder = folder
        self._notify = notify
        self._show = show

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        return tune.Callback, ()

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Show the progress, each time that Tune has looked after its trials."""
        self._show(SweepProgress.of(trials))

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Note that a trial has begun."""
        self._write(trial, ended=False)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Note that a trial has ended: by itself, or stopped by the scheduler or a condition."""
        self.done += 1
        self._write(trial, ended=True)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Note that a trial raised an error, or that its process died."""
        self.done += 1
        cause = _cause_of_failure(trial)
        if isinstance(cause, ConfigError):
            self.mistakes.append(str(cause))
        error = " ".join(str(cause).split())
        self._write(trial, ended=True, error=error)
        texts = {key: value_text(value) for key, value in settings_of(trial.config).items()}
        settings = ", ".join(f"{key}={text}" for key, text in texts.items())
        self._notify(f"The trial with {settings} failed: {error}")

    def _write(self, trial: Trial, *, ended: bool, error: str = "") -> None:
        name = str(trial)  # `folder_of`
        try:
            write_note(self._folder, TrialNote(name, settings_of(trial.config), ended, error))
        except ConfigError as unreachable:
            # The trials go on: the table at the end is made of the notes in the local copy.
            self._notify(str(unreachable))


def _cause_of_failure(trial: Trial) -> BaseException | str:
    """Return the error of a trial, or the last line of its text. (`trial.get_error()` only finds it
    some time later, once it is stored.)
    """
    if trial.pickled_error_file is None:
        return Path(trial.error_file).read_text(encoding="utf-8").strip().splitlines()[-1]
    error: BaseException = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    return getattr(error, "cause", None) or error
