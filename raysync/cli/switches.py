"""`raysync switch-search`: when to go over from one phase to the next."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from raysync import config
from raysync.cli.app import (
    EngineName,
    File,
    Settings,
    app,
    console,
    errors,
    say,
    say_that_ray_starts,
    with_engine,
)
from raysync.cli.table import seconds_text
from raysync.cli.trials import TrialsLine
from raysync.errors import RunFailed

if TYPE_CHECKING:
    from raysync.tuning.switch_search import Found, Tried
    from raysync.tuning.switch_trials import SearchPlan


@app.command(name="switch-search")
def switch_search(
    file: File,
    engine: EngineName = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    recurring: Annotated[
        bool,
        typer.Option(
            "--recurring",
            help="Train nothing with the first phase alone: `known` says what it comes to.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show Ray Tune's own table of trials.")
    ] = False,
) -> None:
    """Search how early a sync-switch may switch: the file's `switch_search:` block. A second call
    goes on.
    """
    say_that_ray_starts(config.load(file, with_engine(settings, engine)), "the trainings")
    os.environ["RAY_AIR_NEW_OUTPUT"] = (
        "0"  # before Tune is imported: its newer output is never quiet, and shows no settings
    )
    from raysync.tuning.switch_trials import CHOSEN, RESULT, plan as planned, run

    plan = planned(file, with_engine(settings, engine), recurring=recurring)
    try:
        with TrialsLine(hidden=verbose) as line:
            found = run(
                plan,
                notify=line.say,
                begin=line.begin,
                show=line.show,
                address=os.environ.get("RAY_ADDRESS"),
                verbose=verbose,
            )
    except RunFailed as failure:
        errors.print(
            f"raysync: the search failed: {failure}.\nRuns: {plan.trials.folder}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1) from failure
    except KeyboardInterrupt:
        errors.print(
            "Interrupted. The same command goes on.", markup=False, highlight=False, soft_wrap=True
        )
        raise typer.Exit(130) from None
    except SystemExit:  # by SIGTERM or SIGHUP
        say("Stopped. The same command goes on.")
        raise
    _print_table(plan, found)
    for text in (_answer(plan, found), _costs(found)):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"Result: {plan.trials.folder / RESULT}\nRun it: raysync run {plan.trials.folder / CHOSEN}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _print_table(plan: SearchPlan, found: Found) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("fraction", no_wrap=True)
    for name in (
        "runs",
        plan.search.target.replace("_", "\n"),
        "passes",
        "seconds",
        f"of {_first(plan)}\nalone",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    known = [
        f"1 ({_first(plan)} alone)",
        "known",
        f"{found.accuracy:.2%}",
        "",
        _seconds(found.first_seconds),
        _ratio(found.ratio(found.first)),
    ]
    table.add_row(
        *(known if plan.known else _row(found, found.first, f"1 ({_first(plan)} alone)", ""))
    )
    for one in found.candidates:
        table.add_row(
            *_row(found, one, f"{one.fraction:g}", "yes" if one.passes else "[red]no[/red]")
        )
    console.print(table)


def _row(found: Found, tried: Tried, name: str, passes: str) -> list[str]:
    whys = Counter(run.why for run in tried.runs if run.why)
    marks = [f"[red]{count} {why}[/red]" for why, count in whys.items()]
    accuracy = "-" if tried.accuracy is None else f"{tried.accuracy:.2%}"
    return [
        " ".join([name, *marks]),
        str(len(tried.runs)),
        accuracy,
        passes,
        _seconds(tried.seconds),
        _ratio(found.ratio(tried)),
    ]


def _answer(plan: SearchPlan, found: Found) -> str:
    least = f"at least {found.accuracy - plan.search.threshold:.2%}"
    if found.answer is found.first:
        return f"Stay with {_first(plan)}: no fraction that was tried has {least}."
    ratio = found.ratio(found.answer)
    takes = (
        ""
        if ratio is None
        else f"; a training takes {ratio:.3g} of the time of {_first(plan)} alone"
    )
    last = found.candidates[-1]
    more = (
        f" The next was not tried: candidates_max is {plan.search.candidates_max}."
        if last.passes
        else ""
    )
    return (
        f"Switch at fraction {found.fraction:g}: the smallest that was tried with"
        f" {least}{takes}.{more}"
    )


def _costs(found: Found) -> str:
    if found.cost is None:
        return (
            f"Search cost: {seconds_text(found.seconds)} s of training. How many trainings with the"
            " first phase alone that is nobody can say without known: {accuracy: ..., seconds:"
            " ...}."
        )
    paid = (
        "never paid back: nothing is saved"
        if found.amortisation is None
        else (f"paid back after {found.amortisation:.2f} trainings")
    )
    effective = "-" if found.effective is None else f"{found.effective:.2f}"
    return (
        f"Search cost: {found.cost:.2f} trainings with the first phase alone"
        f" ({seconds_text(found.seconds)} s), {paid}; effective-training ratio {effective}."
    )


def _first(plan: SearchPlan) -> str:
    """What the first phase is called."""
    return plan.experiment.paradigm.make().phases()[0]


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds_text(value)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
