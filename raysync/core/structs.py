"""Typed JSON: immutable messages, bounded numbers, and a text that keeps NaN and infinity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

LARGEST = 2**63  # whole numbers of a journal are stored in 64 bits
LONGEST_S = 1e12  # 30,000 years
DEEPEST = 20  # nested lists and mappings in a report of a paradigm or an actor
JSON_NATIVE = (
    "None, a bool, a number of 64 bits, a str, a list of these, or a dict of these with str keys"
)

Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST - 1)]
Size = Annotated[int, Meta(ge=0, le=LARGEST - 1)]  # bytes, or a count
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]  # a time or a duration, never NaN


class TaggedStruct(
    msgspec.Struct, frozen=True, tag=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """An immutable value whose JSON names its class under `type` and leaves defaults out."""


def encode(value: Any) -> bytes:
    """Return JSON, with NaN and infinity as Python writes them: `NaN`, `Infinity`.

    Raises:
        TypeError: a value is neither a struct nor JSON-native.
    """
    try:
        text = msgspec.json.encode(value, enc_hook=_plain)
    except UnicodeEncodeError:  # half of a surrogate pair
        text = b"null"
    # msgspec writes NaN as null
    return text if b"null" not in text else json.dumps(to_native(value)).encode()


def decode(text: str | bytes, kind: type[T]) -> T:
    """Return the value of this type that `encode` wrote.

    Raises:
        ValueError: not JSON, or of another type; the message has the place.
        RecursionError: too deeply nested.
    """
    try:
        value: T = msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):  # NaN, or half of a surrogate pair
        value = msgspec.convert(json.loads(text), kind)
    return value


def to_native(value: Any) -> Any:
    """Convert a value to JSON-native data."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """Convert a subclass of a text or a number, as NumPy has them, to its base."""
    for kind in (str, float, int):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a {type(value).__name__} is no JSON: {value!r:.40}")


def is_whole(value: object) -> bool:
    """Return whether the value is a whole number of 64 bits, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value < LARGEST


def is_native(value: object, depth: int = DEEPEST) -> bool:
    """Return whether JSON gives the value back unchanged and it is not too deeply nested."""
    if value is None or isinstance(value, str | float | bool):
        return True
    if isinstance(value, list):
        return depth > 0 and all(is_native(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return depth > 0 and all(
            isinstance(name, str) and is_native(item, depth - 1) for name, item in value.items()
        )
    return is_whole(value)


def not_native(values: Mapping[str, Any]) -> str:
    """Describe the first of these values that is not JSON-native; "" if all are."""
    for name, value in values.items():
        if not isinstance(name, str):
            return f"a value under {name!r}, which is no str"
        if not is_native(value, DEEPEST - 1):
            return f"{name!r} as {type(value).__name__}: {value!r:.80}"
    return ""
