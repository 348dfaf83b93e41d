"""Follow a sweep's trials in Ray Tune: show their progress, and note their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import cloudpickle, tune
from ray.tune.experiment import Trial
from ray.tune.stopper import NoopStopper, Stopper, TimeoutStopper
from typing_extensions import override

from raysync.config.base import value_text
from raysync.errors import ConfigError
from raysync.record.run_end import SCHEDULER, TIME_BUDGET
from raysync.record.sweeps import TrialNote, write_note
from raysync.running.engines import Notify
from raysync.tuning.trial import settings_of
from raysync.tuning.trial_reports import NOTICE


@dataclass(frozen=True)
class SweepProgress:
    """The number of trials in each state."""

    running: int
    done: int  # including failed ones
    failed: int
    progress: float  # of all trials together: each counts 1 when it is done

    @classmethod
    def of(cls, trials: Sequence[Trial], done: int) -> SweepProgress:
        """Count the trials; `done` is given, since Tune counts all as done when it stops."""
        counts = Counter(trial.status for trial in trials)
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

    def __init__(
        self,
        folder: Path,
        notify: Notify,
        show: Show,
        *,
        has_scheduler: bool = False,
        budget: TimeBudget | None = None,
    ) -> None:
        self.budget = budget
        if budget is not None:
            budget.callback = self
        self.done = 0  # including failed trials
        self.mistakes: list[str] = []  # messages of trials that could not begin
        self.budget_is_over = False
        self._folder = folder
        self._notify = notify
        self._show = show
        self._has_scheduler = has_scheduler
        self._under_way: dict[str, Trial] = {}  # trial's id -> the trial
        self._notices: set[str] = set()  # that the user has read

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        return tune.Callback, ()

    def end_by_budget(self) -> None:
        """Note, before Tune stops the trials under way, that their time is over."""
        self.budget_is_over = True
        for trial in self._under_way.values():
            self._write_note(trial, ended=False, by=TIME_BUDGET)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self._show(SweepProgress.of(trials, self.done))

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._under_way[trial.trial_id] = trial
        self._write_note(trial, ended=False)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        notice = result.get(NOTICE, "")
        if notice and notice not in self._notices:
            self._notices.add(notice)
            self._notify(f"{trial}: {notice}")

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        # Tune calls this before it stops a trial. The record knows whether the run had ended.
        self._end(trial, by=SCHEDULER if self._has_scheduler else "")

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        cause = _cause_of_failure(trial)
        if isinstance(cause, ConfigError):
            self.mistakes.append(str(cause))
        error = " ".join(str(cause).split())
        self._end(trial, error=error)
        settings = settings_of(trial.config).items()
        texts = ", ".join(f"{key}={value_text(value)}" for key, value in settings)
        self._notify(f"The trial with {texts} failed: {error}")

    def _end(self, trial: Trial, *, error: str = "", by: str = "") -> None:
        self.done += 1
        self._under_way.pop(trial.trial_id, None)
        self._write_note(trial, ended=True, error=error, by=by)

    def _write_note(self, trial: Trial, *, ended: bool, error: str = "", by: str = "") -> None:
        # its name is of `folder_of`
        note = TrialNote(str(trial), settings_of(trial.config), ended, error, by=by)
        try:
            write_note(self._folder, note)
        except ConfigError as unreachable:
            # The trials continue: the table at the end is made of the notes in the local copy.
            self._notify(str(unreachable))


class TimeBudget(TimeoutStopper):
    """A time budget of one or several runs of Tune; its end is noted before trials stop."""

    callback: TuneCallback | None = None  # of the present run of Tune

    def __reduce__(self) -> tuple[type[Stopper], tuple[()]]:
        return NoopStopper, ()  # as the callback

    @override
    def stop_all(self) -> bool:
        is_over = bool(super().stop_all())
        if is_over and self.callback is not None and not self.callback.budget_is_over:
            self.callback.end_by_budget()
        return is_over


def _cause_of_failure(trial: Trial) -> BaseException | str:
    # not by trial.get_error(), which finds the cause only some time later
    if trial.pickled_error_file is None:
        return Path(trial.error_file).read_text(encoding="utf-8").strip().splitlines()[-1]
    error: BaseException = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    return getattr(error, "cause", None) or error
