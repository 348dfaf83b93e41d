"""Turn the journal's lines into one row for each push: the contents of `pushes.parquet`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raysync.core.decisions import Apply, Decision, Drop, Push, Release
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.ids import WorkerId, split_timer
from raysync.core.journal import Entry
from raysync.core.roster import Roster


@dataclass(slots=True)
class PushRow:
    """One push. Times are seconds since the run began."""

    worker: str
    group: str
    clock: int
    samples: int
    loss: float | None
    """Mean cross-entropy of the batch at the weights it was computed on, in nats."""
    base: int
    """The model version that it was computed on."""
    lead: int
    """The worker's lead over the slowest that takes part, in clocks, when it was released for
    this iteration."""
    released_at_s: float
    """When it was released or, if that was held back until there were enough workers, when it was
    carried out."""
    computed_at_s: float
    """When the gradient was computed, and its upload began."""
    pushed_at_s: float
    """When the gradient had arrived."""
    busy_s: float
    """Computing alone; the rest of the time between release and push is the server's, and
    transfer."""
    server_s: float = 0.0
    """Seconds from the release until the server had made the weights; 0 where that is not known, as
    on Ray, where it is part of the transfer."""
    outcome: str = "buffered"
    """applied, dropped, or buffered if the run ended first."""
    version: int | None = None
    """The model version that its update produced."""
    staleness: int | None = None
    """Versions applied between `base` and its own update."""
    delay_ticks: int | None = None
    """Ticks between the batch's forward and its backward pass; of a pipeline's stage only."""
    applied_at_s: float | None = None
    wait_s: float = 0.0
    """Seconds from this push to the worker's next release, to its leaving, or to the end of the
    run."""
    why: str | None = None
    """Why it was dropped, in words."""
    reason: str | None = None
    """Why it was dropped: one of `DROP_REASONS`."""

    @property
    def transfer_s(self) -> float:
        """The seconds between release and push without computing and without the server's. Clocks
        of two machines differ by a little, so it may come out below 0, which is cut."""
        return max(0.0, self.pushed_at_s - self.released_at_s - self.busy_s - self.server_s)


class PushRows:
    """Joins events and decisions into rows. A row is complete when its outcome and its wait are
    known.

    A roster follows the journal, without a paradigm, so that clocks, versions and leads are those
    of the machine; a decoupled run has a roster for each stage. Memory is bounded by the members
    and the buffered pushes.
    """

    def __init__(self, workload_samples: int | None = None) -> None:
        """
        Args:
            workload_samples: the first update that reaches it ends the run; decisions after it
                were not executed.
        """
        self.workload_samples = workload_samples
        self.rosters: dict[int, Roster] = {}
        """Stage -> its roster; 0 stands for workers that hold the whole network."""
        self.roster = Roster(workload_samples)
        """The roster that shows the progress of the network: the only one, or the last stage's."""
        self.lead_max = 0
        """The largest lead at a Release, in clocks, over the slowest worker that takes part."""
        self._groups: dict[str, str] = {}
        """Worker -> its group."""
        self._released: dict[str, tuple[float, int]] = {}
        """Worker -> the time of its latest release, and its lead then."""
        self._open: dict[Push, PushRow] = {}
        """Push -> its row, while that is incomplete."""
        self._waiting: dict[str, Push] = {}
        """Worker that waits -> its latest push."""

    @property
    def updates(self) -> int:
        """Updates of the network so far."""
        return self.roster.version

    def feed(self, entry: Entry) -> list[PushRow]:
        """Take in one line, and return the rows that it completes."""
        event, stage = entry.event, self._stage(entry.event)
        roster = self.rosters.get(stage)
        if roster is None:
            roster = self.rosters[stage] = Roster(self.workload_samples)
            self.roster = self.rosters[max(self.rosters)]
        roster.now = event.at
        completed: list[PushRow] = []
        if isinstance(event, Pushed):  # a `match` that captures fields takes five times as long
            worker, clock = event.worker, event.clock
            self._open[worker, clock] = self._row(event, entry)
            if worker in roster.live:
                self._waiting[worker] = (worker, clock)
            roster.push(worker, clock, event.base, event.samples, event.busy_s)
        elif isinstance(event, Joined):
            roster.join(event.worker)
        elif isinstance(event, Left):
            roster.leave(event.worker)
            self._waited(event.worker, event.at, completed)
        for decision in entry.decisions:
            roster.execute(decision)
            self._decided(decision, roster, completed)
            if isinstance(decision, Apply) and not stage and (roster.progress or 0) >= 1:
                break  # a decoupled run goes on until the pipelines have drained
        return completed

    def resume(self, at: float) -> None:
        """Take in that the run goes on from a checkpoint: the iterations that were under way are
        computed again, and begin then.
        """
        for roster in self.rosters.values():
            roster.now = at
            roster.resume()
            for worker in (*roster.computing, *roster.outdated):
                _, lead = self._released[worker]
                self._released[worker] = at, lead

    def begin_behind(self, rosters: Mapping[int, Roster], at: float) -> None:
        """Follow a journal from a resumption on, without the lines before it. Pushes that had
        arrived before have no rows.

        Args:
            rosters: stage -> its roster at the cut; 0 stands for workers that hold the whole
                network.
            at: the time of the resumption.
        """
        for stage, roster in rosters.items():
            self.rosters[stage] = Roster.load(roster.dump())
            self.roster = self.rosters[max(self.rosters)]
            self._released |= {
                worker: (at, roster.lead(worker) if worker in roster.members else 0)
                for worker in roster.live
            }
        self.resume(at)

    def _stage(self, event: Event) -> int:
        if 0 in self.rosters:
            return 0  # each worker has the whole network
        if isinstance(event, TimerFired):
            return split_timer(event.key)[0] if self.rosters else 0
        return WorkerId(event.worker).stage

    def _decided(self, decision: Decision, roster: Roster, completed: list[PushRow]) -> None:
        if isinstance(decision, Release):
            worker = decision.worker
            lead = roster.lead(worker)
            self._released[worker] = (roster.now, lead)
            if lead > self.lead_max:
                self.lead_max = lead
            self._waited(worker, roster.now, completed)
        elif isinstance(decision, Apply):
            for push in decision.pushes:
                row = self._open.get(push)
                if row is None:
                    continue  # of before `begin_behind`
                row.outcome, row.version = "applied", decision.version
                row.applied_at_s = roster.now
                row.staleness = decision.version - 1 - row.base
                self._complete(push, row, completed)
        elif isinstance(decision, Drop):
            row = self._open.get(decision.push)
            if row is not None:
                row.outcome, row.why, row.reason = "dropped", decision.why, decision.reason
                self._complete(decision.push, row, completed)

    def close(self, at: float) -> list[PushRow]:
        """Take in that the run has ended, and return the rows that are still open."""
        for worker, push in self._waiting.items():
            self._open[push].wait_s = max(0.0, at - self._open[push].pushed_at_s)
            assert push[0] == worker, f"{worker} waits after {push}"
        rows = list(self._open.values())
        self._open, self._waiting = {}, {}
        return rows

    def open_waits_s(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield worker and wait, in seconds up to now, of each push whose row is incomplete."""
        for push, row in self._open.items():
            yield (
                row.worker,
                now - row.pushed_at_s if self._waiting.get(row.worker) == push else row.wait_s,
            )

    def _group(self, worker: str) -> str:
        group = self._groups[worker] = WorkerId(worker).group
        return group

    def _row(self, event: Pushed, entry: Entry) -> PushRow:
        worker, at, report = event.worker, event.at, entry.report
        released_at, lead = self._released[worker]
        row = PushRow(
            worker=worker,
            group=self._groups.get(worker) or self._group(worker),
            clock=event.clock,
            samples=event.samples,
            loss=None,
            base=event.base,
            lead=lead,
            released_at_s=released_at,
            computed_at_s=at if event.computed_at is None else event.computed_at,
            pushed_at_s=at,
            busy_s=event.busy_s,
        )
        if report:
            row.loss, row.delay_ticks = report.get("loss"), report.get("delay_ticks")
            row.base = report.get("forward_version", event.base)
            row.released_at_s = released_at + report.get("held_back_s", 0.0)
            row.server_s = report.get("server_s", 0.0)
        return row

    def _waited(self, worker: str, at: float, completed: list[PushRow]) -> None:
        push = self._waiting.pop(worker, None)
        if push is not None:
            row = self._open[push]
            row.wait_s = at - row.pushed_at_s
            self._complete(push, row, completed)

    def _complete(self, push: Push, row: PushRow, completed: list[PushRow]) -> None:
        if row.outcome != "buffered" and self._waiting.get(push[0]) != push:
            completed.append(self._open.pop(push))
