"""The members of a run: who is there, who is leaving, and who is away and comes back.

    joined       a worker is there, at the clock of the slowest member
    crashed      a fault of the experiment has taken it away; if the fault says so it comes back:
                 its next life starts at once, and joins when it is due
    lost         its process or node is gone, or it is late; its next life starts after a back-off
                 (`cluster.restarts`), and joins as soon as it is ready, unless the topology cannot
                 go on without it
    drained      its node is about to be taken away, as a cloud announces of a spot machine: it ends
                 its step, whose push counts, and leaves at its next release; like one that was lost
                 it comes back as soon as there is room elsewhere
    done         it has nothing left to do, and others would wait for it

What each means for the model is the machine's to decide; here it becomes an event, and a line of
the journal.

Each attempt to start a worker is a life of its own, also one that fails, so no two of them are ever
taken for each other. What counts as a failed attempt is a worker that does not start, or is lost
before its first push has arrived. Not so one whose node goes while it starts: it starts elsewhere,
and if there is no room for it, waits as long as it takes, until a node is added or becomes free.

While fewer are there than `cluster.min_workers`, and enough are on their way back, the run waits
for them: everything is decided as always, and the journal has it; only the calls of the releases
are held back. Steps that were under way end, and their pushes count. Once there are enough workers
again the releases are carried out in their order, on the weights that are published then: a release
names the oldest version that its worker may read. The seconds for which one was held back are in
the report of its push; neither the deadline of a step nor its duration counts them. If too few are
on their way the run has failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from raysync.config import START_DEADLINE_S, Experiment
from raysync.core.decisions import Release
from raysync.core.events import Event, Joined, Left
from raysync.core.ids import WorkerId
from raysync.core.journal import NO_REPORT, Report
from raysync.emulation.fault_plan import FaultPlan
from raysync.engine.backend import Backend, Call, Failure
from raysync.engine.checkpoint_state import LEAVING, WHY
from raysync.engine.inflight import InFlight
from raysync.engine.lines import Lines
from raysync.engine.topology import Topology, roster_of
from raysync.errors import RunFailed

DONE = "its group has no batch left"
"""The reason with which a worker leaves that has nothing left to do."""
DRAINED = "its node is drained: preemption"
"""The reason with which a worker leaves whose node will be taken away."""
LOOK_AGAIN_S = 1.0
"""The seconds between two looks for room."""


class Run(Protocol):
    """The driver, as far as the workers' coming and going needs it."""

    backend: Backend
    topology: Topology
    faults: FaultPlan
    inflight: InFlight
    lines: Lines
    status: str
    """The way in which the training ended; "" until then."""

    def handle(self, event: Event, report: Report) -> None:
        """Pass an event on to the machine, and carry its decisions out."""

    def release(self, release: Release) -> None:
        """Let a worker begin its next iteration, if it may."""

    def drained(self) -> None:
        """End the run, since every worker has left with nothing left to do."""


@dataclass(slots=True, eq=False)
class Rejoin:
    """A worker on its way into the run, in the place of one that is gone."""

    worker: str
    gone_at: float
    """Seconds since the run began: when the slot became empty."""
    attempt: int
    """The number of this attempt in a row; 0: it was planned."""
    due_at: float
    """Seconds since the run began: it joins no sooner, however soon it is ready."""
    call: Call | None = None
    """Done when the worker is ready; None while its start is still to come."""
    is_told: bool = False
    """Whether the journal says already that it waits for room."""

    def again(self, attempt: int) -> Rejoin:
        """Return the way of the slot's next life."""
        return Rejoin(_next_life(self.worker), self.gone_at, attempt, self.due_at)


