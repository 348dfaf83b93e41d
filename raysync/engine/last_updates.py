"""The last update of each server, which a run waits for when its training is over.

Nothing pulls the weights of the last update, so nothing else would report that it failed, or that
its server is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raysync.engine.backend import Backend
from raysync.engine.parameter_server import ParameterServer
from raysync.errors import RunLost


class LastUpdates:
    """It waits until every server has made the last update that was sent to it."""

    def __init__(
        self,
        backend: Backend,
        servers: Sequence[ParameterServer],
        deadline_s: float,
        done: Callable[[float], None],
    ) -> None:
        """
        Args:
            backend: says what has arrived.
            servers: of the run.
            deadline_s: the seconds that an update may take.
            done: called with the time, in seconds since the run began, at which an update was done.
        """
        self._backend, self._servers = backend, servers
        self._deadline_s, self._done = deadline_s, done
        self._awaited: set[ParameterServer] = set()

    @property
    def is_pending(self) -> bool:
        """Whether a server has not made its last update yet."""
        return bool(self._awaited)

    def begin(self) -> None:
        """Wait for the updates that have been sent up to now, which are the last.

        Raises:
            RunFailed: when the backend reports that an update has failed.
            RunLost: when a server has not answered by its deadline, and does not come back.
        """
        for server in self._servers:
            if server.last is not None:
                self._awaited.add(server)
                server.watch(server.last, self._answered, server)
                self._await(server)

    def _answered(self, server: ParameterServer) -> None:
        assert server.last is not None, "an update that was never sent"
        server.verify(server.last)
        self._awaited.discard(server)
        self._done(self._backend.now)

    def _await(self, server: ParameterServer) -> None:
        deadline_at = self._backend.now + self._deadline_s
        self._backend.schedule(deadline_at, self._miss_deadline, server)

    def _miss_deadline(self, server: ParameterServer) -> None:
        if server not in self._awaited:
            return
        if not (self._backend.is_done(server.last) or server.is_coming_back):
            late = f"no answer for {self._deadline_s:g} s"
            if not server.lost(late, freezes=True):
                raise RunLost(f"{server.actor}: {late}")
        self._await(server)
