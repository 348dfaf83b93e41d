"""`raysync list`: list the paradigms, models, data sets and clusters that come with raysync."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, getdoc, signature
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from raysync import config
from raysync.cli.app import app
from raysync.cli.console import console
from raysync.paradigms import PARADIGMS, PRESETS
from raysync.results.grouping import workers_text

ListKind = Literal["paradigms", "models", "datasets", "clusters"]


@app.command(name="list")
def list_(
    kind: Annotated[
        ListKind, typer.Argument(metavar="KIND", help="What to list.", show_default=False)
    ],
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Models: measure a step on this machine (a minute or two)."),
    ] = False,
) -> None:
    """List the paradigms, models, data sets or clusters that come with raysync, with their
    settings.
    """
    if kind == "clusters":
        _list_clusters()
        return
    columns = _model_columns(measure) if kind == "models" else {}
    headings = ("name", *next(iter(columns.values()), {}), "settings", "what it is")
    rows: list[tuple[str, ...]] = []
    for name, builtin in _builtins(kind).items():
        parameters = signature(builtin).parameters.values()
        settings = [
            f"{parameter.name}={_default(builtin, parameter)}"
            for parameter in parameters
            if parameter.default is not parameter.empty
        ]
        about = (getdoc(builtin) or "").splitlines()[0]
        rows.append((name, *columns.get(name, {}).values(), ", ".join(settings) or "-", about))
    if kind == "paradigms":
        for name, preset in PRESETS.items():
            settings = [f"{parameter}={value!r}" for parameter, value in preset.parameters.items()]
            rows.append((name, f"{preset.paradigm}: {', '.join(settings)}", preset.about))
    _print_rows(headings, rows)
    if kind == "models":
        console.print_plain(
            "Of other libraries: torchvision:NAME, and with pip install 'raysync[timm]' timm:NAME."
        )
    console.print("Your own: package.module:Name in the experiment file.")


def _list_clusters() -> None:
    rows = []
    for name, about in config.profiles().items():
        experiment = config.validate({"profile": name, "engine": "virtual"})
        rows.append((name, workers_text(experiment), about.splitlines()[0]))
    _print_rows(("name", "workers", "what it is"), rows)
    console.print(
        "Name one: --set profile=NAME; your own: --set profile=FILE.yaml (`raysync calibrate`"
        " writes one).",
        markup=False,
        highlight=False,
    )


def _print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=heading == "name")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _model_columns(measure: bool) -> dict[str, dict[str, str]]:
    """Return the columns for each model: sample shape, parameters, milliseconds of a step."""
    from raysync.training.models.builtin import MODELS, listed
    from raysync.training.trials.cost import STEP_BATCH, measured_device, on_random_samples, step_s
    from raysync.training.vectors.flat import FlatModel

    columns = {}
    for name in MODELS:
        plan = listed(name)
        samples = "x".join(map(str, plan.input_shape)) + (" tokens" if plan.tokens else "")
        columns[name] = {"samples": samples, "parameters": f"{FlatModel(plan.build()).size:,}"}
        if measure:
            device = measured_device()
            where = "" if device == "cpu" else f", {device}"
            seconds = step_s(on_random_samples(plan), device=device)
            columns[name][f"ms a step of {STEP_BATCH}{where}"] = f"{1000 * seconds:,.1f}"
    return columns


def _builtins(kind: ListKind) -> Mapping[str, Callable[..., Any]]:
    if kind == "paradigms":
        return PARADIGMS
    from raysync.training.data.datasets import DATASETS  # slow: it imports torch
    from raysync.training.models.builtin import MODELS

    return MODELS if kind == "models" else DATASETS


def _default(builtin: Callable[..., Any], parameter: Parameter) -> str:
    """Return a parameter's default; of a dataclass's field, the value of its factory."""
    own = fields(builtin) if is_dataclass(builtin) else ()
    factories = {field.name: field.default_factory for field in own}
    factory = factories.get(parameter.name, MISSING)
    return repr(parameter.default if factory is MISSING else factory())
