"""`raysync switch-search`: search when to switch from one phase to the next."""

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
    prepare_tune,
    say_that_ray_starts,
    with_engine,
)
from raysync.cli.console import console, say
from raysync.cli.progress_lines import TrialsLine
from raysync.cli.table import seconds_text
from raysync.errors import RunFailed

if TYPE_CHECKING:
    from raysync.tuning.switch_search import Candidate, SearchResult
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
            help="Train nothing with the first phase alone: `known` gives its target.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show Ray Tune's own table of trials.")
    ] = False,
) -> None:
    """Search how early a sync-switch may switch: the file's `switch_search:` block. A second call
    goes on.
    """
    overrides = with_engine(settings, engine)
    say_that_ray_starts(config.load(file, overrides), "the trainings")
    prepare_tune()
    from raysync.tuning import switch_trials

    plan = switch_trials.plan(file, overrides, recurring=recurring)
    try:
        with TrialsLine(hidden=verbose) as line:
            result = switch_trials.run(
                plan,
                notify=say,
                begin=line.begin,
                show=line.show,
                address=os.environ.get("RAY_ADDRESS"),
                verbose=verbose,
            )
    except RunFailed as failure:
        say(f"raysync: the search failed: {failure}.\nRuns: {plan.trials.folder}")
        raise typer.Exit(1) from failure
    except KeyboardInterrupt:
        say("Interrupted. The same command goes on.")
        raise typer.Exit(130) from None
    except SystemExit:  # by SIGTERM or SIGHUP
        say("Stopped. The same command goes on.")
        raise
    _print_table(plan, result)
    for text in (_answer(plan, result), _costs(result)):
        console.print_plain(text)
    console.print_plain(
        f"Result: {plan.trials.folder / switch_trials.RESULT}\n"
        f"Run it: raysync run {plan.trials.folder / switch_trials.CHOSEN}"
    )


def _print_table(plan: SearchPlan, result: SearchResult) -> None:
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
        _value(plan, result.value),
        "",
        _seconds(result.first_seconds),
        _ratio(result.ratio(result.first)),
    ]
    table.add_row(
        *(known if plan.known else _row(plan, result, result.first, f"1 ({_first(plan)} alone)"))
    )
    for candidate in result.candidates:
        passes = "yes" if candidate.passes else "[red]no[/red]"
        table.add_row(*_row(plan, result, candidate, f"{candidate.fraction:g}", passes))
    console.print(table)


def _row(
    plan: SearchPlan, result: SearchResult, candidate: Candidate, name: str, passes: str = ""
) -> list[str]:
    whys = Counter(training.why for training in candidate.trainings if training.why)
    marks = [f"[red]{count} {why}[/red]" for why, count in whys.items()]
    return [
        " ".join([name, *marks]),
        str(len(candidate.trainings)),
        _value(plan, candidate.value),
        passes,
        _seconds(candidate.seconds),
        _ratio(result.ratio(candidate)),
    ]


def _answer(plan: SearchPlan, result: SearchResult) -> str:
    bound = result.value - plan.search.threshold * (1 if plan.rises else -1)
    least = f"at {'least' if plan.rises else 'most'} {_value(plan, bound)}"
    if result.answer is result.first:
        return f"Stay with {_first(plan)}: no fraction that was tried has {least}."
    ratio = result.ratio(result.answer)
    takes = (
        ""
        if ratio is None
        else f"; a training takes {ratio:.3g} of the time of {_first(plan)} alone"
    )
    last = result.candidates[-1]
    more = (
        f" The next was not tried: candidates_max is {plan.search.candidates_max}."
        if last.passes
        else ""
    )
    return (
        f"Switch at fraction {result.fraction:g}: the smallest that was tried with"
        f" {least}{takes}.{more}"
    )


def _costs(result: SearchResult) -> str:
    if result.cost is None:
        return (
            f"Search cost: {seconds_text(result.seconds)} s of training. To compare it with the"
            " first phase alone, give known: {value: ..., seconds: ...}."
        )
    paid = (
        "never paid back: nothing is saved"
        if result.amortisation is None
        else f"paid back after {result.amortisation:.2f} trainings"
    )
    effective = "-" if result.effective is None else f"{result.effective:.2f}"
    return (
        f"Search cost: {result.cost:.2f} trainings with the first phase alone"
        f" ({seconds_text(result.seconds)} s), {paid}; effective-training ratio {effective}."
    )


def _first(plan: SearchPlan) -> str:
    """Return the name of the first phase."""
    return plan.experiment.paradigm.make().phases()[0]


def _value(plan: SearchPlan, value: float | None) -> str:
    """Return a value of the target as text."""
    if value is None:
        return "-"
    return f"{value:.2%}" if plan.search.metric == "accuracy" else f"{value:.4g}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds_text(value)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
