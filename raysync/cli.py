"""The command line: `raysync run`, `compare`, `list`, `replay`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib.resources import as_file, files
from inspect import getdoc, signature
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from raysync import config
from raysync.config import Experiment, ParadigmChoice
from raysync.core.replay import replay as replay_journal
from raysync.errors import ConfigError, RunFailed
from raysync.paradigms import PARADIGMS
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  help="Experiments with synchronisation paradigms in distributed deep learning, on Ray.")
console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)

File = Annotated[Path, typer.Argument(help="Experiment file (YAML).", show_default=False)]
Settings = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a setting: a.b=value.")]
EngineName = Annotated[Literal["ray", "virtual"] | None, typer.Option(
    "--engine", help="ray: real actors; virtual: a virtual clock in one process. Default: as the file says, else ray.")]
OptionalFile = Annotated[Path | None, typer.Argument(help="Experiment file; default: digits on four unequal workers.")]


class Kind(StrEnum):
    """What `raysync list` lists."""

    paradigms = "paradigms"
    models = "models"
    datasets = "datasets"
    clusters = "clusters"


@app.command()
def run(file: File, engine: EngineName = None, settings: Settings = []) -> None:  # noqa: B006 - typer copies it
    """Train one experiment."""
    experiment = config.load(file, _with_engine(settings, engine))
    _train(experiment, [experiment.paradigm], [experiment.seed])


@app.command()
def compare(file: OptionalFile = None, engine: EngineName = None, settings: Settings = []) -> None:  # noqa: B006
    """Train the same experiment under several paradigms, one after the other, and print one table."""
    settings = _with_engine(settings, engine)
    if file is None:
        with as_file(files("raysync") / "comparison.yaml") as path:
            experiment = config.load(path, settings)
    else:
        experiment = config.load(file, settings)
    _train(experiment, experiment.paradigms, experiment.seeds or [experiment.seed])


@app.command(name="list")
def list_(
    kind: Annotated[Kind, typer.Argument(show_default=False)],
    measure: Annotated[bool, typer.Option("--measure", help="Models: time a step here (a minute or two).")] = False,
) -> None:
    """List the paradigms, models or data sets that come with raysync, with their settings."""
    from raysync.training import data, models

    shelves: dict[Kind, Mapping[str, Callable[..., Any]]] = {
        Kind.paradigms: PARADIGMS, Kind.models: models.MODELS, Kind.datasets: data.DATASETS}
    table = Table(box=None, pad_edge=False)
    sizes = _sizes(measure) if kind is Kind.models else {}
    for column in ("name", *next(iter(sizes.values()), {}), "settings", "what it is"):
        table.add_column(column, no_wrap=column == "name")
    for name, thing in shelves[kind].items():
        known = signature(thing).parameters.values()
        settings = [f"{p.name}={p.default!r}" for p in known if p.default is not p.empty]
        cells = [name, *sizes.get(name, {}).values(), ", ".join(settings) or "-", (getdoc(thing) or "").splitlines()[0]]
        table.add_row(*map(escape, cells))
    console.print(table)
    console.print("Your own: package.module:Name in the experiment file.")


@app.command()
def replay(record: Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]) -> None:
    """Feed a run's journal to a fresh machine; every decision must come out the same."""
    journal = record / "journal.jsonl"
    if not journal.is_file():
        raise ConfigError(f"{record}: not the record of a run (no journal.jsonl in it).")
    with journal.open(encoding="utf-8") as file:
        replayed = replay_journal(file)
    if replayed.difference:
        errors.print(f"Differs at {replayed.difference}", markup=False, highlight=False)
        raise typer.Exit(1)
    console.print(f"{replayed.events} events replayed, all {replayed.decisions} decisions identical.", highlight=False)


def _with_engine(settings: Sequence[str], engine: str | None) -> list[str]:
    return [*settings, *([f"engine={engine}"] if engine else [])]


