"""How a run stands: its measures, what each worker does now and why, and what was decided last."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from operator import itemgetter

from raysync.core.decisions import Apply, Hold, Note, Release, Restore, Suspend, Switch
from raysync.core.events import Joined, Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry, Line
from raysync.record.event_text import EventText, seconds, texts_of
from raysync.record.measures import Measures

RARE, FREQUENT = 8, 6
"""How many of the latest news are kept: of what is rare, and of what comes with the pushes and
would soon displace it; of the latter one of a kind and worker."""


@dataclass(slots=True)
class WorkerState:
    """What the latest life of a worker slot does."""

    worker: str
    doing: str
    """waiting, computing, gone, or done."""
    since: float
    """Seconds since the run began."""
    why: str = ""
    """It waits, or is gone."""
    suspended: bool = False
    straggler: bool = False

    def text(self, now: float) -> str:
        """In a few words."""
        why = f": {self.why}" if self.why else ""
        if self.doing in ("gone", "done"):
            return f"{self.doing} after {seconds(self.since)}{why}"
        what = "suspended, " if self.suspended else "a straggler, " if self.straggler else ""
        return f"{what}{self.doing} for {seconds(now - self.since)}{why}"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as a table shows it."""

    worker: str
    clock: int | None
    """None: it is no member any more."""
    lead: int | None
    """In clocks; None: it takes no part, as it has left or is suspended."""
    pushes: int
    wait_fraction: float
    """Of its time so far."""
    staleness_mean: float | None
    """Of its applied pushes, in versions; None before the first."""
    staleness_max: int
    state: str


class RunStatus:
    """Fed with the lines of a journal; readable at any moment. Memory is bounded by workers,
    evaluations and switches.
    """

    def __init__(self, measures: Measures) -> None:
        """
        Args:
            measures: fresh; they are fed here.
        """
        self.measures = measures
        self.phase = ""
        """The one in force, of a paradigm that has several."""
        self.batch_loss: float | None = None
        """Of the latest push, in nats."""
        self._seats: dict[str, WorkerState] = {}
        self._told = 0
        self._rare: deque[tuple[int, EventText]] = deque(maxlen=RARE)
        self._frequent: dict[tuple[str, str], tuple[int, EventText]] = {}

    def feed(self, line: Line) -> list[EventText]:
        """Take in one line; returns what it tells."""
        for _ in self.measures.feed(line):
            pass  # rows of pushes, which are for the record
        news = list(texts_of(line))
        for each in news:
            self._keep(each)
        if isinstance(line, Entry):
            self._happened(line)
        return news

    @property
    def news(self) -> list[EventText]:
        """The latest, in order."""
        return [
            news for _, news in sorted([*self._rare, *self._frequent.values()], key=itemgetter(0))
        ]

    def rows(self) -> list[WorkerRow]:
        """One a worker slot, in the order in which they joined."""
        measures, clocks, leads = self.measures, self.measures.clocks, self.measures.leads
        waits = measures.wait_fractions()
        return [
            self._row(
                seat, clocks.get(seat.worker), leads.get(seat.worker), waits.get(seat.worker, 0.0)
            )
            for seat in self._seats.values()
        ]

    def doing(self) -> Counter[str]:
        """How many compute, wait, and so on."""
        return Counter(seat.doing for seat in self._seats.values())

    def _keep(self, news: EventText) -> None:
        self._told += 1
        if news.rare:
            self._rare.append((self._told, news))
            return
        self._frequent.pop((news.kind, news.worker), None)
        self._frequent[news.kind, news.worker] = (self._told, news)
        if len(self._frequent) > FREQUENT:
            del self._frequent[next(iter(self._frequent))]

    def _row(
        self, seat: WorkerState, clock: int | None, lead: int | None, waits: float
    ) -> WorkerRow:
        finished = self.measures.ended is not None and self.measures.ended.status == "finished"
        state = "done" if finished and clock is not None else seat.text(self.measures.now)
        of_it = self.measures.workers.get(seat.worker)
        if of_it is None:  # it was never released
            return WorkerRow(seat.worker, clock, lead, 0, waits, None, 0, state)
        mean = of_it.staleness_sum / of_it.applied if of_it.applied else None
        return WorkerRow(
            seat.worker, clock, lead, of_it.pushes, waits, mean, of_it.staleness_max, state
        )

    def _happened(self, entry: Entry) -> None:
        event, seats = entry.event, self._seats
        match event:
            case Joined(at=at, worker=worker):
                seats[WorkerId(worker).slot] = WorkerState(worker, "waiting", at)
            case Left(at=at, worker=worker):
                done = bool(entry.report.get("done"))
                seats[WorkerId(worker).slot] = WorkerState(
                    worker, "done" if done else "gone", at, entry.report.get("why", "")
                )
            case Pushed(at=at, worker=worker):
                self.batch_loss = entry.report.get("loss", self.batch_loss)
                self._does(worker, "waiting", at)
        for decision in entry.decisions:
            match decision:
                case Release(worker=worker):
                    self._does(worker, "computing", event.at)
                case Hold(worker=worker, why=why):
                    self._seat(worker).why = why
                case Apply(phase=phase):
                    self.phase = phase
                case Switch(to=to):
                    self.phase = to
                case Note(kind=("straggler" | "recovered") as kind, worker=worker) if worker:
                    self._seat(worker).straggler = kind == "straggler"
                case Suspend(worker=worker) | Restore(worker=worker):
                    self._seat(worker).suspended = isinstance(decision, Suspend)

    def _does(self, worker: str, doing: str, since: float) -> None:
        seat = self._seat(worker)
        if seat.worker == worker and seat.doing not in (
            "gone",
            "done",
        ):  # else a late push of one that has left
            seat.doing, seat.since, seat.why = doing, since, ""

    def _seat(self, worker: str) -> WorkerState:
        return self._seats[WorkerId(worker).slot]
