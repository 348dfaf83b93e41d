"""Answers that Ray has, and no public function for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import ray


def actor_id(actor: Any) -> str:
    """Return Ray's id of an actor, as its errors tell it."""
    return str(actor._actor_id.hex())


def draining_nodes() -> Collection[str]:
    """Return the nodes that are being drained.

    This is what Ray Train's own watcher of preemptions calls; under a Ray that lacks it no node is
    known to be drained.
    """
    try:
        return frozenset(ray._private.state.state.get_draining_nodes())
    except AttributeError:
        return ()
