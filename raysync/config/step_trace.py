"""Step times from a file."""

from __future__ import annotations

from math import inf
from pathlib import Path

from raysync.paradigms.references import may_import


def seconds_from(trace: object) -> object:
    """The numbers in a text file: separated by white space, `#` begins a comment. Anything but a
    path stays as it is.

    Raises:
        ValueError: there is no such file, it holds no numbers, or one that is no duration.
    """
    place = ""
    if isinstance(trace, str | Path):
        if not may_import():
            raise ValueError(f"a record holds the numbers themselves; got {str(trace)!r}")
        path = Path(trace).expanduser()
        trace, place = _read(path), f"{path}: "
    if isinstance(trace, list | tuple):
        for number, seconds in enumerate(trace, 1):
            if isinstance(seconds, int | float) and not 0 < seconds < inf:
                raise ValueError(
                    f"{place}step {number} lasts {seconds:g} s; it must be above 0 and finite"
                )
    return trace


def _read(path: Path) -> list[float]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not a text file'})"
        ) from error
    words = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
    if not words:
        raise ValueError(f"{path} holds no step times")
    try:
        return [float(word) for word in words]
    except ValueError as error:
        raise ValueError(f"{path} must hold seconds and nothing else ({error})") from error
