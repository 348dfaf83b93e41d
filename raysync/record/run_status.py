"""The status of a run: measures, what each worker does and why, and the latest events."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from operator import itemgetter

from raysync.core.decisions import Apply, Hold, Note, Release, Restore, Suspend, Switch
from raysync.core.events import Joined, Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry, Line, Resumed
from raysync.record.event_text import EventText, seconds, texts_of
from raysync.record.measures import Measures
from raysync.record.worker_totals import WorkerMeasures

# the numbers of latest events that are stored: rare ones, which frequent ones must not displace,
# and frequent ones, one for each kind and worker
RARE, FREQUENT = 8, 6


@dataclass(slots=True)
class WorkerState:
    """The state of a slot's latest worker."""

    worker: str
    doing: str  # waiting, computing, gone, or done
    since: float  # seconds since the run began
    why: str = ""  # the reason of waiting, or of being gone
    suspended: bool = False
    straggler: bool = False

    def text(self, now: float) -> str:
        why = f": {self.why}" if self.why else ""
        if self.doing in ("gone", "done"):
            return f"{self.doing} after {seconds(self.since)}{why}"
        what = "suspended, " if self.suspended else "a straggler, " if self.straggler else ""
        return f"{what}{self.doing} for {seconds(now - self.since)}{why}"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    worker: str
    clock: int | None  # the iteration that it computes or waits for; None: it is no member any more
    lead: int | None  # in clocks; None: it is gone or suspended, or the run has ended
    pushes: int
    wait_fraction: float
    staleness_mean: float | None  # the mean over applied pushes, in versions; None before the first
    staleness_max: int
    state: str


class RunStatus:
    """Follows a journal; readable at any moment, in memory bounded by workers and evaluations."""

    def __init__(self, measures: Measures) -> None:
        self.measures = measures
        self.phase = ""  # the current phase, of a paradigm that has several
        self.batch_loss: float | None = None  # of the latest push, in nats
        self._states: dict[str, WorkerState] = {}  # slot -> the state of its latest worker
        self._event_count = 0
        self._rare: deque[tuple[int, EventText]] = deque(maxlen=RARE)
        self._frequent: dict[tuple[str, str], tuple[int, EventText]] = {}

    def feed(self, line: Line) -> list[EventText]:
        """Process one line; return its events."""
        self.measures.feed((line,))
        events = list(texts_of(line))
        for event in events:
            self._store(event)
        if isinstance(line, Entry):
            self._update(line)
        elif isinstance(line, Resumed) and not line.exact:
            for state in self._states.values():
                if state.doing == "computing":
                    state.since = line.at  # it computes the same iteration again
        return events

    def _store(self, event: EventText) -> None:
        self._event_count += 1
        if event.rare:
            self._rare.append((self._event_count, event))
            return
        self._frequent.pop((event.kind, event.worker), None)
        self._frequent[event.kind, event.worker] = (self._event_count, event)
        if len(self._frequent) > FREQUENT:
            del self._frequent[next(iter(self._frequent))]

    def _update(self, entry: Entry) -> None:
        event, states = entry.event, self._states
        match event:
            case Joined(at=at, worker=worker):
                states[WorkerId(worker).slot] = WorkerState(worker, "waiting", at)
            case Left(at=at, worker=worker):
                doing, why = "gone", entry.report.why
                if entry.report.done:
                    doing = "done"
                elif entry.report.restart_in_s is not None:
                    why += ", is restarted"
                states[WorkerId(worker).slot] = WorkerState(worker, doing, at, why)
            case Pushed(at=at, worker=worker):
                if entry.report.loss is not None:
                    self.batch_loss = entry.report.loss
                self._set_doing(worker, "waiting", at)
        for decision in entry.decisions:
            match decision:
                case Release(worker=worker):
                    self._set_doing(worker, "computing", event.at)
                case Hold(worker=worker, why=why):
                    self._state(worker).why = why
                case Apply(phase=phase):
                    self.phase = phase
                case Switch(to=to):
                    self.phase = to
                case Note(kind=("straggler" | "recovered") as kind, worker=worker) if worker:
                    self._state(worker).straggler = kind == "straggler"
                case Suspend(worker=worker) | Restore(worker=worker):
                    self._state(worker).suspended = isinstance(decision, Suspend)

    def _set_doing(self, worker: str, doing: str, since: float) -> None:
        state = self._state(worker)
        if state.worker != worker or state.doing in ("gone", "done"):
            return  # a late push of a worker that has left
        state.doing, state.since, state.why = doing, since, ""

    def _state(self, worker: str) -> WorkerState:
        return self._states[WorkerId(worker).slot]

    @property
    def events(self) -> list[EventText]:
        numbered = sorted([*self._rare, *self._frequent.values()], key=itemgetter(0))
        return [event for _, event in numbered]

    def rows(self) -> list[WorkerRow]:
        """Return a row for each slot, in the order of their first joins."""
        measures, clocks = self.measures, self.measures.clocks
        leads = measures.leads if measures.ended is None else {}
        waits = measures.wait_fractions()
        finished = measures.ended is not None and measures.ended.status == "finished"
        rows = []
        for state in self._states.values():
            worker, clock = state.worker, clocks.get(state.worker)
            totals = measures.workers.get(worker) or WorkerMeasures(0.0)  # it was never released
            rows.append(
                WorkerRow(
                    worker=worker,
                    clock=clock,
                    lead=leads.get(worker),
                    pushes=totals.pushes,
                    wait_fraction=waits.get(worker, 0.0),
                    staleness_mean=totals.staleness_mean,
                    staleness_max=totals.staleness_max,
                    state="done" if finished and clock is not None else state.text(measures.now),
                )
            )
        return rows

    def count_by_activity(self) -> Counter[str]:
        return Counter(state.doing for state in self._states.values())
