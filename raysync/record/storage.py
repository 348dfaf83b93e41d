"""Store records in a folder or behind a URI of pyarrow's file systems (`s3://bucket/runs`).

A URI has a local copy, which is uploaded: an object store cannot append, so a journal streamed to
it would be lost with a killed run. `fsspec+NAME://` goes through fsspec.
"""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, mkdtemp
from threading import Thread

from pyarrow import fs

from raysync.config.secret_masking import masked
from raysync.errors import ConfigError, unknown_name

Location = Path | str  # a folder, or a URI

# of a part of a path, in bytes; file systems have 255, which the stamp, the id and suffixes share
LONGEST_NAME = 200
NEW = ".new"  # the suffix of an incomplete file or folder

SCHEMES = ("abfs", "file", "gs", "hdfs", "s3", "fsspec+...")
ANSWER_S = 60.0  # a file system's time to answer `check`

# Local copy -> its URI, in one table of the process: an object that had to travel with each path
# (through readers, reports, messages, pickled trials) could be lost, and uploads with it. Copies
# have unique names (`mkdtemp`) and are removed when the process ends.
_copies: dict[Path, str] = {}


def is_uri(location: Location) -> bool:
    """Return whether a location is a URI, in which %20 replaces a space."""
    return isinstance(location, str) and "://" in location


def join(location: Location, *names: str) -> Location:
    """Append path components to a location; the query of a URI stays behind its path."""
    if not is_uri(location):
        return Path(location).joinpath(*names)
    return _with_path(location, lambda path: "/".join([path, *names]))


def _with_path(uri: Location, change: Callable[[str], str]) -> str:
    """Change the path of a URI; its query stays behind it."""
    # urllib would make one slash of the three in memory:///x
    scheme, _, rest = str(uri).partition("://")
    path, mark, query = rest.partition("?")
    return f"{scheme}://{change(path.rstrip('/'))}{mark}{query}"


def experiment_folder(output: Location, experiment: str) -> Location:
    """Return the folder of an experiment's records, OUTPUT/NAME."""
    return join(output, short(experiment))


def short(name: str) -> str:
    """Return a name of at most `LONGEST_NAME` bytes: a hash replaces the tail of a longer one."""
    data = name.encode(errors="surrogatepass")
    if len(data) <= LONGEST_NAME:
        return name
    tail = sha256(data).hexdigest()[:12]
    return f"{data[: LONGEST_NAME - 13].decode(errors='ignore')}-{tail}"


def parent_of(location: Location) -> Location:
    """Return the parent folder; the query of a URI stays behind its path."""
    if not is_uri(location):
        return Path(location).expanduser().absolute().parent
    return _with_path(location, lambda path: path.rpartition("/")[0])


def display_name(path: Path) -> str:
    """Return the path, or the masked URI of a path in a copy, for messages."""
    return masked(str(location_of(path)))


def location_of(path: Path) -> Location:
    """Return the URI of a copy or of a path within one; any other path unchanged."""
    copy = _copy_around(path)
    return path if copy is None else join(_copies[copy], *path.relative_to(copy).parts)


def check(location: Location, setting: str = "output") -> None:
    """Raise `ConfigError`, before hours of training, where no record can be written."""
    if is_uri(location):
        _check_uri(str(location), setting)
        return
    try:
        folder = Path(location).expanduser().absolute()
    except RuntimeError as error:  # there is no user ~NAME
        raise ConfigError(f"{setting}: {location}: {error}") from error
    with written(location, setting):
        parent = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not parent.is_dir():
            raise ConfigError(f"{setting}: {location}: {parent} is not a folder.")
        # permissions do not tell: a file system may be read-only, or make no folders at all
        with TemporaryDirectory(prefix=".raysync-", dir=parent) as attempt:
            Path(attempt, folder.relative_to(parent)).mkdir(parents=True, exist_ok=True)


def check_file(file: Path, setting: str) -> None:
    """Raise `ConfigError`, before a long computation, where its result cannot be written."""
    if not file.exists():
        check(file.absolute().parent, setting)
    elif not os.access(file, os.W_OK):
        raise ConfigError(f"{setting}: {file}: cannot be written.")


@contextmanager
def written(location: Location, setting: str = "") -> Iterator[None]:
    """Turn an `OSError` while a file or folder is written into a `ConfigError`."""
    try:
        yield
    except OSError as error:
        where = f"{setting}: {location}" if setting else str(location)
        raise ConfigError(f"{where}: cannot be written ({error.strerror or error}).") from error


def _check_uri(uri: str, setting: str) -> None:
    failures: list[Exception] = []

    def create() -> None:
        try:
            with _as_config_error(f"{setting}: {uri}"):
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
    """Choose the folder of a URI's copy, without creating it."""
    name = uri.partition("?")[0].rstrip("/").rpartition("/")[2] or "copy"
    copy = Path(mkdtemp(prefix="raysync-"), name)
    _copies[copy] = uri
    return copy


def folder_of(location: Location) -> Path:
    """Return a folder without `~`, or a URI's copy, which may not exist yet."""
    if not is_uri(location):
        return Path(location).expanduser()
    uri = str(location)
    return next((copy for copy, source in _copies.items() if source == uri), None) or new_copy(uri)


