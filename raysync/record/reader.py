"""Reading a record: `raysync.load(path)`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from raysync import config
from raysync.config import Experiment
from raysync.core.journal import Evaluation, Line, read
from raysync.errors import ConfigError
from raysync.record.measures import Measures
from raysync.record.places import local, named
from raysync.record.rows import PushRow
from raysync.record.writer import schema_of


@dataclass(frozen=True)
class RunRecord:
    """One run on disk. A run that was killed, or still goes on, is read from its journal up to that moment."""

    path: Path

    @cached_property
    def config(self) -> Experiment:
        """The resolved experiment."""
        return config.load(self.path / "config.yaml")

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Command, versions and machine."""
        return dict(json.loads((self.path / "environment.json").read_text(encoding="utf-8")))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The keys of `summary.json`; `status` is `unfinished` for a run that was never closed."""
        if self.complete:
            return dict(json.loads((self.path / "summary.json").read_text(encoding="utf-8")))
        head, measures, _ = self._recovered
        return {**head.get("about", {}), **measures.summary(), "wall_seconds": None}

    @cached_property
    def pushes(self) -> pd.DataFrame:
        """One row a push: the fields of `raysync.record.rows.PushRow`."""
        if self.complete:
            return pd.read_parquet(self.path / "pushes.parquet")
        return _frame([asdict(row) for row in self._recovered[2]], PushRow)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """One row an evaluation: the fields of `raysync.core.journal.Evaluation`."""
        if self.complete:
            return pd.read_parquet(self.path / "evaluations.parquet")
        return _frame([asdict(one) for one in self._recovered[1].evaluations], Evaluation)

    @property
    def complete(self) -> bool:
        """Whether the run was closed."""
        return (self.path / "summary.json").exists()

    def journal(self) -> Iterator[Line]:
        """Events with their decisions, evaluations and the end, in order."""
        with legible(self.path), (self.path / "journal.jsonl").open(encoding="utf-8") as file:
            yield from read(file)[1]

    @cached_property
    def _recovered(self) -> tuple[dict[str, Any], Measures, list[PushRow]]:
        with legible(self.path), (self.path / "journal.jsonl").open(encoding="utf-8") as file:
            head, lines = read(file)
            measures = measures_of(head)
            rows = [row for line in lines for row in measures.feed(line)]
        rows.extend(measures.close(measures.now))
        return head, measures, rows


@contextmanager
def legible(record: Path) -> Iterator[None]:
    """What goes wrong in reading a journal: said in a line or two, with the name of the record.

    Raises:
        ConfigError: it cannot be read, is damaged, or is of another raysync.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{named(record)}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{named(record)}: cannot be read ({error.strerror or error}).") from error
    except (KeyError, ValueError, AssertionError) as error:  # of lines that are good, but not all of them
        raise ConfigError(f"{named(record)}: its journal is damaged, or of a newer raysync ({error!r:.200}).") from error


def measures_of(head: Mapping[str, Any]) -> Measures:
    """Fresh ones, for a journal with that header."""
    about = head.get("about", {})
    return Measures(head["workload_samples"], about.get("target_accuracy"), about.get("target_loss"),
                    about.get("chance_accuracy"))


def load(path: str | Path) -> RunRecord:
    """Open the record of a run.

    Args:
        path: its folder, or a URI; of a URI a copy is made, which is gone with this process.

    Raises:
        ConfigError: there is no record.
    """
    folder = local(path)
    if not (folder / "journal.jsonl").is_file() or not (folder / "config.yaml").is_file():
        raise ConfigError(f"{path}: not the record of a run (no journal.jsonl and config.yaml in it).")
    return RunRecord(folder)


def _frame(rows: list[dict[str, Any]], kind: type) -> pd.DataFrame:
    """A frame with the columns and types that the parquet file would have."""
    frame: pd.DataFrame = pa.Table.from_pylist(rows, schema_of(kind)).to_pandas()
    return frame
