"""`raysync export`: write the trained model of a run to a file of its own."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from raysync.cli.app import app
from raysync.cli.console import console
from raysync.errors import ConfigError
from raysync.record.reader import load
from raysync.record.writer import completed

SAFETENSORS, TORCH = (".safetensors",), (".pt", ".pth")
"""The suffixes of the formats."""


class Which(StrEnum):
    """The models that a record may have."""

    final = "final"
    best = "best"


@app.command()
def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Folder of a run, or its URI.", show_default=False)
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="The file to write: *.safetensors, or *.pt or *.pth for torch.load.",
        ),
    ],
    which: Annotated[
        Which,
        typer.Option("--which", help="final: of the last evaluation; best: needs keep: best."),
    ] = Which.final,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write the trained model of a run to a file: its state_dict, by the names of its tensors."""
    _check(file, force)
    record = load(run)
    tensors = record.state_dict(which.value)
    try:
        with completed(file) as new:
            if file.suffix in SAFETENSORS:
                shutil.copyfile(record.model_file(which.value), new)
            else:
                import torch

                torch.save(tensors, new)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise ConfigError(f"{file}: cannot be written ({reason}).") from error
    size = sum(tensor.numel() for tensor in tensors.values())
    console.print_plain(f"Written: {file} ({len(tensors)} tensors, {size:,} numbers)")


def _check(file: Path, force: bool) -> None:
    """Check the file before a record is read, perhaps from far away.

    Raises:
        ConfigError: no format has that suffix, or the file cannot be written there.
    """
    suffixes = (*SAFETENSORS, *TORCH)
    if file.suffix not in suffixes:
        raise ConfigError(f"{file}: the name of the file must end in {' or '.join(suffixes)}.")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}.")
    if file.is_dir():
        raise ConfigError(f"{file}: this is a folder.")
    if file.exists() and not force:
        raise ConfigError(f"{file}: exists already; --force overwrites it.")
