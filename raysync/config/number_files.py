"""Text files of numbers."""

from __future__ import annotations

from pathlib import Path


def numbers_in(path: Path, what: str, unit: str) -> list[float]:
    """Read numbers that white space separates; `#` begins a comment.

    Args:
        path: of the file.
        what: the meaning of the numbers, in the plural, for the error.
        unit: what they count, for the error.

    Raises:
        ValueError: there is no such file, or it does not hold numbers.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not a text file'})"
        ) from error
    words = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
    if not words:
        raise ValueError(f"{path} holds no {what}")
    try:
        return [float(word) for word in words]
    except ValueError as error:
        raise ValueError(f"{path} must hold {unit} and nothing else ({error})") from error
