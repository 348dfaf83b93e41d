"""Where records are stored: a folder, or a URI that pyarrow's file systems know
(`s3://bucket/runs`, `gs://...`, `file:///...`).

Records behind a URI are read and written in a local copy, which is then uploaded. An object store
cannot append to a file, and a file that is streamed into one does not exist before it is closed, so
a journal written straight to it would be lost with a run that is killed. Only this file and those
that choose when to copy know of URIs; all others see a path. `fsspec+NAME://` goes through fsspec,
for file systems that pyarrow does not know itself (tried with pyarrow 26). The file system finds
its credentials by itself; those inside a URI are masked in everything that is written or printed.

Which folder stands for which URI is kept in one table for the process, not in an object beside
every path. A record's path travels through readers, reports, file names in messages and pickled
trials; an object that had to travel with it would be a second argument of some fifty functions
that never look at it, and a path that lost it would silently no longer be uploaded. Copies have
names of their own (`mkdtemp`), so two users of the table cannot meet.
"""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from threading import Thread

from pyarrow import fs

from raysync.config.secret_masking import masked
from raysync.errors import ConfigError, unknown_name

Location = Path | str
"""A folder, or a URI."""

NEW = ".new"
"""The suffix of a file or folder that is not complete."""

SCHEMES = ("abfs", "file", "gs", "hdfs", "s3", "fsspec+...")
ANSWER_S = 60.0
"""How long `check` waits for a file system to answer."""

_copies: dict[Path, str] = {}
"""Local copy -> the URI that it stands for. The copies are removed when the process ends."""


def is_uri(location: Location) -> bool:
    """Say whether a location is a URI. (Characters that a URI cannot have are written as %20.)"""
    return isinstance(location, str) and "://" in location


def join(location: Location, *names: str) -> Location:
    """Append path components to a location; the query of a URI stays behind its path."""
    if not is_uri(location):
        return Path(location).joinpath(*names)
    # not by urllib, which makes one slash of the three in memory:///x
    scheme, _, rest = str(location).partition("://")
    path, mark, query = rest.partition("?")
    return f"{scheme}://{'/'.join([path.rstrip('/'), *names])}{mark}{query}"


def parent_of(location: Location) -> Location:
    """Return the folder around a location; the query of a URI stays behind its path."""
    if not is_uri(location):
        return Path(location).expanduser().absolute().parent
    scheme, _, rest = str(location).partition("://")
    path, mark, query = rest.partition("?")
    return f"{scheme}://{path.rstrip('/').rpartition('/')[0]}{mark}{query}"


def display_name(path: Path) -> str:
    """Name a path in a message: a path within a copy by its URI, with the secrets masked."""
    return masked(str(location_of(path)))


def location_of(path: Path) -> Location:
    """Return the URI that a copy, or a path within one, stands for; any other path unchanged."""
    copy = _copy_around(path)
    return path if copy is None else join(_copies[copy], *path.relative_to(copy).parts)


def check(location: Location, setting: str = "output") -> None:
    """Make sure that records can be written at a location, before actors start and hours of
    training go into one.

    Args:
        location: a folder or a URI.
        setting: what names it, for errors.

    Raises:
        ConfigError: there is no such file system, or it cannot be reached or written.
    """
    if is_uri(location):
        _check_uri(str(location), setting)
        return
    folder = Path(location).expanduser().absolute()
    parent = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    if not parent.is_dir():
        raise ConfigError(f"{setting}: {location}: {parent} is not a folder.")
    if not os.access(parent, os.W_OK):
        raise ConfigError(f"{setting}: {location}: {parent} cannot be written.")


def _check_uri(uri: str, setting: str) -> None:
    failures: list[Exception] = []

    def create() -> None:
        try:
            with _reported(f"{setting}: {uri}"):
                system, path = fs.FileSystem.from_uri(uri)
                system.create_dir(path, recursive=True)
        except Exception as failure:
            failures.append(failure)

    # a thread can be abandoned: Google's client would try for a quarter of an hour
    attempt = Thread(target=create, daemon=True)
    attempt.start()
    attempt.join(ANSWER_S)
    if attempt.is_alive():
        raise ConfigError(f"{setting}: {masked(uri)}: no answer within {ANSWER_S:.0f} s.")
    for failure in failures:
        raise failure


