"""The record of a sweep: one table over the records of its trials.

    SWEEP/sweep.yaml                   the experiment file with its `sweep:` block and overrides
    SWEEP/origin.yaml                  the text of that file, and the overrides
    SWEEP/records/00007/trial.yaml     the settings of trial 7, and whether it ended
    SWEEP/records/00007/TIME-BSP-ID/   its record (the newest, if it began more than once)
    SWEEP/sweep.parquet, sweep.csv     a row for each trial
    SWEEP/tune/                        Ray Tune's own files: TensorBoard events, progress.csv

Columns: `trial` (its number), `record` (folder, relative to SWEEP; null if nothing was recorded),
`status` (the one in `summary.json`, or failed, or unfinished), `error`, `config/KEY` for each
setting that was varied (`ray.tune` names such columns like that; a value that is no number is text,
`{name: ssp, staleness: 3}`), and the scalar keys of `summary.json`; of its `target` the columns
`target_metric` and `target_at_least` or `target_at_most`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from raysync import config
from raysync.config import Experiment
from raysync.config.bounded_file import read_text
from raysync.config.secret_masking import masked
from raysync.config.yaml_reading import read_yaml, write_yaml
from raysync.errors import ConfigError
from raysync.paradigms.class_loading import without_imports
from raysync.record.checkpoints import CHECKPOINTS
from raysync.record.made_here import KEY, making
from raysync.record.reader import RunRecord, legible, load, newest_first
from raysync.record.schemas import MOST_BYTES, table_in
from raysync.record.storage import (
    Location,
    display_name,
    join,
    listdir,
    local_copy,
    location_of,
    remove,
    upload,
)

FILE, ORIGIN, TABLE, CSV, RECORDS, NOTE = (
    "sweep.yaml",
    "origin.yaml",
    "sweep.parquet",
    "sweep.csv",
    "records",
    "trial.yaml",
)
TUNE = "tune"
"""Ray Tune's own folder within the folder of a sweep."""
VARIED = "config/"


@dataclass(frozen=True)
class SweepRecord:
    """One sweep on disk."""

    path: Path
    trust: bool = False
    """Whether paradigms may be imported; see `RunRecord`."""

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment file of the sweep."""
        with legible(self.path, "experiment"), nullcontext() if self.trust else without_imports():
            return config.load(self.path / FILE, recorded=True)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each trial; the file's docstring lists the columns."""
        with legible(self.path, "table"):
            try:
                table: pd.DataFrame = table_in(self.path / TABLE).to_pandas()
            except (TypeError, AttributeError) as error:  # pandas, if the metadata are wrong
                raise ValueError(str(error)) from error
            for name, kind in (("trial", int), ("record", str), ("status", str), ("error", str)):
                for value in table[name].dropna():
                    if not isinstance(value, kind):
                        raise ValueError(f"column {name}: {value!r:.40}")
            if table["trial"].hasnans:
                raise ValueError("column trial: some rows have no value")
            for name in table["record"].dropna():
                if Path(name).is_absolute() or ".." in Path(name).parts:
                    raise ValueError(f"column record: {name!r:.40} is not within the sweep")
        return table

    @property
    def varied(self) -> list[str]:
        """The settings that were varied."""
        return [
            column.removeprefix(VARIED)
            for column in map(str, self.table.columns)
            if column.startswith(VARIED)
        ]

    @cached_property
    def records(self) -> dict[int, RunRecord]:
        """Trial -> its record, for the trials that left one."""
        recorded = self.table.dropna(subset="record")
        return {
            int(trial): load(self.path / folder, trust=self.trust)
            for trial, folder in zip(recorded.trial, recorded.record, strict=True)
        }


def load_sweep(path: str | Path, *, trust: bool = False) -> SweepRecord:
    """Open the record of a sweep.

    Args:
        path: its folder, or a URI. A URI is downloaded; the copy is removed when this process ends.
        trust: see `raysync.load`.

    Raises:
        ConfigError: no sweep is there, or it has no table yet.
    """
    folder = local_copy(path, without=[TUNE, CHECKPOINTS])
    if not (folder / FILE).is_file():
        raise ConfigError(f"{path}: not the folder of a sweep (no {FILE} in it).")
    if not (folder / TABLE).is_file():
        raise ConfigError(
            f"{path}: no {TABLE} yet: the sweep still runs, or was killed; `raysync sweep --resume"
            " FOLDER` continues it."
        )
    return SweepRecord(folder, trust)


def newest_sweep(location: Location) -> Location:
    """Return the location of a sweep itself, or, of several in a folder, that of the latest.

    Args:
        location: the folder of a sweep, or OUTPUT/NAME; or its URI.

    Raises:
        ConfigError: there is none.
    """
    names = listdir(location)
    if FILE in names:
        return location
    sweeps = (join(location, name) for name in reversed(names) if "-sweep-" in name)
    latest = next((sweep for sweep in sweeps if FILE in listdir(sweep)), None)
    if latest is None:
        raise ConfigError(
            f"{masked(str(location))}: neither the folder of a sweep (no {FILE} in it), nor one of"
            " sweeps."
        )
    return latest


