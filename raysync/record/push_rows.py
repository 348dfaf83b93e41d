"""Turn the journal's lines into one row for each push: the contents of `pushes.parquet`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from typing import Any, get_type_hints

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from raysync.core.decisions import Apply, Drop, Push, Release, Switch
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.ids import WorkerId, split_timer
from raysync.core.journal import Entry, Report
from raysync.core.roster import Roster


class PushRow(Struct, gc=False):
    """One push, filled in as it becomes known. Times are seconds since the run began."""

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


Columns = Mapping[str, Any]
"""Name of a field of `PushRow` -> its values, (rows,): a NumPy vector where `VECTORS` has the name,
else a tuple."""
VECTORS = {name: hint for name, hint in get_type_hints(PushRow).items() if hint in (int, float)}
"""Name of a numeric field that is never None -> its type."""


def columns_of(rows: Sequence[PushRow]) -> dict[str, Any]:
    """Return rows as columns, as `Columns` has them, in the order of `PushRow`."""
    names = PushRow.__struct_fields__
    transposed = zip(*map(astuple, rows), strict=True) if rows else [()] * len(names)
    columns = dict[str, Any](zip(names, transposed, strict=True))
    for name, kind in VECTORS.items():
        columns[name] = np.array(columns[name], kind)
    return columns


@dataclass(slots=True)
class _Worker:
    """What is known of a worker, for the rows of its further pushes."""

    group: str
    released_at: float | None = None
    """The time of its latest release; None before the first."""
    lead: int = 0
    """Its lead then."""
    waiting: PushRow | None = None
    """The row of its latest push, while it waits."""
    is_live: bool = True
    """Whether it has not left."""


class PushRows:
    """Joins events and decisions into rows. A row is complete when its outcome and its wait are
    known.

    A roster follows the journal, without a paradigm, so that clocks, versions and leads are those
    of the machine; a decoupled run has a roster for each stage. Memory is bounded by the workers
    that have ever joined and the buffered pushes. While a run goes on in this process, its
    machine's own roster is there already.
    """

    def __init__(self, workload_samples: int | None = None, roster: Roster | None = None) -> None:
        """
        Args:
            workload_samples: the first update that reaches it ends the run; decisions after it
                were not executed.
            roster: that of the machine whose decisions come, of workers that hold the whole
                network; it has executed them. None: one of its own executes them.
        """
        self.workload_samples = workload_samples
        self._workload = inf if workload_samples is None else workload_samples
        self.rosters: dict[int, Roster] = {} if roster is None else {0: roster}
        """Stage -> its roster; 0 stands for workers that hold the whole network."""
        self._follows = roster is None
        """Whether the rosters are its own."""
        self.updates = self.samples = 0
        """Updates of the network so far, and the samples in them."""
        self.updated_at = 0.0
        """The time of the latest of them."""
        self.roster = roster or Roster(workload_samples)
        """The roster that shows the progress of the network: the only one, or the last stage's."""
        self.begun: list[tuple[str, float]] = []
        """The workers that were released for the first time, each with the time; for the reader to
        take."""
        self.switches: list[tuple[float, Switch]] = []
        """The switches, each with its time; likewise."""
        self.lead_max = 0
        """The largest lead at a Release, in clocks, over the slowest worker that takes part."""
        self._is_staged = False
        """Whether workers have stages of the network."""
        self._workers: dict[str, _Worker] = {}
        """The workers that have joined, also those that have left."""
        self._open: dict[Push, PushRow] = {}
        """Push -> its row, while that is incomplete."""

    def take(self, entry: Entry, completed: list[PushRow]) -> None:
        """Take in one line, and append the rows that it completes."""
        event, follows, workers = entry.event, self._follows, self._workers
        roster = self.rosters.get(0) or self._roster_of(event)
        at = event.at
        if follows:
            self._follow(event, roster)
        if isinstance(event, Pushed):
            state = workers[event.worker]
            row = _row_of(event, entry.report, state)
            self._open[event.worker, event.clock] = row
            if state.is_live:
                state.waiting = row
        elif isinstance(event, Joined):
            workers[event.worker] = _Worker(WorkerId(event.worker).group)
        elif isinstance(event, Left):
            state = workers[event.worker]
            state.is_live = False
            if state.waiting is not None:
                self._waited(state, at, completed)
        for decision in entry.decisions:
            if follows:
                decision = roster.execute(decision)
            if isinstance(decision, Release):
                state, lead = workers[decision.worker], decision.lead
                if state.waiting is not None:
                    self._waited(state, at, completed)
                elif state.released_at is None:
                    self.begun.append((decision.worker, at))
                state.released_at, state.lead = at, lead
                if lead > self.lead_max:
                    self.lead_max = lead
            elif isinstance(decision, Apply):
                samples = self._applied(decision, at, completed)
                if roster is self.roster:
                    self.updates, self.updated_at = decision.version, at
                    self.samples = roster.samples_applied if follows else samples
                if not self._is_staged and self.samples >= self._workload:
                    break  # a decoupled run goes on until the pipelines have drained
            elif isinstance(decision, Drop):
                self._dropped(decision, completed)
            elif isinstance(decision, Switch):
                self.switches.append((at, decision))

    def _follow(self, event: Event, roster: Roster) -> None:
        roster.now = event.at
        if isinstance(event, Pushed):
            roster.push(event)
        elif isinstance(event, Joined):
            roster.join(event.worker)
        elif isinstance(event, Left):
            roster.leave(event.worker)

    def _applied(self, decision: Apply, at: float, completed: list[PushRow]) -> int:
        """Take in an update; return the samples in the updates so far."""
        opened, version, samples = self._open, decision.version, decision.samples_before
        for push in decision.pushes:
            row = opened.get(push)
            if row is None:
                continue  # of before `begin_behind`
            row.outcome, row.version, row.applied_at_s = "applied", version, at
            row.staleness = version - 1 - row.base
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

    def _waited(self, state: _Worker, at: float, completed: list[PushRow]) -> None:
        """Take in that a worker no longer waits behind its latest push."""
        row, state.waiting = state.waiting, None
        assert row is not None, "it does not wait"
        row.wait_s = at - row.pushed_at_s
        if row.outcome != "buffered":
            del self._open[row.worker, row.clock]
            completed.append(row)

    def resume(self, at: float) -> None:
        """Take in that the run goes on from a checkpoint: the iterations that were under way are
        computed again, and begin then.
        """
        for roster in self.rosters.values():
            roster.now = at
            roster.resume()
            for worker in (*roster.computing, *roster.outdated):
                self._workers[worker].released_at = at

    def begin_behind(self, rosters: Mapping[int, Roster], at: float) -> None:
        """Follow a journal from a resumption on, without the lines before it. Pushes that had
        arrived before have no rows.

        Args:
            rosters: stage -> its roster at the cut; 0 stands for workers that hold the whole
                network.
            at: the time of the resumption.
        """
        for stage, roster in rosters.items():
            self.rosters[stage] = Roster.load(deepcopy(roster.dump()))
            self.roster = self.rosters[max(self.rosters)]
            for worker in roster.live:
                lead = roster.lead(worker) if worker in roster.members else 0
                self._workers[worker] = _Worker(WorkerId(worker).group, at, lead)
        self.updates, self.samples = self.roster.version, self.roster.samples_applied
        self.updated_at = at
        self.resume(at)

    def _roster_of(self, event: Event) -> Roster:
        """Return the roster that an event belongs to, where there is none of the whole network."""
        if isinstance(event, TimerFired):
            stage = split_timer(event.key)[0] if self.rosters else 0
        else:
            stage = WorkerId(event.worker).stage
        self._is_staged = stage > 0
        if stage not in self.rosters:
            self.rosters[stage] = Roster(self.workload_samples)
            self.roster = self.rosters[max(self.rosters)]
        return self.rosters[stage]

    def close(self, at: float) -> list[PushRow]:
        """Take in that the run has ended, and return the rows that are still open."""
        rows = list(self._open.values())
        for row in rows:
            state = self._workers[row.worker]
            if state.waiting is row:
                row.wait_s = max(0.0, at - row.pushed_at_s)
                state.waiting = None
        self._open = {}
        return rows

    def open_waits_s(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield worker and wait, in seconds up to now, of each push whose row is incomplete."""
        for (worker, _), row in self._open.items():
            waits = self._workers[worker].waiting is row
            yield worker, now - row.pushed_at_s if waits else row.wait_s


def _row_of(event: Pushed, report: Report, state: _Worker) -> PushRow:
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
    )