def new_copy(uri: str) -> Path:
    """Choose a folder that stands for a URI. It is not created yet."""
    copy = Path(mkdtemp(prefix="raysync-")) / (
        uri.partition("?")[0].rstrip("/").rpartition("/")[2] or "copy"
    )
    _copies[copy] = uri
    return copy


def copy_of(uri: str) -> Path:
    """Return the folder that stands for a URI: the one that is there, or a new one."""
    return next((copy for copy, its in _copies.items() if its == uri), None) or new_copy(uri)


def local_copy(location: Location, *, without: Collection[str] = ()) -> Path:
    """Return a folder as it is; download a URI, and return the copy.

    Args:
        location: a folder or a URI.
        without: names of subfolders, at any depth, that are not downloaded.

    Raises:
        ConfigError: there is no such file system, it cannot be reached, or nothing is there.
    """
    if not is_uri(location):
        return Path(location)
    copy = new_copy(str(location))
    try:
        download(copy, without=without)
    except ConfigError:
        drop_copy(copy)
        raise
    return copy


def listdir(location: Location) -> list[str]:
    """List the names in a folder, sorted; there are none where the folder does not exist.

    Raises:
        ConfigError: there is no such file system, or it cannot be reached.
    """
    if not is_uri(location):
        folder = Path(location)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    with _reported(str(location)):
        system, path = fs.FileSystem.from_uri(location)
        selector = fs.FileSelector(path, allow_not_found=True)
        return sorted(info.base_name for info in system.get_file_info(selector))


def folders_with(parent: Path, name: str) -> list[Path]:
    """Return the folders directly below one that have a file of that name, sorted; they may come
    and go meanwhile, as the checkpoints of a run do.
    """
    try:
        folders = sorted(parent.iterdir())
    except FileNotFoundError:
        return []
    return [folder for folder in folders if (folder / name).is_file()]


def find(uri: Location, name: str) -> list[Location]:
    """Find the folders, at any depth, that hold a file of that name.

    Raises:
        ConfigError: there is no such file system, or it cannot be reached.
    """
    with _reported(str(uri)):
        system, path = fs.FileSystem.from_uri(uri)
        _check_tree(system, path)
        infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
        names = [
            info.path.removeprefix(path.rstrip("/")).strip("/").split("/")
            for info in infos
            if info.base_name == name
        ]
    return [join(uri, *folders) for *folders, _ in names]


def download(folder: Path, *, without: Collection[str] = ()) -> None:
    """Bring a copy, or a folder within one, up to date with its URI, including the modification
    times of the files. A folder that is no copy is left alone.

    Args:
        folder: the copy.
        without: names of subfolders, at any depth, that are not downloaded.

    Raises:
        ConfigError: the URI cannot be reached, or nothing is there.
    """
    if not is_copy(folder):
        return
    uri = location_of(folder)
    with _reported(str(uri)):
        system, path = fs.FileSystem.from_uri(uri)
        infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        if not infos:
            raise ConfigError(f"{masked(str(uri))}: nothing is there.")
        _check_tree(system, path)
        _copy(system, infos, folder, without)


def _check_tree(system: fs.FileSystem, path: str) -> None:
    """Refuse what pyarrow would read without end: below a folder of this machine (`file:///`), a
    pipe or a device, and a link to a folder, which may lead back to where it is.

    Raises:
        ConfigError: it names the path.
    """
    if system.type_name != "local":
        return
    for folder, folders, files in os.walk(path):
        for inner in (Path(folder, name) for name in (*folders, *files)):
            # a link that leads nowhere is no entry for pyarrow
            if not inner.is_file() and not inner.is_dir() and inner.exists():
                raise ConfigError(f"{inner}: neither a plain file nor a folder.")
            if inner.is_dir() and inner.is_symlink():
                raise ConfigError(f"{inner}: a link to a folder, which is not followed.")


