"""The command line: `raysync run`, `compare`, `list`, `replay`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from importlib.resources import as_file, files
from inspect import getdoc, signature
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from raysync import config
from raysync.config import Experiment
from raysync.core.replay import replay as replay_journal
from raysync.errors import ConfigError, RunFailed
from raysync.paradigms import PARADIGMS

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  help="Experiments with synchronisation paradigms in distributed deep learning, on Ray.")
console = Console()
errors = Console(stderr=True)

File = Annotated[Path, typer.Argument(help="Experiment file (YAML).", show_default=False)]
Settings = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a setting: a.b=value; repeatable.")]


class Kind(str, Enum):
    """What `raysync list` lists."""

    paradigms = "paradigms"
    models = "models"
    datasets = "datasets"


@app.command()
def run(file: File, settings: Settings = []) -> None:  # noqa: B006 - typer copies it
    """Train one experiment."""
    from raysync.runner import run as run_experiment

    experiment = _load(file, settings)
    with _live() as live:
        record = run_experiment(experiment, watch=live.follow(experiment.paradigm.label), notify=live.say)
    console.print(_table([(experiment.paradigm.label, [record.summary])], experiment))
    console.print(f"Record: {record.path}")


@app.command()
def compare(
    file: Annotated[Path | None, typer.Argument(help="Experiment file (YAML); default: digits on four unequal workers.")] = None,
    settings: Settings = [],  # noqa: B006
) -> None:
    """Train the same experiment under several paradigms, one after the other, and print one table."""
    from raysync.cluster.session import Session
    from raysync.runner import run_in
    from raysync.training.task import prepare

    if file is None:
        with as_file(files("raysync") / "comparison.yaml") as path:
            experiment = _load(path, settings)
    else:
        experiment = _load(file, settings)
    seeds = experiment.seeds or (experiment.seed,)
    task = prepare(experiment)
    rows: dict[str, list[dict[str, Any]]] = {choice.label: [] for choice in experiment.paradigms}
    failed = False
    with _live() as live, Session(live.say) as session:
        for seed in seeds:
            seeded = task.with_seed(seed)
            for choice in experiment.paradigms:
                label = choice.label if len(seeds) == 1 else f"{choice.label}, seed {seed}"
                try:
                    record = run_in(session, seeded, choice, watch=live.follow(label), notify=live.say)
                except RunFailed as failure:
                    failed = True
                    live.say(f"{label} failed: {failure}")
                else:
                    rows[choice.label].append(record.summary)
    console.print(_table(list(rows.items()), experiment))
    console.print(f"Records: {experiment.output / experiment.name}")
    if failed:
        raise typer.Exit(1)


@app.command(name="list")
def list_(kind: Annotated[Kind, typer.Argument(show_default=False)]) -> None:
    """List the paradigms, models or data sets that come with raysync, with their parameters."""
    things: dict[str, Callable[..., Any]]
    if kind is Kind.paradigms:
        things = dict(PARADIGMS)
    elif kind is Kind.models:
        from raysync.training.models import MODELS as things
    else:
        from raysync.training.data import DATASETS as things
    table = Table(box=None, pad_edge=False)
    for column in ("name", "parameters", "what it is"):
        table.add_column(column, no_wrap=column == "name")
    given = {"input_shape", "classes"} if kind is Kind.models else {"data_dir"} if kind is Kind.datasets else set()
    for name, thing in things.items():
        parameters = [f"{p.name}={p.default!r}" for p in signature(thing).parameters.values() if p.name not in given]
        table.add_row(name, ", ".join(parameters) or "-", (getdoc(thing) or "").splitlines()[0])
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


def _load(file: Path, settings: list[str]) -> Experiment:
    experiment = config.load(file, settings)
    address = os.environ.get("RAY_ADDRESS")
    if experiment.cluster.address == "auto" and address:
        cluster = experiment.cluster.model_copy(update={"address": address})
        experiment = experiment.model_copy(update={"cluster": cluster})
    return experiment


class _Live:
    """A progress line per run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def say(self, text: str) -> None:
        """Print a sentence above the lines."""
        self._progress.console.print(text, markup=False, highlight=False)

    def follow(self, label: str) -> Callable[[Any], None]:
        """A `watch` that keeps one line up to date."""
        task = self._progress.add_task(label, total=1.0, facts="starting")

        def watch(measures: Any) -> None:
            accuracy = "-" if measures.accuracy is None else f"{measures.accuracy:.1%}"
            facts = (f"accuracy {accuracy:>5} {measures.throughput_samples_per_s:7,.0f} samples/s "
                     f"wait {measures.wait_fraction:3.0%}")
            status = measures.ended.status if measures.ended else ""
            if status not in ("", "finished"):
                facts += f"  {status}"
            self._progress.update(task, completed=min(1.0, measures.progress), facts=facts)
            if measures.ended:
                self._progress.stop_task(task)

        return watch


@contextmanager
def _live() -> Iterator[_Live]:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=10), TaskProgressColumn(),
               TextColumn("{task.fields[facts]}"))
    with Progress(*columns, console=errors) as progress:
        yield _Live(progress)


def _table(rows: list[tuple[str, list[dict[str, Any]]]], experiment: Experiment) -> Table:
    """One row a paradigm; with several seeds mean and standard deviation."""
    target = experiment.target_accuracy
    columns: list[tuple[str, str | None, Callable[[float], str]]] = [
        ("final\naccuracy", "final_accuracy", "{:.1%}".format),
        (f"s to\n{target:.1%}" if target else "s to\ntarget", "time_to_accuracy_s", "{:.1f}".format),
        ("samples\nper s", "throughput_samples_per_s", "{:,.0f}".format),
        ("wait\nshare", "wait_fraction", "{:.0%}".format),
        ("stale-\nness", "staleness_mean", "{:.1f}".format),
        ("\nmax", "staleness_max", "{:.0f}".format),
        ("lead\nmax", "lead_max", "{:.0f}".format),
    ]
    table = Table(title=_title(experiment), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("paradigm", no_wrap=True)
    for name, _, _ in columns:
        table.add_column(name, justify="right")
    for label, summaries in rows:
        bad = sorted({one["status"] for one in summaries} - {"finished"}) or ([] if summaries else ["failed"])
        cells = [_cell([one[key] for one in summaries], show) for _, key, show in columns]
        table.add_row(" ".join([label, *(f"[red]{status}[/red]" for status in bad)]), *cells)
    return table


def _title(experiment: Experiment) -> str:
    seeds = experiment.seeds or (experiment.seed,)
    workers = " + ".join(f"{group.count} {group.name}" for group in experiment.workers)
    repeats = f"mean ± standard deviation over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"{experiment.model.name} on {experiment.data.name}, workers {workers}, {repeats}"


def _cell(values: list[float | None], show: Callable[[float], str]) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return "-"
    spread = f" ± {show(stdev(there))}" if len(there) > 1 else ""
    missing = f" ({len(there)} of {len(values)})" if len(there) < len(values) else ""
    return f"{show(mean(there))}{spread}{missing}"
