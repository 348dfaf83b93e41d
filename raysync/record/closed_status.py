"""The last status of a finished run, from its tables and few lines of its journal."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from typing_extensions import override

from raysync.core.decisions import Release
from raysync.core.events import Joined, Left
from raysync.core.journal import Decoder, Entry, read_header
from raysync.record.event_text import RARE_NOTES
from raysync.record.journal_file import JournalFile
from raysync.record.measures import Measures
from raysync.record.push_rows import VECTORS, PushRow
from raysync.record.reader import RunRecord, legible, measures_of
from raysync.record.run_status import RunStatus
from raysync.record.writer import JOURNAL

LAST_BYTES = 1 << 20  # the end of a journal that is decoded whole: some thousand pushes
PUSH = '{"type":"Entry","event":{"type":"Pushed"'
RARE_LINE = re.compile(f'"({"|".join(("Switch", "Suspend", "Restore", *RARE_NOTES))})"')
"""Matches lines of pushes with a consequence that is displayed however old it is."""


def closed_status(record: RunRecord) -> RunStatus | None:
    """Return the status after all lines, without old holds and drops; None: it did not finish."""
    if not (record.complete and record.ended and record.summary["status"] == "finished"):
        return None
    journal, decoder = record.path / JOURNAL, Decoder()
    with legible(record.path), JournalFile(journal) as file:
        header = file.readline()
        status = RunStatus(ClosedMeasures(measures_of(read_header(header)), record))
        bytes_left = journal.stat().st_size - len(header)
        for text in file:
            if bytes_left < LAST_BYTES or not text.startswith(PUSH) or RARE_LINE.search(text):
                status.feed(decoder.decode(text))
            bytes_left -= len(text.encode())
    return status


class ClosedMeasures(Measures):
    """Measures with pushes from the columns, and members, evaluations and the end from lines."""

    def __init__(self, fresh: Measures, record: RunRecord) -> None:
        super().__init__(fresh.workload_samples, fresh.target, fresh.primary, fresh.chance_accuracy)
        pushes, summary = record.pushes, record.summary
        self.updates, self.samples = summary["updates"], summary["samples"]
        self.lead_max, self._seconds = summary["lead_max"], summary["seconds"] or 0.0
        of_workers = pushes.groupby("worker", sort=False)
        for worker, at in of_workers["released_at_s"].min().items():
            self._totals.begin(str(worker), at)
        stale = pushes["staleness"].astype(object)
        columns: dict[str, Any] = {name: pushes[name].to_numpy() for name in VECTORS}
        texts = {"worker": pushes["worker"], "outcome": pushes["outcome"]}
        self._totals.add(columns | texts | {"staleness": stale.where(stale.notna(), None)})
        self._outcomes.update(pushes["outcome"])
        self._clocks: Counter[Any] = Counter((of_workers["clock"].max() + 1).to_dict())
        self._live: list[str] = []

    @override
    def _feed_entry(self, entry: Entry, completed: list[PushRow]) -> None:
        self.now = entry.event.at
        match entry.event:
            case Joined(worker=worker):
                self._live.append(worker)
            case Left(worker=worker, at=at):
                self._live.remove(worker)
                self._totals.leave(worker, at)
        for decision in entry.decisions:
            if isinstance(decision, Release):
                worker = decision.worker
                self._totals.begin(worker, entry.event.at)  # it may never have pushed
                self._clocks[worker] = max(decision.clock, self._clocks[worker])

    @property
    @override
    def seconds(self) -> float:
        return float(self._seconds)

    @property
    @override
    def clocks(self) -> dict[str, int]:
        return {worker: self._clocks[worker] for worker in self._live}