def _copy(
    system: fs.FileSystem, infos: list[fs.FileInfo], folder: Path, without: Collection[str]
) -> None:
    """Copy files and folders of a file system into a folder."""
    for info in infos:
        if info.base_name in (*without, ""):
            continue
        target = folder / info.base_name
        is_folder = info.type is fs.FileType.Directory
        (target if is_folder else folder).mkdir(parents=True, exist_ok=True)
        if is_folder and without and _holds(system, info.path, without):
            _copy(system, system.get_file_info(fs.FileSelector(info.path)), target, without)
        else:  # all at once, by several threads
            fs.copy_files(info.path, str(target), source_filesystem=system)
            inside = fs.FileSelector(info.path, recursive=True)
            for each in system.get_file_info(inside) if is_folder else ():
                _set_mtime(target / PurePosixPath(each.path).relative_to(info.path), each)
        _set_mtime(target, info)


def _set_mtime(target: Path, info: fs.FileInfo) -> None:
    if info.mtime_ns is not None:
        os.utime(target, ns=(info.mtime_ns, info.mtime_ns))


def _holds(system: fs.FileSystem, path: str, names: Collection[str]) -> bool:
    """Say whether a folder has one of these names in it, at any depth."""
    inside = system.get_file_info(fs.FileSelector(path, recursive=True))
    return any(each.base_name in names for each in inside)


def upload(*files: Path) -> None:
    """Copy files and folders, all within one copy, to its URI. Outside of copies, do nothing.

    Raises:
        ConfigError: the URI cannot be reached or written.
    """
    if not files or (copy := _copy_around(files[0])) is None:
        return
    uri = _copies[copy]
    with _reported(uri):
        system, base = fs.FileSystem.from_uri(uri)
        for file in files:
            path = "/".join([base.rstrip("/"), *file.relative_to(copy).parts])
            system.create_dir(path if file.is_dir() else path.rpartition("/")[0], recursive=True)
            fs.copy_files(str(file), path, destination_filesystem=system)


def remove(location: Location) -> None:
    """Remove a file, or a folder with all that is in it, if it exists.

    Raises:
        ConfigError: there is no such file system, or it cannot be reached or written.
    """
    if not is_uri(location):
        if Path(location).is_dir():
            shutil.rmtree(location)
        else:
            Path(location).unlink(missing_ok=True)
        return
    with _reported(str(location)):
        system, path = fs.FileSystem.from_uri(location)
        kind = system.get_file_info(path).type
        if kind is fs.FileType.File:
            system.delete_file(path)
        elif kind is fs.FileType.Directory:
            system.delete_dir(path)


@contextmanager
def completed(path: Path) -> Iterator[Path]:
    """Give the path of a new file to write, which replaces the file at `path` once the `with` block
    has ended without an error.
    """
    new = path.with_name(path.name + NEW)
    try:
        yield new
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise


def is_copy(path: Path) -> bool:
    """Say whether a path is a copy, or within one."""
    return _copy_around(path) is not None


def keep_copy(path: Path) -> None:
    """Keep a copy when this process ends, as a folder like any other."""
    copy = _copy_around(path)
    if copy is not None:
        del _copies[copy]


def drop_copy(path: Path) -> None:
    """Remove the copy that a path is, or is within; the files behind the URI stay."""
    copy = _copy_around(path)
    if copy is not None:
        del _copies[copy]
        shutil.rmtree(copy.parent, ignore_errors=True)


def _copy_around(path: Path) -> Path | None:
    """Return the copy that a path is, or is within; None where there is none."""
    return next((copy for copy in (path, *path.parents) if copy in _copies), None)


@contextmanager
def _reported(where: str) -> Iterator[None]:
    """Turn an error of a file system into one line without the secrets of the URI."""
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
    """Remove all copies that this process made and did not keep."""
    for copy in list(_copies):
        drop_copy(copy)
