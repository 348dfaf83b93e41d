"""JSON-native data, which JSON returns unchanged: what journals and snapshots hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON_NATIVE = (
    "None, a bool, a number of 64 bits, a str, a list of these, or a dict of these with str keys"
)

LARGEST = 2**63
"""The bound on whole numbers of a journal, which are stored in 64 bits."""

DEEPEST = 20
"""The largest depth of nested lists and mappings in what a paradigm or an actor reports."""


def is_whole(value: object) -> bool:
    """Say whether the value is a whole number of 64 bits, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value < LARGEST


def is_native(value: object, depth: int = DEEPEST) -> bool:
    """Say whether JSON returns the value unchanged, and it is not nested too deep."""
    if value is None or isinstance(value, str | float | bool):
        return True
    if isinstance(value, list):
        return depth > 0 and all(is_native(each, depth - 1) for each in value)
    if isinstance(value, dict):
        return depth > 0 and all(
            isinstance(name, str) and is_native(each, depth - 1) for name, each in value.items()
        )
    return is_whole(value)


def not_native(values: Mapping[str, Any]) -> str:
    """Describe the first of these values that is not JSON-native; return "" if all are."""
    for name, value in values.items():
        if not isinstance(name, str):
            return f"a value under {name!r}, which is no str"
        if not is_native(value, DEEPEST - 1):
            return f"{name!r} as {type(value).__name__}: {value!r:.80}"
    return ""
