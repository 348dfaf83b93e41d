"""The application, the commands' common arguments, and their common first steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Literal

import typer

from raysync import config
from raysync.cli.console import say
from raysync.config import Experiment
from raysync.errors import ConfigError
from raysync.record.storage import check, experiment_folder, is_uri

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Experiments with synchronisation paradigms in distributed deep learning, on Ray.",
)

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Experiment file (YAML).", show_default=False)
]
RunFolder = Annotated[
    str, typer.Argument(metavar="RUN", help="Run folder, or its URI.", show_default=False)
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
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help=(
            "With --resume: use the code, trackers, hosts and folders that the run folder names,"
            " although the run was not started in the current directory."
        ),
    ),
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Show Ray Tune's own table of trials.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")]
Processes = Annotated[
    int | None,
    typer.Option(
        min=1, max=1024, help="Processes that run simulations. Default: one for each core."
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE=TITLE,...",
        help=(
            "Of tables: which columns are which, as worker=host,step=iter,seconds=took,unit=ms; two"
            " may name a worker (worker=host,local_rank). A pattern, worker=*step_time, has a"
            " column a rank."
        ),
    ),
]
LinkOptions = Annotated[
    list[str],
    typer.Option(
        "--link",
        metavar="RATE",
        help=(
            "Link of each worker (with --nodes: of each node) and of each server: 1gbit, or"
            " '10gbit,0.2ms' with its latency. NAME=100mbit sets the link of one worker. Default"
            " of `advise`: the links of the experiment; of `whatif`: exchanging gradients takes"
            " no time."
        ),
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Machines, each with one link for all its workers."),
]
ExchangeOptions = Annotated[
    list[str],
    typer.Option(
        "--exchange",
        metavar="EXCHANGE",
        help=(
            "How gradients are exchanged: servers:N, ring or tree; repeat the option to compare"
            " several. Default: servers:1 and ring."
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
    """Load an experiment file, by default the one that comes with raysync."""
    if file is not None:
        return config.load(file, settings)
    with as_file(files("raysync") / "comparison.yaml") as path:
        return config.load(path, settings)


def prepare_tune() -> None:
    # Ray Tune reads this when imported; its newer output cannot be silenced, and has no settings
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"


def say_that_ray_starts(experiment: Experiment, what: str) -> None:
    """Announce the start of processes: nothing else is printed for half a minute."""
    joins = experiment.cluster.address not in ("auto", "local") or (
        experiment.cluster.address == "auto" and "RAY_ADDRESS" in os.environ
    )
    say(f"Starting {what} on the Ray cluster ..." if joins else f"Starting Ray and {what} ...")


def check_places(experiment: Experiment) -> None:
    """Check, before Ray starts, that records and checkpoints can be written."""
    check(experiment_folder(experiment.output, experiment.name))
    checkpoint = experiment.checkpoint
    if checkpoint is not None and checkpoint.output is not None:
        check(checkpoint.output, "checkpoint.output")


def with_engine(settings: Sequence[str], engine: str | None) -> list[str]:
    return [*settings, *([f"engine={engine}"] if engine else [])]


def check_trust(*, trust: bool, resume: str | None) -> None:
    if trust and resume is None:
        raise ConfigError("--trust: only with --resume; an experiment file is trusted in any case.")


def warn_of_the_jobs_folder(experiment: Experiment) -> None:
    """Warn if a Ray job would lose its records."""
    output = experiment.output
    # Ray 2.60 sets the variable for the driver of a job. A relative folder is in Ray's copy of the
    # working directory, which Ray removes when it needs the space.
    is_in_job = "job_submission_id" in os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")
    if is_in_job and not is_uri(output) and not Path(output).expanduser().is_absolute():
        say(
            f"output: {output}: in a Ray job this relative path is inside Ray's copy of the"
            " working directory, which Ray deletes. To keep the run folders: --set"
            " output=/A/SHARED/FOLDER, or a URI."
        )
