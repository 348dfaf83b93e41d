"""Follow a sweep's trials in Ray Tune: show their progress, and note their ends."""

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
    done: int  # including failed ones
    failed: int
    progress: float  # of all trials together: each counts 1 when it is done

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> SweepProgress:
        counts = Counter(trial.status for trial in trials)
        done = counts[Trial.TERMINATED] + counts[Trial.ERROR]
        under_way = sum(_progress_of(trial) for trial in trials if trial.status == Trial.RUNNING)
        return cls(counts[Trial.RUNNING], done, counts[Trial.ERROR], done + under_way)


def _progress_of(trial: Trial) -> float:
    return min(1.0, float((trial.last_result or {}).get("progress", 0.0)))


Show = Callable[[SweepProgress], None]  # called several times a second


class TuneCallback(tune.Callback):
    """Shows a sweep's progress, and notes which trials began, ended and failed.

    An interrupted sweep ends without a call for the trials in flight. Tune pickles its callbacks
    with the experiment; this one holds functions of its process, so its pickle does nothing.
    """

    def __init__(self, folder: Path, notify: Notify, show: Show) -> None:
        self.done = 0  # including failed trials
        self.mistakes: list[str] = []  # messages of trials that could not begin
        self._folder = folder
        self._notify = notify
        self._show = show

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        return tune.Callback, ()

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self._show(SweepProgress.of(trials))

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._write_note(trial, ended=False)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.done += 1
        self._write_note(trial, ended=True)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.done += 1
        cause = _cause_of_failure(trial)
        if isinstance(cause, ConfigError):
            self.mistakes.append(str(cause))
        error = " ".join(str(cause).split())
        self._write_note(trial, ended=True, error=error)
        texts = {key: value_text(value) for key, value in settings_of(trial.config).items()}
        settings = ", ".join(f"{key}={text}" for key, text in texts.items())
        self._notify(f"The trial with {settings} failed: {error}")

    def _write_note(self, trial: Trial, *, ended: bool, error: str = "") -> None:
        name = str(trial)  # `folder_of`
        try:
            write_note(self._folder, TrialNote(name, settings_of(trial.config), ended, error))
        except ConfigError as unreachable:
            # The trials continue: the table at the end is made of the notes in the local copy.
            self._notify(str(unreachable))


def _cause_of_failure(trial: Trial) -> BaseException | str:
    # not by trial.get_error(), which finds the cause only some time later
    if trial.pickled_error_file is None:
        return Path(trial.error_file).read_text(encoding="utf-8").strip().splitlines()[-1]
    error: BaseException = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    return getattr(error, "cause", None) or error
