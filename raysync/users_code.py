"""Code of the user's: which it is, and how an error in it is said in a line."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary, extract_tb

from raysync.errors import ConfigError, RaysyncError

OURS, STDLIB = Path(__file__).parent, Path(sysconfig.get_path("stdlib"))
"""The folders of raysync and of Python's own modules."""
INSTALLED = {"site-packages", "dist-packages"}
"""The names of the folders that packages are installed into."""
TYPED = ("<string>", "<stdin>", "<ipython")
"""How the names of what was typed begin, in place of those of files."""


@contextmanager
def users_code(where: str) -> Iterator[None]:
    """Say in a line what code of the user's raises within the block.

    Args:
        where: what is called, for the error.

    Raises:
        ConfigError: it has the error, and the user's line.
    """
    try:
        yield
    except RaysyncError:
        raise
    except Exception as error:  # anything that the user's code raises
        last = Path(_frames(error)[0].filename)
        if isinstance(error, AssertionError) and last.is_relative_to(OURS):
            raise  # a bug of raysync's own
        raise ConfigError(f"{where}: {reason_of(error)}.") from error


def reason_of(error: Exception) -> str:
    """Return the type of an error, the first line of what it says, and the user's line, if any."""
    first = (str(error) or type(error).__name__).splitlines()[0]
    place = f" ({users_place(error)})".removesuffix(" ()")
    return f"{type(error).__name__}: {first:.200}{place}"


def users_place(error: BaseException) -> str:
    """Return FILE:LINE of the last line of the user's own that an error came through; "" if it came
    through none.
    """
    return next((_place(frame) for frame in _frames(error) if is_users(Path(frame.filename))), "")


def place_of(error: BaseException) -> str:
    """Return FILE:LINE of the user's line, or of the one that raised the error if there is none."""
    return users_place(error) or _place(_frames(error)[0])


def _frames(error: BaseException) -> list[FrameSummary]:
    """Return the lines that an error came through, the one that raised it first."""
    return extract_tb(error.__traceback__)[::-1]


def _place(frame: FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno}"


def is_users(file: Path) -> bool:
    """Say whether a source file is the user's: neither raysync's nor that of a library."""
    if not file.is_absolute():  # no file: a notebook's cell, or a line of a compiled library
        return str(file).startswith(TYPED)
    return not INSTALLED & set(file.parts) and not any(map(file.is_relative_to, (OURS, STDLIB)))
