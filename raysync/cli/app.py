"""What all commands share: the application, the consoles that they print to, and their common
arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Literal

import typer

from raysync import config
from raysync.cli.visible import VisibleConsole
from raysync.config import Experiment
from raysync.record.storage import is_uri

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Experiments with synchronisation paradigms in distributed deep learning, on Ray.",
)
WIDE = None if "COLUMNS" in os.environ else 160
"""The columns of an output that is no terminal, such as the log of a job. rich would fold it at 80,
which helps no reader."""
console = VisibleConsole(emoji=False, width=None if sys.stdout.isatty() else WIDE)
errors = VisibleConsole(stderr=True, emoji=False, width=None if sys.stderr.isatty() else WIDE)

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Experiment file (YAML).", show_default=False)
]
Settings = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a setting: a.b=value.")
]
EngineName = Annotated[
    Literal["ray", "virtual"] | None,
    typer.Option(
        "--engine",
        help=(
            "ray: real actors; virtual: a virtual clock in one process. Default: as the file says,"
            " else ray."
        ),
    ),
]
OptionalFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE", help="Experiment file; default: digits on four unequal workers."
    ),
]


def load_experiment(file: Path | None, settings: Sequence[str]) -> Experiment:
    """Load an experiment file, or the one that comes with raysync."""
    if file is not None:
        return config.load(file, settings)
    with as_file(files("raysync") / "comparison.yaml") as path:
        return config.load(path, settings)


def say(text: str) -> None:
    """Print a sentence for the user, above what a live display shows."""
    errors.print(text, markup=False, highlight=False, soft_wrap=True)


def say_that_ray_starts(experiment: Experiment, what: str) -> None:
    """Announce that Ray starts: for half a minute nothing else is seen."""
    joins = experiment.cluster.address not in ("auto", "local") or (
        experiment.cluster.address == "auto" and "RAY_ADDRESS" in os.environ
    )
    say(f"Starting {what} on the Ray cluster ..." if joins else f"Starting Ray and {what} ...")


def with_engine(settings: Sequence[str], engine: str | None) -> list[str]:
    """Return the overrides with that of `--engine`."""
    return [*settings, *([f"engine={engine}"] if engine else [])]


def warn_of_the_jobs_folder(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Warn where a job writes to a relative folder: it lies in Ray's copy of the working directory,
    which Ray deletes when it needs the space.
    """
    output = experiment.output
    in_a_job = "job_submission_id" in os.environ.get(
        "RAY_JOB_CONFIG_JSON_ENV_VAR", ""
    )  # for a job's driver (Ray 2.60)
    if in_a_job and not is_uri(output) and not Path(output).expanduser().is_absolute():
        say(
            f"output: {output}: in a job that is a folder of Ray's copy of the working directory,"
            " and is deleted with it. To keep the records: --set output=/A/SHARED/FOLDER, or a"
            " URI."
        )
