"""Queries without a public function in Ray."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import ray


def actor_id(actor: Any) -> str:
    """Return an actor's id as in Ray's errors."""
    return str(actor._actor_id.hex())


def draining_nodes() -> Collection[str]:
    """Return the nodes being drained, like Ray Train's watcher; none if this Ray has no query."""
    try:
        return frozenset(ray._private.state.state.get_draining_nodes())
    except AttributeError:
        return ()
