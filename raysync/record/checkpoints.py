"""The checkpoints of a record: folders of JSON and safetensors, of which nothing is executed.

A folder without the suffix `.new` is complete if its checksums are right. A folder without a
manifest is being removed, or not uploaded yet.
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
from typing import Any

import msgspec

from raysync.config.bounded_file import open_plain
from raysync.core.checkpoint import Checkpoint
from raysync.core.structs import Size, Whole
from raysync.errors import ConfigError
from raysync.record.storage import NEW, Location, listdir, location_of, remove

CHECKPOINTS = "checkpoints"  # the folder in a record, with subfolders such as 000007
MANIFEST, STATE = "manifest.json", "state.json"
CHECKPOINT_SCHEMA = 3  # of the files and of the states in them; no other is read
CHUNK_BYTES = 1 << 20  # a chunk is hashed and written while it is in the cache
LOWEST_PRIORITY = 19
MOST_BYTES = 1 << 24  # of a manifest
CHECKPOINT_NAME = re.compile(r"\d{6,}")  # a checkpoint's folder: its number


class _File(msgspec.Struct, forbid_unknown_fields=True):
    bytes: Size
    sha256: str
    server: str | None = None  # for a shard
    shard: Size | None = None
    worker: str | None = None  # for a worker's state


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    checkpoint: Whole  # the schema
    number: Whole
    at: float
    files: dict[str, _File]  # by name


def name_of(number: int) -> str:
    return f"{number:06d}"


def numbers_in(location: Location) -> list[int]:
    """Return the numbers of a folder's checkpoints, sorted; some may be damaged."""
    return sorted(int(name) for name in listdir(location) if CHECKPOINT_NAME.fullmatch(name))


class CheckpointWriter:
    """Writes the checkpoints of one run, and removes old ones."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        """Create a writer; the folder of the checkpoints need not exist yet."""
        self.folder, self._keep = folder, keep
        self._numbers: list[int] = []  # the checkpoints that exist, in order

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove old ones; an `OSError` leaves nothing of it."""
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
            _remove_checkpoint(self.folder / name_of(self._numbers.pop(0)))

    def resume_from(self, number: int) -> None:
        """Remove the checkpoints behind the one that the run resumes from: they are void."""
        numbers = numbers_in(location_of(self.folder))
        for void in (later for later in numbers if later > number):
            _remove_checkpoint(self.folder / name_of(void))
            remove(self.folder / name_of(void))
        for incomplete in self.folder.glob(f"*{NEW}"):
            shutil.rmtree(incomplete, ignore_errors=True)
        self._numbers = [earlier for earlier in numbers if earlier <= number]


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
    """Yield each file's name, entry in the manifest, and contents."""
    yield STATE, {}, json.dumps(dict(checkpoint.state)).encode()
    for server, shards in checkpoint.servers.items():
        stem = server.replace(" ", "-")  # "server of stage 1"
        assert re.fullmatch(r"[\w.-]+", stem), f"{server!r} cannot be the name of a file"
        for shard, data in enumerate(shards):
            yield f"{stem}-{shard}.safetensors", {"server": server, "shard": shard}, data
    for worker, data in checkpoint.worker_files.items():
        yield f"worker-{worker.replace('#', '.')}.safetensors", {"worker": worker}, data


def _write(path: Path, data: bytes) -> str:
    """Write a file durably; return its SHA-256."""
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
    """Leave the cores to the workers while this thread hashes files.

    On Linux, each thread has a priority of its own, and cannot raise it again.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), LOWEST_PRIORITY)


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint, its manifest first: an interrupted removal leaves no checkpoint."""
    with suppress(IsADirectoryError):
        (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Read and verify a checkpoint; None: it has no manifest.

    Raises `ConfigError`, whose message is a clause, if it is damaged or of another raysync.
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
    with open_plain(folder / MANIFEST) as file:
        manifest = msgspec.convert(_json(file.read(MOST_BYTES + 1), MANIFEST), _Manifest)
    if manifest.checkpoint != CHECKPOINT_SCHEMA:
        which = "a newer" if manifest.checkpoint > CHECKPOINT_SCHEMA else "an older"
        raise ConfigError(
            f"it was written by {which} raysync: it has schema {manifest.checkpoint}, and this"
            f" raysync reads schema {CHECKPOINT_SCHEMA}"
        )
    if name_of(manifest.number) != folder.name:
        raise ConfigError(f"its {MANIFEST} belongs to checkpoint {manifest.number}")
    data = {name: _read(folder, name, file) for name, file in manifest.files.items()}
    if STATE not in data:
        raise ConfigError(f"its {MANIFEST} names no {STATE}")
    state = _json(data[STATE], STATE)
    worker_states = {
        file.worker: data[name] for name, file in manifest.files.items() if file.worker is not None
    }
    servers = _servers(manifest, data)
    return Checkpoint(
        manifest.number, manifest.at, state, servers=servers, worker_files=worker_states
    )


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
    with open_plain(folder / name) as file:
        # before it is read: the memory for a read is as large as is expected
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        data = file.read(expected.bytes + 1) if size == expected.bytes else b""
    if len(data) != expected.bytes:
        raise ConfigError(f"{name} has {size:,} bytes instead of {expected.bytes:,}")
    if hashlib.sha256(data).hexdigest() != expected.sha256:
        raise ConfigError(f"{name} has another checksum than when it was written")
    return data


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{name} is damaged: it is not a mapping")
    return content
