"""The blame for failed and late steps: a worker is lost, or a server failed."""

from __future__ import annotations

from contextlib import suppress

from raysync.config import Experiment
from raysync.engine.backend import Backend, Failure
from raysync.engine.inflight import InFlight
from raysync.engine.members import Members
from raysync.engine.parameter_server import VERDICT_S, ServerState
from raysync.engine.topology import Step, Topology, roster_of, server_for
from raysync.errors import RunFailed, RunLost

# The driver continues without a lost worker where the topology can. A `RunFailed` names the actor
# at fault: a server's error explains more than its victims' errors, so it is looked up first.

# Ray's time to notice that a node is gone: 60 s by default, and a few more (Ray 2.60)
NODE_LOST_S = 70.0


class FailureDetector:
    """Judges failed steps, and finds late ones.

    The backend reports an actor that dies, but never one that freezes. So every step has a
    deadline, beyond its known duration, after which its worker is lost, unless the step waits for
    weights that its server has not published.

    If all awaited actors fall silent at once, the driver's own node is probably cut off: they are
    awaited until Ray would report their loss.
    """

    def __init__(
        self,
        backend: Backend,
        topology: Topology,
        experiment: Experiment,
        inflight: InFlight,
        members: Members,
    ) -> None:
        self._backend, self._topology = backend, topology
        self._processes = backend.processes
        self._deadline_s = experiment.cluster.step_deadline_s
        self._inflight, self._members = inflight, members
        self.is_check_scheduled = False  # for late steps

    def step_failed(self, step: Step, failure: Failure) -> None:
        """Lose the worker, or the server, that caused a step's failure.

        Raises:
            RunFailed: by a server or the worker's own code, or the run cannot continue without the
                worker.
        """
        if step.arriving is not None and failure.kind == "lost":
            self._members.lose(step.release.worker, "its gradient was lost on its way")
        elif not self._members.fills_its_slot(failure.actor):
            if not any(server.lose_if_dead(failure) for server in self._topology.servers):
                raise self._blame_server(step, failure)
        elif failure.kind == "died":
            why = "its node is gone" if failure.with_node else "its actor died"
            self._members.lose(failure.actor, why)
        else:
            raise RunFailed(f"worker {failure.actor}: {failure.reason}")

    def _blame_server(self, step: Step, failure: Failure) -> RunFailed:
        """Return the error of a step whose weights, or an earlier stage's, failed on a server."""
        servers = self._topology.servers
        for server in servers:
            if failure.actor in ("", server.actor):
                version = step.release.version if server is step.server else server.version
                with suppress(TimeoutError):
                    if error := server.first_error(version, VERDICT_S / len(servers)):
                        return error
        if failure.kind != "raised":
            why = f"{failure.actor or step.server.actor}: {failure.reason}"
            return RunLost(why, "server" if failure.kind == "died" else None)
        return RunFailed(f"{failure.actor or f'worker {step.release.worker}'}: {failure.reason}")

    def schedule_check(self) -> None:
        """Schedule a check for late steps at the time when the first step can be late."""
        self.is_check_scheduled = True
        self._processes.schedule_deadline(self._backend.now + self._deadline_s, self._check, None)

    def _check(self, _: None) -> None:
        now, topology = self._backend.now, self._topology
        next_at = now + self._deadline_s
        patient_until = self._patient_until()
        for step in self._inflight:
            due_at = max(topology.expected_at(step) + self._deadline_s, patient_until)
            if due_at > now:
                next_at = min(next_at, due_at)
            elif not self._has_arrived(step):
                self._blame_late(step)
        self.is_check_scheduled = bool(self._inflight)
        if self.is_check_scheduled:
            self._processes.schedule_deadline(next_at, self._check, None)

    def _patient_until(self) -> float:
        """Return the time before which no step counts as late if all are silent; else 0."""
        steps = list(self._inflight)
        latest = max(map(self._topology.expected_at, steps), default=self._backend.now)
        # Actors do not fall silent at one moment: the last to answer has begun another step since.
        is_silent = self._backend.now - latest >= self._deadline_s / 2
        # With a single awaited actor, a node that is cut off looks like a frozen actor.
        if is_silent and len(set(map(self._awaited_actor, steps))) > 1:
            return latest + NODE_LOST_S
        return 0.0

    def _awaited_actor(self, step: Step) -> str:
        """Return the worker or the server that a step waits for."""
        if step.arriving is not None:
            is_at_server = self._backend.is_done(step.arriving.first)
            return step.server.actor if is_at_server else step.release.worker
        worker, pulled = self._suspect_and_version(step)
        server = server_for(self._topology, worker)
        return server.actor if server.is_behind(pulled) else worker

    def _has_arrived(self, step: Step) -> bool:
        """Return whether everything has arrived, and only waits for its callback."""
        parts = [step.call] if step.arriving is None else step.arriving.parts
        return all(map(self._backend.is_done, parts))

    def _blame_late(self, step: Step) -> None:
        if step.arriving is None and step.server.state is not ServerState.UP:
            return  # it may wait for the server's recovery
        late = f"no answer for {self._deadline_s:g} s"
        if step.arriving is None:
            worker, pulled = self._suspect_and_version(step)
            server = server_for(self._topology, worker)
            if server.is_behind(pulled):
                server.miss_deadline(self._deadline_s)
            elif error := server.first_error(pulled, 0):
                raise error
            else:
                self._members.lose(worker, late)
        elif self._backend.is_done(step.arriving.first):  # a shard has not received its part
            raise RunLost(f"{step.server.actor}: {late}", "server")
        else:
            self._members.lose(step.release.worker, late)

    def _suspect_and_version(self, step: Step) -> tuple[str, int]:
        """Return the worker that a step waits for, and the version of the weights that it needs."""
        worker = self._topology.suspect(step)
        if worker == step.release.worker:
            return worker, step.release.version
        member = roster_of(self._topology, worker).live.get(worker)
        return worker, 0 if member is None else member.version
