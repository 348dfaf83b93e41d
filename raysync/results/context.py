"""What a result was measured with: configuration, environment, and the commands that repeat it."""

from __future__ import annotations

from raysync.results.collection import Collection


def title(collection: Collection) -> str:
    """What was trained, by whom, how often, in a line."""
    raise NotImplementedError


def configuration(collection: Collection) -> dict[str, str]:
    """Setting -> value in words, of what all runs share."""
    raise NotImplementedError


def environment(collection: Collection) -> str:
    """Versions and machine in a line."""
    raise NotImplementedError


def commands(collection: Collection) -> list[str]:
    """The commands that repeat it."""
    raise NotImplementedError
