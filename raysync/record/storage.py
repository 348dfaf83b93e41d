"""Where records are: a folder, or a URI that pyarrow's file systems know (`s3://bucket/runs`,
`gs://...`, `file:///...`).

What is behind a URI is worked on in a local copy, and copied: an object store cannot append to a
file, and what is streamed into one is not there before it is closed, so a journal written straight
to it would be lost with a run that is killed. So only this file and those that choose when to copy
know of URIs; all others have a path. `fsspec+NAME://` goes through fsspec, for what pyarrow does
not know itself (tried with pyarrow 26). Credentials are those that the file system finds for
itself; where a URI has some, they are masked in whatever is written or printed.
"""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread

from pyarrow import fs

from raysync.config.masking import masked
from raysync.errors import ConfigError, unknown_name

Place = Path | str
"""A folder, or a URI."""

SCHEMES = ("abfs", "file", "gs", "hdfs", "s3", "fsspec+...")
ANSWER_S = 60.0
"""How long a file system may take to answer at the beginning."""

_copies: dict[Path, str] = {}
"""Local copy -> the URI that it stands for; of this process, gone with it."""


def is_uri(place: Place) -> bool:
    """Whether that is a URI; in one, what is not of a URI's letters (a space) is written as %20."""
    return isinstance(place, str) and "://" in place


def join(place: Place, *names: str) -> Place:
    """What has these names in a place; the query of a URI stays behind its path."""
    if not is_uri(place):
        return Path(place).joinpath(*names)
    scheme, _, rest = str(place).partition(
        "://"
    )  # not by urllib, which makes one slash of the three in memory:///x
    path, mark, query = rest.partition("?")
    return f"{scheme}://{'/'.join([path.rstrip('/'), *names])}{mark}{query}"


def display_name(path: Path) -> str:
    """Name a path for a person: within a copy, by its URI, with the secrets masked."""
    return masked(str(location_of(path)))


def location_of(path: Path) -> Place:
    """The URI that a copy, or a path within one, stands for; any other path itself."""
    found = _found(path)
    return path if found is None else join(_copies[found], *path.relative_to(found).parts)


def check(place: Place) -> None:
    """Make sure that records can be written there, before hours go into one, and before actors
    start.

    Raises:
        ConfigError: there is no such file system, or it cannot be reached or written.
    """
    if not is_uri(place):
        folder = Path(place).expanduser().absolute()
        there = next(one for one in (folder, *folder.parents) if os.access(one, os.F_OK))
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ConfigError(
                f"output: {place}: {there}"
                f" {'cannot be written' if there.is_dir() else 'is no folder'}."
            )
        return
    failures: list[Exception] = []

    def make() -> None:
        try:
            with _told(f"output: {place}"):
                system, path = fs.FileSystem.from_uri(place)
                system.create_dir(path, recursive=True)
        except Exception as failure:
            failures.append(failure)

    asked = Thread(
        target=make, daemon=True
    )  # which can be left alone: Google's client would try for a quarter of an hour
    asked.start()
    asked.join(ANSWER_S)
    if asked.is_alive():
        raise ConfigError(f"output: {masked(str(place))}: no answer within {ANSWER_S:.0f} s.")
    for failure in failures:
        raise failure


def new_copy(uri: str) -> Path:
    """A folder, not made yet, that stands for a URI."""
    copy = Path(mkdtemp(prefix="raysync-")) / (
        uri.partition("?")[0].rstrip("/").rpartition("/")[2] or "copy"
    )
    _copies[copy] = uri
    return copy


def local_copy(place: Place, *, without: str = "") -> Path:
    """The folder itself; of a URI, a copy of what is there.

    Args:
        place: a folder or a URI.
        without: name of a folder in it that is not wanted.

    Raises:
        ConfigError: there is no such file system, it cannot be reached, or nothing is there.
    """
    if not is_uri(place):
        return Path(place)
    copy = new_copy(str(place))
    try:
        download(copy, without=without)
    except ConfigError:
        drop_copy(copy)
        raise
    return copy