def main() -> None:
    """Entry point: a user's mistake is answered without a traceback, exit status 2."""
    sys.path.insert(0, str(Path.cwd()))  # the user's own package.module:Name
    try:
        app()
    except ConfigError as error:
        errors.print(f"raysync: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except RunFailed as error:
        errors.print(f"raysync: the run failed: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _train(experiment: Experiment, choices: Sequence[ParadigmChoice], seeds: Sequence[int]) -> None:
    """Train each paradigm with each seed in one session; print the table and where the records are."""
    from raysync.runner import engine_for, run_in
    from raysync.training.task import prepare

    task = prepare(experiment)
    done: dict[str, list[RunRecord | None]] = {choice.label: [] for choice in choices}
    ray_address = os.environ.get("RAY_ADDRESS")
    with _live(task.data.tokens) as live, engine_for(experiment, live.say, ray_address) as engine:
        for group, step_s in task.estimated_s.items():
            live.say(f"Nobody said how long a step of {group!r} lasts: {step_s:.2g} s, from its floating-point operations.")
        for seed, choice in product(seeds, choices):
            label = choice.label if len(seeds) == 1 else f"{choice.label}, seed {seed}"
            try:
                record = run_in(engine, task.with_seed(seed), choice, watch=live.follow(label), notify=live.say)
            except RunFailed as failure:
                live.say(f"{label} failed: {failure}")
                done[choice.label].append(None)
            else:
                done[choice.label].append(record)
    summaries = {label: [record.summary if record else None for record in runs] for label, runs in done.items()}
    _print_table(summaries, experiment, seeds, task.data.tokens)
    console.print(f"Records: {experiment.output / experiment.name}", highlight=False, soft_wrap=True)
    if any(record is None for runs in done.values() for record in runs):
        raise typer.Exit(1)


def _sizes(measure: bool) -> dict[str, dict[str, str]]:
    """Columns of `list models`: parameters and, if they are measured, milliseconds a step, for the samples named."""
    from raysync.training.cost import STEP_BATCH, step_s
    from raysync.training.flat import FlatModel
    from raysync.training.models import MODELS, listed

    sizes = {}
    for name in MODELS:
        plan = listed(name)
        samples = "x".join(map(str, plan.input_shape)) + (" tokens" if plan.tokens else "")
        sizes[name] = {"samples": samples, "parameters": f"{FlatModel(plan.build()).size:,}"}
        if measure:
            sizes[name][f"ms a step of {STEP_BATCH}"] = f"{1000 * step_s(plan):,.1f}"
    return sizes


class _Live:
    """A progress line per run; where there is no terminal (the log of a job), a printed line per tenth."""

    def __init__(self, progress: Progress, tokens: bool) -> None:
        """
        Args:
            progress: draws the lines.
            tokens: of a language model: perplexity takes the place of accuracy.
        """
        self._progress = progress
        self._tokens = tokens

    def say(self, text: str) -> None:
        """Print a sentence above the lines."""
        self._progress.console.print(text, markup=False, highlight=False)

    def follow(self, label: str) -> Callable[[Measures], None]:
        """A `watch` that keeps one line up to date."""
        task = self._progress.add_task(escape(label), total=1.0, facts="starting")
        is_terminal, tenths = self._progress.console.is_terminal, 0

        def watch(measures: Measures) -> None:
            nonlocal tenths
            facts = (f"{self._result(measures)} │ {measures.throughput_samples_per_s:6,.0f} samples/s │ "
                     f"wait {measures.wait_fraction:3.0%}")
            status = measures.ended.status if measures.ended else ""
            if status not in ("", "finished"):
                facts += f"  {status}"
            self._progress.update(task, completed=min(1.0, measures.progress), facts=facts)
            if not is_terminal and tenths < int(10 * measures.progress) < 10:
                tenths = int(10 * measures.progress)
                self.say(f"{label} {tenths}0% │ {facts}")

        return watch

    def _result(self, measures: Measures) -> str:
        if self._tokens:
            return f"perplexity {'-' if measures.perplexity is None else _perplexity(measures.perplexity):>5}"
        return f"accuracy {'-' if measures.accuracy is None else f'{measures.accuracy:.1%}':>5}"


@contextmanager
def _live(tokens: bool) -> Iterator[_Live]:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=8), TextColumn("{task.percentage:3.0f}% │"),
               TextColumn("{task.fields[facts]}"))
    with Progress(*columns, console=errors) as progress:
        try:
            yield _Live(progress, tokens)
        except ConfigError:
            for task in progress.task_ids:  # nothing ran: the error's two lines say it all
                progress.remove_task(task)
            raise


def _print_table(
    rows: dict[str, list[dict[str, Any] | None]], experiment: Experiment, seeds: Sequence[int], tokens: bool,
) -> None:
    """One row a paradigm; means over the seeds, with the standard deviation of the results. None: a failed run."""
    columns = [
        *_results(experiment, tokens),
        ("samples\nper s", "throughput_samples_per_s", "{:,.0f}".format, False),
        ("wait\nshare", "wait_fraction", "{:.0%}".format, False),
        ("stale-\nness", "staleness_mean", "{:.1f}".format, False),
        ("\nmax", "staleness_max", "{:.0f}".format, False),
        ("lead\nmax", "lead_max", "{:.0f}".format, False),
    ]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("paradigm", no_wrap=True)
    for name, *_ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for label, summaries in rows.items():
        bad = Counter(one["status"] if one else "failed" for one in summaries)
        del bad["finished"]
        marks = [f"[red]{status} {count} of {len(seeds)}[/red]" for status, count in bad.items()]
        cells = [_cell([one[key] if one else None for one in summaries], show, spread=spread)
                 for _, key, show, spread in columns]
        table.add_row(" ".join([escape(label), *marks]), *cells)
    console.print(_title(experiment, seeds), highlight=False, soft_wrap=True)
    console.print(table)


Column = tuple[str, str, Callable[[float], str], bool]
"""Heading, key of the summary, how a value is shown, whether its spread is shown."""


def _results(experiment: Experiment, tokens: bool) -> list[Column]:
    """The columns that say how good the model became, and how soon it met the targets."""
    accuracy, loss = experiment.target_accuracy, experiment.target_loss
    columns: list[Column] = [("final\nperplexity", "final_perplexity", _perplexity, True) if tokens else
                             ("final\naccuracy", "final_accuracy", "{:.1%}".format, True)]
    if accuracy or not loss:
        name = f"{accuracy:.1%}" if accuracy else "target"
        columns.append((f"s to\n{name}", "time_to_accuracy_s", "{:.1f}".format, True))
    if loss:
        columns.append((f"s to\nloss {loss:g}", "time_to_loss_s", "{:.1f}".format, True))
    return columns


def _perplexity(value: float) -> str:
    return f"{value:.2f}" if value < 1000 else f"{value:.1e}"


def _title(experiment: Experiment, seeds: Sequence[int]) -> str:
    workers = " + ".join(f"{group.count} {group.name}" for group in experiment.workers)
    repeats = "mean (± standard deviation) over seeds" if len(seeds) > 1 else "seed"
    repeats += f" {', '.join(map(str, seeds))}"
    return f"{experiment.model.name} on {experiment.data.name}, workers {workers}, {repeats}"


def _cell(values: list[float | None], show: Callable[[float], str], *, spread: bool) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return "-"
    deviation = f" ± {show(stdev(there))}" if spread and len(there) > 1 else ""
    missing = f" ({len(there)} of {len(values)})" if len(there) < len(values) else ""
    return f"{show(mean(there))}{deviation}{missing}"
