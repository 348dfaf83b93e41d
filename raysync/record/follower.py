"""Join a journal's events and decisions into rows of pushes, and add these up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from raysync.core.decisions import Apply, Decision, Drop, Push, Release, Switch
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.ids import WorkerId, split_timer
from raysync.core.journal import (
    Checkpointed,
    Ended,
    Entry,
    Evaluation,
    Line,
    Remark,
    Report,
    Resumed,
)
from raysync.core.roster import Roster
from raysync.core.staleness import staleness
from raysync.record.losses import Losses
from raysync.record.push_rows import Columns, PushRow, columns_of
from raysync.record.worker_totals import WorkerMeasures, WorkerTotals

COUNTED_AT_ONCE = 20_000  # rows after which totals are updated, if `count` was not called before


@dataclass(slots=True)
class SwitchMeasures:
    """One switch between phases of the paradigm."""

    at_s: float  # seconds since the run began
    to: str
    why: str
    # Seconds from the switch to the first push of a step that began after it; None: no such push.
    # Steps in flight at the switch do not count: they would make it look free.
    first_push_s: float | None = None


@dataclass(slots=True)
class _WorkerRows:
    """The state of a worker that its next rows need."""

    group: str
    released_at: float | None = None  # the latest release
    lead: int = 0  # at that release
    waiting: PushRow | None = None  # its latest push, while it waits
    is_live: bool = True


class Follower:
    """Follows a journal line by line. A row is complete once its outcome and wait are known.

    Clocks, versions and leads come from rosters: the machine's in the same process, else its own,
    which repeat the decisions. Memory is bounded by all workers so far, and by buffered pushes.
    """

    def __init__(self, workload_samples: int) -> None:
        # the update that reaches `workload_samples` ends the run: later decisions did not happen
        self.workload_samples = workload_samples
        self.now = 0.0  # seconds since the run began, at the latest line
        self.started_at: float | None = None  # when the first worker was released
        self.rosters: dict[int, Roster] = {}  # stage -> its roster; stage 0 is the whole network
        self._owns_rosters = True
        self._is_staged = False
        # updates of the network and samples in them, both of its last stage
        self.updates = self.samples = 0
        self._updated_at = 0.0
        self.lead_max = 0  # the largest lead at a release, in clocks over the slowest participant
        self.switches: list[SwitchMeasures] = []
        self.evaluations: list[Evaluation] = []
        self.checkpoints = 0
        self.resumptions: list[Resumed] = []
        self.losses = Losses()
        self.ended: Ended | None = None
        self._workers: dict[str, _WorkerRows] = {}  # all that ever joined
        self._open: dict[Push, PushRow] = {}  # incomplete rows
        self._former: dict[Push, int] = {}  # push buffered before `begin_at` -> its samples
        self._uncounted: list[PushRow] = []  # complete, but not in the next two yet
        self._totals = WorkerTotals()
        self._outcomes: Counter[str] = Counter(applied=0, dropped=0, buffered=0)

    def share(self, rosters: Mapping[int, Roster]) -> None:
        """Read the machine's own rosters, stage -> roster; they may be ahead of the lines."""
        self.rosters, self._owns_rosters = dict(rosters), False

    def begin_at(self, rosters: dict[int, Roster], at: float) -> None:
        """Follow a journal from a resumption on, as if the run had begun at 0.

        Earlier pushes get no rows, and totals of workers count from here. `rosters`, stage -> its
        roster at the snapshot, belong to the follower from here on.
        """
        self.rosters = rosters
        self.now, self.started_at, self._updated_at = at, 0.0, at
        last = rosters[max(rosters)]
        self.updates, self.samples = last.version, last.samples_applied
        for roster in rosters.values():
            self._former |= {push: buffered.samples for push, buffered in roster.buffered.items()}
            for worker in roster.live:
                lead = roster.lead(worker) if worker in roster.members else 0
                self._workers[worker] = _WorkerRows(WorkerId(worker).group, at, lead)
                self._totals.begin(worker, at)
        self._resume(at)

    def _resume(self, at: float) -> None:
        """Resume the rosters: iterations in flight are computed again, from now on."""
        assert self._owns_rosters, "a machine resumes its own rosters"
        for roster in self.rosters.values():
            roster.now = at
            roster.resume()
            for worker in (*roster.computing, *roster.outdated):
                self._workers[worker].released_at = at

    # ---- lines ----

    def feed(self, lines: Iterable[Line]) -> list[PushRow]:
        """Process lines of the journal; return the rows that they complete."""
        completed = list[PushRow]()
        for line in lines:
            if isinstance(line, Entry):
                self._feed_entry(line, completed)
            else:
                self._feed_other(line, completed)
        self._uncounted += completed
        if len(self._uncounted) >= COUNTED_AT_ONCE:
            self._count_rest()
        return completed

    def close(self) -> list[PushRow]:
        """End the journal; return the rows that were still open."""
        rows = self._close_rows()
        self._uncounted += rows
        return rows

    def _feed_entry(self, entry: Entry, completed: list[PushRow]) -> None:
        event, owns_rosters, workers = entry.event, self._owns_rosters, self._workers
        roster = self.rosters.get(0) or self._roster_of(event)
        self.now = at = event.at
        if owns_rosters:
            _update_roster(event, roster)
        if isinstance(event, Pushed):
            state = workers[event.worker]
            row = _row_of(event, entry.report, state)
            self._open[event.worker, event.clock] = row
            if state.is_live:
                state.waiting = row
        elif isinstance(event, Joined):
            workers[event.worker] = _WorkerRows(WorkerId(event.worker).group)
            self.losses.feed(entry)
        elif isinstance(event, Left):
            state = workers[event.worker]
            state.is_live = False
            if state.waiting is not None:
                self._end_wait(state, at, completed)
            self._totals.leave(event.worker, at)
            self.losses.feed(entry)
        for decision in entry.decisions:
            if owns_rosters:
                recorded, decision = decision, roster.execute(decision)
                if isinstance(decision, Apply):
                    _check_version(recorded, decision)
            if isinstance(decision, Release):
                self._released(decision, at, completed)
            elif isinstance(decision, Apply):
                samples = self._applied(decision, at, completed)
                if not self._is_staged or roster is self.rosters[max(self.rosters)]:
                    self.updates, self.samples, self._updated_at = decision.version, samples, at
                if not self._is_staged and self.samples >= self.workload_samples:
                    break  # a decoupled run continues until the pipelines have drained
            elif isinstance(decision, Drop):
                self._dropped(decision, completed)
            elif isinstance(decision, Switch):
                self.switches.append(SwitchMeasures(at, decision.to, decision.why))

    def _feed_other(self, line: Line, completed: list[PushRow]) -> None:
        match line:
            case Evaluation():
                self.evaluations.append(line)
            case Checkpointed(at=at):
                self.checkpoints += 1
                self.now = max(self.now, at)
            case Resumed(at=at, exact=exact):
                self.resumptions.append(line)
                self.losses.feed(line)
                self.now = max(self.now, at)
                if not exact:
                    self._resume(at)
            case Remark():
                self.losses.feed(line)
            case Ended(at=at):
                self.ended = line
                self.now = max(self.now, at)
                completed += self._close_rows()

    def _roster_of(self, event: Event) -> Roster:
        """Return the roster of an event's stage, if no roster has the whole network."""
        if isinstance(event, TimerFired):
            stage = split_timer(event.key)[0] if self.rosters else 0
        else:
            stage = WorkerId(event.worker).stage
        self._is_staged = stage > 0
        if stage not in self.rosters:
            self.rosters[stage] = Roster(self.workload_samples)
        return self.rosters[stage]

    def _released(self, decision: Release, at: float, completed: list[PushRow]) -> None:
        state, lead = self._workers[decision.worker], decision.lead
        if state.waiting is not None:
            self._end_wait(state, at, completed)
        elif state.released_at is None:
            self._totals.begin(decision.worker, at)
            if self.started_at is None:
                self.started_at = at
        state.released_at, state.lead = at, lead
        if lead > self.lead_max:
            self.lead_max = lead

    def _applied(self, decision: Apply, at: float, completed: list[PushRow]) -> int:
        """Add an update to its rows; return the samples in all updates so far."""
        opened, version, samples = self._open, decision.version, decision.samples_before
        for push in decision.pushes:
            row = opened.get(push)
            if row is None:
                samples += self._former.pop(push)
                continue
            row.outcome, row.version, row.applied_at_s = "applied", version, at
            row.staleness = staleness(version, row.base)
            if decision.weights:
                row.weight = decision.weights[decision.pushes.index(push)]
            samples += row.samples
            if self._workers[push[0]].waiting is not row:
                completed.append(opened.pop(push))
        return samples

    def _dropped(self, decision: Drop, completed: list[PushRow]) -> None:
        push = decision.push
        row = self._open.get(push)
        if row is not None:
            row.outcome, row.why, row.reason = "dropped", decision.why, decision.reason
            if self._workers[push[0]].waiting is not row:
                completed.append(self._open.pop(push))

    def _end_wait(self, state: _WorkerRows, at: float, completed: list[PushRow]) -> None:
        row, state.waiting = state.waiting, None
        assert row is not None, "it does not wait"
        row.wait_s = at - row.pushed_at_s
        if row.outcome != "buffered":
            del self._open[row.worker, row.clock]
            completed.append(row)

    def _close_rows(self) -> list[PushRow]:
        rows, self._open = list(self._open.values()), {}
        for row in rows:
            state = self._workers[row.worker]
            if state.waiting is row:
                row.wait_s = max(0.0, self.now - row.pushed_at_s)
                state.waiting = None
        return rows

    # ---- totals ----

    @property
    def workers(self) -> Mapping[str, WorkerMeasures]:
        self._count_rest()
        return self._totals.by_worker

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Outcome -> number of pushes."""
        self._count_rest()
        return self._outcomes

    def _count_rest(self) -> None:
        if self._uncounted:
            self.count(columns_of(self._uncounted))

    def count(self, columns: Columns) -> None:
        """Add the latest rows to the totals, for a caller that has their columns anyway.

        The columns have all rows that are not counted yet; counted rows may precede them.
        """
        counted = len(columns["worker"]) - len(self._uncounted)
        assert counted >= 0, f"{-counted} rows are neither in the columns nor in the totals"
        self._uncounted = []
        columns = {name: values[counted:] for name, values in columns.items()}
        self._totals.add(columns)
        self._outcomes.update(columns["outcome"])
        if self.switches:
            times = (columns[name].tolist() for name in ("released_at_s", "pushed_at_s"))
            for released_at_s, pushed_at_s in zip(*times, strict=True):
                self._measure_switch(released_at_s, pushed_at_s)

    def _measure_switch(self, released_at_s: float, pushed_at_s: float) -> None:
        """Count a step for the latest switch before its release. Steps come in any order."""
        for switch in reversed(self.switches):
            if released_at_s >= switch.at_s:
                after_s = pushed_at_s - switch.at_s
                first_s = switch.first_push_s
                switch.first_push_s = after_s if first_s is None else min(first_s, after_s)
                return

    def _open_waits_s(self) -> Iterator[tuple[str, float]]:
        """Yield worker and wait in seconds, up to now, of each incomplete row."""
        for (worker, _), row in self._open.items():
            is_waiting = self._workers[worker].waiting is row
            yield worker, self.now - row.pushed_at_s if is_waiting else row.wait_s


def _update_roster(event: Event, roster: Roster) -> None:
    roster.now = event.at
    if isinstance(event, Pushed):
        roster.push(event)
    elif isinstance(event, Joined):
        roster.join(event.worker)
    elif isinstance(event, Left):
        roster.leave(event.worker)


def _row_of(event: Pushed, report: Report, state: _WorkerRows) -> PushRow:
    assert state.released_at is not None, f"{event} of a worker never released"
    base, computed_at = report.forward_version, event.computed_at
    return PushRow(
        worker=event.worker,
        group=state.group,
        clock=event.clock,
        samples=event.samples,
        loss=report.loss,
        base=event.base if base is None else base,
        lead=state.lead,
        released_at_s=state.released_at + (report.held_back_s or 0.0),
        computed_at_s=event.at if computed_at is None else computed_at,
        pushed_at_s=event.at,
        busy_s=event.busy_s,
        server_s=report.server_s or 0.0,
        delay_ticks=report.delay_ticks,
        steps=event.steps,
    )


def _check_version(recorded: Decision, executed: Apply) -> None:
    """Refuse a journal in whose middle updates are missing, by raising `ValueError`."""
    assert isinstance(recorded, Apply), f"{recorded} became {executed}"
    if recorded.version and recorded.version != executed.version:
        raise ValueError(f"update {executed.version} is called {recorded.version}")
