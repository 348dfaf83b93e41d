"""The answer in a sentence, with its uncertainty."""

from __future__ import annotations

from raysync.results.collection import Collection


def answer(collection: Collection, scenario: str = "") -> str:
    """Which paradigm reaches the target first, by how much, at what accuracy; or why that cannot be said."""
    raise NotImplementedError


def answers(collection: Collection) -> dict[str, str]:
    """Scenario -> its answer."""
    return {scenario: answer(collection, scenario) for scenario in collection.scenarios()}
