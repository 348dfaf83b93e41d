"""The record of a sweep: one table over the records of its trials.

Columns: `trial` (number), `record` (folder below SWEEP, or null), `status` (also failed or
unfinished), `error`, `end` and `ended_by` (`RunEnd`), `config/SETTING` for each varied one, scalars
of `summary.json`, `target_*`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import Field, TypeAdapter

from raysync import config
from raysync.config import Experiment
from raysync.config.bounded_file import read_text
from raysync.config.secret_masking import masked
from raysync.config.yaml_reading import read_yaml, write_yaml
from raysync.errors import ConfigError
from raysync.paradigms.class_loading import without_imports
from raysync.record.checkpoints import CHECKPOINTS
from raysync.record.made_here import MAKER, this_maker
from raysync.record.reader import RunRecord, legible, load, newest_first
from raysync.record.run_end import ERROR, KILLED, RunEnd
from raysync.record.schemas import MOST_BYTES, table_in
from raysync.record.storage import (
    Location,
    display_name,
    join,
    listdir,
    local_copy,
    remove,
    upload,
    written,
)

FILE = "sweep.yaml"  # the experiment file with its `sweep:` block and overrides
ORIGIN = "origin.yaml"  # the text of that file, and the overrides
TABLE = "sweep.parquet"
CSV = "sweep.csv"
RECORDS = "records"  # 00007/TIME-BSP-ID/: a record of trial 7; the newest counts
NOTE = "trial.yaml"  # records/00007/trial.yaml: its settings, and whether it ended
TUNE = "tune"  # the folder of Ray Tune's own files
VARIED = "config/"  # the prefix of a column of settings


@dataclass(frozen=True)
class SweepRecord:
    path: Path
    trust: bool = False  # whether paradigms may be imported, as in `RunRecord`

    @cached_property
    def experiment(self) -> Experiment:
        with legible(self.path, "experiment"), nullcontext() if self.trust else without_imports():
            return config.load(self.path / FILE, recorded=True)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each trial; the module's docstring lists the columns.

        A sweep that runs or was killed has no file yet, but notes of its trials.
        """
        if not self.is_complete:
            return table_of(self.path)
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
    def is_complete(self) -> bool:
        """Whether its table was written: it ended, or was stopped in order."""
        return (self.path / TABLE).is_file()

    @property
    def varied(self) -> list[str]:
        columns = filter(lambda title: title.startswith(VARIED), map(str, self.table.columns))
        return [column.removeprefix(VARIED) for column in columns]

    @cached_property
    def records(self) -> dict[int, RunRecord]:
        """Trial -> its record, if it left one."""
        recorded = self.table.dropna(subset="record")
        return {
            int(trial): load(self.path / folder, trust=self.trust)
            for trial, folder in zip(recorded.trial, recorded.record, strict=True)
        }

    @cached_property
    def notes(self) -> dict[str, TrialNote]:
        """Name of a trial's folder -> its note, in the order of the trials."""
        return {note.name: note for note in notes(self.path)}

    @cached_property
    def ends(self) -> dict[int, RunEnd]:
        """Trial -> how it ended; only of trials with a record."""
        ends = {}
        for trial, record in self.records.items():
            name = record.path.parent.name
            note = self.notes.get(name, TrialNote(name, {}))
            ends[trial] = ended_in_sweep(record.end, note)
        return ends


def load_sweep(path: str | Path, *, trust: bool = False) -> SweepRecord:
    """Open the record of a sweep: a folder, or a URI, which is downloaded.

    Raises `ConfigError` if no sweep is there, or none of its trials has begun.
    """
    folder = local_copy(path, without=[TUNE, CHECKPOINTS])
    if not (folder / FILE).is_file():
        raise ConfigError(f"{path}: not the folder of a sweep (no {FILE} in it).")
    sweep = SweepRecord(folder, trust)
    if not sweep.is_complete and not notes(folder):
        raise ConfigError(
            f"{path}: none of its trials has begun yet; `raysync sweep --resume FOLDER` continues"
            " it."
        )
    return sweep


def newest_sweep(location: Location) -> Location:
    """Return the location itself if it is a sweep, else the latest sweep in it.

    Raises `ConfigError` if there is none.
    """
    names = listdir(location)
    if FILE in names:
        return location
    sweeps = (join(location, name) for name in reversed(names) if "-sweep-" in name)
    latest = next((sweep for sweep in sweeps if FILE in listdir(sweep)), None)
    if latest is None:
        raise ConfigError(
            f"{masked(str(location))}: neither the folder of a sweep (no {FILE} in it), nor a"
            " folder of sweeps."
        )
    return latest


