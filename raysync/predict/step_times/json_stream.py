"""JSON of any size, decoded value by value from blocks of text.

Not by ijson: traces are cut off, end with a comma, have NaN, control characters, paths of Windows
and bytes of any encoding. Chrome reads them all, and ijson 3.6 refuses each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

LARGEST_VALUE = 1 << 24  # the most characters of a value
SPACE = re.compile(r"[\s,:]*")
# whole numbers become floats: an int can have any number of digits
DECODE = json.JSONDecoder(strict=False, parse_int=float).raw_decode


class JsonStream:
    """A position in JSON.

    Args:
        blocks: the text; each but the last one ends with a comma, so no number is cut.
    """

    def __init__(self, blocks: Iterator[str]) -> None:
        self._blocks, self._text, self._at = blocks, "", 0
        self.line = 1  # the line in which the buffered text begins

    def peek(self) -> str:
        """Return the first character of the next value or bracket; empty: the end."""
        while True:
            self._at = SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._read_more():
                return self._text[self._at : self._at + 1]

    def skip(self) -> None:
        self._at += 1

    def value(self) -> Any:
        """Decode the next value.

        Raises:
            JSONDecodeError: it is no JSON, is cut off, or too long.
        """
        while True:
            try:
                value, self._at = DECODE(self._text, self._at)
                return value
            except json.JSONDecodeError:
                if len(self._text) - self._at > LARGEST_VALUE or not self._read_more():
                    raise

    def items(self) -> Iterator[Any]:
        """Decode the list that begins here, item by item; its `]` may be missing."""
        self.skip()
        while self.peek() not in ("]", ""):
            yield self.value()
        self.skip()

    def _read_more(self) -> bool:
        """Buffer another block; return whether there was one."""
        block = next(self._blocks, "")
        if block:
            self.line += self._text.count("\n", 0, self._at)
            self._text, self._at = self._text[self._at :] + block, 0
        return bool(block)
