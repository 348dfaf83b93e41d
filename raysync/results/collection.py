"""Collect the runs of a report from folders of runs, of records, or of sweeps.

A *scenario* is everything that a paradigm meets: model, data, workers, update rule, ... Runs of one
scenario and paradigm that differ in their seed are *repeats*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from raysync import config
from raysync.config import Experiment, Published, Target
from raysync.config.base import value_text
from raysync.core.metrics import OF_THE_TEST_SET, PrimaryMetric
from raysync.errors import ConfigError
from raysync.paradigms.class_loading import without_imports
from raysync.record.reader import RunRecord, legible, load
from raysync.record.run_end import ERROR, SCHEDULER, TIME_BUDGET, RunEnd
from raysync.record.schemas import opened_table
from raysync.record.sweeps import FILE, VARIED, SweepRecord, load_sweep
from raysync.results.grouping import differences, setting_text
from raysync.results.overlap import shared_shares
from raysync.results.search_course import SEED, SearchCourse, course_of, primary_of

OF_RESULTS = ("final_", "best_", "converged_", "seconds")  # prefixes of keys in the summary
SHARED = "shared_cores_fraction"  # a key that only a collection knows

CODE_DIGITS = 8  # of a hash of code, in labels


@dataclass(frozen=True)
class CollectedRun:
    record: RunRecord
    paradigm: str  # the label in tables: `ssp(staleness=3)`
    seed: int
    # the settings that differ from other runs, without paradigm and seed: `model=lenet,
    # profile=8-k80`
    scenario: str = ""
    ended: RunEnd | None = None  # how it ended, where its sweep knows more than its record
    # the share of its time in which it shared cores with others on a real clock; None: none
    shared_share: float | None = None

    @cached_property
    def started_at(self) -> float:
        """The first release, in seconds since the run began; 0: there was none."""
        pushes = self.record.pushes
        return float(pushes.released_at_s.min()) if len(pushes) else 0.0

    @property
    def end(self) -> RunEnd:
        return self.record.end if self.ended is None else self.ended

    @property
    def limit(self) -> str:
        """The settings that could end it early, as text; "": none."""
        stop = self.record.config.stop
        return "" if stop is None else repr(stop.model_dump(mode="json", exclude_defaults=True))

    @property
    def label(self) -> str:
        return _label(self.scenario, self.paradigm, self.seed)

    @property
    def status(self) -> str:
        """`finished`, `diverged`, `stopped`, `failed`, or `unfinished`: killed or still running."""
        return str(self.record.summary["status"])

    @property
    def incomplete_reason(self) -> str:
        """Why a part of the run is missing, in a clause; "": the run is complete."""
        if self.status == "unfinished":
            return "it was killed, or it still runs: its journal has no closing line"
        if not self.record.ended:
            return "it has ended, but its journal has no closing line: the file was truncated"
        return ""

    def value(self, key: str) -> float | None:
        """Return a number of `summary.json`; None where the run has none.

        A broken run has no result, and one that somebody ended no final metrics and seconds.
        """
        if key == SHARED:
            return self.shared_share
        end = self.end
        no_model = end.is_left_off or end.by == SCHEDULER or end.kind == "diverged"
        if key.startswith(OF_RESULTS) and no_model:
            return None
        if key == "time_to_target_s" and end.kind == "broken":
            return None
        value = self.record.summary.get(key)
        return float(value) if isinstance(value, int | float) and isfinite(value) else None


def by_seed(runs: Iterable[CollectedRun], key: str) -> dict[int, float | None]:
    return {run.seed: run.value(key) for run in runs}


@dataclass(frozen=True)
class FailedTrial:
    """A trial of a sweep that left no record."""

    trial: int
    scenario: str
    paradigm: str
    seed: int
    error: str
    by: str = ERROR  # what ended it, as in `RunEnd.by`

    @property
    def end(self) -> RunEnd:
        return RunEnd("cut" if self.by == TIME_BUDGET else "broken", self.by, 0.0, 0.0)

    @property
    def label(self) -> str:
        return _label(self.scenario, self.paradigm, self.seed)


def _label(scenario: str, paradigm: str, seed: int) -> str:
    return ", ".join(filter(None, (scenario, paradigm, f"seed {seed}")))


@dataclass(frozen=True)
class Criteria:
    """The criteria that judge the runs of a scenario."""

    metric: PrimaryMetric | None  # the quality of a model; None: none was trained (`timing: only`)
    target: Target | None
    last: int = 1  # the evaluations whose mean is the final quality
    # final qualities that differ by less are equally good; None: nobody said
    margin: float | None = None
    # whether evaluations use a validation set, and the test set judges the last model alone
    tested: bool = False

    @property
    def final_key(self) -> str | None:
        """The key of the quality that judges the last model in `summary.json`."""
        if self.metric is None:
            return None
        return f"final_{OF_THE_TEST_SET if self.tested else ''}{self.metric.name}"

    def with_test_set(self, summaries: Iterable[Mapping[str, Any]]) -> Criteria:
        """Return the criteria of runs with these summaries: by the test set if one was kept."""
        key = replace(self, tested=True).final_key
        return replace(self, tested=any(key in summary for summary in summaries))

    @property
    def time_key(self) -> str:
        """The key of the seconds to the target or, without one, of the training."""
        return "seconds" if self.target is None else "time_to_target_s"


@dataclass(frozen=True)
class Collection:
    paths: tuple[Path, ...]  # the folders as the command names them
    # at least one, in file order, or in the order of the sweep's trials
    runs: tuple[CollectedRun, ...]
    failed: tuple[FailedTrial, ...] = ()
    # the number of records omitted for a newer one of the same scenario, paradigm and seed
    superseded: int = 0
    sweep: SweepRecord | None = None  # None: the collection is not exactly one sweep
    # the search of a sweep that has one; then `runs` have each paradigm's best settings
    search: SearchCourse | None = None
    # in place of the experiment's `evaluation.margin`; None: as that says
    margin: float | None = None
    names: tuple[str, ...] = ()  # the names of sweeps and experiments; (): as the records say

    @property
    def experiment(self) -> Experiment:
        return self.sweep.experiment if self.sweep is not None else self.runs[0].record.config

    @property
    def published(self) -> Published | None:
        return self.experiment.published

    @property
    def name(self) -> str:
        own = (run.record.config.name for run in self.runs)
        names = [self.experiment.name] if self.sweep is not None else self.names or own
        return " and ".join(dict.fromkeys(names))

    @cached_property
    def paradigms(self) -> tuple[str, ...]:
        """The paradigms as the experiment lists them, then, or in a sweep, as they appear."""
        labels = list(dict.fromkeys(trial.paradigm for trial in self.trials))
        names = {run.record.config.label: label_of(run.record) for run in self.runs}
        choices = () if self.sweep is not None else self.experiment.paradigms
        rows = [config.row_of(self.experiment, choice).label for choice in choices]
        listed = [names.get(label, label) for label in rows]
        order = {label: place for place, label in enumerate(listed)}
        return tuple(sorted(labels, key=lambda label: order.get(label, len(order))))

    @cached_property
    def scenarios(self) -> dict[str, dict[str, list[CollectedRun]]]:
        """Scenario -> paradigm -> repeats by seed.

        If nothing differs, the only scenario is "". If all trials of a paradigm failed without a
        record, it has an empty list.
        """
        order = {label: place for place, label in enumerate(self.paradigms)}
        groups: dict[str, dict[str, list[CollectedRun]]] = {
            trial.scenario: {} for trial in self.trials
        }
        for trial in sorted(self.trials, key=lambda trial: (order[trial.paradigm], trial.seed)):
            repeats = groups[trial.scenario].setdefault(trial.paradigm, [])
            if isinstance(trial, CollectedRun):
                repeats.append(trial)
        return groups

    @property
    def trials(self) -> tuple[CollectedRun | FailedTrial, ...]:
        return (*self.runs, *self.failed)

    def failures(self, scenario: str, paradigm: str) -> list[FailedTrial]:
        """Return the trials of a paradigm without a record."""
        place = (scenario, paradigm)
        return [trial for trial in self.failed if (trial.scenario, trial.paradigm) == place]

    def statuses(self, scenario: str, paradigm: str) -> Counter[str]:
        """Count the repeats by how they ended, in words; `done`: they did their work."""
        repeats = self.scenarios[scenario][paradigm]
        failures = self.failures(scenario, paradigm)
        ends = [*(run.end for run in repeats), *(trial.end for trial in failures)]
        return Counter(end.how for end in ends)

    def criteria(self, scenario: str) -> Criteria:
        runs = [run for run in self.runs if run.scenario == scenario] or self.runs
        found = criteria_of(runs[0].record).with_test_set(run.record.summary for run in runs)
        return found if self.margin is None else replace(found, margin=self.margin)


def collect(paths: Sequence[Path]) -> Collection:
    """Collect the runs in folders of a run, of a sweep, or of records (OUTPUT/NAME).

    Raises `ConfigError` if there is nothing, or a record is damaged or of a newer raysync.
    """
    if len(paths) == 1 and (paths[0] / FILE).is_file():
        return _collect_sweep(paths[0])
    found = [pair for path in paths for pair in _records(path)]
    collection = collection_of([record for record, _ in found], paths, [end for _, end in found])
    return replace(collection, names=tuple(name for path in paths for name in _names(path)))


def collection_of(
    records: Sequence[RunRecord],
    paths: Sequence[Path],
    ends: Sequence[RunEnd | None] = (),
    failed: Sequence[FailedTrial] = (),
) -> Collection:
    """Collect records; raise `ConfigError` if one is damaged."""
    for record in records:
        _check(record)
    scenarios = differences(records)
    runs = [
        CollectedRun(record, label_of(record), record.config.seed, scenario, ended=end)
        for record, scenario, end in zip(
            records, scenarios, ends or [None] * len(records), strict=True
        )
    ]
    return _collection(paths, runs, failed)


def _collection(
    paths: Sequence[Path],
    runs: Sequence[CollectedRun],
    failed: Sequence[FailedTrial],
    sweep: SweepRecord | None = None,
) -> Collection:
    """Complete the runs by their common cores and code, and omit those that others replace."""
    shares = shared_shares([run.record for run in runs])
    runs = [
        replace(run, shared_share=share)
        for run, share in zip(_separate_by_code(runs), shares, strict=True)
    ]
    newest = _newest(runs)
    return Collection(
        paths=tuple(paths),
        runs=newest,
        failed=tuple(failed),
        superseded=len(runs) - len(newest),
        sweep=sweep,
    )


def _collection_of_sweep(
    sweep: SweepRecord, runs: Sequence[CollectedRun], failed: Sequence[FailedTrial]
) -> Collection:
    names = {run.record.config.label: label_of(run.record) for run in runs}
    renamed = [replace(lost, paradigm=names.get(lost.paradigm, lost.paradigm)) for lost in failed]
    return _collection([sweep.path], runs, renamed, sweep)


def _records(path: Path) -> list[tuple[RunRecord, RunEnd | None]]:
    """Return the records in a folder, in the order of their names, which begin with the time."""
    if not path.is_dir():
        raise ConfigError(
            f"{path}: there is no such folder; name the folder of a run, of a sweep, or of"
            " several runs."
        )
    if (path / FILE).is_file():
        sweep = _whole_sweep(path)
        return [(record, sweep.ends[trial]) for trial, record in sweep.records.items()]
    if _is_record(path):
        return [(load(path), None)]
    folders = [folder for folder in sorted(path.iterdir()) if folder.is_dir()]
    records = [load(folder) for folder in folders if _is_record(folder)]
    if not records:
        inside = [str(folder) for folder in folders if _holds_records(folder)]
        hint = f"; name one of: {', '.join(inside[:4])}" if inside else ""
        raise ConfigError(
            f"{path}: nothing to report on: it is neither a run folder nor the folder of a sweep,"
            f" and has none inside{hint}."
        )
    return [(record, None) for record in records]


def _names(path: Path) -> list[str]:
    """Return the name of a sweep, or of each experiment in a folder."""
    if (path / FILE).is_file():
        return [load_sweep(path).experiment.name]
    return [record.config.name for record, _ in _records(path)]


def _is_record(folder: Path) -> bool:
    return (folder / "journal.jsonl").is_file() or (folder / "config.yaml").is_file()


def _holds_records(folder: Path) -> bool:
    return (folder / FILE).is_file() or any(map(_is_record, folder.iterdir()))


def _whole_sweep(path: Path) -> SweepRecord:
    """Load a sweep; raise `ConfigError` if its experiment or its table cannot be read."""
    sweep = load_sweep(path)
    for file_content in ("experiment", "table"):
        getattr(sweep, file_content)
    return sweep


def _check(record: RunRecord) -> None:
    """Refuse a damaged record with a `ConfigError`, before the report is half written."""
    for file_content in ("header", "config", "summary", "evaluations", "environment"):
        getattr(record, file_content)
    if record.complete:
        with legible(record.path, "pushes"), opened_table(record.path / "pushes.parquet"):
            pass  # columns of another raysync are read from the journal


def label_of(record: RunRecord) -> str:
    """Return the paradigm's label by the run itself: a user's own class is not imported for it."""
    label = record.summary.get("paradigm_label")
    # records of earlier versions leave the block `local` out
    if isinstance(label, str) and label != record.config.paradigm.label:
        return label
    return record.config.label


def _separate_by_code(runs: Sequence[CollectedRun]) -> list[CollectedRun]:
    """Separate runs of equal settings and different code.

    Different code of task, model or data makes another scenario; of the paradigm, another paradigm.
    """
    scenarios = _codes(runs, "task_sha256", lambda run: run.scenario)
    runs = [
        replace(run, scenario=", ".join(filter(None, (run.scenario, code))))
        for run, code in zip(runs, scenarios, strict=True)
    ]
    paradigms = _codes(runs, "paradigm_sha256", lambda run: f"{run.paradigm} {run.scenario}")
    return [
        replace(run, paradigm=" ".join(filter(None, (run.paradigm, code))))
        for run, code in zip(runs, paradigms, strict=True)
    ]


def _codes(
    runs: Sequence[CollectedRun], key: str, group_of: Callable[[CollectedRun], str]
) -> list[str]:
    """Return `code=1a2b3c4d` for the runs of a group with different code, else ""."""
    codes = [code_label(run, key) for run in runs]
    groups: dict[str, set[str]] = {}
    for run, code in zip(runs, codes, strict=True):
        groups.setdefault(group_of(run), set()).add(code)
    return [
        code if len(groups[group_of(run)]) > 1 else ""
        for run, code in zip(runs, codes, strict=True)
    ]


def code_label(run: CollectedRun, key: str) -> str:
    """Name the code of a run by a hash in its environment: `code=1a2b3c4d`."""
    code = run.record.environment.get("user_code") or {}
    return f"code={str(code.get(key) or 'none')[:CODE_DIGITS]}"


def _newest(runs: Sequence[CollectedRun]) -> tuple[CollectedRun, ...]:
    # a repetition in virtual time is the same run again, so it is no evidence; but one that ended
    # sooner does not take the place of one that did its work
    newest = {
        (run.scenario, run.paradigm, run.seed): run
        for run in sorted(runs, key=lambda run: (_completeness(run.end), run.record.path.name))
    }
    return tuple(run for run in runs if newest[run.scenario, run.paradigm, run.seed] is run)


def _completeness(end: RunEnd) -> int:
    if end.is_left_off or end.by == SCHEDULER:
        return 0
    return 1 if end.kind == "cut" else 2


def _collect_sweep(path: Path) -> Collection:
    sweep = _whole_sweep(path)
    if (course := course_of(sweep)) is not None and course.best is not None:
        return _collect_search(sweep, course)
    varied = [key for key in sweep.varied if key.partition(".")[0] not in ("paradigm", "seed")]
    runs, failed = [], []
    for row in sweep.table.to_dict("records"):
        scenario = ", ".join(f"{key}={setting_text(row[f'config/{key}'])}" for key in varied)
        trial = int(row["trial"])
        if trial in sweep.records:
            runs.append(_run_of_trial(sweep, trial, scenario))
        else:
            failed.append(_failed_trial(sweep, row, scenario))
    if not runs:
        first = next((trial.error.splitlines()[0] for trial in failed if trial.error), "")
        raise ConfigError(
            f"{path}: nothing to report on: none of its {len(failed)} trials left a"
            f" record.\n{first}".strip()
        )
    return _collection_of_sweep(sweep, runs, failed)


def _collect_search(sweep: SweepRecord, course: SearchCourse) -> Collection:
    """Collect the runs with each paradigm's best settings: these are what is compared."""
    best = {repr(trial.settings) for trial in course.best_of_paradigms.values()}
    by_name = {record.path.parent.name: trial for trial, record in sweep.records.items()}
    runs: list[CollectedRun] = []
    failed: list[FailedTrial] = []
    chosen = {id(trial.record) for trial in course.best_of_paradigms.values()}
    for name, note in sweep.notes.items():
        settings = {key: value for key, value in note.settings.items() if key != SEED}
        is_repeat = SEED in note.settings and repr(settings) in best
        if name in by_name:
            trial = by_name[name]
            if is_repeat or id(sweep.records[trial]) in chosen:
                runs.append(_run_of_trial(sweep, trial))
        elif is_repeat:
            row = {f"{VARIED}{key}": value for key, value in note.settings.items()}
            row |= {"trial": len(failed), "error": note.error, "ended_by": note.by}
            failed.append(_failed_trial(sweep, row, ""))
    return replace(_collection_of_sweep(sweep, runs, failed), superseded=0, search=course)


