"""The workers of a run: who joins, leaves in order, crashes, is lost, and comes back.

    joined      a worker is there, at the clock of the slowest member
    crashed     a fault of the experiment has taken it away; it comes back if the fault says so
    lost        its process or node is gone, or it is late; `rejoin` brings its next life, unless
                the topology cannot go on without it
    preempted   its node is about to be taken away: it leaves at its next release
    done        it has nothing left to do, and others would wait for it

What each means for the model is the machine's to decide; here it becomes an event, and a line of
the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from raysync.config import START_DEADLINE_S, Experiment
from raysync.core.decisions import Release
from raysync.core.events import Event, Joined, Left
from raysync.core.ids import WorkerId
from raysync.core.journal import Report
from raysync.emulation.faults import FaultPlan
from raysync.engine.backend import Backend
from raysync.engine.elastic import LEAVING, WHY
from raysync.engine.inflight import InFlight
from raysync.engine.lines import Lines
from raysync.engine.preemption import DRAINED, Preemptions
from raysync.engine.quorum import Quorum
from raysync.engine.rejoin import Comebacks, next_life_of
from raysync.engine.topology import Topology, roster_of

DONE = "its group has no batch left"
"""The reason with which a worker leaves that has nothing left to do."""


class Run(Protocol):
    """The driver, as far as the workers' coming and going needs it."""

    status: str
    """The way in which the training ended; "" until then."""
    lines: Lines

    def handle(self, event: Event, report: Report) -> None:
        """Pass an event on to the machine, and carry its decisions out."""

    def release(self, release: Release) -> None:
        """Let a worker begin its next iteration, if it may."""

    def drained(self) -> None:
        """End the run, since every worker has left with nothing left to do."""


