"""Two consoles that show control characters instead of sending them.

A remark, a worker's name or an error may contain an escape sequence, which could rename the window
or hide lines. Sequences that rich produces itself are not text, and stay.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from raysync.errors import visible


class VisibleConsole(Console):
    """A console whose text has no control characters.

    It inherits, because a `RenderHook` of rich does not see what a `Live` draws.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def print_plain(self, text: str) -> None:
        """Print text without markup or folding, for paths and names."""
        self.print(text, markup=False, highlight=False, soft_wrap=True)


# columns of an output without a terminal, such as a job's log; rich would fold at 80
WIDE = None if "COLUMNS" in os.environ else 160
console = VisibleConsole(emoji=False, width=None if sys.stdout.isatty() else WIDE)
errors = VisibleConsole(stderr=True, emoji=False, width=None if sys.stderr.isatty() else WIDE)


def say(text: str) -> None:
    """Print a sentence for the user to stderr, above any progress lines."""
    errors.print_plain(text)
