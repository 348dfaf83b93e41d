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

from raysync import config
from raysync.config import Experiment, Published, Target
from raysync.config.base import value_text
from raysync.core.journal import read_header
from raysync.core.metrics import PrimaryMetric
from raysync.errors import ConfigError
from raysync.paradigms.class_loading import without_imports
from raysync.record.journal_file import JournalFile
from raysync.record.push_rows import PushRow
from raysync.record.reader import RunRecord, legible, load
from raysync.record.schemas import opened_table
from raysync.record.sweeps import FILE, VARIED, SweepRecord, load_sweep
from raysync.record.writer import schema_of
from raysync.results.grouping import differences, setting_text

OF_FINISHED_RUNS = ("final_", "best_", "converged_", "seconds")  # prefixes of keys in the summary

CODE_SHOWN = 8  # digits of a hash of code


@dataclass(frozen=True)
class CollectedRun:
    record: RunRecord
    paradigm: str
    """The label in tables: `ssp(staleness=3)`."""
    seed: int
    scenario: str = ""
    """The settings that differ from other runs, without paradigm and seed: `model=lenet,
    profile=8-k80`."""

    @property
    def label(self) -> str:
        return _label(self.scenario, self.paradigm, self.seed)

    @property
    def status(self) -> str:
        """`finished`, `diverged`, `stopped`, `failed`, or `unfinished`: killed or still running."""
        return str(self.record.summary["status"])

    @property
    def unfinished(self) -> str:
        """Why a part of the run is missing, in a clause; empty: it is complete."""
        if self.status == "unfinished":
            return "it was killed, or it still runs: its journal has no closing line"
        if not self.record.ended:
            return "it has ended, but its journal has no closing line: the file was truncated"
        return ""

    def value(self, key: str) -> float | None:
        """Return a number of `summary.json`; None where the run has none.

        Results (final metrics, seconds) of an unfinished run are None: it did less work.
        """
        if key.startswith(OF_FINISHED_RUNS) and self.status != "finished":
            return None
        value = self.record.summary.get(key)
        return float(value) if isinstance(value, int | float) and isfinite(value) else None


def by_seed(runs: Iterable[CollectedRun], key: str) -> dict[int, float | None]:
    return {run.seed: run.value(key) for run in runs}


@dataclass(frozen=True)
class Failed:
    """A trial of a sweep that left no record."""

    trial: int
    scenario: str
    paradigm: str
    seed: int
    error: str

    @property
    def label(self) -> str:
        return _label(self.scenario, self.paradigm, self.seed)


def _label(scenario: str, paradigm: str, seed: int) -> str:
    return ", ".join(filter(None, (scenario, paradigm, f"seed {seed}")))


@dataclass(frozen=True)
class Success:
    """The criteria that judge the runs of a scenario."""

    metric: PrimaryMetric | None
    """The quality of a model; None: none was trained (`timing: only`)."""
    target: Target | None

    @property
    def final_key(self) -> str | None:
        """The key of the final quality in `summary.json`."""
        return None if self.metric is None else f"final_{self.metric.name}"

    @property
    def time_key(self) -> str:
        """The key of the seconds to the target or, without one, of the training."""
        return "seconds" if self.target is None else "time_to_target_s"


