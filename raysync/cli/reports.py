"""`raysync report`: turn records into a page, Markdown, pictures or a trace."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raysync.cli.app import app
from raysync.cli.console import console
from raysync.errors import ConfigError, visible
from raysync.record.checkpoints import CHECKPOINTS
from raysync.record.storage import check, check_file, display_name, local_copy, upload, written
from raysync.record.sweeps import TUNE

if TYPE_CHECKING:
    from raysync.results.collection import Collection


Format = Literal["html", "md", "png", "trace"]
Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        show_default=False,
        help="Folders of runs, of a sweep, or of several runs (runs/NAME); also URIs.",
    ),
]
Kind = Annotated[
    Format,
    typer.Option(
        "--format",
        help=(
            "html: one page; md: Markdown; png: a picture of each figure; trace: the timeline of"
            " one run, for ui.perfetto.dev."
        ),
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File or folder to write. Default: in the first folder; Markdown to the terminal.",
    ),
]
Median = Annotated[
    bool, typer.Option("--median", help="For md: the values of the median run, not means.")
]


Margin = Annotated[
    float | None,
    typer.Option(
        metavar="DIFFERENCE",
        help=(
            "Say which models are equally good within it: 0.005 is half a point of accuracy."
            " Default: the experiment's evaluation.margin."
        ),
    ),
]


@app.command()
def report(
    paths: Paths,
    kind: Kind = "html",
    output: Output = None,
    median: Median = False,
    margin: Margin = None,
) -> None:
    """Report which paradigm is best in several runs or a sweep, and how sure that is, with tables
    and figures.
    """
    from raysync.results.collection import collect

    if median and kind != "md":
        raise ConfigError(
            f"--median applies to the tables of --format md; it has no meaning for {kind}."
        )
    if margin is not None and not 0 < margin < inf:
        raise ConfigError(f"--margin {margin:g}: it must be above 0, and finite.")
    _check_output(output, kind)
    collection = collect([local_copy(path, without=[TUNE, CHECKPOINTS]) for path in paths])
    collection = replace(collection, margin=margin)
    if kind == "md" and output is None:
        from raysync.results.markdown import markdown

        typer.echo(visible(markdown(collection, median=median)), nl=False)
        return
    target = output or _default_output(collection, kind)
    with written(target):
        _write(collection, kind, target, median)
        upload(target)
    console.print_plain(f"Written: {display_name(target)}")


def _check_output(output: Path | None, kind: Format) -> None:
    # checked before records are read, which may take a minute
    if output is None:
        return
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.parent}.")
    found = "folder" if output.is_dir() else "file"
    expected = "folder" if kind == "png" else "file"
    if output.exists() and found != expected:
        raise ConfigError(
            f"--output {output}: this is a {found}; --format {kind} is written to a {expected}."
        )
    (check if output.is_dir() else check_file)(output, "--output")


def _default_output(collection: Collection, kind: Format) -> Path:
    """Return the report's place in the first folder, or in the folder of the only run."""
    if kind == "trace":
        return collection.runs[0].record.path / "trace.json"
    return collection.paths[0] / ("report.html" if kind == "html" else "report")


def _write(collection: Collection, kind: Format, path: Path, median: bool) -> None:
    if kind == "md":
        from raysync.results.markdown import markdown

        path.write_text(visible(markdown(collection, median=median)), encoding="utf-8")
    elif kind == "trace":
        from raysync.results.trace import write_trace

        if len(collection.runs) > 1:
            raise ConfigError(
                f"--format trace: it shows one run, but there are {len(collection.runs)}; name one"
                f" of them: {collection.runs[0].record.path}, ..."
            )
        write_trace(collection.runs[0].record, path)
    else:
        from raysync.results.page import write_html, write_png

        (write_html if kind == "html" else write_png)(collection, path)