def listdir(place: Place) -> list[str]:
    """Names of what is in a place, sorted; empty where there is no such folder.

    Raises:
        ConfigError: there is no such file system, or it cannot be reached.
    """
    if not is_uri(place):
        return sorted(one.name for one in Path(place).iterdir()) if Path(place).is_dir() else []
    with _told(str(place)):
        system, path = fs.FileSystem.from_uri(place)
        return sorted(
            one.base_name
            for one in system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        )


def find(uri: Place, name: str) -> list[Place]:
    """The folders, at any depth, that hold a file of that name.

    Raises:
        ConfigError: there is no such file system, or it cannot be reached.
    """
    with _told(str(uri)):
        system, path = fs.FileSystem.from_uri(uri)
        below = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
        names = [
            one.path.removeprefix(path.rstrip("/")).strip("/").split("/")
            for one in below
            if one.base_name == name
        ]
    return [join(uri, *folders) for *folders, _ in names]


def download(folder: Path, *, without: str = "") -> None:
    """Bring a copy, or a folder within one, up to date with what is behind its URI, down to the
    times of its files; no copy: nothing happens.

    Raises:
        ConfigError: it cannot be reached, or nothing is there.
    """
    if not is_copy(folder):
        return
    uri = location_of(folder)
    with _told(str(uri)):
        system, path = fs.FileSystem.from_uri(uri)
        there = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        if not there:
            raise ConfigError(f"{masked(str(uri))}: there is nothing there.")
        for one in there:
            if one.base_name not in (without, ""):
                to = folder / one.base_name
                (to if one.type is fs.FileType.Directory else folder).mkdir(
                    parents=True, exist_ok=True
                )
                fs.copy_files(one.path, str(to), source_filesystem=system)
                if one.mtime_ns is not None:
                    os.utime(to, ns=(one.mtime_ns, one.mtime_ns))


def upload(*files: Path) -> None:
    """Copy files and folders, all within one copy, to where they belong; outside of copies, nothing
    happens.

    Raises:
        ConfigError: it cannot be reached or written.
    """
    if not files or (copy := _found(files[0])) is None:
        return
    uri = _copies[copy]
    with _told(uri):
        system, base = fs.FileSystem.from_uri(uri)
        for file in files:
            path = "/".join([base.rstrip("/"), *file.relative_to(copy).parts])
            system.create_dir(path if file.is_dir() else path.rpartition("/")[0], recursive=True)
            fs.copy_files(str(file), path, destination_filesystem=system)


def remove(place: Place) -> None:
    """Remove a file.

    Raises:
        ConfigError: there is no such file system, or it cannot be reached or written.
    """
    if not is_uri(place):
        Path(place).unlink(missing_ok=True)
        return
    with _told(str(place)):
        system, path = fs.FileSystem.from_uri(place)
        if system.get_file_info(path).type is fs.FileType.File:
            system.delete_file(path)


def is_copy(path: Path) -> bool:
    """Whether it is a copy, or within one."""
    return _found(path) is not None


def keep_copy(path: Path) -> None:
    """Leave a copy where it is when this process ends, as a folder like others."""
    found = _found(path)
    if found is not None:
        del _copies[found]


def drop_copy(path: Path) -> None:
    """Remove the local copy that this is, or is part of; what it was copied to stays."""
    found = _found(path)
    if found is not None:
        del _copies[found]
        shutil.rmtree(found.parent, ignore_errors=True)


def _found(path: Path) -> Path | None:
    """The copy that a path is within."""
    return next((copy for copy in (path, *path.parents) if copy in _copies), None)


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Tell what a file system complains of in a line without the secrets of the URI."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError, NotImplementedError, ImportError) as error:
        if "Unrecognized filesystem type" in str(error):
            scheme = where.rpartition("://")[0].rpartition(" ")[2]
            raise unknown_name("kind of URI", scheme, SCHEMES, where=masked(where)) from error
        reason = masked(" ".join(str(error).split()))[:300]
        raise ConfigError(f"{masked(where)}: cannot be reached or written ({reason}).") from error


@atexit.register
def clean() -> None:
    """Remove the copies of this process."""
    for copy in list(_copies):
        drop_copy(copy)