@dataclass(frozen=True)
class Collection:
    paths: tuple[Path, ...]
    """The folders as the command names them."""
    runs: tuple[CollectedRun, ...]
    """At least one, in file order, or in the order of the sweep's trials."""
    failed: tuple[Failed, ...] = ()
    superseded: int = 0
    """The number of records omitted for a newer one of the same scenario, paradigm and seed."""
    sweep: SweepRecord | None = None
    """None: the collection is not exactly one sweep."""

    @property
    def experiment(self) -> Experiment:
        return self.sweep.experiment if self.sweep is not None else self.runs[0].record.config

    @property
    def published(self) -> Published | None:
        return self.experiment.published

    @property
    def name(self) -> str:
        return self.experiment.name

    @cached_property
    def paradigms(self) -> tuple[str, ...]:
        """The paradigms in the order of the experiment, then, or for a sweep, of appearance."""
        labels = list(dict.fromkeys(trial.paradigm for trial in self._trials))
        names = labels_of(run.record for run in self.runs)
        choices = () if self.sweep is not None else self.experiment.paradigms
        listed = [names.get(choice.label, choice.label) for choice in choices]
        order = {label: place for place, label in enumerate(listed)}
        return tuple(sorted(labels, key=lambda label: order.get(label, len(order))))

    def scenarios(self) -> dict[str, dict[str, list[CollectedRun]]]:
        """Return scenario -> paradigm -> repeats by seed.

        If nothing differs, the only scenario is "". If all trials of a paradigm failed without a
        record, it has an empty list.
        """
        return self._scenarios

    @cached_property
    def _scenarios(self) -> dict[str, dict[str, list[CollectedRun]]]:
        order = {label: place for place, label in enumerate(self.paradigms)}
        groups: dict[str, dict[str, list[CollectedRun]]] = {
            trial.scenario: {} for trial in self._trials
        }
        for trial in sorted(self._trials, key=lambda trial: (order[trial.paradigm], trial.seed)):
            repeats = groups[trial.scenario].setdefault(trial.paradigm, [])
            if isinstance(trial, CollectedRun):
                repeats.append(trial)
        return groups

    @property
    def _trials(self) -> tuple[CollectedRun | Failed, ...]:
        return (*self.runs, *self.failed)

    def failures(self, scenario: str, paradigm: str) -> list[Failed]:
        """Return the trials of a paradigm without a record."""
        return [
            trial
            for trial in self.failed
            if (trial.scenario, trial.paradigm) == (scenario, paradigm)
        ]

    def statuses(self, scenario: str, paradigm: str) -> Counter[str]:
        """Count the repeats by status; trials without a record have failed."""
        repeats = self.scenarios()[scenario][paradigm]
        lost = len(self.failures(scenario, paradigm))
        return Counter([*(run.status for run in repeats), *["failed"] * lost])

    def success(self, scenario: str) -> Success:
        return success_of(
            next((run for run in self.runs if run.scenario == scenario), self.runs[0]).record
        )


def success_of(record: RunRecord) -> Success:
    """Return the primary metric of a run's task, and its target."""
    experiment, summary = record.config, record.summary
    if experiment.timing == "only":
        return Success(None, None)
    metric = PrimaryMetric(summary["metric"], summary["metric_mode"])
    return Success(metric, experiment.target)


def collect(paths: Sequence[Path]) -> Collection:
    """Collect the runs in folders of a run, of a sweep, or of records (OUTPUT/NAME).

    Raises `ConfigError` if there is nothing, or a record is damaged or of a newer raysync.
    """
    if len(paths) == 1 and (paths[0] / FILE).is_file():
        return _of_sweep(paths[0])
    records = [record for path in paths for record in _records(path)]
    for record in records:
        _check(record)
    scenarios = differences(records)
    runs = [
        CollectedRun(record, label_of(record), record.config.seed, scenario)
        for record, scenario in zip(records, scenarios, strict=True)
    ]
    runs = by_code(runs)
    newest = _newest(runs)
    return Collection(tuple(paths), newest, superseded=len(runs) - len(newest))


def label_of(record: RunRecord) -> str:
    """Return the paradigm's label by the run itself: a user's own class is not imported for it."""
    label = record.summary.get("paradigm_label")
    return label if isinstance(label, str) else record.config.paradigm.label


