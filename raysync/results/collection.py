"""What a report is about: the runs in the folders that a person named, by scenario and paradigm.

    collect([Path("runs/compare")])      every record in a folder of records
    collect([Path("runs/compare/...")])  one run
    collect([Path("sweeps/...")])        the trials of a sweep

A *scenario* is everything that a paradigm meets: model, data, workers, update rule, ... Runs of one
scenario and one paradigm differ only in their seed: they are its *repeats*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path

from raysync.config import Experiment, Published, Target
from raysync.core.journal import read_header
from raysync.core.metrics import PrimaryMetric
from raysync.errors import ConfigError
from raysync.record.journal_file import JournalFile
from raysync.record.push_rows import PushRow
from raysync.record.reader import RunRecord, legible, load
from raysync.record.schemas import opened_table
from raysync.record.sweeps import FILE, SweepRecord, load_sweep
from raysync.record.writer import schema_of
from raysync.results.grouping import differences, setting_text, trial_paradigm

OF_FINISHED_RUNS = ("final_", "best_", "converged_", "seconds")
"""How the keys of results begin that only a run has that did all its work."""

CODE_SHOWN = 8
"""The digits of a hash of code that are shown."""


@dataclass(frozen=True)
class CollectedRun:
    """One run of a collection."""

    record: RunRecord
    paradigm: str
    """Its label in tables: `ssp(staleness=3)`."""
    seed: int
    scenario: str = ""
    """What sets it apart from others of the collection, beside paradigm and seed: `model=lenet,
    profile=8-k80`."""

    @property
    def label(self) -> str:
        """What was run, in a line."""
        return _label(self.scenario, self.paradigm, self.seed)

    @property
    def status(self) -> str:
        """`finished`, `diverged`, `stopped`, `failed`, or `unfinished`: it was killed, or it is
        still running.
        """
        return str(self.record.summary["status"])

    @property
    def unfinished(self) -> str:
        """Why a part of the run is missing, in a clause; empty if all of it is there."""
        if self.status == "unfinished":
            return "it was killed, or it still goes on: its journal has no closing line"
        if not self.record.ended:
            return "it was closed, but its journal has no closing line: it was cut off"
        return ""

    def value(self, key: str) -> float | None:
        """Return a number of `summary.json`.

        It is None where the run has none: a target that was not reached, or a result (a final
        metric, the seconds of the whole training) of a run that did not finish, which did less
        work than the others.
        """
        if key.startswith(OF_FINISHED_RUNS) and self.status != "finished":
            return None
        value = self.record.summary.get(key)
        return float(value) if isinstance(value, int | float) and isfinite(value) else None


def by_seed(runs: Iterable[CollectedRun], key: str) -> dict[int, float | None]:
    """Return seed -> value, for pairs."""
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
        """What was tried, in a line."""
        return _label(self.scenario, self.paradigm, self.seed)


def _label(scenario: str, paradigm: str, seed: int) -> str:
    return ", ".join(filter(None, (scenario, paradigm, f"seed {seed}")))


@dataclass(frozen=True)
class Success:
    """What the runs of a scenario are judged by."""

    metric: PrimaryMetric | None
    """The metric that says how good a model is; None, where none was trained (`timing: only`)."""
    target: Target | None

    @property
    def final_key(self) -> str | None:
        """The key in `summary.json` that says how good the model became."""
        return None if self.metric is None else f"final_{self.metric.name}"

    @property
    def time_key(self) -> str:
        """The key in `summary.json` of the seconds to the target; without one, of the whole
        training.
        """
        return "seconds" if self.target is None else "time_to_target_s"


@dataclass(frozen=True)
class Collection:
    """Runs that are reported on together."""

    paths: tuple[Path, ...]
    """The folders that were named."""
    runs: tuple[CollectedRun, ...]
    """The runs in file order (of a sweep, in that of its trials); at least one."""
    failed: tuple[Failed, ...] = ()
    superseded: int = 0
    """Records left out because a newer one has the same scenario, paradigm and seed."""
    sweep: SweepRecord | None = None
    """The sweep, if the collection is that and nothing else."""

    @property
    def experiment(self) -> Experiment:
        """The experiment of the sweep, or of the first run."""
        return self.sweep.experiment if self.sweep is not None else self.runs[0].record.config

    @property
    def published(self) -> Published | None:
        """The published table of the experiment file, if it has one."""
        return self.experiment.published

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self.experiment.name

    @cached_property
    def paradigms(self) -> tuple[str, ...]:
        """The paradigms in the order of the experiment's `paradigms`, then others as they appear;
        of a sweep, as they appear.
        """
        labels = list(dict.fromkeys(trial.paradigm for trial in self._trials))
        names = labels_of(run.record for run in self.runs)
        choices = () if self.sweep is not None else self.experiment.paradigms
        listed = [names.get(choice.label, choice.label) for choice in choices]
        order = {label: place for place, label in enumerate(listed)}
        return tuple(sorted(labels, key=lambda label: order.get(label, len(order))))

    def scenarios(self) -> dict[str, dict[str, list[CollectedRun]]]:
        """Return scenario -> paradigm -> its repeats by rising seed; "" is the only scenario where
        nothing else differs.

        A paradigm of which every trial of the scenario failed without a record has an empty list.
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
        """Return the trials without a record."""
        return [
            trial
            for trial in self.failed
            if (trial.scenario, trial.paradigm) == (scenario, paradigm)
        ]

    def statuses(self, scenario: str, paradigm: str) -> Counter[str]:
        """Return how the repeats ended -> how many of them; trials without a record have failed."""
        repeats = self.scenarios()[scenario][paradigm]
        lost = len(self.failures(scenario, paradigm))
        return Counter([*(run.status for run in repeats), *["failed"] * lost])

    def success(self, scenario: str) -> Success:
        """Return what the runs of a scenario are judged by."""
        return success_of(
            next((run for run in self.runs if run.scenario == scenario), self.runs[0]).record
        )


