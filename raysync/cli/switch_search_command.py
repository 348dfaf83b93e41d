"""`raysync switch-search`: search when to switch from one phase to the next."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from raysync import config
from raysync.cli.app import (
    EngineName,
    File,
    Settings,
    Verbose,
    app,
    check_places,
    prepare_tune,
    say_that_ray_starts,
    with_engine,
)
from raysync.cli.console import console, say
from raysync.cli.progress_lines import TrialsLine
from raysync.cli.table import plain_table
from raysync.errors import RunFailed
from raysync.results.columns import ratio_text

if TYPE_CHECKING:
    from raysync.tuning.fraction_search import SearchResult
    from raysync.tuning.switch_trials import SearchPlan

PASSES = {True: "yes", False: "[red]no[/red]"}


@app.command(name="switch-search")
def switch_search(
    file: File,
    engine: EngineName = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    recurring: Annotated[
        bool,
        typer.Option(
            "--recurring",
            help=(
                "Skip the runs of the first phase alone: `switch_search.known` gives their result."
            ),
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Find how early a sync-switch may switch, by the file's `switch_search:` block. A second call
    resumes the search.
    """
    overrides = with_engine(settings, engine)
    experiment = config.load(file, overrides)
    check_places(experiment)
    say_that_ray_starts(experiment, "the trainings")
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
        say("Interrupted. Repeat the command to resume.")
        raise typer.Exit(130) from None
    except SystemExit:  # after SIGTERM or SIGHUP
        say("Stopped. Repeat the command to resume.")
        raise
    first = plan.experiment.paradigm.make().phases()[0]
    _print_table(plan, result, first)
    console.print_plain(
        f"{_answer_text(plan, result, first)}\n{_cost_text(result, first)}\n"
        f"Result: {plan.trials.folder / switch_trials.RESULT}\n"
        f"Run it: raysync run {plan.trials.folder / switch_trials.CHOSEN}"
    )


def _print_table(plan: SearchPlan, result: SearchResult, first: str) -> None:
    target = plan.search.target.replace("_", "\n")
    table = plain_table("fraction", "runs", target, "passes", "seconds", f"of {first}\nalone")
    for trial in (result.first, *result.candidates):
        is_first = trial is result.first
        name = f"1 ({first} alone)" if is_first else f"{trial.fraction:g}"
        seconds = result.first_seconds if is_first else trial.seconds
        table.add_row(
            " ".join([name, *(f"[red]{failure}[/red]" for failure in trial.failures)]),
            str(len(trial.trainings) or "known"),
            _quality_text(plan, result.value if is_first else trial.value),
            "" if is_first else PASSES[trial.passes],
            "-" if seconds is None else ratio_text(seconds),
            _number_text(result.ratio(trial), ".3f"),
        )
    console.print(table)


def _answer_text(plan: SearchPlan, result: SearchResult, first: str) -> str:
    bound = result.value - plan.search.threshold * (1 if plan.rises else -1)
    limit = f"at {'least' if plan.rises else 'most'} {_quality_text(plan, bound)}"
    if result.answer is result.first:
        return f"Stay with {first}: no fraction that was tried has {limit}."
    answer = f"Switch at fraction {result.fraction:g}: the smallest that was tried with {limit}."
    if result.candidates[-1].passes:
        answer += (
            f" The next smaller one was not tried: candidates_max is {plan.search.candidates_max}."
        )
    return answer


def _cost_text(result: SearchResult, first: str) -> str:
    spent = f"{ratio_text(result.seconds)} s"
    if result.cost is None:
        return (
            f"Search cost: {spent} of training. To compare it with {first} alone, give known:"
            " {value: ..., seconds: ...}."
        )
    paid_back = "never" if result.amortisation is None else f"{result.amortisation:.2f}"
    return (
        f"Search cost in trainings with {first} alone: {result.cost:.2f} ({spent}); paid back"
        f" after: {paid_back}; effective-training ratio: {_number_text(result.effective, '.2f')}."
    )


def _quality_text(plan: SearchPlan, value: float | None) -> str:
    return _number_text(value, ".2%" if plan.search.metric == "accuracy" else ".4g")


def _number_text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