def labels_of(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return label by configuration alone -> label by the run."""
    return {record.config.paradigm.label: label_of(record) for record in records}


def by_code(runs: Sequence[CollectedRun]) -> list[CollectedRun]:
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
    runs: Sequence[CollectedRun], key: str, alike: Callable[[CollectedRun], str]
) -> list[str]:
    """Return `code=1a2b3c4d` for runs with other code than their `alike` ones, else ""."""
    hashes = [(run.record.environment.get("user_code") or {}).get(key) or "none" for run in runs]
    groups: dict[str, set[str]] = {}
    for run, code in zip(runs, hashes, strict=True):
        groups.setdefault(alike(run), set()).add(code)
    return [
        f"code={code[:CODE_SHOWN]}" if len(groups[alike(run)]) > 1 else ""
        for run, code in zip(runs, hashes, strict=True)
    ]


def _newest(runs: Sequence[CollectedRun]) -> tuple[CollectedRun, ...]:
    # in virtual time, a repetition is the same run, and no evidence
    newest = {
        (run.scenario, run.paradigm, run.seed): run
        for run in sorted(runs, key=lambda run: run.record.path.name)
    }
    return tuple(run for run in runs if newest[run.scenario, run.paradigm, run.seed] is run)


def _records(path: Path) -> list[RunRecord]:
    """Return the records in a folder by name, which begins with the time."""
    if not path.is_dir():
        raise ConfigError(
            f"{path}: there is no such folder; name the folder of a run, of a sweep, or of"
            " several runs."
        )
    if (path / FILE).is_file():
        return list(_whole_sweep(path).records.values())
    if _is_record(path):
        return [load(path)]
    folders = [folder for folder in sorted(path.iterdir()) if folder.is_dir()]
    records = [load(folder) for folder in folders if _is_record(folder)]
    if not records:
        inside = [str(folder) for folder in folders if _holds_records(folder)]
        hint = f"; name one of: {', '.join(inside[:4])}" if inside else ""
        raise ConfigError(
            f"{path}: nothing to report on: it is neither a run folder nor the folder of a sweep,"
            f" and has none inside{hint}."
        )
    return records


def _is_record(folder: Path) -> bool:
    return (folder / "journal.jsonl").is_file() or (folder / "config.yaml").is_file()


def _holds_records(folder: Path) -> bool:
    return (folder / FILE).is_file() or any(map(_is_record, folder.iterdir()))


def _of_sweep(path: Path) -> Collection:
    sweep = _whole_sweep(path)
    varied = [key for key in sweep.varied if key.partition(".")[0] not in ("paradigm", "seed")]
    runs, failed = [], []
    for row in sweep.table.to_dict("records"):
        scenario = ", ".join(f"{key}={setting_text(row[f'config/{key}'])}" for key in varied)
        trial = int(row["trial"])
        if trial in sweep.records:
            record = sweep.records[trial]
            _check(record)
            runs.append(CollectedRun(record, label_of(record), record.config.seed, scenario))
        else:
            seed = int(row.get("config/seed", sweep.experiment.seed))
            failed.append(
                Failed(
                    trial=trial,
                    scenario=scenario,
                    paradigm=_trial_paradigm(sweep, row),
                    seed=seed,
                    error=str(row["error"] or ""),
                )
            )
    if not runs:
        first = next((trial.error.splitlines()[0] for trial in failed if trial.error), "")
        raise ConfigError(
            f"{path}: nothing to report on: none of its {len(failed)} trials left a"
            f" record.\n{first}".strip()
        )
    runs = by_code(runs)
    newest, names = _newest(runs), labels_of(run.record for run in runs)
    renamed = tuple(
        replace(trial, paradigm=names.get(trial.paradigm, trial.paradigm)) for trial in failed
    )
    return Collection(
        paths=(path,), runs=newest, failed=renamed, superseded=len(runs) - len(newest), sweep=sweep
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
    return experiment.paradigm.label


def _check(record: RunRecord) -> None:
    """Read a record as far as a report needs it; raise `ConfigError` before one is half written."""
    with legible(record.path), JournalFile(record.path / "journal.jsonl") as file:
        read_header(file.readline())
    for part in ("config", "summary", "evaluations", "environment"):
        getattr(record, part)
    if record.complete:
        with legible(record.path, "pushes"):
            with opened_table(record.path / "pushes.parquet") as table:
                columns = table.schema_arrow.names
            if missing := set(schema_of(PushRow).names) - {*columns}:
                raise ValueError(f"there is no column {min(missing)}")


def _whole_sweep(path: Path) -> SweepRecord:
    """Return a sweep with readable experiment and table; raise `ConfigError` without."""
    sweep = load_sweep(path)
    for part in ("experiment", "table"):
        getattr(sweep, part)
    return sweep