@dataclass(frozen=True)
class Origin:
    """The contents of `origin.yaml`; secrets in URIs are masked."""

    source: str  # the path of the experiment file
    text: str
    overrides: tuple[str, ...]
    # the process that wrote it (`made_here`)
    maker: Annotated[dict[str, Any], Field(validation_alias=MAKER)] = field(default_factory=dict)

    def write(self, sweep: Path) -> None:
        """Write the file for this process, which begins or resumes the sweep."""
        with written(sweep, "output"):
            sweep.mkdir(parents=True, exist_ok=True)
            data = {
                "source": self.source,
                "overrides": [masked(override) for override in self.overrides],
                "text": masked(self.text),
                MAKER: this_maker(sweep),
            }
            (sweep / ORIGIN).write_text(write_yaml(data), encoding="utf-8")
        upload(sweep / ORIGIN)

    @classmethod
    def read(cls, sweep: Path) -> Origin:
        """Read the file of a sweep; raise `ConfigError` if it is missing or damaged."""
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
    """The contents of `trial.yaml`: what the sweep knows of a trial beside its record."""

    name: str  # the name of its folder
    settings: dict[str, Any]  # varied setting -> value
    # whether it ended by itself or Ray Tune stopped it; not when the sweep was interrupted
    ended: bool = True
    error: str = ""
    by: str = ""  # the setting of the sweep that ended it, as in `RunEnd.by`; "": none did


def trial_name(number: int) -> str:
    return f"{number:05d}"


def write_note(sweep: Path, note: TrialNote) -> None:
    folder = sweep / RECORDS / note.name
    folder.mkdir(parents=True, exist_ok=True)
    data = asdict(note)
    del data["name"]
    (folder / NOTE).write_text(write_yaml(data), encoding="utf-8")
    upload(folder / NOTE)


def remove_note(sweep: Path, trial: str) -> None:
    """Remove `trial.yaml` and so the trial's row; its record stays."""
    remove(sweep / RECORDS / trial / NOTE)


def notes(sweep: Path) -> list[TrialNote]:
    """Read the notes of all trials by name; raise `ConfigError` if one is damaged."""
    return [_note(file) for file in sorted((sweep / RECORDS).glob(f"*/{NOTE}"))]


def _note(file: Path) -> TrialNote:
    with legible(file.parent, NOTE):
        data = read_yaml(read_text(file, MOST_BYTES), str(file))
        if not isinstance(data, dict):
            raise ValueError("not a mapping")
        return TypeAdapter(TrialNote).validate_python({"name": file.parent.name, **data})


def note_of(sweep: Location, trial: str) -> TrialNote | None:
    """Read the note of one trial, also from a URI; None: it has none."""
    location = join(sweep, RECORDS, trial)
    folder = local_copy(location, without=[name for name in listdir(location) if name != NOTE])
    return _note(folder / NOTE) if (folder / NOTE).is_file() else None


def remove_table(sweep: Path) -> None:
    """Remove the table of a sweep whose trials go on: it would be out of date."""
    for file in (sweep / TABLE, sweep / CSV):
        remove(file)


def write_table(sweep: Path) -> None:
    table = table_of(sweep)
    table.to_parquet(sweep / TABLE, index=False)
    table.to_csv(sweep / CSV, index=False)
    upload(sweep / TABLE, sweep / CSV)


def table_of(sweep: Path) -> pd.DataFrame:
    """Make the table of a sweep from its notes and records."""
    rows = [{"trial": number, **_row(sweep, note)} for number, note in enumerate(notes(sweep))]
    table = pd.DataFrame.from_records(rows)
    for name, column in table.items():
        values = [row.get(str(name)) for row in rows]
        if any(isinstance(value, str) for value in values):  # a Parquet column has one type
            table[name] = column.map(str, na_action="ignore")
        elif None in values and all(type(value) is int for value in values if value is not None):
            table[name] = column.astype("Int64")  # a gap would make them floats
    return table


def _row(sweep: Path, note: TrialNote) -> dict[str, Any]:
    settings = {f"{VARIED}{key}": value for key, value in note.settings.items()}
    folders = (file.parent for file in (sweep / RECORDS / note.name).glob("*/config.yaml"))
    newest = max(folders, default=None, key=lambda folder: folder.name)
    if newest is None:
        end = ended_in_sweep(RunEnd("broken", ERROR if note.error else KILLED, 0.0, 0.0), note)
        return {
            "record": None,
            "status": "failed" if note.error else "unfinished",
            "error": note.error,
            "end": end.kind,
            "ended_by": end.by,
            **settings,
        }
    record = load(newest)
    measures, end = dict(record.summary), ended_in_sweep(record.end, note)
    target, status = measures.pop("target", None) or {}, measures.pop("status")
    error = measures.pop("error") or note.error
    summary = {key: value for key, value in measures.items() if not isinstance(value, list | dict)}
    summary |= {f"target_{key}": value for key, value in target.items()}
    return {
        "record": str(newest.relative_to(sweep)),
        "status": status,
        "error": error,
        **settings,
        **summary,
        **end.plain(),
    }


def ended_in_sweep(end: RunEnd, note: TrialNote) -> RunEnd:
    """Return how a trial ended, as its record and its sweep know together."""
    if note.by and end.is_left_off and not note.error:
        return replace(end, kind="cut", by=note.by)
    if note.error and end.by == KILLED:
        return replace(end, by=ERROR)
    return end


def newest_record(sweep: Location, trial: str) -> RunRecord | None:
    """Return the newest record of a trial, trusted as its sweep; None: it has no readable one."""
    newest = next(newest_first(join(sweep, RECORDS, trial)), None)
    return newest and replace(newest, trust=True)