def success_of(record: RunRecord) -> Success:
    """Return what a run is judged by: the primary metric of its task, and its target."""
    experiment, summary = record.config, record.summary
    if experiment.timing == "only":
        return Success(None, None)
    metric = PrimaryMetric(summary["metric"], summary["metric_mode"])
    return Success(metric, experiment.target)


def collect(paths: Sequence[Path]) -> Collection:
    """Collect the runs in folders.

    Args:
        paths: each the folder of a run, of a sweep, or of run records as `raysync compare` leaves
            it (OUTPUT/NAME).

    Raises:
        ConfigError: there is nothing, or a record is damaged or of a newer raysync.
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
    kept = _newest(runs)
    return Collection(tuple(paths), kept, superseded=len(runs) - len(kept))


def label_of(record: RunRecord) -> str:
    """Return what the run itself called its paradigm: a user's own class is not imported for
    that.
    """
    label = record.summary.get("paradigm_label")
    return label if isinstance(label, str) else record.config.paradigm.label


def labels_of(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return a paradigm's label by its configuration alone -> the label that the runs gave it."""
    return {record.config.paradigm.label: label_of(record) for record in records}


def by_code(runs: Sequence[CollectedRun]) -> list[CollectedRun]:
    """Tell runs apart whose settings are the same and whose code is not: that of task, model and
    data makes another scenario, that of the paradigm another paradigm.
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
    """Return `code=1a2b3c4d` for each run beside which an alike one has other code; "" for the
    others.
    """
    hashes = [(run.record.environment.get("user_code") or {}).get(key) or "none" for run in runs]
    groups: dict[str, set[str]] = {}
    for run, code in zip(runs, hashes, strict=True):
        groups.setdefault(alike(run), set()).add(code)
    return [
        f"code={code[:CODE_SHOWN]}" if len(groups[alike(run)]) > 1 else ""
        for run, code in zip(runs, hashes, strict=True)
    ]


def _newest(runs: Sequence[CollectedRun]) -> tuple[CollectedRun, ...]:
    """Return the newest run of each scenario, paradigm and seed. In virtual time its repetition is
    the same run, and no evidence.
    """
    newest = {
        (run.scenario, run.paradigm, run.seed): run
        for run in sorted(runs, key=lambda run: run.record.path.name)
    }
    return tuple(run for run in runs if newest[run.scenario, run.paradigm, run.seed] is run)


def _records(path: Path) -> list[RunRecord]:
    """Return the records in a folder, in the order of their names, which begin with the time."""
    if not path.is_dir():
        raise ConfigError(
            f"{path}: there is no such folder; name that of a run, of a sweep, or of several runs."
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
            f"{path}: nothing to report on: it is not the folder of a run or a sweep, and holds"
            f" none{hint}."
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
                    paradigm=trial_paradigm(sweep, row),
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
    kept, names = _newest(runs), labels_of(run.record for run in runs)
    renamed = tuple(
        replace(trial, paradigm=names.get(trial.paradigm, trial.paradigm)) for trial in failed
    )
    return Collection(
        paths=(path,), runs=kept, failed=renamed, superseded=len(runs) - len(kept), sweep=sweep
    )


def _check(record: RunRecord) -> None:
    """Read what a report needs of a record (of the pushes, the columns), so that damage is noticed
    before a report is half written.

    Raises:
        ConfigError: a part is missing or damaged, or a newer raysync wrote it.
    """
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
    """Return a sweep whose experiment and table can be read.

    Raises:
        ConfigError: there is none, it has no table yet, or it is damaged.
    """
    sweep = load_sweep(path)
    for part in ("experiment", "table"):
        getattr(sweep, part)
    return sweep
