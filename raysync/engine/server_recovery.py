"""A lost server comes back with the weights that it had, bit by bit, and the others go on.

    lost      a call of it fails, or it misses a deadline; after a back-off a new process starts
    replay    the process begins with the latest snapshot, and is sent what the lost one was sent
              since: the same updates with the same gradients, in their order (`server_log`)
    again     steps that waited for weights that were lost are issued again, on these very weights

Meanwhile workers compute, and updates go on: what is sent to a server that is gone is in its log,
and the new process is sent it, too. So no event is changed, and no decision; whoever waits for the
server waits longer.

The measure of how often is that of workers (`cluster.restarts`): so many attempts in a row, each
after a longer wait. An update beyond those that are made again sets the count back. What a new
process cannot be given, as a gradient that was lost with its node, ends the driver with `RunLost`,
and so does the last attempt that fails: then the run goes on from its newest checkpoint, if there
is any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from raysync.config import START_DEADLINE_S, Restarts
from raysync.engine.backend import Backend, Call, Failure
from raysync.engine.inflight import InFlight
from raysync.engine.parameter_server import VERDICT_S, ParameterServer
from raysync.engine.topology import Topology, roster_of
from raysync.errors import RunLost


class ServerRecovery:
    """It brings one server back, as often as it is lost."""

    def __init__(
        self,
        server: ParameterServer,
        backend: Backend,
        topology: Topology,
        restarts: Restarts,
        deadline_s: float,
        inflight: InFlight,
        remark: Callable[[str], None],
    ) -> None:
        """
        Args:
            server: has a log.
            backend: has its actor.
            topology: issues steps again.
            restarts: how often and how soon.
            deadline_s: how long a server may take for an update.
            inflight: the steps under way.
            remark: called with what the journal says of it.
        """
        self._server, self._backend, self._topology = server, backend, topology
        self._restarts, self._inflight = restarts, inflight
        self._deadline_s = max(deadline_s, START_DEADLINE_S)
        self._remark = remark
        self._is_gone = False
        """Whether it is lost, and no new process has been started yet."""
        self._missing: deque[Call] = deque()
        """The calls of the replay that are not known to be done, the oldest first."""
        self._attempts = 0
        """The attempts in a row without a further update."""
        self._proof = 0
        """The version that shows that the server is well."""
        self._lost_at, self._why = 0.0, ""

    @property
    def is_under_way(self) -> bool:
        """See `Comeback.is_under_way`."""
        return self._is_gone or bool(self._missing)

    def lost(self, why: str, *, freezes: bool) -> bool:
        """See `Comeback.lost`."""
        if self._is_gone:
            return True
        log = self._server.log
        if log is None or not log.is_whole or self._attempts >= self._restarts.attempts:
            return False
        if not self._missing:
            self._lost_at, self._why = self._backend.now, why.splitlines()[0].rstrip(".")
        self._is_gone = True
        wait_s = self._restarts.wait_s(self._attempts)
        self._attempts += 1
        self._backend.schedule(self._backend.now + wait_s, self._start, freezes)
        return True

    def done(self, version: int) -> None:
        """See `Comeback.done`."""
        if self._attempts and version > self._proof and not self.is_under_way:
            self._attempts = 0

    def _start(self, freezes: bool) -> None:
        """Start a new process, send it what it needs, and issue those steps again that need it."""
        self._is_gone = False
        replay = self._server.replay(freezes=freezes)
        self._proof = self._server.version
        self._missing = deque(replay.calls)
        began_at = self._backend.now
        last = self._missing[-1]
        self._backend.watch(last, self._replayed, (last, replay.updates, began_at))
        self._look_later(self._missing[0])
        self._server.watch_again(replay.repeated)
        self._issue_again(replay.repeated)

    def _issue_again(self, repeated: set[Call]) -> None:
        """Issue the steps again that wait for these weights."""
        now = self._backend.now
        for step in self._inflight:
            if step.server is not self._server or step.arriving is not None:  # it has ended
                continue
            if (call := self._topology.issued_again(step, repeated)) is not None:
                worker = step.release.worker
                released_at = roster_of(self._topology, worker).live[worker].telemetry.released_at
                assert released_at is not None, f"{step.release} of a worker never released"
                self._inflight.again(step, call, now - released_at)

    def _replayed(self, what: tuple[Call, int, float]) -> None:
        """Take in that the last call of a replay is done, or has failed."""
        last, updates, began_at = what
        if not self._missing or self._missing[-1] is not last:
            return  # it has been lost again since
        failure = self._first_failure()
        if failure is None:
            self._missing.clear()
            self._remark(
                f"{self._server.actor} was lost ({self._why}) and is back after"
                f" {self._backend.now - self._lost_at:.3g} s: {updates}"
                f" update{'s were' if updates != 1 else ' was'} made again in"
                f" {self._backend.now - began_at:.3g} s."
            )
        elif not self._server.lose_by(failure):
            raise self._server.error(failure, "it cannot come back: ")

    def _first_failure(self) -> Failure | None:
        """Return the failure that the others come from."""
        return next(
            (
                failure
                for call in self._missing
                if (failure := self._backend.failure(call, VERDICT_S)) is not None
            ),
            None,
        )

    def _look_later(self, oldest: Call) -> None:
        self._backend.schedule(self._backend.now + self._deadline_s, self._look, oldest)

    def _look(self, oldest: Call) -> None:
        """Lose a server that has done nothing since the last look."""
        missing = self._missing
        if self._is_gone or oldest not in missing:
            return
        while missing and len(missing) > 1 and self._backend.is_done(missing[0]):
            missing.popleft()
        if missing[0] is not oldest or self._backend.is_done(oldest):
            self._look_later(missing[0])
            return
        late = f"no answer for {self._deadline_s:g} s"
        if not self._server.lost(late, freezes=True):
            raise RunLost(f"{self._server.actor}: {late}")
