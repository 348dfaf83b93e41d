"""The last status of a run that was closed, without decoding its whole journal.

What is counted is in the summary and in the columns of the pushes. Of the journal, plain pushes are
told from the other lines by their text, and only the last of them are decoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.parquet as pq

from raysync.core.decisions import Release, Restore, Suspend, Switch
from raysync.core.events import Joined, Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Decoder, Entry, Line, read_header
from raysync.record.event_text import RARE_NOTES
from raysync.record.measures import Measures
from raysync.record.push_rows import Row
from raysync.record.reader import RunRecord, legible, measures_of
from raysync.record.run_status import RunStatus
from raysync.record.worker_totals import WorkerMeasures

TAIL, WITH_EVENTS = 2_000, 10_000
"""How many of the last pushes are decoded, and of the last ones with an event that comes often."""
PUSH = b'{"event":"Pushed"'
RARE = tuple(f'"do":"{name}"'.encode() for name in ("Switch", "Suspend", "Restore")) + tuple(
    f'"kind":"{kind}"'.encode() for kind in RARE_NOTES
)
OFTEN = tuple(f'"do":"{name}"'.encode() for name in ("Hold", "Drop", "Note"))


def closed_status(record: RunRecord) -> RunStatus | None:
    """Return the status that all lines of a run's journal would give; None if it was not
    closed, or if some of it is known from earlier lines alone.
    """
    if not (record.complete and record.ended):
        return None
    with legible(record.path):
        head, before, tail = _decoded(record)
        measures = ClosedMeasures(measures_of(head), record)
        status = RunStatus(measures)
        for line in before:
            status.feed(line)
        measures.seen.clear()
        for line in tail:
            status.feed(line)
    return status if measures.is_whole else None


def _decoded(record: RunRecord) -> tuple[Mapping[str, Any], list[Line], list[Line]]:
    """Return the header, some of the lines, and then all to the end."""
    kept: dict[int, bytes] = {}
    often: deque[tuple[int, bytes]] = deque(maxlen=WITH_EVENTS)
    tail: deque[tuple[int, bytes]] = deque(maxlen=TAIL)
    with (record.path / "journal.jsonl").open("rb") as file:
        head = read_header(file.readline().decode())
        for number, text in enumerate(file):
            if not text.startswith(PUSH) or any(mark in text for mark in RARE):
                kept[number] = text
                continue
            tail.append((number, text))
            if any(mark in text for mark in OFTEN):
                often.append((number, text))
    kept |= dict(often) | dict(tail)
    decoder, numbers = Decoder(), sorted(kept)
    lines = [decoder.take(kept[number].decode()) for number in numbers]
    end = bisect_left(numbers, tail[0][0]) if len(tail) == TAIL else 0  # else nothing is left out
    return head, lines[:end], lines[end:]


class ClosedMeasures(Measures):
    """Measures from the summary and the pushes; of the lines they take evaluations, members and the
    end.
    """

    def __init__(self, fresh: Measures, record: RunRecord) -> None:
        super().__init__(fresh.workload_samples, fresh.target, fresh.primary, fresh.chance_accuracy)
        self._summary = record.summary
        self._by_worker, self._clocks = _of_workers(record)
        self._live: set[str] = set()
        self.seen: set[str] = set()
        """The workers of which a push or a release was among the lines."""
        self._keeps_leads = True
        """Whether leads are differences of clocks: a switch, or a suspension, sets them anew."""

    def take(self, lines: Iterable[Line]) -> list[Row]:
        """Take in some lines of the journal; the rows of pushes are known already."""
        for line in lines:
            if isinstance(line, Entry):
                self._take_entry(line)
            else:
                self._take_other(line, [])
        return []

    def _take_entry(self, entry: Entry) -> None:
        event = entry.event
        self.now = event.at
        match event:
            case Joined(worker=worker):
                self._live.add(worker)
            case Left(worker=worker):
                self._live.remove(worker)
                if worker in self._by_worker:
                    self._by_worker[worker].left_at = event.at
            case Pushed(worker=worker):
                self.seen.add(worker)
        for decision in entry.decisions:
            match decision:
                case Release(worker=worker, clock=clock):
                    self.seen.add(worker)
                    self._clocks[worker] = max(clock, self._clocks.get(worker, 0))
                case Switch() | Suspend() | Restore():
                    self._keeps_leads = False

    @property
    def is_whole(self) -> bool:
        """Whether the lines have told all: what each worker does, its clock and its lead."""
        assert self.ended is not None, "a run without an end"
        is_told = self.ended.status == "finished" or self._live <= self.seen
        return is_told and self._keeps_leads and self._live <= self._clocks.keys()

    @property
    def workers(self) -> Mapping[str, WorkerMeasures]:
        """See `Measures.workers`."""
        return self._by_worker

    @property
    def clocks(self) -> dict[str, int]:
        """See `Measures.clocks`."""
        return {worker: self._clocks[worker] for worker in self._live}

    @property
    def leads(self) -> dict[str, int]:
        """See `Measures.leads`."""
        slowest: dict[int, int] = {}
        for worker, clock in self.clocks.items():
            stage = WorkerId(worker).stage
            slowest[stage] = min(clock, slowest.get(stage, clock))
        return {
            worker: clock - slowest[WorkerId(worker).stage] for worker, clock in self.clocks.items()
        }

    @property
    def updates(self) -> int:
        """See `Measures.updates`."""
        return int(self._summary["updates"])

    @property
    def samples(self) -> int:
        """See `Measures.samples`."""
        return int(self._summary["samples"])

    @property
    def lead_max(self) -> int:
        """See `Measures.lead_max`."""
        return int(self._summary["lead_max"])

    @property
    def seconds(self) -> float:
        """See `Measures.seconds`."""
        return float(self._summary["seconds"])

    @property
    def wait_fraction(self) -> float:
        """See `Measures.wait_fraction`."""
        return float(self._summary["wait_fraction"])

    @property
    def staleness_mean(self) -> float | None:
        """See `Measures.staleness_mean`."""
        mean = self._summary["staleness_mean"]
        return None if mean is None else float(mean)

    @property
    def staleness_max(self) -> int:
        """See `Measures.staleness_max`."""
        return int(self._summary["staleness_max"])


def _of_workers(record: RunRecord) -> tuple[dict[str, WorkerMeasures], dict[str, int]]:
    """Return worker -> what its pushes add up to, and worker -> the iteration after its last."""
    columns = ("worker", "released_at_s", "wait_s", "staleness", "clock")
    table = pq.read_table(record.path / "pushes.parquet", columns=list(columns))
    rows = table.group_by("worker").aggregate(
        [
            ("released_at_s", "min"),
            ("wait_s", "sum"),
            ("clock", "count"),
            ("clock", "max"),
            ("staleness", "count"),  # of those that were applied
            ("staleness", "sum"),
            ("staleness", "max"),
        ]
    )
    found = {
        row["worker"]: WorkerMeasures(
            row["released_at_s_min"],
            pushes=row["clock_count"],
            wait_s=row["wait_s_sum"],
            applied=row["staleness_count"],
            staleness_sum=row["staleness_sum"] or 0,
            staleness_max=row["staleness_max"] or 0,
        )
        for row in rows.to_pylist()
    }
    return found, {row["worker"]: row["clock_max"] + 1 for row in rows.to_pylist()}
