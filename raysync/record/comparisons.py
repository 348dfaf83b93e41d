"""Find the records of one comparison: `environment.json` of each has its id."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from raysync.config import Experiment
from raysync.config.secret_masking import masked
from raysync.errors import ConfigError
from raysync.record.reader import RunRecord, newest_first
from raysync.record.resumption import environment_of
from raysync.record.storage import Location, parent_of
from raysync.record.trust import trusted
from raysync.record.writer import STAMP

ID_KEY = "comparison"  # in `environment.json`
STAMP_LENGTH = len("20261122-102940")  # ids and names of records begin with a stamp


@dataclass(frozen=True)
class Comparison:
    id: str
    location: Location  # OUTPUT/NAME, or its URI
    records: dict[tuple[str, int], RunRecord]  # label of the paradigm, seed -> the newest record

    @property
    def any_record(self) -> RunRecord:
        """One of the records, all of one experiment but for paradigm and seed."""
        return next(iter(self.records.values()))

    def redirect(self, experiment: Experiment) -> Experiment:
        """Return the experiment with its records in this folder.

        The folder may have been moved, and secrets of a URI are not recorded.
        """
        return experiment.model_copy(update={"output": parent_of(self.location)})


def new_id() -> str:
    """Return a new id: ids are ordered in time, and begin as the names of records do."""
    return f"{datetime.now().strftime(f'{STAMP}-%f')}-{uuid4().hex[:4]}"


def newest_comparison(location: Location, *, trust: bool = False) -> Comparison:
    """Return the comparison in a folder (OUTPUT/NAME, or its URI) that began last.

    Raises `ConfigError` if there is none, or its records must be trusted first.
    """
    found: dict[str, dict[tuple[str, int], RunRecord]] = {}
    for record in newest_first(location):
        if found and record.path.name < max(found)[:STAMP_LENGTH]:
            break  # the record is older than the newest comparison
        if comparison := environment_of(record).get(ID_KEY):
            record = trusted(record, trust=trust)
            run = (record.config.label, record.config.seed)
            found.setdefault(comparison, {}).setdefault(run, record)
    if not found:
        raise ConfigError(
            f"{masked(str(location))}: not the folder of a comparison, OUTPUT/NAME, as `raysync"
            " compare` prints it."
        )
    return Comparison(max(found), location, found[max(found)])
