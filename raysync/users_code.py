"""User code: which files it is, and its errors in one line."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary, extract_tb

from raysync.errors import ConfigError, RaysyncError

RAYSYNC, STDLIB = Path(__file__).parent, Path(sysconfig.get_path("stdlib"))
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages
TYPED = ("<string>", "<stdin>", "<ipython")  # how file names of typed code begin


@contextmanager
def users_code(where: str) -> Iterator[None]:
    """Turn exceptions of user code, called `where`, into a ConfigError with the user's line."""
    try:
        yield
    except RaysyncError:
        raise
    except Exception as error:  # anything that the user's code raises
        last = Path(_frames(error)[0].filename)
        if isinstance(error, AssertionError) and last.is_relative_to(RAYSYNC):
            raise  # a bug of raysync's own
        raise ConfigError(f"{where}: {reason_of(error)}.") from error


def reason_of(error: Exception) -> str:
    """Return type, first line and user's line of an error."""
    first = (str(error) or type(error).__name__).splitlines()[0]
    place = f" ({users_place(error)})".removesuffix(" ()")
    return f"{type(error).__name__}: {first:.200}{place}"


def users_place(error: BaseException) -> str:
    """Return FILE:LINE of the last user line that an error came through, or ""."""
    return next(
        (_file_and_line(frame) for frame in _frames(error) if is_users(Path(frame.filename))), ""
    )


def place_of(error: BaseException) -> str:
    """Return the user's FILE:LINE, or else the raising one."""
    return users_place(error) or _file_and_line(_frames(error)[0])


def _frames(error: BaseException) -> list[FrameSummary]:
    return extract_tb(error.__traceback__)[::-1]  # the raising line first


def _file_and_line(frame: FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno}"


def is_users(file: Path) -> bool:
    """Return whether a file is the user's: neither raysync's nor a library's."""
    if not file.is_absolute():  # it is no file, but a notebook's cell or compiled code
        return str(file).startswith(TYPED)
    return not INSTALLED & set(file.parts) and not any(map(file.is_relative_to, (RAYSYNC, STDLIB)))
