"""What a sweep leaves behind: one table over the records of its trials.

    SWEEP/sweep.yaml                   the experiment file with its `sweep:` block, overrides laid over it
    SWEEP/records/0007/TIME-BSP-ID/    the record of trial 7 (the newest, if the trial began more than once)
    SWEEP/sweep.parquet, sweep.csv     one row a trial
    SWEEP/tune/                        Ray Tune's own files: TensorBoard events and progress.csv of each trial

Columns: `trial` (its number), `record` (folder, relative to SWEEP; null if nothing was recorded), `status` (that of
`summary.json`, or failed, or unfinished), `error`, `config/KEY` for each setting that was varied (as `ray.tune` calls them;
a value that is no number is text, `{name: ssp, staleness: 3}`), and the scalar keys of `summary.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from raysync import config
from raysync.config import Experiment
from raysync.errors import ConfigError
from raysync.record.reader import RunRecord, load

FILE, TABLE, RECORDS = "sweep.yaml", "sweep.parquet", "records"
VARIED = "config/"


@dataclass(frozen=True)
class SweepRecord:
    """One sweep on disk."""

    path: Path

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment file of the sweep."""
        return config.load(self.path / FILE)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a trial; see above."""
        return pd.read_parquet(self.path / TABLE)

    @property
    def varied(self) -> list[str]:
        """The settings that were varied."""
        return [column.removeprefix(VARIED) for column in map(str, self.table.columns) if column.startswith(VARIED)]

    @cached_property
    def records(self) -> dict[int, RunRecord]:
        """Trial -> its record, of those that left one."""
        there = self.table.dropna(subset="record")
        return {int(trial): load(self.path / folder) for trial, folder in zip(there.trial, there.record, strict=True)}


def load_sweep(path: str | Path) -> SweepRecord:
    """Open what a sweep left.

    Raises:
        ConfigError: there is no sweep, or it has no table yet.
    """
    folder = Path(path)
    if not (folder / FILE).is_file():
        raise ConfigError(f"{folder}: not the folder of a sweep (no {FILE} in it).")
    if not (folder / TABLE).is_file():
        raise ConfigError(f"{folder}: no {TABLE} yet: the sweep still runs, or wants `raysync sweep FILE --resume`.")
    return SweepRecord(folder)


def record_of(sweep: Path, trial: int) -> Path | None:
    """The newest record of a trial."""
    folder = sweep / RECORDS / f"{trial:04d}"
    return max((one.parent for one in folder.glob("*/config.yaml")), default=None, key=lambda one: one.name)


def row(sweep: Path, trial: int, varied: Mapping[str, Any], error: str = "") -> dict[str, Any]:
    """The row of a trial.

    Args:
        sweep: its folder.
        trial: number.
        varied: setting -> value.
        error: why nothing was recorded, if that is so.
    """
    folder = record_of(sweep, trial)
    head = {"trial": trial, "record": None if folder is None else str(folder.relative_to(sweep))}
    settings = {f"{VARIED}{key}": value for key, value in varied.items()}
    if folder is None:
        return {**head, "status": "failed", "error": error, **settings}
    summary = {key: value for key, value in load(folder).summary.items() if not isinstance(value, list | dict)}
    return {**head, "status": summary.pop("status"), "error": summary.pop("error") or error, **settings, **summary}


def write_table(sweep: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `sweep.parquet` and `sweep.csv`, in the order of the trials."""
    table = pd.DataFrame.from_records(list(rows)).sort_values("trial")
    for name, column in table.items():
        if any(isinstance(value, str) for value in column):  # Parquet wants one type a column
            table[name] = column.map(str, na_action="ignore")
    table.to_parquet(sweep / TABLE, index=False)
    table.to_csv(sweep / "sweep.csv", index=False)
