"""Text files of numbers."""

from __future__ import annotations

from math import inf
from pathlib import Path

from raysync.config.bounded_file import read_text

LARGEST_BYTES = 64_000_000


def numbers_in(path: Path, what: str, unit: str) -> list[float]:
    """Read positive numbers that white space separates; `#` begins a comment.

    Args:
        path: of the file.
        what: the meaning of the numbers, in the plural, for the error.
        unit: what they count, for the error.

    Raises:
        ValueError: there is no such file, or it does not hold numbers, or one is not above 0 and
            finite. The message names the line.
    """
    lines = read_text(path, LARGEST_BYTES).splitlines()
    numbers: list[float] = []
    for line, text in enumerate(lines, 1):
        for word in text.partition("#")[0].split():
            try:
                number = float(word)
            except ValueError as error:
                raise ValueError(
                    f"{path} must hold {unit} and nothing else (line {line}: {error})"
                ) from error
            if not 0 < number < inf:
                raise ValueError(
                    f"{path}, line {line}: {what} must be above 0 and finite; got {number:g}"
                )
            numbers.append(number)
    if not numbers:
        raise ValueError(f"{path} holds no {what}")
    return numbers
