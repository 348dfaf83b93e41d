"""`raysync sweep`: a grid of trials under Ray Tune."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysync import config
from raysync.cli.app import (
    EngineName,
    Settings,
    Trust,
    Verbose,
    app,
    check_places,
    check_trust,
    prepare_tune,
    say_that_ray_starts,
    warn_of_the_jobs_folder,
    with_engine,
)
from raysync.cli.console import console, say
from raysync.cli.progress_lines import TrialsLine
from raysync.record.run_end import RunEnd
from raysync.record.storage import display_name
from raysync.record.sweeps import CSV

if TYPE_CHECKING:
    import pandas as pd

    from raysync.record.sweeps import SweepRecord


@app.command()
def sweep(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="Experiment file (YAML). Default with --resume: the file of the sweep.",
        ),
    ] = None,
    engine: EngineName = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="FOLDER",
            help=(
                "Resume a sweep that was stopped or lost. Name its folder (or URI), or a folder"
                " of several sweeps, for the latest. Trials that have ended are not repeated;"
                " others resume from their newest checkpoint, or start."
            ),
        ),
    ] = None,
    trust: Trust = False,
    yes: Annotated[bool, typer.Option("--yes", help="Allow more than 1,000 trials.")] = False,
    verbose: Verbose = False,
) -> None:
    """Run the trials of the file's `sweep:` block under Ray Tune. Trials that share no cores run
    side by side.
    """
    check_trust(trust=trust, resume=resume)
    overrides = with_engine(settings, engine)
    if file is not None:
        experiment = config.load(file, overrides)
        if resume is None:
            check_places(experiment)
        say_that_ray_starts(experiment, "the trials")
    prepare_tune()
    from raysync.tuning import sweep_run as sweeps

    plan = sweeps.plan(file, overrides, resume=resume, trust=trust, many=yes)
    folder = display_name(plan.trials.folder)
    if file is None:
        say_that_ray_starts(plan.experiment, "the trials")
    with TrialsLine(hidden=verbose) as line:
        warn_of_the_jobs_folder(plan.experiment)
        line.begin(f"{plan.total} trials", plan.total, plan.done)
        try:
            record, ending = sweeps.run(
                plan,
                notify=say,
                show=line.show,
                address=os.environ.get("RAY_ADDRESS"),
                verbose=verbose,
            )
        except SystemExit:  # after `ray job stop`
            say(f"Stopped. To resume: raysync sweep --resume {folder}")
            raise
    # how each trial ended: its status, or what ended it earlier
    ends = zip(record.table.end, record.table.ended_by, strict=True)
    counts = Counter(RunEnd(kind, by, 0.0, 0.0).how for kind, by in ends)
    console.print(
        f"{len(record.table)} trials: {', '.join(f'{n} {text}' for text, n in counts.items())}.",
        highlight=False,
    )
    if record.records:
        _print_answer(record)
    console.print_plain(
        f"Table: {display_name(record.path / CSV)}\nReport: raysync report"
        f" {display_name(record.path)}"
    )
    begun = f"{len(record.table)} of {plan.total} trials began"
    if ending == "interrupted":
        say(f"Interrupted: {begun}. To resume: raysync sweep --resume {folder}")
        raise typer.Exit(130)
    if ending == "out of time":
        budget_s = plan.sweep.time_budget_s
        finished = sum(not end.is_left_off for end in record.ends.values())
        say(
            f"The time budget of {budget_s:g} s is over: {begun}, {finished} ended by themselves."
            f" To go on: raysync sweep --resume {folder} --set sweep.time_budget_s={budget_s:g}"
        )
        raise typer.Exit(0 if finished else 1)
    if any_failed(record.table):
        raise typer.Exit(1)


def _print_answer(record: SweepRecord) -> None:
    from raysync.results.collection import collect
    from raysync.results.ranking import rank_all
    from raysync.results.sentences import cautions, losses, overall, scenario_answer, search_text

    collection = collect([record.path])
    rankings = rank_all(collection)
    sentences = [
        search_text(collection.search),
        *map(scenario_answer, rankings),
        overall(rankings),
        *cautions(collection),
        *losses(collection),
    ]
    for sentence in filter(None, sentences):
        console.print_plain(sentence)


def any_failed(table: pd.DataFrame) -> bool:
    """Return whether a trial failed.

    A trial that Tune stopped early also leaves a record without an end, but it has no error.
    """
    is_broken = table.status.eq("unfinished") & table.error.fillna("").ne("")
    return bool((table.status.eq("failed") | is_broken).any())