class Membership:
    """The workers of one run, and those on their way into it."""

    def __init__(
        self,
        run: Run,
        backend: Backend,
        topology: Topology,
        experiment: Experiment,
        faults: FaultPlan,
        inflight: InFlight,
    ) -> None:
        """
        Args:
            run: handles events, and begins steps.
            backend: has the workers' processes.
            topology: has the rosters.
            experiment: says how often a worker is started anew, and how few are enough.
            faults: the faults of the run.
            inflight: the steps under way; the step of a worker that leaves is taken out.
        """
        self._run, self._backend, self._topology = run, backend, topology
        self._faults, self._inflight = faults, inflight
        self._has_faults = bool(experiment.faults)
        self._restarts = experiment.cluster.restarts
        self.comebacks = Comebacks(
            backend, self._restarts, START_DEADLINE_S, self.join, self._not_started, self._no_room
        )
        """The workers that are on their way."""
        self._quorum = Quorum(
            experiment.cluster.min_workers,
            backend,
            topology,
            self.comebacks,
            inflight,
            run.release,
            run.lines.remark,
        )
        self.preemptions = Preemptions(inflight, self._leave_in_order)
        self.lives: dict[str, str] = {}
        """Slot -> the worker that fills it now, or was the last to fill it."""
        self._leaving: set[str] = set()
        """The workers without an actor that are about to leave, as the run goes on without them."""
        self._stays_away: set[str] = set()
        """The slots of workers that do not come back: a fault has killed them for good, or they
        have nothing left to do."""

    @property
    def held_back(self) -> Mapping[str, Release]:
        """Worker -> its release that waits until enough workers are there."""
        return self._quorum.held_back

    def watch(self, since: float) -> None:
        """Plan the crashes that are due later than that, in seconds since the run began."""
        for index, crash in self._faults.crashes.items():
            if crash.at_s is not None and crash.at_s > since:
                self._backend.schedule(crash.at_s, self._crash, index)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs of them, JSON-native."""
        workers, joining = self._next_workers()
        return {
            "comebacks": self.comebacks.state(),
            "stays_away": sorted(self._stays_away),
            "lives": self.lives,
            "workers": workers,
            "joining": joining,
        }

    def _next_workers(self) -> tuple[dict[str, str], list[str]]:
        """Return slot -> the worker that fills it when the run is resumed, and those among them
        that then join: a resumed run has a process for every slot again.
        """
        workers, joining = {}, []
        slots = {str(WorkerId(worker).slot) for worker in self._topology.workers}
        for slot, worker in self.lives.items():
            if slot not in slots:
                continue  # the run was resumed without it
            if worker in roster_of(self._topology, worker).live or slot in self._stays_away:
                workers[slot] = worker
            elif coming := self.comebacks.next_life(slot):
                workers[slot] = coming
            else:
                workers[slot] = next_life_of(worker)
                joining.append(workers[slot])
        return workers, joining

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over, from what `state` returned, which worker fills which slot."""
        self.lives.update(state["lives"])
        self._stays_away.update(state["stays_away"])

    def plan_again(self) -> None:
        """Plan the kills of those that are there, and wait for others if too few are."""
        self._quorum.resume()
        for roster in self._topology.rosters if self._has_faults else ():
            for worker in roster.live:
                self._plan_kill(worker, self._backend.now)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Let those go, come and be on their way that `state` names, once the others go on."""
        self.comebacks.load_state(state["comebacks"])
        leaving = [
            worker
            for worker in state.get(LEAVING, ())
            if worker in roster_of(self._topology, worker).live
        ]
        self._leaving.update(leaving)
        for worker in leaving:
            if not self._run.status:
                self._leave(worker, Report(why=WHY))
        self._leaving.clear()
        for worker in state["joining"]:
            self.join(worker)
        if leaving:
            self._need_workers(f"the last was {leaving[-1]}: {WHY}")

    def fills_its_slot(self, worker: str) -> bool:
        """Say whether a worker fills its slot now, or was the last to fill it."""
        return self.lives.get(WorkerId(worker).slot) == worker

    def join(self, worker: str) -> None:
        """Let a worker join that is ready, unless the run is over."""
        if self._run.status:
            return
        self.lives[str(WorkerId(worker).slot)] = worker
        report = self.comebacks.joined(worker)
        if self._has_faults:
            # Those that begin the run are there from its first moment on.
            self._plan_kill(worker, self._backend.now if WorkerId(worker).life > 1 else -1.0)
        self._run.handle(Joined(at=self._backend.now, worker=worker), report)
        self._quorum.joined()

    def postpone(self, release: Release) -> bool:
        """Postpone an iteration that may not begin now, or let its worker leave in its place;
        return whether that was done.
        """
        worker = release.worker
        if self._leaving and worker in self._leaving:
            return True  # the others' leaving has released it
        if worker in self.preemptions.due:  # after the decisions in hand have been carried out
            now = roster_of(self._topology, worker).now
            self._backend.schedule(now, self._leave_in_order, worker)
            return True
        if self._quorum.is_waiting:
            self._quorum.hold_back(release)
            return True
        if self._has_faults:
            crash = self._faults.crash_at_clock(WorkerId(worker).slot.place, release.clock)
            if crash is not None:  # likewise
                now = roster_of(self._topology, worker).now
                self._backend.schedule(now, self._crash, crash)
                return True
        return False

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
        if not self._run.status and worker in roster_of(self._topology, worker).live:
            self._faults.took_effect(index)

    def _crash(self, index: int) -> None:
        if self._run.status:
            return
        crash = self._faults.crashes[index]
        [worker] = [
            life for life in self.lives.values() if WorkerId(life).slot.place == crash.worker
        ]
        if worker not in roster_of(self._topology, worker).live:
            return  # it has left already
        self._faults.took_effect(index)
        if crash.rejoin_after_s is not None:
            self.comebacks.plan(worker, crash.rejoin_after_s)
        else:
            self._stays_away.add(WorkerId(worker).slot)
        why = f"crashed: {self._faults.described(index)}"
        self._remove(worker, Report(why=why))
        self._need_workers(f"the last was {worker}: {why}")

    def _not_started(self, worker: str, why: str, again_in_s: float | None) -> None:
        what = f"{worker} did not start: {why}"
        then = (
            "the run goes on without it"
            if again_in_s is None
            else f"it is started anew in {again_in_s:g} s"
        )
        self._run.lines.remark(f"{what}; {then}.")
        self._need_workers(what)

    def _no_room(self, worker: str) -> None:
        self._run.lines.remark(
            f"{worker} waits for room: Ray has no place for it so far; it joins as soon as there is"
            " one."
        )

    def _leave_in_order(self, worker: str) -> None:
        if not self._run.status and worker in roster_of(self._topology, worker).live:
            self.lose(worker, DRAINED)

    def lose(self, worker: str, why: str) -> None:
        """Go on without a worker that was lost, until it is back.

        Raises:
            RunLost: the run cannot.
        """
        self._stays_away.discard(WorkerId(worker).slot)
        again_in_s = self.comebacks.restart(worker)
        self._remove(worker, Report(why=why, restart_in_s=again_in_s))
        if again_in_s is None and (attempts := self._restarts.attempts) and not self._run.status:
            text = (
                f"{WorkerId(worker).slot} was started anew {attempts} time{'s' * (attempts > 1)} in"
                " a row, and none of its pushes arrived; the run goes on without it."
            )
            self._run.lines.remark(text)
        self._need_workers(f"the last was {worker}: {why}")

    def _remove(self, worker: str, report: Report) -> None:
        """End a worker's actor, and let it leave."""
        self._backend.kill(worker)
        self._leave(worker, report)

    def _leave(self, worker: str, report: Report) -> None:
        """Let a worker leave that has no actor."""
        self._inflight.take_out(worker)
        self.comebacks.unproven.pop(worker, None)
        self._topology.left(worker, report.why)
        self._quorum.leaves(worker)
        self._run.handle(Left(at=self._backend.now, worker=worker), report)

    def _need_workers(self, last: str) -> None:
        if not self._run.status:
            self._quorum.check(last)

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
        if not self._run.status and not any(roster.live for roster in topology.rosters):
            self._run.drained()
