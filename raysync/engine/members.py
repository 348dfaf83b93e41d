"""The members of a run: workers join, crash, are lost, are drained, are done, and rejoin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raysync.config import START_DEADLINE_S, Experiment
from raysync.core.decisions import Release
from raysync.core.events import Joined, Left
from raysync.core.ids import WorkerId
from raysync.core.journal import NO_REPORT, Report
from raysync.engine.backend import Call, Failure
from raysync.engine.checkpoint_state import LEAVING, OTHER_WORKERS
from raysync.engine.topology import roster_of
from raysync.errors import RunFailed

if TYPE_CHECKING:
    from raysync.engine.driver import Driver

# crashed   by a fault; if the fault says so, its next life starts at once, and joins when due
# lost      its process or node is gone, or it is late; its next life starts after a back-off
#           (`cluster.restarts`) and joins when ready, unless the topology needs the lost one
# drained   its node is about to be taken away (a spot machine's preemption): its running step ends
#           and counts, and it leaves at its next release; then like a lost one
# done      no work remains for it, and others would wait for it
#
# The machine decides what each means for the model; here it becomes an event and a journal line.
#
# Each attempt to start a worker is a life of its own, so no two are confused. An attempt fails if
# the worker does not start, or is lost before its first push has arrived. A worker whose node goes
# while it starts has not failed: it starts elsewhere, and waits for resources as long as it takes.
#
# While fewer than `cluster.min_workers` are there, and enough are on their way back, the run waits:
# decisions go on and are in the journal, but the calls of releases are held back. Running steps
# end, and their pushes count. Then the releases follow in order, on the weights published by then
# (a release names the oldest version that its worker may read). The seconds held back are in the
# push's report, and count neither as duration nor towards a deadline.

NO_BATCH_LEFT = "its group has no batch left"
DRAINED = "its node is drained: preemption"
LOOK_AGAIN_S = 1.0  # between two looks for room


@dataclass(slots=True, eq=False)
class Rejoin:
    """A slot's next worker on its way into the run."""

    worker: str
    gone_at: float  # when the slot became empty, in seconds since the run began
    attempt: int  # in a row; 0: a planned return
    due_at: float  # it joins no sooner
    call: Call | None = None  # done when the worker is ready; None before its start
    is_remarked: bool = False  # the journal says that it waits for resources


