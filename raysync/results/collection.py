"""What a report is over: the runs in the folders that a person named, by scenario and paradigm.

    collect([Path("runs/compare")])      every record in a folder of records
    collect([Path("runs/compare/...")])  one run
    collect([Path("sweeps/...")])        the trials of a sweep

A *scenario* is everything that a paradigm meets: model, data, workers, update rule, ... Runs of one
scenario and one paradigm differ in their seed alone: they are its *repeats*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Literal

from raysync.config import Experiment, Published
from raysync.errors import ConfigError
from raysync.record.reader import RunRecord, load
from raysync.record.sweeps import FILE, SweepRecord
from raysync.results.grouping import differences, setting_text, trial_paradigm
from raysync.results.validation import check, whole_sweep

Quality = Literal["accuracy", "perplexity", "nothing"]

OF_FINISHED_RUNS = (
    "final_accuracy",
    "best_accuracy",
    "converged_accuracy",
    "final_loss",
    "final_perplexity",
    "seconds",
)


@dataclass(frozen=True)
class Run:
    """One run of a collection."""

    record: RunRecord
    paradigm: str
    """As tables call it: `ssp(staleness=3)`."""
    seed: int
    scenario: str = ""
    """What sets it apart from others of the collection, beside paradigm and seed: `model=lenet,
    profile=8-k80`."""

    @property
    def label(self) -> str:
        """What was run."""
        return ", ".join(
            part for part in (self.scenario, self.paradigm, f"seed {self.seed}") if part
        )

    @property
    def status(self) -> str:
        """finished, diverged, stopped, failed, or unfinished: killed, or still going on."""
        return str(self.record.summary["status"])

    @property
    def unfinished(self) -> str:
        """Why not all of the run is there, in a clause; empty if all is."""
        if self.status == "unfinished":
            return "it was killed, or it still goes on: its journal has no closing line"
        return (
            ""
            if self.record.ended
            else "it was closed, but its journal has no closing line: it was cut off"
        )

    def value(self, key: str) -> float | None:
        """A number of `summary.json`; None where the run has none: a target not reached, or a
        result (a final accuracy, the seconds of the whole training) of a run that did not finish,
        which is of less work than that of the others."""
        if key in OF_FINISHED_RUNS and self.status != "finished":
            return None
        value = self.record.summary.get(key)
        return float(value) if isinstance(value, int | float) and isfinite(value) else None


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
        """What was tried."""
        return ", ".join(
            part for part in (self.scenario, self.paradigm, f"seed {self.seed}") if part
        )


@dataclass(frozen=True)
class Success:
    """By what the runs of a scenario are judged."""

    quality: Quality
    """Of the model; nothing, where nothing was trained (`timing: only`)."""
    target: float | None
    """A fraction of 1, or a loss in nats; None: none was given."""
    target_kind: Literal["accuracy", "loss"] | None

    @property
    def final_key(self) -> str | None:
        """Key of `summary.json`: how good the model became."""
        return None if self.quality == "nothing" else f"final_{self.quality}"

    @property
    def time_key(self) -> str:
        """Key of `summary.json`: seconds to the target; without one, of the whole training."""
        return "seconds" if self.target_kind is None else f"time_to_{self.target_kind}_s"


@dataclass(frozen=True)
class Collection:
    """Runs to be reported on together."""

    paths: tuple[Path, ...]
    """What was named."""
    runs: tuple[Run, ...]
    """In file order (of a sweep, in that of its trials); at least one."""
    failed: tuple[Failed, ...] = ()
    superseded: int = 0
    """Records left out because a newer one has the same scenario, paradigm and seed."""
    sweep: SweepRecord | None = None
    """If this is one sweep and nothing else."""

    @property
    def experiment(self) -> Experiment:
        """Of the sweep, or of the first run."""
        return self.sweep.experiment if self.sweep is not None else self.runs[0].record.config

    @property
    def published(self) -> Published | None:
        """The published table of the experiment file, if it has one."""
        return self.experiment.published

    @property
    def name(self) -> str:
        """Of the experiment."""
        return self.experiment.name

    @cached_property
    def paradigms(self) -> tuple[str, ...]:
        """In the order of the experiment's `paradigms`, others as they appear; of a sweep, as they
        appear.
        """
        everything: list[Run | Failed] = [*self.runs, *self.failed]
        there = list(dict.fromkeys(one.paradigm for one in everything))
        names = labels(run.record for run in self.runs)
        choices = () if self.sweep is not None else self.experiment.paradigms
        listed = [names.get(choice.label, choice.label) for choice in choices]
        return tuple(
            sorted(there, key=lambda label: listed.index(label) if label in listed else len(listed))
        )

    def scenarios(self) -> dict[str, dict[str, list[Run]]]:
        """Scenario -> paradigm -> its repeats by rising seed; "" is the only scenario where nothing
        else differs.

        A paradigm of which every trial of the scenario failed without a record has an empty list.
        """
        return self._scenarios

    @cached_property
    def _scenarios(self) -> dict[str, dict[str, list[Run]]]:
        order = {label: place for place, label in enumerate(self.paradigms)}
        everything: list[Run | Failed] = [*self.runs, *self.failed]
        groups: dict[str, dict[str, list[Run]]] = {one.scenario: {} for one in everything}
        for one in sorted(everything, key=lambda one: (order[one.paradigm], one.seed)):
            repeats = groups[one.scenario].setdefault(one.paradigm, [])
            if isinstance(one, Run):
                repeats.append(one)
        return groups

    def failures(self, scenario: str, paradigm: str) -> list[Failed]:
        """The trials without a record."""
        return [one for one in self.failed if (one.scenario, one.paradigm) == (scenario, paradigm)]

    def success(self, scenario: str) -> Success:
        """By what the runs of a scenario are judged."""
        return success_of(
            next((run for run in self.runs if run.scenario == scenario), self.runs[0]).record
        )


def success_of(record: RunRecord) -> Success:
    """By what a run is judged: perplexity and loss where tokens are predicted, otherwise
    accuracy.
    """
    experiment, summary = record.config, record.summary
    if experiment.timing == "only":
        return Success("nothing", None, None)
    tokens = bool(summary.get("tokens", experiment.data.name == "text"))
    targets: dict[Literal["accuracy", "loss"], float | None] = {
        "accuracy": experiment.target_accuracy,
        "loss": experiment.target_loss,
    }
    order: tuple[Literal["accuracy", "loss"], ...] = (
        ("loss", "accuracy") if tokens else ("accuracy", "loss")
    )
    kind = next((one for one in order if targets[one] is not None), None)
    return Success("perplexity" if tokens else "accuracy", targets[kind] if kind else None, kind)


def collect(paths: Sequence[Path]) -> Collection:
    """The runs in folders.

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
        check(record)
    scenarios = differences(records)
    runs = [
        Run(record, label_of(record), record.config.seed, scenario)
        for record, scenario in zip(records, scenarios, strict=True)
    ]
    kept = _newest(runs)
    return Collection(tuple(paths), kept, superseded=len(runs) - len(kept))


