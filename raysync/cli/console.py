"""Where the commands print: two consoles that show control characters in place of sending them.

A remark, a worker's name or an error may hold control characters, by damage or on purpose: an
escape sequence can rename the window, or hide lines. All that the commands print goes through
consoles of this kind, which make such characters visible. The sequences that rich produces itself
are not text, and stay.
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

    It inherits, because nothing that rich offers to compose (a `RenderHook`) sees what a `Live`
    draws.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as `Console.render` does, with visible text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def print_plain(self, text: str) -> None:
        """Print text as it is: paths and names are not markup, and long lines are not folded."""
        self.print(text, markup=False, highlight=False, soft_wrap=True)


WIDE = None if "COLUMNS" in os.environ else 160
"""Columns where the output is no terminal, such as the log of a job; rich would fold at 80."""
console = VisibleConsole(emoji=False, width=None if sys.stdout.isatty() else WIDE)
errors = VisibleConsole(stderr=True, emoji=False, width=None if sys.stderr.isatty() else WIDE)


def say(text: str) -> None:
    """Print a sentence for the user to stderr, above the progress lines if there are any."""
    errors.print_plain(text)