class Members:
    """The workers of one run, and those on their way into it."""

    def __init__(self, run: Run, experiment: Experiment) -> None:
        """
        Args:
            run: handles events, and begins steps.
            experiment: says how often a worker is started anew, and how few are enough.
        """
        self._run, self._backend, self._topology = run, run.backend, run.topology
        self._faults, self._inflight, self._lines = run.faults, run.inflight, run.lines
        self._has_faults = bool(experiment.faults)
        self._kept = " and ".join(experiment.kept_by_workers if experiment.trains else ())
        """What is lost with the process of a worker, in words."""
        self._restarts = experiment.cluster.restarts
        self._min_workers = experiment.cluster.min_workers
        self._lives: dict[str, str] = {}
        """Slot -> the worker that fills it now, or was the last to fill it."""
        self.coming: dict[str, Rejoin] = {}
        """Worker -> its way into the run."""
        self.unproven: dict[str, int] = {}
        """Member that was restarted, and has not pushed yet -> the attempts in a row so far."""
        self._drained: set[str] = set()
        """The workers that begin no further step, since their nodes will be taken away."""
        self._leaving: set[str] = set()
        """The workers without an actor that are about to leave, as the run goes on without them."""
        self._stays_away: set[str] = set()
        """The slots of workers that do not come back: a fault has killed them for good, or they
        have nothing left to do."""
        self._waits_since: float | None = None
        """When the run began to wait for workers, in seconds since it began; None: it does not."""
        self._is_told = False
        """Whether the journal says already that the run waits."""
        self._held_back: dict[str, tuple[Release, float]] = {}
        """Worker -> its release, and when that was decided, in the order of the decisions."""

    # ---- the journal's and checkpoints' view ----

    @property
    def held_back(self) -> Mapping[str, Release]:
        """Worker -> its release that waits until enough workers are there."""
        return {worker: release for worker, (release, _) in self._held_back.items()}

    def fills_its_slot(self, worker: str) -> bool:
        """Say whether a worker fills its slot now, or was the last to fill it."""
        return self._lives.get(WorkerId(worker).slot) == worker

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs of them, JSON-native."""
        workers, joining = self._next_workers()
        coming = [
            [each.worker, each.gone_at, each.attempt, each.due_at] for each in self.coming.values()
        ]
        return {
            "comebacks": {"coming": coming, "unproven": self.unproven},
            "stays_away": sorted(self._stays_away),
            "lives": self._lives,
            "workers": workers,
            "joining": joining,
        }

    def _next_workers(self) -> tuple[dict[str, str], list[str]]:
        """Return slot -> the worker that fills it when the run is resumed, and those among them
        that then join: a resumed run has a process for every slot again.
        """
        workers, joining = {}, []
        slots = {str(WorkerId(worker).slot) for worker in self._topology.workers}
        coming = {str(WorkerId(worker).slot): worker for worker in self.coming}
        for slot, worker in self._lives.items():
            if slot not in slots:
                continue  # the run was resumed without it
            if self._is_there(worker) or slot in self._stays_away:
                workers[slot] = worker
            elif slot in coming:
                workers[slot] = coming[slot]
            else:
                workers[slot] = _next_life(worker)
                joining.append(workers[slot])
        return workers, joining

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over, from what `state` returned, which worker fills which slot; plan the kills of
        those that are there, and wait for others if too few are.
        """
        self._lives.update(state["lives"])
        self._stays_away.update(state["stays_away"])
        now = self._backend.now
        if self._there < self._min_workers:
            self._waits_since = now
        for roster in self._topology.rosters if self._has_faults else ():
            for worker in roster.live:
                self._plan_kill(worker, now)

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Let those go, come and be on their way that `state` names, once the others go on.

        The processes of a resumed run are new, so all are ready: a worker whose rejoining was
        planned joins when it is due, any other at once.
        """
        self.unproven.update(state["comebacks"]["unproven"])
        for worker, gone_at, attempt, due_at in state["comebacks"]["coming"]:
            self._expect(Rejoin(worker, gone_at, attempt, due_at))
            self._backend.schedule(max(due_at, self._backend.now), self.join, worker)
        leaving = list(filter(self._is_there, state.get(LEAVING, ())))
        self._leaving.update(leaving)
        for worker in leaving:
            if not self._run.status:
                self._leave(worker, Report(why=WHY))
        self._leaving.clear()
        for worker in state["joining"]:
            self.join(worker)
        if leaving:
            self._need_workers(f"the last was {leaving[-1]}: {WHY}")

    # ---- who is there ----

    def _is_there(self, worker: str) -> bool:
        return worker in roster_of(self._topology, worker).live

    @property
    def _there(self) -> int:
        return sum(len(roster.live) for roster in self._topology.rosters)

    def join(self, worker: str) -> None:
        """Let a worker join that is ready, unless the run is over."""
        if self._run.status:
            return
        self._lives[str(WorkerId(worker).slot)] = worker
        report, now = NO_REPORT, self._backend.now
        rejoin = self.coming.pop(worker, None)
        if rejoin is not None and rejoin.attempt:
            self.unproven[worker] = rejoin.attempt
            report = Report(away_s=now - rejoin.gone_at)
        if self._has_faults:
            # Those that begin the run are there from its first moment on.
            self._plan_kill(worker, now if WorkerId(worker).life > 1 else -1.0)
        if self._kept and WorkerId(worker).life > 1:
            self._lines.remark(f"{worker} begins without {self._kept}: its process had that.")
        self._run.handle(Joined(at=now, worker=worker), report)
        self._resume_releases()

    def postpone(self, release: Release) -> bool:
        """Postpone an iteration that may not begin now, or let its worker leave in its place;
        return whether that was done.
        """
        worker = release.worker
        if self._leaving and worker in self._leaving:
            return True  # the others' leaving has released it
        if worker in self._drained:  # after the decisions in hand have been carried out
            now = roster_of(self._topology, worker).now
            self._backend.schedule(now, self._leave_in_order, worker)
            return True
        if self._waits_since is not None:
            self._held_back[worker] = release, self._backend.now
            return True
        if self._has_faults:
            crash = self._faults.crash_at_clock(WorkerId(worker).slot.place, release.clock)
            if crash is not None:  # likewise
                now = roster_of(self._topology, worker).now
                self._backend.schedule(now, self._crash, crash)
                return True
        return False

    # ---- who leaves ----

    def watch(self, since: float) -> None:
        """Plan the crashes that are due later than that, in seconds since the run began."""
        for index, crash in self._faults.crashes.items():
            if crash.at_s is not None and crash.at_s > since:
                self._backend.schedule(crash.at_s, self._crash, index)

    def _plan_kill(self, worker: str, since: float) -> None:
        """Let the process of a worker that is there since that moment die at the next kill after
        it, if there is one.
        """
        kill = self._faults.next_kill(WorkerId(worker).slot.place, since)
        if kill is not None:
            at, index = kill
            self._backend.schedule(at, self._kill_strikes, (worker, index))
            self._backend.end_at(worker, at)

    def _kill_strikes(self, victim: tuple[str, int]) -> None:
        worker, index = victim
        if not self._run.status and self._is_there(worker):
            self._faults.took_effect(index)

    def _crash(self, index: int) -> None:
        if self._run.status:
            return
        crash = self._faults.crashes[index]
        [worker] = [
            life for life in self._lives.values() if WorkerId(life).slot.place == crash.worker
        ]
        if not self._is_there(worker):
            return  # it has left already
        self._faults.took_effect(index)
        if crash.rejoin_after_s is None:
            self._stays_away.add(WorkerId(worker).slot)
        else:  # at once, since a process takes seconds to start
            now = self._backend.now
            due_at = now + crash.rejoin_after_s
            self._start(self._expect(Rejoin(_next_life(worker), now, 0, due_at)))
        why = f"crashed: {self._faults.described(index)}"
        self._remove(worker, Report(why=why))
        self._need_workers(f"the last was {worker}: {why}")

    def drain(self, worker: str) -> None:
        """Take in that the node of a worker will be taken away; it may not have joined yet."""
        self._drained.add(worker)
        if worker not in self._inflight.workers:
            self._leave_in_order(worker)

    def _leave_in_order(self, worker: str) -> None:
        if not self._run.status and self._is_there(worker):
            self.lose(worker, DRAINED)

    def lose(self, worker: str, why: str) -> None:
        """Go on without a worker that was lost, until it is back.

        Raises:
            RunLost: the run cannot.
        """
        slot, now = WorkerId(worker).slot, self._backend.now
        self._stays_away.discard(slot)
        again_in_s = self._retry(Rejoin(worker, now, self.unproven.get(worker, 0), now))
        self._remove(worker, Report(why=why, restart_in_s=again_in_s))
        if again_in_s is None and (attempts := self._restarts.attempts) and not self._run.status:
            self._lines.remark(
                f"{slot} was started anew {attempts} time{'s' * (attempts > 1)} in a row, and none"
                " of its pushes arrived; the run goes on without it."
            )
        self._need_workers(f"the last was {worker}: {why}")

    def _remove(self, worker: str, report: Report) -> None:
        """End a worker's actor, and let it leave."""
        self._backend.kill(worker)
        self._leave(worker, report)

    def _leave(self, worker: str, report: Report) -> None:
        """Let a worker leave that has no actor. What is decided at that moment is held back, too,
        if too few remain.
        """
        self._inflight.take_out(worker)
        self.unproven.pop(worker, None)
        self._topology.left(worker, report.why)
        self._held_back.pop(worker, None)
        if self._there - 1 < self._min_workers > 1 and self._waits_since is None:
            self._waits_since, self._is_told = self._backend.now, False
        self._run.handle(Left(at=self._backend.now, worker=worker), report)

    def dismiss(self) -> None:
        """Let the stages of pipelines leave that have nothing left to do: others would wait for
        them.
        """
        topology = self._topology
        if not topology.is_pipelined:
            return
        while not self._run.status and (leavers := topology.leavers(self._inflight.workers)):
            for worker in leavers:
                self._stays_away.add(WorkerId(worker).slot)
                left = Left(at=self._backend.now, worker=worker)
                self._run.handle(left, Report(why=DONE, done=True))
        if not self._run.status and not self._there:
            self._run.drained()

    # ---- who comes back ----

    def _expect(self, rejoin: Rejoin) -> Rejoin:
        self.coming[rejoin.worker] = rejoin
        return rejoin

    def _is_expected(self, rejoin: Rejoin) -> bool:
        return self.coming.get(rejoin.worker) is rejoin

    def expect_nobody(self) -> None:
        """Expect none of those any more that are on their way: the run is over."""
        self.coming.clear()

    def _retry(self, failed: Rejoin) -> float | None:
        """Start the slot's next life after a back-off.

        Returns:
            The seconds until then; None: there have been enough attempts.
        """
        if failed.attempt >= self._restarts.attempts:
            return None
        wait_s = self._restarts.wait_s(failed.attempt)
        following = self._expect(failed.again(failed.attempt + 1))
        self._backend.schedule(self._backend.now + wait_s, self._start, following)
        return wait_s

    def _start(self, rejoin: Rejoin) -> None:
        """Start a worker as soon as there is room for it."""
        if not self._is_expected(rejoin):
            return
        if self._backend.room(rejoin.worker) != "free":
            self._tell_of_room(rejoin)
            self._backend.schedule(self._backend.now + LOOK_AGAIN_S, self._start, rejoin)
            return
        rejoin.call = self._backend.spawn(rejoin.worker)
        self._backend.watch(rejoin.call, self._started, rejoin)
        self._await_start(rejoin)

    def _await_start(self, rejoin: Rejoin) -> None:
        self._backend.schedule(self._backend.now + START_DEADLINE_S, self._miss_deadline, rejoin)

    def _tell_of_room(self, rejoin: Rejoin) -> bool:
        """Return whether a worker waits for room, and tell it the first time."""
        if self._backend.room(rejoin.worker) != "none":
            return False
        if not rejoin.is_told:
            rejoin.is_told = True
            self._lines.remark(
                f"{rejoin.worker} waits for room: Ray has no place for it so far; it joins as soon"
                " as there is one."
            )
        return True

    def _started(self, rejoin: Rejoin) -> None:
        if not self._is_expected(rejoin):
            return
        assert rejoin.call is not None, "ready before its start"
        answer = rejoin.call.answer
        if isinstance(answer, Failure) and answer.with_node:
            self._give_up(rejoin)
            elsewhere = self._expect(rejoin.again(rejoin.attempt))
            elsewhere.is_told = rejoin.is_told
            self._start(elsewhere)
        elif isinstance(answer, Failure):
            self._fail(rejoin, answer.reason)
        else:
            at = max(rejoin.due_at, self._backend.now)
            self._backend.schedule(at, self.join, rejoin.worker)

    def _miss_deadline(self, rejoin: Rejoin) -> None:
        if not self._is_expected(rejoin) or self._backend.is_done(rejoin.call):
            return
        if self._tell_of_room(rejoin):  # its node went while it started: it does so elsewhere
            self._await_start(rejoin)
        else:
            self._fail(rejoin, f"not ready after {START_DEADLINE_S:g} s")

    def _give_up(self, rejoin: Rejoin) -> None:
        self._backend.kill(rejoin.worker)
        del self.coming[rejoin.worker]

    def _fail(self, rejoin: Rejoin, why: str) -> None:
        self._give_up(rejoin)
        again_in_s = self._retry(rejoin)
        what = f"{rejoin.worker} did not start: {why}"
        then = (
            "the run goes on without it"
            if again_in_s is None
            else f"it is started anew in {again_in_s:g} s"
        )
        self._lines.remark(f"{what}; {then}.")
        self._need_workers(what)

    # ---- whether they are enough ----

    def _need_workers(self, last: str) -> None:
        """Check that enough workers are there or on their way.

        Args:
            last: which worker was lost last, and why.

        Raises:
            RunFailed: there are too few.
        """
        if self._run.status:
            return
        there, coming, least = self._there, len(self.coming), self._min_workers
        numbers = f"{coming} on the way back, and cluster.min_workers is {least}"
        if there + coming < least:
            too_few = f"too few workers: {there} there and {numbers}"
            raise RunFailed(f"{too_few if least > 1 else 'every worker is gone'}; {last}")
        if self._waits_since is not None and not self._is_told:
            self._is_told = True
            self._lines.remark(f"The run waits: {_counted(there)} there and {numbers}.")

    def _resume_releases(self) -> None:
        """Let the run go on if there are enough workers again."""
        there, since = self._there, self._waits_since
        if since is None or there < self._min_workers:
            return
        now = self._backend.now
        self._lines.remark(f"The run goes on: {_counted(there)} there, after {now - since:.3g} s.")
        held_back, self._held_back = self._held_back, {}
        self._waits_since = None
        for worker, (release, decided_at) in held_back.items():
            if release.pull:  # what is published now
                published = roster_of(self._topology, worker).published
                release = replace(release, version=published)
            self._run.release(release)
            if (step := self._inflight.of_worker(worker)) is not None:
                step.report = replace(step.report, held_back_s=now - decided_at)


def _counted(workers: int) -> str:
    return f"{workers} worker{'s are' if workers != 1 else ' is'}"


def _next_life(worker: str) -> str:
    return str(WorkerId(worker).next_life)
