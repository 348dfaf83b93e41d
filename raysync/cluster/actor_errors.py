"""Errors of an actor's own code, which an actor signs: Ray passes on the error of a failed call
to every call that takes one of its values, without the actor's id.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from raysync.engine.error_text import ran_out_of_memory, reason

# how Ray 2.60 reports the death of an actor with its node
WITH_ITS_NODE = "because its node has died"


class ActorError(Exception):
    """An error of an actor's own code, as text: a user's exception may not be picklable."""

    def __init__(self, actor_id: str, reason: str) -> None:
        super().__init__(actor_id, reason)
        self.actor_id, self.reason = actor_id, reason


class ProcessRestarted(Exception):
    """An actor was called in a process that Ray has restarted: it knows nothing of the run."""

    def __init__(self, reason: str = "its process died and was restarted"):
        super().__init__(reason)  # unpickling passes the reason to this constructor again


@contextmanager
def signed() -> Iterator[None]:
    """Raise the errors of an actor's own code as `ActorError`."""
    try:
        yield
    except (ActorError, ProcessRestarted):
        raise
    except Exception as error:
        raise ActorError(_own_id(), reason(error)) from error


def _own_id() -> str:
    # Outside of Ray the id is empty: `get_runtime_context` would start Ray.
    actor_id = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
    return actor_id or ""


def start_reason(error: RayError) -> str:
    """Return why actors did not start: the actor's traceback, or a few lines if memory ran out."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    return reason(cause) if cause is not None and ran_out_of_memory(cause) else str(error)


def death_reason(error: RayActorError) -> str:
    """Return one line of Ray's message, unless the actor's own code kept it from starting."""
    if error.actor_init_failed:
        return reason(error)
    lines = [line for line in str(error).splitlines() if line and not line.startswith("\t")]
    return f"{type(error).__name__}: {lines[1]}" if len(lines) > 1 else reason(error)