def local_copy(location: Location, *, without: Collection[str] = ()) -> Path:
    """Return a folder unchanged; download a URI and return the copy.

    It skips subfolders named in `without`, at any depth. Raises `ConfigError` if nothing is there.
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


def is_copy(path: Path) -> bool:
    return _copy_around(path) is not None


def keep_copy(path: Path) -> None:
    """Turn a copy into a plain folder, which outlives the process."""
    if (copy := _copy_around(path)) is not None:
        del _copies[copy]


def drop_copy(path: Path) -> None:
    """Remove the copy around a path; the files behind the URI stay."""
    if (copy := _copy_around(path)) is not None:
        del _copies[copy]
        shutil.rmtree(copy.parent, ignore_errors=True)


@atexit.register
def clean() -> None:
    """Remove the copies at the end of the process."""
    for copy in list(_copies):
        drop_copy(copy)


def _copy_around(path: Path) -> Path | None:
    return next((copy for copy in (path, *path.parents) if copy in _copies), None)


def listdir(location: Location) -> list[str]:
    """List the names in a folder, sorted; empty where the folder does not exist."""
    if not is_uri(location):
        folder = Path(location)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    with _as_config_error(str(location)):
        system, path = fs.FileSystem.from_uri(location)
        selector = fs.FileSelector(path, allow_not_found=True)
        return sorted(info.base_name for info in system.get_file_info(selector))


def find_folders(uri: Location, name: str) -> list[Location]:
    """Find folders, at any depth, with a file of that name; raise `ConfigError` on failure."""
    with _as_config_error(str(uri)):
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
    """Update a copy, or a folder within one, from its URI, with the files' modification times.

    It skips subfolders named in `without`, at any depth, and leaves other folders alone. Raises
    `ConfigError` if the URI is unreachable, or nothing is there.
    """
    if not is_copy(folder):
        return
    uri = location_of(folder)
    with _as_config_error(str(uri)):
        system, path = fs.FileSystem.from_uri(uri)
        infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        if not infos:
            raise ConfigError(f"{masked(str(uri))}: nothing is there.")
        _check_tree(system, path)
        _copy_tree(system, infos, folder, without)


def _copy_tree(
    system: fs.FileSystem, infos: list[fs.FileInfo], folder: Path, without: Collection[str]
) -> None:
    for info in infos:
        if info.base_name in (*without, ""):
            continue
        target = folder / info.base_name
        is_folder = info.type is fs.FileType.Directory
        (target if is_folder else folder).mkdir(parents=True, exist_ok=True)
        if is_folder and without and _contains_any(system, info.path, without):
            _copy_tree(system, system.get_file_info(fs.FileSelector(info.path)), target, without)
        else:  # all files at once, by several threads
            fs.copy_files(info.path, str(target), source_filesystem=system)
            inside = fs.FileSelector(info.path, recursive=True)
            for inner in system.get_file_info(inside) if is_folder else ():
                _set_mtime(target / PurePosixPath(inner.path).relative_to(info.path), inner)
        _set_mtime(target, info)


def _set_mtime(target: Path, info: fs.FileInfo) -> None:
    if info.mtime_ns is not None:
        os.utime(target, ns=(info.mtime_ns, info.mtime_ns))


def _contains_any(system: fs.FileSystem, path: str, names: Collection[str]) -> bool:
    """Return whether a folder contains one of these names, at any depth."""
    inside = system.get_file_info(fs.FileSelector(path, recursive=True))
    return any(info.base_name in names for info in inside)


def _check_tree(system: fs.FileSystem, path: str) -> None:
    """Refuse what pyarrow would read without end: pipes, devices, links that may form a cycle."""
    if system.type_name != "local":
        return
    for folder, folders, files in os.walk(path):
        for inner in (Path(folder, name) for name in (*folders, *files)):
            # a link that leads nowhere is no entry for pyarrow
            if not inner.is_file() and not inner.is_dir() and inner.exists():
                raise ConfigError(f"{inner}: neither a plain file nor a folder.")
            if inner.is_dir() and inner.is_symlink():
                raise ConfigError(f"{inner}: a link to a folder, which is not followed.")


def upload(*files: Path) -> None:
    """Upload files and folders, all within one copy, to its URI; outside of copies, do nothing."""
    if not files or (copy := _copy_around(files[0])) is None:
        return
    uri = _copies[copy]
    with _as_config_error(uri):
        system, base = fs.FileSystem.from_uri(uri)
        for file in files:
            path = "/".join([base.rstrip("/"), *file.relative_to(copy).parts])
            system.create_dir(path if file.is_dir() else path.rpartition("/")[0], recursive=True)
            fs.copy_files(str(file), path, destination_filesystem=system)


def remove(location: Location) -> None:
    """Remove a file or folder if it exists, of a copy also behind the URI.

    Raises `ConfigError` if a URI cannot be reached or written.
    """
    if not is_uri(location):
        path = Path(location)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        location = location_of(path)
    if not is_uri(location):
        return
    with _as_config_error(str(location)):
        system, path = fs.FileSystem.from_uri(location)
        kind = system.get_file_info(path).type
        if kind is fs.FileType.File:
            system.delete_file(path)
        elif kind is fs.FileType.Directory:
            system.delete_dir(path)


@contextmanager
def completed(path: Path) -> Iterator[Path]:
    """Yield a new path, which replaces the file at `path` if the block ends without an error."""
    new = path.with_name(path.name + NEW)
    try:
        yield new
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise


@contextmanager
def _as_config_error(where: str) -> Iterator[None]:
    """Turn errors of a file system into a `ConfigError` without the secrets of the URI."""
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
