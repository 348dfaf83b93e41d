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
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not a text file'})"
        ) from error
    numbers: list[float] = []
    for line, text in enumerate(lines, 1):
        try:
            numbers += [float(word) for word in text.partition("#")[0].split()]
        except ValueError as error:
            raise ValueError(
                f"{path} must hold {unit} and nothing else (line {line}: {error})"
            ) from error
    if not numbers:
        raise ValueError(f"{path} holds no {what}")
    return numbers
