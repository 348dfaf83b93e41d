"""`raysync whatif`: every paradigm on step times that were measured, without training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import DownloadColumn, MofNCompleteColumn

from raysync.cli.app import (
    AsJson,
    ColumnsOption,
    ExchangeOptions,
    LinkOptions,
    NodesOption,
    Processes,
    app,
)
from raysync.cli.console import console, errors
from raysync.cli.progress_lines import transient_progress
from raysync.cli.table import print_answer
from raysync.errors import ConfigError
from raysync.record.storage import check_file, written

if TYPE_CHECKING:
    from raysync.predict.step_times.rank_step_times import RankStepTimes

LARGEST = 2**31  # a bound for numbers of steps and samples


@app.command()
def whatif(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            show_default=False,
            help=(
                "Step times of all ranks: a table (CSV, parquet), torch profiler traces (one a"
                " rank, or their folder), a Ray timeline, or a run folder or its URI."
            ),
        ),
    ],
    paradigm: Annotated[
        list[str],
        typer.Option(
            "--paradigm",
            metavar="NAME",
            help=(
                "A paradigm to try, as in an experiment file: asp, '{name: ssp, staleness: 5}'."
                " Default: sixteen."
            ),
        ),
    ] = [],  # noqa: B006 - typer copies it
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LARGEST,
            help=(
                "Samples of a step. Default: the batch size of the run; without it, rates are in"
                " steps."
            ),
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LARGEST,
            help=(
                "Work to simulate, in steps a rank on average. Default: the steps of the shortest"
                " rank."
            ),
        ),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(min=0, help="Price of a worker's hour, to show what waiting costs."),
    ] = None,
    model_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of a gradient, such as 98MB. Default: the size in the trace or the run.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Model whose gradient size is used: torchvision:resnet50, or an experiment file.",
        ),
    ] = None,
    link: LinkOptions = [],  # noqa: B006 - typer copies it
    nodes: NodesOption = None,
    exchange: ExchangeOptions = [],  # noqa: B006 - typer copies it
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help=(
                "Profile of a cluster (of `raysync calibrate`, or a built-in one): its links, and"
                " what calls, pushes and updates cost. --link replaces its links; the latency of"
                " its calls stays."
            ),
        ),
    ] = None,
    curve: Annotated[
        list[str],
        typer.Option(
            metavar="AXIS=LOW..HIGH",
            help=(
                "Simulate the best few over a range: workers=1..64, link=50mbit..10gbit,"
                " batch=16..512, or steps=1..128 (local steps)."
            ),
        ),
    ] = [],  # noqa: B006 - typer copies it
    columns: ColumnsOption = None,
    event: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="For a Ray timeline: the method whose calls are the steps (Trainer.step).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Also write the answer as a page (*.html) or as Markdown (*.md)."
        ),
    ] = None,
    as_json: AsJson = False,
    processes: Processes = None,
) -> None:
    """Simulate other paradigms on the measured step times of any trainer. The answer has samples
    per second, waiting, staleness and lost worker-hours; nothing is trained.
    """
    from raysync.predict import report
    from raysync.predict.candidates import paradigms_in
    from raysync.predict.curves import axis_of
    from raysync.predict.exchange import exchange_of
    from raysync.predict.what_if import PredictionOptions, predict

    _check_output(output)
    if price_per_hour is not None and not price_per_hour < float("inf"):
        raise ConfigError(f"--price-per-hour {price_per_hour}: it must be a finite number.")
    choices, axes = paradigms_in(paradigm), [axis_of(text) for text in curve]
    times = _read_step_times(files, event, columns)
    options = PredictionOptions(
        batch_size=batch_size,
        steps=steps,
        price_per_hour=price_per_hour,
        processes=processes or os.cpu_count() or 1,
        exchange=exchange_of(
            model_bytes=_gradient_bytes(model_bytes, model, times),
            links=link,
            nodes=nodes,
            exchanges=exchange,
            ranks=list(times.steps),
            profile=profile,
        ),
        axes=tuple(axes),
    )
    with transient_progress(MofNCompleteColumn()) as progress:
        bar = progress.add_task("Simulating paradigms", total=None)

        def show(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        answer = predict(times, options, choices, show)
    if as_json:
        typer.echo(report.as_json(answer))
    else:
        print_answer(report.answer_of(answer))
    if output is not None:
        with written(output):
            report.write(answer, output)
        (errors if as_json else console).print_plain(f"Written: {output}")


def _check_output(output: Path | None) -> None:
    if output is None:
        return
    if output.suffix not in (".html", ".md"):
        raise ConfigError(f"--output {output}: the name of the file must end in .html or .md.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.parent}.")
    check_file(output, "--output")


def _read_step_times(files: list[str], event: str | None, columns: str | None) -> RankStepTimes:
    """Read the step times, with a bar for the bytes of traces."""
    from raysync.predict.step_times.rank_step_times import read

    with transient_progress(DownloadColumn()) as progress:
        bar = progress.add_task("Reading traces", total=None)

        def show(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        return read(files, event, show, columns)


def _gradient_bytes(size: str | None, model: str | None, times: RankStepTimes) -> int | None:
    """Return the bytes of a gradient; None: unknown."""
    from raysync.predict.exchange import model_bytes_of, size_of

    if size is not None and model is not None:
        raise ConfigError(
            "--model and --model-bytes both set the size of a gradient; give one of them."
        )
    if size is not None:
        return size_of(size, "--model-bytes")
    return times.exchanged_bytes if model is None else model_bytes_of(model)
