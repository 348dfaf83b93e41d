"""`raysync export`: write the trained model of a run to a file of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer

from raysync.cli.app import RunFolder, app
from raysync.cli.console import console
from raysync.errors import ConfigError
from raysync.paradigms.class_loading import without_imports
from raysync.record.reader import RunRecord, load
from raysync.record.storage import completed

Which = Literal["final", "best"]
SAFETENSORS, TORCH = (".safetensors",), (".pt", ".pth")  # suffixes of files


@app.command()
def export(
    run: RunFolder,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help=(
                "File to write: *.safetensors, or *.pt or *.pth for torch.load; for a Hugging"
                " Face model also a folder, in the format of save_pretrained."
            ),
        ),
    ],
    which: Annotated[
        Which,
        typer.Option(
            "--which",
            help=(
                "final: the model at the last evaluation; best: the best model, saved only with"
                " keep: best."
            ),
        ),
    ] = "final",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write the trained model of a run to a file: its state_dict, by the names of its tensors."""
    _check_file(file, force)
    record = load(run)
    tensors = record.state_dict(which)
    try:
        if not file.suffix:
            _write_folder(record, which, file)
            return
        with completed(file) as temporary:
            if file.suffix in SAFETENSORS:
                shutil.copyfile(record.model_file(which), temporary)
            else:
                import torch

                torch.save(tensors, temporary)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise ConfigError(f"{file}: cannot be written ({reason}).") from error
    size = sum(tensor.numel() for tensor in tensors.values())
    console.print_plain(f"Written: {file} ({len(tensors)} tensors, {size:,} numbers)")


def _check_file(file: Path, force: bool) -> None:
    """Check the file before a record is read, perhaps from far away."""
    suffixes = (*SAFETENSORS, *TORCH)
    if file.suffix not in ("", *suffixes):
        raise ConfigError(f"{file}: the name of the file must end in {' or '.join(suffixes)}.")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}.")
    if file.is_dir() and file.suffix:
        raise ConfigError(f"{file}: this is a folder.")
    if file.exists() and not force:
        raise ConfigError(f"{file}: exists already; --force overwrites it.")


def _write_folder(record: RunRecord, which: Which, folder: Path) -> None:
    """Write a folder for `from_pretrained` of transformers or peft."""
    from raysync.training.adapters.huggingface_task import HuggingFaceTask
    from raysync.training.loading import load_task

    choice = record.config.task
    if choice is None or not choice.name.startswith("hf:"):
        raise ConfigError(
            f"{folder}: only a Hugging Face model can be written to a folder; name a file that"
            f" ends in {' or '.join((*SAFETENSORS, *TORCH))}."
        )
    with without_imports():
        task = load_task(choice)
    assert isinstance(task, HuggingFaceTask), "another task under that name"
    task.save_pretrained(record.model(which=which), folder)
    console.print_plain(f"Written: {folder}")
