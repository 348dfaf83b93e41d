"""The checkpoints of a record: folders of JSON and safetensors. Nothing in them is ever executed.

    RECORD/checkpoints/000007/state.json              the driver's state
    RECORD/checkpoints/000007/server-0.safetensors    a file for each shard of each server
    RECORD/checkpoints/000007/worker-fast-0.1.safetensors     what a worker keeps, if it does
    RECORD/checkpoints/000007/manifest.json           size and checksum of each file

A checkpoint is written into a folder that ends in `.new`, and renamed once all of it is on disk. So
a folder with its name is complete, unless the disk has damaged it; that is what the checksums show.
A folder without a manifest is one that is being removed, or is not uploaded yet.

Checksums are computed while files are written, by a thread that takes only what the workers leave
of the cores (on Linux, where each thread has a priority of its own).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import get_native_id
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from raysync.config.bounded_file import open_plain
from raysync.core.checkpoint import Checkpoint
from raysync.errors import ConfigError
from raysync.record.storage import NEW, Location, join, listdir, location_of, remove

CHECKPOINTS = "checkpoints"
"""The folder of the checkpoints within that of a record."""
MANIFEST, STATE = "manifest.json", "state.json"
CHECKPOINT_SCHEMA = 3
"""The schema of the files, and of the states in them: one that another raysync wrote is refused."""
CHUNK_BYTES = 1 << 20
"""What is hashed and written at once: it is still in the cache when it is written."""
LOWEST_PRIORITY = 19
MOST_BYTES = 1 << 24
"""The largest manifest that is read."""
NAME = re.compile(r"\d{6,}")
"""The name of a checkpoint's folder: its number."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """What a manifest says of a file."""

    bytes: Annotated[int, Meta(ge=0)]
    sha256: str
    server: str | None = None
    """The id of the server whose shard it is."""
    shard: Annotated[int, Meta(ge=0)] | None = None
    worker: str | None = None
    """The worker that keeps it."""


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of a manifest."""

    checkpoint: int
    """The schema."""
    number: int
    at: float
    files: dict[str, _File]
    """Name of a file -> what it must be."""


def name_of(number: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"{number:06d}"


def numbers_in(location: Location) -> list[int]:
    """Return the numbers of the checkpoints in a folder, rising; some may be damaged.

    Raises:
        ConfigError: the location is a URI that cannot be reached.
    """
    return sorted(int(name) for name in listdir(location) if NAME.fullmatch(name))


class CheckpointWriter:
    """Writes the checkpoints of one run, and removes all but the latest."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        """
        Args:
            folder: the folder of the checkpoints. It need not exist yet.
            keep: how many of the latest are kept.
        """
        self.folder, self._keep = folder, keep
        self._numbers: list[int] = []
        """The checkpoints of this run that are there, in their order."""

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove those that are too old.

        Raises:
            OSError: it cannot be written. Nothing of it is left, and the older ones stay.
        """
        target = self.folder / name_of(checkpoint.number)
        new = target.with_name(target.name + NEW)
        shutil.rmtree(new, ignore_errors=True)
        try:
            new.mkdir(parents=True)
            with ThreadPoolExecutor(1, initializer=_yield_cores) as pool:
                pool.submit(_write_files, new, checkpoint).result()
            if target.exists():
                shutil.rmtree(target)
            new.rename(target)
            _sync(self.folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        self._numbers.append(checkpoint.number)
        while len(self._numbers) > self._keep:
            _remove(self.folder / name_of(self._numbers.pop(0)))

    def go_on_from(self, number: int) -> None:
        """Take in that the run was resumed from a checkpoint: those behind it are removed, because
        what the run does from here on is something else than what they tell.

        Args:
            number: that of the checkpoint.

        Raises:
            ConfigError: they are behind a URI, which cannot be reached.
        """
        location = location_of(self.folder)
        there = numbers_in(location)
        for behind in (each for each in there if each > number):
            _remove(self.folder / name_of(behind))
            remove(join(location, name_of(behind)))
        for rest in self.folder.glob(f"*{NEW}"):
            shutil.rmtree(rest, ignore_errors=True)
        self._numbers = [each for each in there if each <= number]


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    described: dict[str, dict[str, Any]] = {}
    for name, about, data in _files(checkpoint):
        checksum = _write(folder / name, data)
        described[name] = {"bytes": len(data), "sha256": checksum, **about}
    manifest = {
        "checkpoint": CHECKPOINT_SCHEMA,
        "number": checkpoint.number,
        "at": checkpoint.at,
        "files": described,
    }
    _write(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
    _sync(folder)


def _files(checkpoint: Checkpoint) -> Iterator[tuple[str, Mapping[str, Any], bytes]]:
    """Yield the name of each file, what the manifest says of it, and its contents."""
    yield STATE, {}, json.dumps(dict(checkpoint.state)).encode()
    for server, shards in checkpoint.servers.items():
        stem = server.replace(" ", "-")  # "server of stage 1"
        assert re.fullmatch(r"[\w.-]+", stem), f"{server!r} cannot be the name of a file"
        for shard, data in enumerate(shards):
            yield f"{stem}-{shard}.safetensors", {"server": server, "shard": shard}, data
    for worker, data in checkpoint.kept.items():
        yield f"worker-{worker.replace('#', '.')}.safetensors", {"worker": worker}, data


def _write(path: Path, data: bytes) -> str:
    """Write a file to disk; return its SHA-256."""
    checksum, view = hashlib.sha256(), memoryview(data)
    with path.open("wb") as file:
        for begin in range(0, len(view), CHUNK_BYTES):
            chunk = view[begin : begin + CHUNK_BYTES]
            checksum.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return checksum.hexdigest()


def _yield_cores() -> None:
    """Give the present thread the lowest priority, which it could not get rid of again."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), LOWEST_PRIORITY)


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a checkpoint. The manifest goes first: what is left of a removal that was interrupted
    is none.
    """
    with suppress(IsADirectoryError):
        (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Read a checkpoint, and verify it; None: it has no manifest, so it is none.

    Raises:
        ConfigError: it is damaged, or was written by another raysync. The message is a clause.
    """
    try:
        return _verified(folder) if (folder / MANIFEST).exists() else None
    except msgspec.ValidationError as error:
        raise ConfigError(f"its {MANIFEST} is damaged: {error}") from error
    except OSError as error:
        name = Path(str(error.filename)).name
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise ConfigError("it is larger than the memory") from error


def _verified(folder: Path) -> Checkpoint:
    manifest = msgspec.convert(_json(_contents(folder / MANIFEST, MOST_BYTES), MANIFEST), _Manifest)
    if manifest.checkpoint != CHECKPOINT_SCHEMA:
        raise ConfigError(
            f"it was written by another raysync: it has schema {manifest.checkpoint}, and this"
            f" raysync reads schema {CHECKPOINT_SCHEMA}"
        )
    if name_of(manifest.number) != folder.name:
        raise ConfigError(f"its {MANIFEST} is that of checkpoint {manifest.number}")
    data = {name: _read(folder, name, file) for name, file in manifest.files.items()}
    if STATE not in data:
        raise ConfigError(f"its {MANIFEST} names no {STATE}")
    state = _json(data[STATE], STATE)
    kept = {
        file.worker: data[name] for name, file in manifest.files.items() if file.worker is not None
    }
    servers = _servers(manifest, data)
    return Checkpoint(manifest.number, manifest.at, state, servers=servers, kept=kept)


def _servers(manifest: _Manifest, data: Mapping[str, bytes]) -> dict[str, list[bytes]]:
    shards: dict[str, dict[int, bytes]] = {}
    for name, file in manifest.files.items():
        if file.server is not None and file.shard is not None:
            shards.setdefault(file.server, {})[file.shard] = data[name]
    for server, files in shards.items():
        if sorted(files) != list(range(len(files))):
            raise ConfigError(f"its {MANIFEST} lacks a shard of {server}")
    return {
        server: [files[shard] for shard in range(len(files))] for server, files in shards.items()
    }


def _read(folder: Path, name: str, expected: _File) -> bytes:
    if name != Path(name).name:
        raise ConfigError(f"its {MANIFEST} names {name!r}, which is no file of the folder")
    data = _contents(folder / name, expected.bytes)
    if len(data) != expected.bytes:
        size = (folder / name).stat().st_size
        raise ConfigError(f"{name} has {size:,} bytes in place of {expected.bytes:,}")
    if hashlib.sha256(data).hexdigest() != expected.sha256:
        raise ConfigError(f"{name} has another checksum than when it was written")
    return data


def _contents(file: Path, most: int) -> bytes:
    """Return the bytes of a file, and one more than the most if it has more."""
    with open_plain(file) as opened:
        return opened.read(most + 1)


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{name} is damaged: it is no mapping")
    return content
