"""Decide whether to import and call the user's own code that a record names.

Any name can do harm (`os:system` as a model), and so can the address of a Ray cluster. So a record
that was not made here must be trusted first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from raysync.config.bounded_file import read_text
from raysync.config.files import MOST_BYTES
from raysync.config.yaml_reading import read_yaml
from raysync.errors import ConfigError
from raysync.record.made_here import MAKER, is_made_here
from raysync.record.reader import RunRecord
from raysync.record.resumption import environment_of
from raysync.record.storage import display_name
from raysync.record.sweeps import FILE, NOTE, ORIGIN, RECORDS, Origin
from raysync.record.writer import CONFIG

OWN_WORDS = ("hf", "timm", "torchvision", "given")  # prefixes of names that are no modules
MOST_NAMES = 5  # in a message


def trusted(record: RunRecord, *, trust: bool) -> RunRecord:
    """Return a record, trusted, so that its run can resume.

    Raises `ConfigError` if it names modules, was not made here, and `trust` is False.
    """
    maker = environment_of(record).get(MAKER, {})
    if not trust and not is_made_here(record.path, maker):
        _refuse(record.path, references_in(_yaml(record.path / CONFIG)))
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
        contents += [read_yaml(each.partition("=")[2], each) for each in origin.overrides]
    _refuse(sweep, references_in(contents))


def _refuse(folder: Path, names: Iterator[str]) -> None:
    found = sorted(set(names))
    if found:
        more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
        raise ConfigError(
            f"{display_name(folder)}: it was not created from the current directory, and resuming"
            f" it runs the code that it names: {', '.join(found[:MOST_NAMES])}{more}.\n"
            "If you trust it: --trust."
        )


def _yaml(file: Path) -> Any:
    return read_yaml(read_text(file, MOST_BYTES), str(file))


def references_in(value: Any) -> Iterator[str]:
    """Yield possible names of classes and functions, and cluster addresses, anywhere in data."""
    if isinstance(value, str) and _is_reference(value):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "address" and inner not in (None, "auto", "local"):
                yield f"{key}: {inner}"
            yield from chain(references_in(key), references_in(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from references_in(inner)


def _is_reference(text: str) -> bool:
    """Return whether `load_reference` could import something by that name."""
    module, _, name = text.removeprefix("lightning:").partition(":")
    is_name = bool(name) and all(part.isidentifier() for part in name.split("."))
    return is_name and bool(module) and module not in OWN_WORDS
