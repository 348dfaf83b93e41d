"""Decide whether to resume what a record names: code, and where a run sends what it has.

Any name can do harm (`os:system` as a model), and so can the address of a Ray cluster or of a
tracker, which gets the user's key. So a record that was not made here must be trusted first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from raysync.config.base import listed
from raysync.config.bounded_file import read_text
from raysync.config.files import MOST_BYTES
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError
from raysync.paradigms.class_loading import is_reference
from raysync.record.made_here import MAKER, is_made_here
from raysync.record.reader import RunRecord
from raysync.record.resumption import environment_of
from raysync.record.storage import display_name
from raysync.record.sweeps import FILE, NOTE, ORIGIN, RECORDS, Origin
from raysync.record.writer import CONFIG

# Settings of hosts and folders to which a run sends what it has: a tracker gets the user's key.
ELSEWHERE = (".address", ".checkpoint.output", ".track")
# values of them that stay here
HERE = ("auto", "local", "tensorboard", ["tensorboard"], [{"name": "tensorboard"}])
MOST_NAMES = 5  # in a message


def trusted(record: RunRecord, *, trust: bool) -> RunRecord:
    """Return a record, trusted, so that its run can resume.

    Raises `ConfigError` if it names code or other hosts, was not made here, and `trust` is False.
    """
    maker = environment_of(record).get(MAKER, {})
    if not trust and not is_made_here(record.path, maker):
        _refuse(record.path, [_yaml(record.path / CONFIG)])
    return replace(record, trust=True)


def check_trusted(sweep: Path, *, trust: bool) -> None:
    """Refuse a sweep that names modules and was not made here, unless the user trusts it."""
    origin = Origin.read(sweep) if (sweep / ORIGIN).exists() else None
    if trust or (origin is not None and is_made_here(sweep, origin.maker)):
        return
    records = sweep / RECORDS
    files = [sweep / FILE, *records.glob(f"*/{NOTE}"), *records.glob(f"*/*/{CONFIG}")]
    contents = [_yaml(file) for file in files]
    if origin is not None:
        contents.append(read_yaml(origin.text, origin.source))
        for override in origin.overrides:
            path, _, text = override.partition("=")
            contents.append({path: read_yaml(text, override)})
    _refuse(sweep, contents)


def _refuse(folder: Path, contents: Sequence[Any]) -> None:
    found = sorted({*references_in(contents), *elsewhere_in(contents)})
    if found:
        raise ConfigError(
            f"{display_name(folder)}: it was not created from the current directory, and resuming"
            " it uses what it names, code or other hosts and folders:"
            f" {listed(found, MOST_NAMES)}.\n"
            "If you trust it: --trust."
        )


def _yaml(file: Path) -> Any:
    return read_yaml(read_text(file, MOST_BYTES), str(file))


def references_in(value: Any) -> Iterator[str]:
    """Yield the names of classes and functions anywhere in data that a loader would import."""
    if isinstance(value, str):
        if is_reference(value.removeprefix("lightning:")):
            yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from chain(references_in(key), references_in(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from references_in(inner)


def elsewhere_in(value: Any, path: str = "") -> Iterator[str]:
    """Yield the settings in data that send something to another host or folder."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from elsewhere_in(inner, f"{path}.{key}")
        return
    last = path.rpartition(".")[2]
    if isinstance(value, list | tuple) and last != "track":
        for inner in value:
            yield from elsewhere_in(inner, path)
    elif value and (path.endswith(ELSEWHERE) or ".track." in path) and value not in HERE:
        yield f"{last}: {value!s:.80}"
