"""The exceptions of raysync. Its own bugs are plain `assert`s."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal

COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # Ray colours the errors of its tasks
# Control characters except tab and line feed, characters that change the direction of text, and
# halves of surrogate pairs, which no stream accepts.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return the text without colours, its control characters as Python writes them: `\x1b`."""
    plain = COLOUR.sub("", text)
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), plain)


class RaysyncError(Exception):
    """The base of every error that raysync raises on purpose."""

    def __str__(self) -> str:
        return visible(super().__str__())  # a message may quote the user's names and errors


# The command line prints it without a traceback and exits with 2.
class ConfigError(RaysyncError, ValueError):
    """The user's mistake. The message says what was given, where, and what is allowed."""


class ProtocolViolation(RaysyncError):
    """An event is impossible. It changed nothing."""


class IllegalDecision(RaysyncError, AssertionError):
    """A paradigm has a bug. The message names its file and line, and the decision."""


class RunFailed(RaysyncError):
    """A run ended as `failed`, by an actor or the user's code. Its record remains."""


class RunLost(RunFailed):
    """A run lost a process or a node; it can resume from a checkpoint."""

    # lost: what the journal is to count as an unplanned loss
    def __init__(self, message: str, lost: Literal["worker", "server"] | None = None) -> None:
        super().__init__(message)
        self.lost = lost


def unknown_name(
    what: str,
    name: object,
    allowed: Iterable[str],
    where: str = "",  # path of the setting in the experiment file: "workers[0].speed"
    listed: Iterable[str] | None = None,  # for the message; None: `allowed`, sorted
) -> ConfigError:
    """Create the error for a name that does not exist, with the nearest one that does."""
    names = sorted(allowed)
    nearest = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    location = f"{where}: " if where else ""
    return ConfigError(
        f"{location}unknown {what} {name!r}{hint}\nAllowed:"
        f" {', '.join(names if listed is None else listed)}."
    )