def _run_of_trial(sweep: SweepRecord, trial: int, scenario: str = "") -> CollectedRun:
    record = sweep.records[trial]
    _check(record)
    seed, end = record.config.seed, sweep.ends[trial]
    return CollectedRun(record, label_of(record), seed, scenario, ended=end)


def _failed_trial(sweep: SweepRecord, row: Mapping[Any, Any], scenario: str) -> FailedTrial:
    seed = row.get(f"{VARIED}seed")
    return FailedTrial(
        trial=int(row["trial"]),
        scenario=scenario,
        paradigm=_trial_paradigm(sweep, row),
        seed=sweep.experiment.seed if pd.isna(seed) else int(seed),
        error=str(row["error"] or ""),
        by=str(row.get("ended_by") or ERROR),
    )


def _trial_paradigm(sweep: SweepRecord, row: Mapping[Any, Any]) -> str:
    """Return the paradigm of a trial without a record."""
    chosen = {
        key: row[f"{VARIED}{key}"] for key in sweep.varied if key.partition(".")[0] == "paradigm"
    }
    overrides = [
        f"{key}={value_text(value) if isinstance(value, float) else value}"
        for key, value in chosen.items()
    ]
    try:
        with without_imports():
            experiment = config.load(sweep.path / FILE, overrides, recorded=True)
    except ConfigError:  # this is why the trial failed
        return ", ".join(setting_text(value) for value in chosen.values())
    return config.row_of(experiment, experiment.paradigm).label


def criteria_of(record: RunRecord) -> Criteria:
    """Return the primary metric of a run's task, and its target."""
    experiment = record.config
    if experiment.timing == "only":
        return Criteria(None, None)
    metric, plan = primary_of(record.summary), experiment.evaluation
    return Criteria(
        metric=metric, target=experiment.aim(metric), last=plan.last, margin=plan.margin
    )
