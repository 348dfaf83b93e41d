"""The course of a search: its trials in order, the best one, and the best of each paradigm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from raysync.config.yaml_reading import read_yaml
from raysync.core.metrics import ACCURACY, MODES, PrimaryMetric
from raysync.record.reader import RunRecord
from raysync.record.run_end import RunEnd
from raysync.record.sweeps import SweepRecord, TrialNote, ended_in_sweep
from raysync.results.grouping import setting_text

SEED = "seed"
COMPLETE = ("done", "reached")  # ends of trials that can be the best


@dataclass(frozen=True)
class SearchedTrial:
    number: int  # its place in the search, from 0
    settings: dict[str, Any]
    record: RunRecord | None = None
    end: RunEnd | None = None
    value: float | None = None  # the metric at its end; None: it has none

    @property
    def paradigm(self) -> str:
        """The choice of the grid that it is of; "": the search has one paradigm."""
        return str(self.settings.get("paradigm", ""))

    @property
    def is_complete(self) -> bool:
        """Whether it did its work, so that its value can be compared."""
        return self.value is not None and self.end is not None and self.end.kind in COMPLETE

    @property
    def words(self) -> str:
        """The settings in words: `paradigm=asp, update.lr=0.24`."""
        texts = {key: setting_text(_rounded(value)) for key, value in self.settings.items()}
        return ", ".join(f"{key}={text}" for key, text in texts.items())


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class SearchCourse:
    metric: PrimaryMetric
    # the trials of the search in their order, without the repeats of the best settings
    trials: Sequence[SearchedTrial]
    choices: Sequence[Any] = ()  # the paradigms of the grid, as its file has them

    @cached_property
    def best(self) -> SearchedTrial | None:
        return self._best(self.trials)

    @cached_property
    def best_of_paradigms(self) -> dict[str, SearchedTrial]:
        """Choice of the grid -> its best trial; without those that have none."""
        groups: dict[str, list[SearchedTrial]] = {}
        for trial in self.trials:
            groups.setdefault(trial.paradigm, []).append(trial)
        found = {paradigm: self._best(trials) for paradigm, trials in groups.items()}
        return {paradigm: best for paradigm, best in found.items() if best is not None}

    def tried(self, paradigm: str) -> int:
        return sum(trial.paradigm == paradigm for trial in self.trials)

    @property
    def untried(self) -> list[Any]:
        """The paradigms of the grid that no trial has."""
        tried = [read_yaml(trial.paradigm, "a paradigm") for trial in self.trials]
        return [choice for choice in self.choices if choice not in tried]

    @property
    def repeated(self) -> int:
        """The number of trials with the settings of an earlier one."""
        settings = {repr(sorted(trial.settings.items())) for trial in self.trials}
        return len(self.trials) - len(settings)

    def _best(self, trials: Sequence[SearchedTrial]) -> SearchedTrial | None:
        choose = max if self.metric.rises else min
        complete = (trial for trial in trials if trial.is_complete)
        return choose(complete, key=lambda trial: trial.value or 0.0, default=None)


def primary_of(summary: Mapping[str, Any]) -> PrimaryMetric:
    return PrimaryMetric(
        summary.get("metric", ACCURACY.name), summary.get("metric_mode", ACCURACY.mode)
    )


def course_of(sweep: SweepRecord) -> SearchCourse | None:
    """Return the course of a sweep's search; None: it has no searcher, or no trial has a record."""
    settings = sweep.experiment.sweep
    records = {record.path.parent.name: record for record in sweep.records.values()}
    if settings is None or settings.search is None or not records:
        return None
    primary = primary_of(next(iter(records.values())).summary)
    name = settings.metric or primary.name
    mode = settings.mode or (MODES | {primary.name: primary.mode}).get(name, "max")
    notes = list(sweep.notes.values())
    # those with a seed repeat the best settings, unless the search itself draws seeds
    searched = [note for note in notes if SEED not in note.settings] or notes
    return SearchCourse(
        PrimaryMetric(name, mode),
        [
            _trial(number, note, records.get(note.name), name)
            for number, note in enumerate(searched)
        ],
        choices=settings.grid.get("paradigm", ()),
    )


def _trial(number: int, note: TrialNote, record: RunRecord | None, metric: str) -> SearchedTrial:
    if record is None:
        return SearchedTrial(number, note.settings)
    summary = record.summary
    value = summary.get(f"final_{metric}", summary.get(metric))
    is_number = isinstance(value, int | float) and isfinite(value)
    return SearchedTrial(
        number,
        note.settings,
        record,
        end=ended_in_sweep(record.end, note),
        value=value if is_number else None,
    )