class Members:
    """The workers of one run, and those on their way into it."""

    def __init__(self, run: Driver, experiment: Experiment) -> None:
        self._run, self._backend, self._topology = run, run.backend, run.topology
        self._processes = run.backend.processes
        self._faults, self._inflight, self._lines = run.faults, run.inflight, run.lines
        self._has_faults = bool(experiment.faults)
        # lost with a worker's process, in words
        self._own_state = " and ".join(experiment.worker_state if experiment.trains else ())
        self._restarts = experiment.cluster.restarts
        self._min_workers = experiment.cluster.min_workers
        self._lives: dict[str, str] = {}  # slot -> its present or latest worker
        self.coming: dict[str, Rejoin] = {}  # slots' next workers, by id
        # restarted worker without a push so far -> the attempts in a row
        self.unproven: dict[str, int] = {}
        self._drained: set[str] = set()  # they begin no further step
        self._killed: set[str] = set()  # by a fault of the experiment
        # without an actor, about to leave as the run resumes without their slots
        self._leaving: set[str] = set()
        # slots without a return: killed for good, or without work
        self._stays_away: set[str] = set()
        # when the run began to wait for workers; None: it does not
        self._waits_since: float | None = None
        self._wait_is_remarked = False  # the journal says that the run waits
        # worker -> its release, and when it was decided, in order
        self._held_back: dict[str, tuple[Release, float]] = {}

    # ---- the journal's and checkpoints' view ----

    @property
    def held_back(self) -> Mapping[str, Release]:
        """Worker -> its release that waits for enough workers."""
        return {worker: release for worker, (release, _) in self._held_back.items()}

    def fills_its_slot(self, worker: str) -> bool:
        """Return whether a worker is its slot's present or latest one."""
        return self._lives.get(WorkerId(worker).slot) == worker

    def state(self) -> dict[str, Any]:
        workers, joining = self._next_workers()
        coming = [
            [rejoin.worker, rejoin.gone_at, rejoin.attempt, rejoin.due_at]
            for rejoin in self.coming.values()
        ]
        return {
            "comebacks": {"coming": coming, "unproven": self.unproven},
            "stays_away": sorted(self._stays_away),
            "lives": self._lives,
            "workers": workers,
            "joining": joining,
        }

    def _next_workers(self) -> tuple[dict[str, str], list[str]]:
        """Return each slot's worker after a resumption, and the workers that then join.

        A resumed run has a process for every slot again.
        """
        workers, joining = {}, []
        slots = {str(WorkerId(worker).slot) for worker in self._topology.workers}
        coming = {str(WorkerId(worker).slot): worker for worker in self.coming}
        for slot, worker in self._lives.items():
            if slot not in slots:
                continue  # the run was resumed without it
            if self._is_live(worker) or slot in self._stays_away:
                workers[slot] = worker
            elif slot in coming:
                workers[slot] = coming[slot]
            else:
                workers[slot] = _next_life(worker)
                joining.append(workers[slot])
        return workers, joining

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore slots' workers; schedule kills of live workers; wait for a quorum if needed."""
        self._lives.update(state["lives"])
        self._stays_away.update(state["stays_away"])
        now = self._backend.now
        if self._live_count < self._min_workers:
            self._waits_since = now
        for roster in self._topology.rosters if self._has_faults else ():
            for worker in roster.live:
                self._schedule_kill(worker, now)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Resume the leaving, joining and rejoining of workers, after the others' releases."""
        # The processes of a resumed run are new, so all are ready: a planned rejoining happens when
        # due, any other at once.
        self.unproven.update(state["comebacks"]["unproven"])
        for worker, gone_at, attempt, due_at in state["comebacks"]["coming"]:
            self._expect(Rejoin(worker, gone_at, attempt, due_at))
            self._backend.schedule(max(due_at, self._backend.now), self.join, worker)
        leaving = list(filter(self._is_live, state.get(LEAVING, ())))
        self._leaving.update(leaving)
        for worker in leaving:
            if not self._run.status:
                self._leave(worker, Report(why=OTHER_WORKERS))
        self._leaving.clear()
        for worker in state["joining"]:
            self.join(worker)
        if leaving:
            self._need_workers(f"the last was {leaving[-1]}: {OTHER_WORKERS}")

    # ---- who is there ----

    def _is_live(self, worker: str) -> bool:
        return worker in roster_of(self._topology, worker).live

    @property
    def _live_count(self) -> int:
        return sum(len(roster.live) for roster in self._topology.rosters)

    def join(self, worker: str) -> None:
        """Let a ready worker join, unless the run is over."""
        if self._run.status:
            return
        self._lives[str(WorkerId(worker).slot)] = worker
        report, now = NO_REPORT, self._backend.now
        rejoin = self.coming.pop(worker, None)
        if rejoin is not None and rejoin.attempt:
            self.unproven[worker] = rejoin.attempt
            report = Report(away_s=now - rejoin.gone_at)
        if self._has_faults:
            # The first workers are there from the run's first moment on.
            self._schedule_kill(worker, now if WorkerId(worker).life > 1 else -1.0)
        if self._own_state and WorkerId(worker).life > 1:
            self._lines.remark(
                f"{worker} begins without {self._own_state}, which the old process held."
            )
        self._run.handle(Joined(at=now, worker=worker), report)
        self._resume_releases()

    def postpone(self, release: Release) -> bool:
        """Hold a release back, or let its drained worker leave; return whether either happened."""
        worker = release.worker
        if self._leaving and worker in self._leaving:
            return True  # released by the leaving of others
        if worker in self._drained:  # after the decisions in hand have been carried out
            now = roster_of(self._topology, worker).now
            self._backend.schedule(now, self._leave_drained, worker)
            return True
        if self._waits_since is not None:
            self._held_back[worker] = release, self._backend.now
            return True
        if self._has_faults:
            crash = self._faults.pop_crash(WorkerId(worker).slot.place, release.clock)
            if crash is not None:  # after the decisions in hand, too
                now = roster_of(self._topology, worker).now
                self._backend.schedule(now, self._crash, crash)
                return True
        return False

    # ---- who leaves ----

    def schedule_crashes(self, since: float) -> None:
        """Schedule the crashes that are due after that time."""
        for index, crash in self._faults.crashes.items():
            if crash.at_s is not None and crash.at_s > since:
                self._backend.schedule(crash.at_s, self._crash, index)

    def _schedule_kill(self, worker: str, since: float) -> None:
        """Schedule the death of a worker's process at its next kill."""
        kill = self._faults.next_kill(WorkerId(worker).slot.place, since)
        if kill is not None:
            at, index = kill
            self._backend.schedule(at, self._note_kill, (worker, index))
            self._processes.end_at(worker, at)

    def _note_kill(self, victim: tuple[str, int]) -> None:
        """Note that a kill took effect, unless its victim had left before."""
        worker, index = victim
        if not self._run.status and self._is_live(worker):
            self._faults.mark_effective(index)
            self._killed.add(worker)

    def _crash(self, index: int) -> None:
        if self._run.status:
            return
        crash = self._faults.crashes[index]
        [worker] = [
            life for life in self._lives.values() if WorkerId(life).slot.place == crash.worker
        ]
        if not self._is_live(worker):
            return  # it has left already
        self._faults.mark_effective(index)
        if crash.rejoin_after_s is None:
            self._stays_away.add(WorkerId(worker).slot)
        else:  # it starts at once, since that takes seconds
            now = self._backend.now
            due_at = now + crash.rejoin_after_s
            self._start(self._expect(Rejoin(_next_life(worker), now, 0, due_at)))
        why = f"crashed: {self._faults.description(index)}"
        self._remove(worker, Report(why=why))
        self._need_workers(f"the last was {worker}: {why}")

    def drain(self, worker: str) -> None:
        """Let a worker, even one that has not joined, leave after its step: its node will go."""
        self._drained.add(worker)
        if worker not in self._inflight.workers:
            self._leave_drained(worker)

    def _leave_drained(self, worker: str) -> None:
        if not self._run.status and self._is_live(worker):
            self.lose(worker, DRAINED, planned=True)

    def lose(self, worker: str, why: str, *, planned: bool = False) -> None:
        """Continue without a lost worker, until it is back.

        Raises:
            RunLost: the run cannot.
        """
        slot, now = WorkerId(worker).slot, self._backend.now
        self._stays_away.discard(slot)
        again_in_s = self._retry(worker, now, self.unproven.get(worker, 0), now)
        planned = planned or worker in self._killed
        self._remove(worker, Report(why=why, restart_in_s=again_in_s, planned=planned))
        if again_in_s is None and (attempts := self._restarts.attempts) and not self._run.status:
            self._lines.remark(
                f"{slot} was restarted {attempts} time{'s' * (attempts > 1)} in a row, and none"
                " of its pushes arrived; it is not restarted again."
            )
        self._need_workers(f"the last was {worker}: {why}")

    def _remove(self, worker: str, report: Report) -> None:
        """Kill a worker's actor, and let it leave."""
        self._processes.kill(worker)
        self._leave(worker, report)

    def _leave(self, worker: str, report: Report) -> None:
        """Let a worker without an actor leave."""
        self._inflight.take_out(worker)
        self.unproven.pop(worker, None)
        self._topology.left(worker, report)
        self._held_back.pop(worker, None)
        # before the machine decides: these decisions are held back, too, if too few remain
        will_wait = self._min_workers > 1 and self._live_count <= self._min_workers
        if will_wait and self._waits_since is None:
            self._waits_since, self._wait_is_remarked = self._backend.now, False
        self._run.handle(Left(at=self._backend.now, worker=worker), report)

    def dismiss(self) -> None:
        """Let pipelines' stages without further work leave: others would wait for them."""
        topology = self._topology
        if not topology.is_pipelined:
            return
        while not self._run.status and (leavers := topology.leavers(self._inflight.workers)):
            for worker in leavers:
                self._stays_away.add(WorkerId(worker).slot)
                left = Left(at=self._backend.now, worker=worker)
                self._run.handle(left, Report(why=NO_BATCH_LEFT, done=True))
        if not self._run.status and not self._live_count:
            self._run.finish()

    # ---- who comes back ----

    def _expect(self, rejoin: Rejoin) -> Rejoin:
        self.coming[rejoin.worker] = rejoin
        return rejoin

    def _is_expected(self, rejoin: Rejoin) -> bool:
        return self.coming.get(rejoin.worker) is rejoin

    def expect_nobody(self) -> None:
        """Forget all rejoins: the run is over."""
        self.coming.clear()

    def _retry(self, lost: str, gone_at: float, attempt: int, due_at: float) -> float | None:
        """Start a lost worker's next life after a back-off; return the back-off in seconds.

        None: no attempt is left.
        """
        if attempt >= self._restarts.attempts:
            return None
        wait_s = self._restarts.wait_s(attempt)
        following = self._expect(Rejoin(_next_life(lost), gone_at, attempt + 1, due_at))
        self._backend.schedule(self._backend.now + wait_s, self._start, following)
        return wait_s

    def _start(self, rejoin: Rejoin) -> None:
        """Start a worker as soon as there is room for it."""
        if not self._is_expected(rejoin):
            return
        if self._processes.availability(rejoin.worker) != "free":
            self._remark_waiting(rejoin)
            self._backend.schedule(self._backend.now + LOOK_AGAIN_S, self._start, rejoin)
            return
        rejoin.call = self._processes.spawn(rejoin.worker)
        self._backend.watch(rejoin.call, self._started, rejoin)
        self._await_start(rejoin)

    def _await_start(self, rejoin: Rejoin) -> None:
        at = self._backend.now + START_DEADLINE_S
        self._processes.schedule_deadline(at, self._miss_deadline, rejoin)

    def _remark_waiting(self, rejoin: Rejoin) -> bool:
        """Return whether no node has room for a worker; remark it the first time."""
        if self._processes.availability(rejoin.worker) != "none":
            return False
        if not rejoin.is_remarked:
            rejoin.is_remarked = True
            self._lines.remark(
                f"{rejoin.worker} waits for resources: no node has room for it yet; it joins as"
                " soon as one has."
            )
        return True

    def _started(self, rejoin: Rejoin) -> None:
        if not self._is_expected(rejoin):
            return
        assert rejoin.call is not None, "ready before its start"
        answer = rejoin.call.answer
        if isinstance(answer, Failure) and answer.with_node:
            self._discard(rejoin)
            elsewhere = Rejoin(
                _next_life(rejoin.worker),
                rejoin.gone_at,
                rejoin.attempt,
                rejoin.due_at,
                is_remarked=rejoin.is_remarked,
            )
            self._start(self._expect(elsewhere))
        elif isinstance(answer, Failure):
            self._fail(rejoin, answer.reason)
        else:
            at = max(rejoin.due_at, self._backend.now)
            self._backend.schedule(at, self.join, rejoin.worker)

    def _miss_deadline(self, rejoin: Rejoin) -> None:
        if not self._is_expected(rejoin) or self._backend.is_done(rejoin.call):
            return
        if self._remark_waiting(rejoin):  # its node went while it started: it does so elsewhere
            self._await_start(rejoin)
        else:
            self._fail(rejoin, f"not ready after {START_DEADLINE_S:g} s")

    def _discard(self, rejoin: Rejoin) -> None:
        self._processes.kill(rejoin.worker)
        del self.coming[rejoin.worker]

    def _fail(self, rejoin: Rejoin, why: str) -> None:
        self._discard(rejoin)
        again_in_s = self._retry(rejoin.worker, rejoin.gone_at, rejoin.attempt, rejoin.due_at)
        what = f"{rejoin.worker} did not start: {why}"
        then = (
            "it is not restarted again"
            if again_in_s is None
            else f"it is restarted in {again_in_s:g} s"
        )
        self._lines.remark(f"{what}; {then}.")
        self._need_workers(what)

    # ---- whether they are enough ----

    def _need_workers(self, last: str) -> None:
        """Check that enough workers are there or on their way, after a loss described by `last`.

        Raises:
            RunFailed: there are too few.
        """
        if self._run.status:
            return
        there, coming, least = self._live_count, len(self.coming), self._min_workers
        numbers = f"{coming} restarting; cluster.min_workers is {least}"
        if there + coming < least:
            too_few = f"too few workers: {there} present, {numbers}"
            raise RunFailed(f"{too_few if least > 1 else 'every worker is gone'}; {last}")
        if self._waits_since is not None and not self._wait_is_remarked:
            self._wait_is_remarked = True
            self._lines.remark(f"The run waits: {_counted(there)} present, {numbers}.")

    def _resume_releases(self) -> None:
        """Carry out the releases that were held back, if enough workers are there again."""
        there, since = self._live_count, self._waits_since
        if since is None or there < self._min_workers:
            return
        now = self._backend.now
        self._lines.remark(
            f"The run continues after {now - since:.3g} s: {_counted(there)} present."
        )
        held_back, self._held_back = self._held_back, {}
        self._waits_since = None
        for worker, (release, decided_at) in held_back.items():
            if release.pull:
                published = roster_of(self._topology, worker).published
                release = replace(release, version=published)
            self._run.release(release)
            if (step := self._inflight.of_worker(worker)) is not None:
                step.report = replace(step.report, held_back_s=now - decided_at)


def _counted(workers: int) -> str:
    return f"{workers} worker{'s' * (workers != 1)}"


def _next_life(worker: str) -> str:
    return str(WorkerId(worker).next_life)
