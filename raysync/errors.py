"""The exceptions of raysync.

    RaysyncError
    |- ConfigError (also a ValueError)   the user asked for something impossible
    |- ProtocolViolation                 a history that cannot have happened
    |- IllegalDecision (an assertion)    a paradigm made a decision that cannot be carried out
    `- RunFailed                         a run ended because an actor or the user's own code failed
       `- RunLost                        it ended because a process was lost: it can be resumed

Our own bugs are plain `assert`s. The command line prints a `ConfigError` without a traceback and
exits with 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""A colour, as Ray writes them into the errors of its tasks."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""All control characters but tab and line feed; also those that change the direction of text, and
halves of characters, which no stream accepts."""


def visible(text: str) -> str:
    r"""Return the text without colours, its control characters as Python writes them: `\x1b`."""
    plain = COLOUR.sub("", text)
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), plain)


class RaysyncError(Exception):
    """The base of every error that raysync raises on purpose."""

    def __str__(self) -> str:
        """Return the message as a terminal can show it: it may quote names, keys and errors of the
        user's own.
        """
        return visible(super().__str__())


class ConfigError(RaysyncError, ValueError):
    """The user made a mistake. The message says what was given, where, and what is allowed."""


class ProtocolViolation(RaysyncError):
    """An event is illegal. It has changed nothing."""


class IllegalDecision(RaysyncError, AssertionError):
    """A paradigm, perhaps the user's own, has a bug. The message names its file and line, and the
    illegal decision.
    """


class RunFailed(RaysyncError):
    """A run ended as `failed`. Its record is kept."""


class RunLost(RunFailed):
    """A run ended because a process or a node was lost that it cannot do without, and not by an
    error of anybody's code: from a checkpoint it can go on.
    """


def unknown_name(
    what: str,
    name: object,
    allowed: Iterable[str],
    where: str = "",
    shown: Iterable[str] | None = None,
) -> ConfigError:
    """Create the error for a name that does not exist, with the nearest one that does.

    Args:
        what: the kind of the name, in the singular ("paradigm").
        name: what the user wrote.
        allowed: the names that exist.
        where: path of the setting in the experiment file ("workers[0].speed"), if there is one.
        shown: the allowed names as the message lists them; default: `allowed`, sorted.
    """
    names = sorted(allowed)
    nearest = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    location = f"{where}: " if where else ""
    return ConfigError(
        f"{location}unknown {what} {name!r}{hint}\nAllowed:"
        f" {', '.join(names if shown is None else shown)}."
    )
