"""`raysync compare`: train one experiment under several paradigms, and print one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from raysync import config
from raysync.cli.app import (
    EngineName,
    OptionalFile,
    Settings,
    Trust,
    app,
    check_trust,
    load_experiment,
    with_engine,
)
from raysync.cli.training_session import train
from raysync.config import Experiment
from raysync.config.resume_changes import check_changes, check_place
from raysync.record.comparisons import Comparison, new_id, newest_comparison
from raysync.record.resumption import check_resumable, is_over
from raysync.record.storage import experiment_folder
from raysync.record.writer import CONFIG

ResumeComparison = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="FOLDER",
        help=(
            "Resume a lost comparison. Name the folder (or URI) of its runs, OUTPUT/NAME. Runs"
            " that have ended are not repeated; others resume from their newest checkpoint, or"
            " start."
        ),
    ),
]


@app.command()
def compare(
    file: OptionalFile = None,
    engine: EngineName = None,
    settings: Settings = [],  # noqa: B006
    resume: ResumeComparison = None,
    trust: Trust = False,
) -> None:
    """Train the same experiment under several paradigms, one after the other, and print one
    table. raysync imports and calls the functions and classes that its file names; with --resume,
    those in the run folders, if they were created from the current directory.
    """
    check_trust(trust=trust, resume=resume)
    settings = with_engine(settings, engine)
    former = None
    if resume is None:
        experiment = load_experiment(file, settings)
    else:
        former = newest_comparison(resume, trust=trust)
        experiment = _settings_to_resume(former, file, settings)
    train(
        experiment,
        experiment.paradigms,
        experiment.seeds or [experiment.seed],
        former or Comparison(new_id(), experiment_folder(experiment.output, experiment.name), {}),
    )


def _settings_to_resume(
    comparison: Comparison, file: Path | None, settings: Sequence[str]
) -> Experiment:
    """Return the settings of the rest of a comparison.

    Raises:
        ConfigError: a setting changed that cannot, or one of its runs is still active.
    """
    first = comparison.any_record
    source = first.path / CONFIG if file is None else file
    experiment = config.load(source, settings, recorded=True)
    if file is None:
        experiment = config.common_of(experiment)
    before = config.common_of(first.config)
    of_a_run: dict[str, object] = {"paradigm": before.paradigm}
    if experiment.seeds:  # else the one seed may not change
        of_a_run["seed"] = first.config.seed
    check_place(first.config, experiment, comparison.location)
    check_changes(before, experiment.recorded.model_copy(update=of_a_run))
    for record in comparison.records.values():
        if not is_over(record):
            check_resumable(record)
    return comparison.redirect(experiment)
