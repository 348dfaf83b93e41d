"""`raysync advise`: which paradigm, which parameters and which batch shares suit a cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TaskProgressColumn

from raysync.cli.app import (
    AsJson,
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
from raysync.cli.table import print_answer
from raysync.config import Experiment
from raysync.errors import ConfigError
from raysync.record.storage import check, written

if TYPE_CHECKING:
    from raysync.predict.exchange import Exchange
    from raysync.predict.world import World

MOST_SEEDS = 1000


@app.command()
def advise(
    file: OptionalFile = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    budget_minutes: Annotated[
        float, typer.Option(help="Minutes that the search may take, on all cores.")
    ] = 10.0,
    seeds: Annotated[
        int, typer.Option(max=MOST_SEEDS, help="Runs of each finalist, each with its own seed.")
    ] = 5,
    steps: Annotated[
        list[str],
        typer.Option(
            "--steps",
            metavar="FILE",
            help=(
                "Measured step times of the workers, as for `raysync whatif`: a run folder, a"
                " table, or traces. Default: from the experiment or its profile; step times that"
                " these lack are measured first."
            ),
        ),
    ] = [],  # noqa: B006 - typer copies it
    paradigm: Annotated[
        list[str],
        typer.Option(
            "--paradigm",
            metavar="NAME",
            help=(
                "Compare only these, with the parameters given: asp, '{name: ssp, staleness: 5}'."
                " Default: about eight paradigms with several parameters each, and balanced"
                " batches."
            ),
        ),
    ] = [],  # noqa: B006 - typer copies it
    link: LinkOptions = [],  # noqa: B006 - typer copies it
    nodes: NodesOption = None,
    exchange: ExchangeOptions = [],  # noqa: B006 - typer copies it
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for the answer and the experiment files to run.",
        ),
    ] = Path("advice"),
    as_json: AsJson = False,
    processes: Processes = None,
) -> None:
    """Recommend a paradigm, its parameters, learning rate, servers and batch shares for this
    cluster and model. Candidates are simulated, first in time only, then the few best with
    gradients.
    """
    from raysync.predict import advice_report as report
    from raysync.predict.advise import SearchOptions, advise
    from raysync.predict.candidates import paradigms_in
    from raysync.predict.exchange import exchange_of
    from raysync.predict.search import check_optuna

    check_optuna()
    processes = processes or os.cpu_count() or 1
    options = SearchOptions(60 * budget_minutes, seeds, processes, paradigms_in(paradigm))
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output}: it is a file; name a folder.")
    check(output, "--output")
    experiment = load_experiment(file, settings)
    chosen_exchange = exchange_of(
        model_bytes=1,  # the experiment has a model
        links=link,
        nodes=nodes,
        exchanges=exchange,
        ranks=list(experiment.slots()),
    )
    world = _world(experiment, steps, chosen_exchange)
    with transient_progress(TaskProgressColumn()) as progress:
        bar = progress.add_task("Starting", total=1.0)

        def show(what: str, used: float) -> None:
            progress.update(bar, description=what, completed=min(used, 1.0))

        answer = advise(world, options, time.monotonic, show)
    with written(output):
        report.write(answer, output)
    if as_json:
        typer.echo(report.as_json(answer))
    else:
        print_answer(report.answer_of(answer))
    (errors if as_json else console).print_plain(
        f"The answer: {output / report.PAGE}\nRun it: raysync run {output / report.ADVISED}"
    )


def _world(experiment: Experiment, steps: list[str], exchange: Exchange | None) -> World:
    """Return the world to simulate; unknown step times are measured."""
    from raysync.predict.step_times.rank_step_times import read
    from raysync.predict.world import uncalibrated_groups, world_of

    if steps:
        return world_of(experiment, steps=read(steps), exchange=exchange)
    if groups := uncalibrated_groups(experiment):
        say(f"Measuring {', '.join(groups)}: their step times are not set ...")
        return world_of(experiment, profile=_measured_profile(experiment), exchange=exchange)
    return world_of(experiment, exchange=exchange)


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
