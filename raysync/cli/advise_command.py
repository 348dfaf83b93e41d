"""`raysync advise`: which paradigms suit a cluster, and the sweep that trains them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from raysync.cli.app import (
    AsJson,
    ColumnsOption,
    ExchangeOptions,
    LinkOptions,
    NodesOption,
    OptionalFile,
    Processes,
    Settings,
    app,
    load_experiment,
)
from raysync.cli.console import console, errors, say
from raysync.cli.progress_lines import transient_progress
from raysync.cli.sweep_command import sweep
from raysync.cli.table import print_answer
from raysync.config import Experiment
from raysync.config.yaml_reading import write_yaml
from raysync.errors import ConfigError
from raysync.record.storage import check, written

if TYPE_CHECKING:
    from raysync.predict.step_times.rank_step_times import RankStepTimes

MOST_SEEDS = 1000


@app.command()
def advise(
    file: OptionalFile = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    train: Annotated[
        bool, typer.Option("--train", help="Run the advised sweep, and show its answer.")
    ] = False,
    budget_minutes: Annotated[
        float | None, typer.Option(help="With --train: minutes after which all trials are stopped.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=MOST_SEEDS, help="Seeds of each trial of the sweep.")
    ] = 3,
    steps: Annotated[
        list[str],
        typer.Option(
            "--steps",
            metavar="FILE",
            help=(
                "Measured step times of the workers, as for `raysync whatif`: a run folder, a"
                " table, or traces. Default: from the experiment or its profile; missing ones are"
                " measured first."
            ),
        ),
    ] = [],  # noqa: B006 - typer copies it
    columns: ColumnsOption = None,
    paradigm: Annotated[
        list[str],
        typer.Option(
            "--paradigm",
            metavar="NAME",
            help=(
                "Compare only these, with the parameters given: asp, '{name: ssp, staleness: 5}'."
                " Default: sixteen, and the servers that suit the best."
            ),
        ),
    ] = [],  # noqa: B006 - typer copies it
    link: LinkOptions = [],  # noqa: B006 - typer copies it
    nodes: NodesOption = None,
    exchange: ExchangeOptions = [],  # noqa: B006 - typer copies it
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for the answer and the sweep's file."
        ),
    ] = Path("advice"),
    as_json: AsJson = False,
    processes: Processes = None,
) -> None:
    """Recommend paradigms, servers and batch shares for this cluster and model. Candidates are
    simulated in time only; the few best are written as a sweep, which --train runs.
    """
    from raysync.predict import report
    from raysync.predict.advise import SWEEP, advise
    from raysync.predict.candidates import paradigms_in
    from raysync.predict.exchange import exchange_of

    if budget_minutes is not None and not 0 < budget_minutes < float("inf"):
        raise ConfigError(f"--budget-minutes {budget_minutes:g}: it must be above 0, and finite.")
    if budget_minutes is not None and not train:
        raise ConfigError("--budget-minutes: it bounds the trials of --train; add --train.")
    if train and as_json:
        raise ConfigError("--json: it has the advice, and not what --train prints; leave one out.")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output}: it is a file; name a folder.")
    check(output, "--output")
    choices = paradigms_in(paradigm)
    experiment = load_experiment(file, settings)
    chosen_exchange = exchange_of(
        model_bytes=1,  # the experiment has a model
        links=link,
        nodes=nodes,
        exchanges=exchange,
        ranks=list(experiment.slots()),
    )
    times, profile = _step_times(experiment, steps, columns)
    with transient_progress(MofNCompleteColumn()) as progress:
        bar = progress.add_task("Timing candidates", total=None)

        def show(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        answer = advise(
            experiment,
            choices=choices,
            seeds=seeds,
            steps=times,
            profile=profile,
            exchange=chosen_exchange,
            processes=processes or os.cpu_count() or 1,
            show=show,
        )
    page, advised = output / report.PAGE, output / SWEEP
    with written(output):
        output.mkdir(parents=True, exist_ok=True)
        report.write(answer, page)
        advised.write_text(write_yaml(dict(answer.sweep)), encoding="utf-8")
    if as_json:
        typer.echo(report.as_json(answer))
    else:
        print_answer(report.answer_of(answer))
    to = errors if as_json else console
    to.print_plain(f"The answer: {page}\nThe fastest alone: raysync run {advised}")
    if not train:
        to.print_plain(f"Train the best ({answer.trials} trials): raysync sweep {advised}")
        return
    minutes = [] if budget_minutes is None else [f"sweep.time_budget_s={60 * budget_minutes:g}"]
    sweep(advised, settings=minutes)


def _step_times(
    experiment: Experiment, steps: list[str], columns: str | None
) -> tuple[RankStepTimes | None, dict[str, Any] | None]:
    """Return the step times of `--steps`; without it, a measured profile if they are not set."""
    from raysync.predict.advise import uncalibrated_groups
    from raysync.predict.step_times.rank_step_times import read

    if steps:
        return read(steps, columns=columns), None
    if columns is not None:
        raise ConfigError("--columns: it says what is in the tables of --steps; add --steps.")
    if groups := uncalibrated_groups(experiment):
        say(f"Measuring {', '.join(groups)}: their step times are not set ...")
        return None, _measured_profile(experiment)
    return None, None


def _measured_profile(experiment: Experiment) -> dict[str, Any]:
    from raysync import calibration
    from raysync.cluster.probes import busy_cores
    from raysync.config.yaml_reading import read_yaml
    from raysync.running.engines import engine_for
    from raysync.training.preparation import prepare

    with engine_for(experiment, say, os.environ.get("RAY_ADDRESS")) as engine:
        measured = calibration.calibrate(engine, prepare(experiment), say, busy_cores)
    settings = read_yaml(calibration.profile(experiment, measured, "measured"), "measured settings")
    assert isinstance(settings, dict), "a profile that is no mapping"
    return {name: settings[name] for name in ("workers", "network")}
