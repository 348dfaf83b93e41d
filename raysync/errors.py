"""What can go wrong, and whose fault it is.

    RaysyncError
    |- ConfigError (also a ValueError)   the user asked for something that cannot be
    |- ProtocolViolation                 a history that cannot have happened
    |- IllegalDecision (an assertion)    a paradigm decided what cannot be carried out
    `- RunFailed                         a run ended because an actor or the user's own code broke

Our own bugs are plain `assert`s. The command line prints a `ConfigError` without a traceback and
exits with 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class RaysyncError(Exception):
    """Base of every error that raysync raises on purpose."""


class ConfigError(RaysyncError, ValueError):
    """The user's mistake: the message says what was given, where, and what is allowed."""


class ProtocolViolation(RaysyncError):
    """An illegal event: nothing was changed by it."""


class IllegalDecision(RaysyncError, AssertionError):
    """A bug of a paradigm, which may be the user's own: the message has its file, its line, and
    what was illegal.
    """


class RunFailed(RaysyncError):
    """A run ended as `failed`; its record is kept."""


def unknown_name(
    what: str,
    given: object,
    allowed: Iterable[str],
    where: str = "",
    shown: Iterable[str] | None = None,
) -> ConfigError:
    """The error for a name that is not on a list, with the nearest one that is.

    Args:
        what: what was asked for, in the singular ("paradigm").
        given: what the user wrote.
        allowed: the names that exist.
        where: path of the setting in the experiment file ("workers[0].speed"), if there is one.
        shown: the list as the message has it; default: `allowed`, sorted.
    """
    names = sorted(allowed)
    nearest = get_close_matches(str(given), names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    place = f"{where}: " if where else ""
    return ConfigError(
        f"{place}unknown {what} {given!r}{hint}\nAllowed:"
        f" {', '.join(names if shown is None else shown)}."
    )
