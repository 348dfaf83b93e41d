"""Text that records and files bring along, as a terminal may show it.

A remark, a worker's name or an error may hold control characters, by damage or on purpose: an
escape sequence can rename the window, or hide lines. All that the commands print goes through
consoles of this kind, so here such characters become visible. The sequences that rich makes itself
are not text, and stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""All but tab and line feed; also what turns the direction of text, and halves of characters, which
no stream takes."""


def visible(text: str) -> str:
    r"""The text with its control characters as Python writes them: `\x1b`."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class VisibleConsole(Console):
    """Inherits, as nothing that rich offers to compose (a `RenderHook`) sees what a `Live`
    draws.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as `Console.render` does, with visible text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
