"""Weights as people have them: the format is told by content, and no code is run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import ZipFile, is_zipfile

import torch
from torch import Tensor

from raysync.config.base import listed
from raysync.config.bounded_file import open_plain, read_text
from raysync.errors import ConfigError
from raysync.training.formats.state_dict import LISTED, StateDict, legible, read

# a folder's weights, the first that is there: of a record, or in the order of transformers
WHOLE = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
INDEX = ".index.json"
INDEX_BYTES = 100_000_000
PART = re.compile(r"(.+-)(\d+)-of-(\d+)(\.\w+)")
STARTS = 64  # bytes by which formats are told
ZIP, PICKLE, LFS = b"PK\x03\x04", b"\x80", b"version https://git-lfs"
LEGACY = bytes.fromhex("6cfc9c46f9206aa85019")  # torch's number near the start of its old form
ALONE = "save it by torch.save(model.state_dict(), FILE)"


def read_any(path: Path, where: str) -> StateDict:
    """Read the tensors of a file of weights, of its parts, or of a record's final model.

    Args:
        path: a safetensors file; a `torch.save`, in its zip format or the older one, of a
            `state_dict()`, or of a mapping that has one under `state_dict` like Lightning's
            checkpoints, of which only tensors are read; an index of parts (`*.index.json`); or a
            folder: a record's, one of `save_pretrained`, or one of numbered parts.

    Raises:
        ConfigError: it cannot be read, is damaged or incomplete, or has other things than tensors.
    """
    path = path.expanduser()
    if not path.is_dir():
        return _of_file(path, f"{where}: {path}")
    with legible(f"{where}: {path}"):
        names = sorted(entry.name for entry in path.iterdir())
    known = [name for name in WHOLE if name in names][:1]
    known = known or [name for name in names if name.endswith(INDEX)]
    if len(known) == 1:
        return _of_file(path / known[0], f"{where}: {path / known[0]}")
    parts = [found for name in names if (found := PART.fullmatch(name)) and not known]
    if several := {(part[1], part[3], part[4]) for part in parts}:
        known = [part[0] for part in parts]
    if len(several) != 1:
        what = "has no weights"
        if known:
            what = f"has several weights ({listed(known, LISTED)}); name one"
        raise ConfigError(
            f"{where}: {path}: the folder {what}.\n"
            f"Expected: {', '.join(WHOLE)}, or parts ...-1-of-N.safetensors to N-of-N."
        )
    numbers, count = {int(part[2]) for part in parts}, int(parts[0][3])
    absent = sorted({*range(1, count + 1)} - numbers)
    if missing := [f"{number}-of-{count}" for number in absent]:
        raise ConfigError(f"{where}: {path}: lacks the parts {listed(missing, LISTED)}.")
    return _joined(path, (part[0] for part in parts), f"{where}: {path}")


def _of_file(file: Path, where: str) -> StateDict:
    with legible(where), open_plain(file) as opened:
        start = opened.read(STARTS)
    is_zip = start.startswith(ZIP)
    if is_zip or LEGACY in start:
        return _of_torch(file, where, is_zip=is_zip)
    if start[4:9] == b"\0\0\0\0{":  # a header of less than 4 GB
        return read(file, where)
    if start.lstrip().startswith(b"{"):
        return _of_index(file, where)
    what = "its format is not known"
    if not start:
        what = "it is empty"
    elif start.startswith(LFS):
        what = "it is a pointer to a file of Git LFS (git lfs pull)"
    elif start.startswith(PICKLE):
        what = "it is a pickle, but none of torch.save"
    raise ConfigError(
        f"{where}: cannot be read: {what}.\n"
        "Allowed: safetensors, torch.save of a state_dict, an index of parts, or a folder of these."
    )


def _of_torch(file: Path, where: str, *, is_zip: bool) -> StateDict:
    code = None
    with legible(where), open_plain(file) as opened:
        if is_zip and not is_zipfile(opened):
            raise EOFError
        if is_zip and any(entry.compress_type for entry in ZipFile(opened).infolist()):
            raise ValueError("it is packed, and torch.save packs nothing")
        opened.seek(0)
        try:  # not by its name, which torch judges files by, too
            content = torch.load(opened, map_location="cpu", weights_only=True)
        except UnpicklingError as error:
            if (code := re.search(r"GLOBAL (\S+)", str(error))) is None:
                raise
    if code is not None:
        raise ConfigError(
            f"{where}: it needs code ({code[1]}), and raysync runs none of a file: {ALONE}."
        )
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if _is_state_dict(content):
        return dict(content)
    items = content.items() if isinstance(content, Mapping) else ()
    within = [repr(name) for name, value in items if _is_state_dict(value) and value]
    hint = f"; one is under {listed(within, LISTED)}: save that alone" if within else f"; {ALONE}"
    raise ConfigError(f"{where}: holds no state_dict, a mapping of names to tensors{hint}.")


def _is_state_dict(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
    )


def _of_index(file: Path, where: str) -> StateDict:
    with legible(where):
        index = json.loads(read_text(file, INDEX_BYTES))
    places = index.get("weight_map")
    if (
        not isinstance(places, dict)
        or not places
        # an index may come from a stranger, and is to name no file elsewhere
        or not all(isinstance(name, str) and Path(name).name == name for name in places.values())
    ):
        raise ConfigError(f"{where}: an index has `weight_map`: each weight, and its file beside.")
    tensors = _joined(file.parent, sorted(set(places.values())), where)
    if missing := [name for name in places if name not in tensors]:
        raise ConfigError(f"{where}: its parts lack {listed(missing, LISTED)}.")
    return tensors


def _joined(folder: Path, parts: Iterable[str], where: str) -> StateDict:
    tensors: StateDict = {}
    for name in parts:
        if name.endswith(INDEX):
            raise ConfigError(f"{where}: {name}: an index is no part.")
        part = _of_file(folder / name, f"{where}: {name}")
        if both := sorted(tensors.keys() & part.keys()):
            raise ConfigError(f"{where}: {name}: another part has {listed(both, LISTED)}, too.")
        tensors |= part
    return tensors