def label_of(record: RunRecord) -> str:
    """What the run itself called its paradigm: a user's own class is not imported to be asked."""
    told = record.summary.get("paradigm_label")
    return told if isinstance(told, str) else record.config.paradigm.label


def labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """What a paradigm is called by its configuration alone -> what the runs called it."""
    return {record.config.paradigm.label: label_of(record) for record in records}


def _newest(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Of each scenario, paradigm and seed. In virtual time its repetition is the same run, and no
    evidence.
    """
    newest = {
        (run.scenario, run.paradigm, run.seed): run
        for run in sorted(runs, key=lambda run: run.record.path.name)
    }
    return tuple(run for run in runs if newest[run.scenario, run.paradigm, run.seed] is run)


def _records(path: Path) -> list[RunRecord]:
    """The records in a folder, in the order of their names, which begin with the time."""
    if not path.is_dir():
        raise ConfigError(
            f"{path}: there is no such folder; name that of a run, of a sweep, or of several runs."
        )
    if (path / FILE).is_file():
        return list(whole_sweep(path).records.values())
    if _is_record(path):
        return [load(path)]
    there = [load(one) for one in sorted(path.iterdir()) if one.is_dir() and _is_record(one)]
    if not there:
        inside = sorted(str(one) for one in path.iterdir() if one.is_dir() and _holds_records(one))
        hint = f"; name one of: {', '.join(inside[:4])}" if inside else ""
        raise ConfigError(
            f"{path}: nothing to report on: it is not the folder of a run or a sweep, and holds"
            f" none{hint}."
        )
    return there


def _is_record(folder: Path) -> bool:
    return (folder / "journal.jsonl").is_file() or (folder / "config.yaml").is_file()


def _holds_records(folder: Path) -> bool:
    return (folder / FILE).is_file() or any(map(_is_record, folder.iterdir()))


def _of_sweep(path: Path) -> Collection:
    sweep = whole_sweep(path)
    varied = [key for key in sweep.varied if key.partition(".")[0] not in ("paradigm", "seed")]
    runs, failed = [], []
    for row in sweep.table.to_dict("records"):
        scenario = ", ".join(f"{key}={setting_text(row[f'config/{key}'])}" for key in varied)
        trial = int(row["trial"])
        if trial in sweep.records:
            record = sweep.records[trial]
            check(record)
            runs.append(Run(record, label_of(record), record.config.seed, scenario))
        else:
            seed = int(row.get("config/seed", sweep.experiment.seed))
            failed.append(
                Failed(trial, scenario, trial_paradigm(sweep, row), seed, str(row["error"] or ""))
            )
    if not runs:
        first = next((one.error.splitlines()[0] for one in failed if one.error), "")
        raise ConfigError(
            f"{path}: nothing to report on: none of its {len(failed)} trials left a"
            f" record.\n{first}".strip()
        )
    kept, names = _newest(runs), labels(run.record for run in runs)
    called = tuple(replace(one, paradigm=names.get(one.paradigm, one.paradigm)) for one in failed)
    return Collection((path,), kept, called, len(runs) - len(kept), sweep)
