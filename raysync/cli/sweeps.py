"""`raysync sweep`: a grid of trials under Ray Tune."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from raysync import config
from raysync.cli.app import (
    EngineName,
    File,
    Settings,
    app,
    console,
    errors,
    say_that_ray_starts,
    warn_of_the_jobs_folder,
    with_engine,
)
from raysync.cli.trials import TrialsLine
from raysync.record.storage import display_name
from raysync.record.sweeps import CSV

if TYPE_CHECKING:
    import pandas as pd

    from raysync.record.sweeps import SweepRecord


@app.command()
def sweep(
    file: File,
    engine: EngineName = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the latest sweep of this file.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="More than 1,000 trials are meant.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show Ray Tune's own table of trials.")
    ] = False,
) -> None:
    """Run the trials of the file's `sweep:` block under Ray Tune, side by side where the cluster
    can hold them.
    """
    say_that_ray_starts(config.load(file, with_engine(settings, engine)), "the trials")
    os.environ["RAY_AIR_NEW_OUTPUT"] = (
        "0"  # before Tune is imported: its newer output is never quiet, and shows no settings
    )
    from raysync.tuning.sweep import plan as planned, run

    plan = planned(file, with_engine(settings, engine), resume=resume, many=yes)
    with TrialsLine(hidden=verbose) as line:
        warn_of_the_jobs_folder(plan.experiment, line.say)
        line.begin(f"{plan.done + plan.count} trials", plan.done + plan.count, plan.done)
        try:
            record, ended = run(
                plan,
                notify=line.say,
                show=line.show,
                address=os.environ.get("RAY_ADDRESS"),
                verbose=verbose,
            )
        except SystemExit:  # what `ray job stop` comes to
            line.say(f"Stopped. Go on: raysync sweep {file} --resume, with the same settings.")
            raise
    counts = Counter(record.table.status)
    console.print(
        f"{len(record.table)} trials:"
        f" {', '.join(f'{count} {status}' for status, count in counts.items())}.",
        highlight=False,
    )
    if record.records:
        _answer(record)
    console.print(
        f"Table: {display_name(record.path / CSV)}\nReport: raysync report"
        f" {display_name(record.path)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if not ended:
        errors.print(
            f"Interrupted. Go on: raysync sweep {file} --resume",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(130)
    if any_failed(record.table):
        raise typer.Exit(1)


def any_failed(table: pd.DataFrame) -> bool:
    """Whether a trial broke.

    One of which Tune had seen enough may have left a record without an end, too, but it has no
    error.
    """
    broke = table.status.eq("unfinished") & table.error.fillna("").ne("")
    return bool((table.status.eq("failed") | broke).any())


def _answer(record: SweepRecord) -> None:
    """Which paradigm, in each scenario."""
    from raysync.results.collection import collect
    from raysync.results.ranking import rank_all
    from raysync.results.sentences import answer, overall

    rankings = rank_all(collect([record.path]))
    for ranking in rankings:
        opening = f"{ranking.scenario}: " if ranking.scenario else ""
        console.print(f"{opening}{answer(ranking)}", markup=False, highlight=False)
    if len(rankings) > 1:
        console.print(overall(rankings), markup=False, highlight=False)