@dataclass(frozen=True)
class Origin:
    """What a sweep was made of: the contents of `origin.yaml`. Secrets in URIs are masked."""

    source: str
    """The path of the experiment file."""
    text: str
    """The text of that file."""
    overrides: tuple[str, ...]
    made: dict[str, Any] = field(default_factory=dict)
    """What it says about its making; see `made_here`."""

    def write(self, sweep: Path) -> None:
        """Write the file, by the process that makes the sweep or goes on with it."""
        sweep.mkdir(parents=True, exist_ok=True)
        data = {
            "source": self.source,
            "overrides": [masked(override) for override in self.overrides],
            "text": masked(self.text),
            KEY: making(sweep),
        }
        (sweep / ORIGIN).write_text(write_yaml(data), encoding="utf-8")
        upload(sweep / ORIGIN)

    @classmethod
    def read(cls, sweep: Path) -> Origin:
        """Read the file of a sweep.

        Raises:
            ConfigError: it is missing, or damaged.
        """
        if not (sweep / ORIGIN).is_file():
            raise ConfigError(
                f"{display_name(sweep)}: no {ORIGIN} in it, so name the experiment file, too:"
                " raysync sweep FILE --resume FOLDER."
            )
        with legible(sweep, ORIGIN):
            data = read_yaml(read_text(sweep / ORIGIN, MOST_BYTES), str(sweep / ORIGIN))
            return TypeAdapter(cls).validate_python(data)


@dataclass(frozen=True)
class TrialNote:
    """What the sweep knows of a trial beside its record: the contents of `trial.yaml`."""

    name: str
    """The name of its folder."""
    settings: dict[str, Any]
    """Setting that is varied -> value."""
    ended: bool = True
    """Whether it ended by itself, or because Ray Tune stopped it; not if the sweep was
    interrupted."""
    error: str = ""
    """Why it failed."""


def trial_name(number: int) -> str:
    """Name the folder of a point of the grid."""
    return f"{number:05d}"


def write_note(sweep: Path, note: TrialNote) -> None:
    """Write `trial.yaml`."""
    folder = sweep / RECORDS / note.name
    folder.mkdir(parents=True, exist_ok=True)
    text = write_yaml({"settings": note.settings, "ended": note.ended, "error": note.error})
    (folder / NOTE).write_text(text, encoding="utf-8")
    upload(folder / NOTE)


def remove_note(sweep: Path, trial: str) -> None:
    """Remove `trial.yaml`: the trial is no row of the table any more. Its record stays."""
    file = sweep / RECORDS / trial / NOTE
    remove(location_of(file))
    file.unlink(missing_ok=True)


def notes(sweep: Path) -> list[TrialNote]:
    """Read the notes of all trials that began, in the order of their names.

    Raises:
        ConfigError: a note is damaged.
    """
    return [_note(file) for file in sorted((sweep / RECORDS).glob(f"*/{NOTE}"))]


def _note(file: Path) -> TrialNote:
    with legible(file.parent, NOTE):
        data = read_yaml(read_text(file, MOST_BYTES), str(file))
        if not isinstance(data, dict):
            raise ValueError("not a mapping")
        return TypeAdapter(TrialNote).validate_python({"name": file.parent.name, **data})


def write_table(sweep: Path) -> None:
    """Write `sweep.parquet` and `sweep.csv` of the trials that began."""
    rows = [{"trial": number, **_row(sweep, note)} for number, note in enumerate(notes(sweep))]
    table = pd.DataFrame.from_records(rows)
    for name, column in table.items():
        values = [row.get(str(name)) for row in rows]
        if any(isinstance(value, str) for value in values):  # a Parquet column has one type
            table[name] = column.map(str, na_action="ignore")
        elif None in values and all(type(value) is int for value in values if value is not None):
            table[name] = column.astype("Int64")  # a gap would make them floats
    table.to_parquet(sweep / TABLE, index=False)
    table.to_csv(sweep / CSV, index=False)
    upload(sweep / TABLE, sweep / CSV)


def newest_record(sweep: Location, trial: str) -> RunRecord | None:
    """Return the trusted record of a trial, the newest if it began more than once; None: it has
    none that tells anything.

    Args:
        sweep: the folder of the sweep, which is trusted, or its URI.
        trial: the name of the trial's folder.
    """
    newest = next(newest_first(join(sweep, RECORDS, trial)), None)
    return newest and replace(newest, trust=True)


def _row(sweep: Path, note: TrialNote) -> dict[str, Any]:
    settings = {f"{VARIED}{key}": value for key, value in note.settings.items()}
    folders = (file.parent for file in (sweep / RECORDS / note.name).glob("*/config.yaml"))
    newest = max(folders, default=None, key=lambda folder: folder.name)
    if newest is None:
        return {
            "record": None,
            "status": "failed" if note.error else "unfinished",
            "error": note.error,
            **settings,
        }
    complete = load(newest).summary
    summary = {key: value for key, value in complete.items() if not isinstance(value, list | dict)}
    target = complete.get("target") or {}
    summary |= {f"target_{key}": value for key, value in target.items()}
    summary.pop("target", None)
    status, error = summary.pop("status"), summary.pop("error") or note.error
    return {
        "record": str(newest.relative_to(sweep)),
        "status": status,
        "error": error,
        **settings,
        **summary,
    }
