"""The command line: `raysync run`, `compare`, `calibrate`, `list`, `replay`."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
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

SHOW_EVERY_S = 0.1
"""How often a progress line changes at most: some of its figures cost time in proportion to the workers."""

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
    experiment = _load(file, settings)
    _train(experiment, experiment.paradigms, experiment.seeds or [experiment.seed])


@app.command(name="list")
def list_(
    kind: Annotated[Kind, typer.Argument(show_default=False)],
    measure: Annotated[bool, typer.Option("--measure", help="Models: time a step here (a minute or two).")] = False,
) -> None:
    """List the paradigms, models, data sets or clusters that come with raysync, with their settings."""
    from raysync.training import data, models

    if kind is Kind.clusters:
        _list_clusters()
        return
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
def calibrate(
    profile: Annotated[Path, typer.Argument(help="The cluster profile to write (YAML).", show_default=False)],
    file: OptionalFile = None, settings: Settings = [],  # noqa: B006
) -> None:
    """Measure this machine for an experiment's model, and write a profile for the virtual engine (half a minute)."""
    from raysync.calibration import calibrate as measure
    from raysync.calibration import profile as written
    from raysync.runner import engine_for
    from raysync.training.task import prepare

    if profile.suffix != ".yaml":
        raise ConfigError(f"{profile}: a profile is named by a path that ends in .yaml.")
    if not profile.absolute().parent.is_dir():
        raise ConfigError(f"{profile}: there is no folder {profile.parent}.")
    experiment = _load(file, [*settings, "engine=ray", "timing=with-gradients"])
    task = prepare(experiment)
    with _live(task.data.tokens) as live, engine_for(experiment, live.say, os.environ.get("RAY_ADDRESS")) as engine:
        measured = measure(engine, task)
    about = (f"Measured by raysync calibrate on {platform.node() or 'this machine'} ({os.cpu_count()} cores), "
             f"{datetime.now():%Y-%m-%d}, with {task.model.name} and batches of {experiment.batch_size}.")
    profile.write_text(written(experiment, measured, about), encoding="utf-8")
    bandwidth = measured.bandwidth_bytes_per_s
    console.print(f"step {1000 * measured.step_s:.3g} ms ({measured.flops_per_s / 1e9:.3g} GFLOP/s), "
                  f"latency {1000 * measured.latency_s:.3g} ms each way, "
                  f"bandwidth {f'{bandwidth / 1e9:.3g} GB/s' if bandwidth else 'too high to measure'}, "
                  f"update {1000 * measured.update_s:.3g} ms + {measured.update_bytes_per_s / 1e9:.3g} GB/s",
                  highlight=False, soft_wrap=True)
    console.print(f"Try it: raysync compare{f' {file}' if file else ''} --engine virtual --set profile={profile}",
                  markup=False, highlight=False, soft_wrap=True)


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


def _load(file: Path | None, settings: Sequence[str]) -> Experiment:
    """An experiment file, or the one that comes with raysync."""
    if file is not None:
        return config.load(file, settings)
    with as_file(files("raysync") / "comparison.yaml") as path:
        return config.load(path, settings)


def _list_clusters() -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "workers", "what it is"):
        table.add_column(column, no_wrap=column == "name")
    for name, about in config.profiles().items():
        experiment = config.validate({"profile": name, "engine": "virtual"})
        table.add_row(escape(name), _workers(experiment), escape(about.splitlines()[0]))
    console.print(table)
    console.print("Name one: --set profile=NAME; your own: --set profile=FILE.yaml (`raysync calibrate` writes one).",
                  markup=False, highlight=False)


def _workers(experiment: Experiment) -> str:
    return " + ".join(f"{group.count} {group.name}" for group in experiment.workers)


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
    timing_only = experiment.timing == "only"
    with _live(task.data.tokens, timing_only) as live, engine_for(experiment, live.say, ray_address) as engine:
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

    def __init__(self, progress: Progress, tokens: bool, timing_only: bool = False) -> None:
        """
        Args:
            progress: draws the lines.
            tokens: of a language model: perplexity takes the place of accuracy.
            timing_only: nothing is learned, and nothing said of it.
        """
        self._progress = progress
        self._tokens = tokens
        self._timing_only = timing_only

    def say(self, text: str) -> None:
        """Print a sentence above the lines."""
        self._progress.console.print(text, markup=False, highlight=False)

    def follow(self, label: str) -> Callable[[Measures], None]:
        """A `watch` that keeps one line up to date."""
        task = self._progress.add_task(escape(label), total=1.0, facts="starting")
        is_terminal, tenths, shown_s = self._progress.console.is_terminal, 0, 0.0

        def watch(measures: Measures) -> None:
            nonlocal tenths, shown_s
            if measures.ended is None and time.monotonic() < shown_s + SHOW_EVERY_S:
                return
            shown_s = time.monotonic()
            result = self._result(measures)
            facts = (f"{f'{result} │ ' if result else ''}{measures.throughput_samples_per_s:6,.0f} samples/s │ "
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
        if self._timing_only:
            return ""
        if self._tokens:
            return f"perplexity {'-' if measures.perplexity is None else _perplexity(measures.perplexity):>5}"
        return f"accuracy {'-' if measures.accuracy is None else f'{measures.accuracy:.1%}':>5}"


@contextmanager
def _live(tokens: bool, timing_only: bool = False) -> Iterator[_Live]:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=8), TextColumn("{task.percentage:3.0f}% │"),
               TextColumn("{task.fields[facts]}"))
    with Progress(*columns, console=errors) as progress:
        try:
            yield _Live(progress, tokens, timing_only)
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
    if experiment.timing == "only":
        return [("seconds", "seconds", "{:,.1f}".format, True)]
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
    repeats = "mean (± standard deviation) over seeds" if len(seeds) > 1 else "seed"
    repeats += f" {', '.join(map(str, seeds))}"
    return f"{experiment.model.name} on {experiment.data.name}, workers {_workers(experiment)}, {repeats}"


def _cell(values: list[float | None], show: Callable[[float], str], *, spread: bool) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return "-"
    deviation = f" ± {show(stdev(there))}" if spread and len(there) > 1 else ""
    missing = f" ({len(there)} of {len(values)})" if len(there) < len(values) else ""
    return f"{show(mean(there))}{deviation}{missing}"
