"""`raysync run`: train one experiment, or resume a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from raysync import config
from raysync.cli.app import EngineName, Settings, Trust, app, check_trust, with_engine
from raysync.cli.console import console, say
from raysync.cli.progress_lines import run_lines
from raysync.cli.table import print_results
from raysync.cli.training_session import announce, say_where_the_model_is, train
from raysync.cli.watch import newest
from raysync.cluster.ray_private.fork_server import ForkServer, started_early
from raysync.config import Experiment
from raysync.errors import ConfigError
from raysync.record.reader import RunRecord
from raysync.record.storage import display_name
from raysync.record.trust import trusted

RunFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="Experiment file (YAML). Default with --resume: the experiment in the run folder.",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help=(
            "Resume a lost run from its newest checkpoint. Name its run folder (or URI), or a"
            " folder of several runs, for the latest."
        ),
    ),
]


@app.command()
def run(
    file: RunFile = None,
    engine: EngineName = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    resume: Resume = None,
    trust: Trust = False,
) -> None:
    """Train one experiment. raysync imports and calls the functions and classes that its file
    names; with --resume, those in the run folder, if it was created from the current directory.
    """
    check_trust(trust=trust, resume=resume)
    if resume is not None:
        _resume(resume, file, with_engine(settings, engine), trust=trust)
        return
    if file is None:
        raise ConfigError("Name an experiment file: raysync run FILE; or raysync run --resume RUN.")
    experiment = config.load(file, with_engine(settings, engine))
    train(experiment, [experiment.paradigm], [experiment.seed])


def _resume(run: str, file: Path | None, settings: Sequence[str], *, trust: bool) -> None:
    """Resume a run, and print its results."""
    record = trusted(newest(run), trust=trust)
    source = record.path / "config.yaml" if file is None else file
    experiment = config.load(source, settings, recorded=True)
    experiment = config.row_of(experiment, experiment.paradigm)
    address = os.environ.get("RAY_ADDRESS")
    with started_early(experiment, address) as fork_server:
        _go_on(record, experiment, address, fork_server)


def _go_on(
    record: RunRecord, experiment: Experiment, address: str | None, fork_server: ForkServer | None
) -> None:
    from raysync.predict.diagnosis import bottleneck_of_run
    from raysync.running.engines import engine_for
    from raysync.running.resuming import prepare_to_resume
    from raysync.running.run import run_in

    training, resume_from = prepare_to_resume(record, experiment, say)
    announce(experiment)
    with engine_for(training.experiment, say, address, fork_server) as engine:
        with run_lines(experiment.timing == "only") as lines:
            done = run_in(
                engine,
                training,
                experiment.paradigm,
                watch=lines.follow(experiment.label),
                notify=say,
                resume_from=resume_from,
                diagnose=bottleneck_of_run,
            )
        summaries = {experiment.label: [done.summary]}
        print_results(summaries, experiment, [experiment.seed], training.primary)
        console.print_plain(f"Record: {display_name(done.path)}")
        say_where_the_model_is([done])
