"""`raysync run`, `compare` and `replay`: train, and check what was recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysync import config
from raysync.cli.app import (
    EngineName,
    OptionalFile,
    Settings,
    Trust,
    app,
    check_trust,
    load_experiment,
    say_that_ray_starts,
    warn_of_the_jobs_folder,
    with_engine,
)
from raysync.cli.console import console, errors, say
from raysync.cli.progress_lines import run_lines
from raysync.cli.table import print_bottlenecks, print_divergences, print_table
from raysync.cli.watch import newest
from raysync.cluster.ray_private.fork_server import ForkServer, started_early
from raysync.config import Experiment, ParadigmChoice
from raysync.config.resume_changes import check_changes, check_place
from raysync.config.secret_masking import masked
from raysync.core.replay import replay as replay_journal
from raysync.errors import ConfigError, RunFailed
from raysync.paradigms import rebuild
from raysync.record.checkpoints import CHECKPOINTS
from raysync.record.comparisons import Comparison, new_id, newest_comparison
from raysync.record.journal_file import JournalFile
from raysync.record.reader import RunRecord, legible
from raysync.record.resumption import check_resumable, is_over
from raysync.record.storage import display_name, is_uri, join, local_copy
from raysync.record.trust import trusted
from raysync.record.writer import CONFIG, MODEL_FILES

if TYPE_CHECKING:
    from raysync.running.engines import Engine, WatchCallback
    from raysync.training.preparation import TrainingPlan


RunFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="Experiment file (YAML). Default with --resume: the experiment in the run folder.",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help=(
            "Resume a lost run from its newest checkpoint. Name its run folder (or URI), or a"
            " folder of several runs, for the latest."
        ),
    ),
]
ResumeComparison = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="FOLDER",
        help=(
            "Resume a lost comparison. Name the folder (or URI) of its runs, OUTPUT/NAME. Runs"
            " that have ended are not repeated; others resume from their newest checkpoint, or"
            " start."
        ),
    ),
]


@app.command()
def run(
    file: RunFile = None,
    engine: EngineName = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    resume: Resume = None,
    trust: Trust = False,
) -> None:
    """Train one experiment. raysync imports and calls the functions and classes that its file
    names; with --resume, those in the run folder, if it was created from the current directory.
    """
    check_trust(trust=trust, resume=resume)
    if resume is not None:
        _resume(resume, file, with_engine(settings, engine), trust=trust)
        return
    if file is None:
        raise ConfigError("Name an experiment file: raysync run FILE; or raysync run --resume RUN.")
    experiment = config.load(file, with_engine(settings, engine))
    _train(experiment, [experiment.paradigm], [experiment.seed])


@app.command()
def compare(
    file: OptionalFile = None,
    engine: EngineName = None,
    settings: Settings = [],  # noqa: B006
    resume: ResumeComparison = None,
    trust: Trust = False,
) -> None:
    """Train the same experiment under several paradigms, one after the other, and print one
    table. raysync imports and calls the functions and classes that its file names; with --resume,
    those in the run folders, if they were created from the current directory.
    """
    check_trust(trust=trust, resume=resume)
    settings = with_engine(settings, engine)
    former = None
    if resume is None:
        experiment = load_experiment(file, settings)
    else:
        former = newest_comparison(resume, trust=trust)
        experiment = _settings_to_resume(former, file, settings)
    _train(
        experiment,
        experiment.paradigms,
        experiment.seeds or [experiment.seed],
        former or Comparison(new_id(), join(experiment.output, experiment.name), {}),
    )


@app.command()
def replay(
    record: Annotated[
        str, typer.Argument(metavar="RUN", help="Run folder, or its URI.", show_default=False)
    ],
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help=(
                "Import and run the paradigm that the run folder names, even if it does not come"
                " with raysync."
            ),
        ),
    ] = False,
) -> None:
    """Feed a run's journal to a fresh machine; every decision must come out the same."""
    journal = local_copy(record, without=[CHECKPOINTS]) / "journal.jsonl"
    if not journal.is_file():
        raise ConfigError(f"{record}: not a run folder (no journal.jsonl in it).")
    with legible(journal.parent), JournalFile(journal) as file:
        result = replay_journal(file, partial(rebuild, trust=trust))
    if result.difference:
        errors.print(f"Differs at {result.difference}", markup=False, highlight=False)
        raise typer.Exit(1)
    console.print(
        f"{result.events} events replayed, all {result.decisions} decisions identical.",
        highlight=False,
    )
    if not result.ended:
        console.print_plain(
            "The journal has no closing line: its run still runs or was killed, or the file was"
            " truncated."
        )


def _announce(experiment: Experiment) -> None:
    if experiment.engine == "ray":
        workers = f"{experiment.worker_count} worker{'s' * (experiment.worker_count > 1)}"
        say_that_ray_starts(experiment, workers)


def _settings_to_resume(
    comparison: Comparison, file: Path | None, settings: Sequence[str]
) -> Experiment:
    """Return the settings of the rest of a comparison.

    Raises:
        ConfigError: a setting changed that cannot, or one of its runs is still active.
    """
    first = comparison.any_record
    source = first.path / CONFIG if file is None else file
    experiment = config.load(source, settings, recorded=True)
    of_a_run: dict[str, object] = {"paradigm": first.config.paradigm}
    if experiment.seeds:  # else the one seed may not change
        of_a_run["seed"] = first.config.seed
    check_place(first.config, experiment, comparison.location)
    check_changes(first.config, experiment.recorded.model_copy(update=of_a_run))
    for record in comparison.records.values():
        if not is_over(record):
            check_resumable(record)
    return comparison.redirect(experiment)


def _train(
    experiment: Experiment,
    choices: Sequence[ParadigmChoice],
    seeds: Sequence[int],
    comparison: Comparison | None = None,
) -> None:
    """Train each paradigm with each seed in one session, and print the results."""
    address = os.environ.get("RAY_ADDRESS")
    with started_early(experiment, address) as fork_server:
        _train_in_session(experiment, choices, seeds, comparison, address, fork_server)


def _train_in_session(
    experiment: Experiment,
    choices: Sequence[ParadigmChoice],
    seeds: Sequence[int],
    comparison: Comparison | None,
    address: str | None,
    fork_server: ForkServer | None,
) -> None:
    from raysync.decoupled.plan import check_training
    from raysync.engine.stopping import check_metrics
    from raysync.running.engines import engine_for
    from raysync.training.preparation import prepare

    training = prepare(experiment)
    check_metrics(experiment, training.metrics, training.primary)
    for choice in choices:  # all are checked before the first one trains
        check_training(training, training.make(choice))
    over = [] if comparison is None else list(map(is_over, comparison.records.values()))
    if any(over):
        say(f"{sum(over)} of {len(choices) * len(seeds)} runs have ended and are not repeated.")
    if sum(over) < len(choices) * len(seeds):
        _announce(experiment)
    with engine_for(experiment, say, address, fork_server) as engine:
        try:
            done = _train_all(engine, training, choices, seeds, comparison)
        except (KeyboardInterrupt, SystemExit):
            if comparison is not None:
                say(f"To resume: raysync compare --resume {masked(str(comparison.location))}")
            raise
        # before the shutdown of Ray, which takes seconds, or more where Ray is stuck
        summaries = {
            label: [record.summary if record else None for record in runs]
            for label, runs in done.items()
        }
        print_table(summaries, experiment, seeds, training.primary)
        print_divergences(summaries)
        print_bottlenecks(summaries)
        records = join(experiment.output, experiment.name)
        if not is_uri(records):
            records = Path(records).expanduser()
        if is_uri(records) or Path(records).is_dir():  # not if the first run could not begin
            console.print_plain(f"Records: {masked(str(records))}")
        _say_where_the_model_is([record for runs in done.values() for record in runs])
    if any(record is None for runs in done.values() for record in runs):
        raise typer.Exit(1)


def _resume(run: str, file: Path | None, settings: Sequence[str], *, trust: bool) -> None:
    """Resume a run, and print its results."""
    record = trusted(newest(run), trust=trust)
    source = record.path / "config.yaml" if file is None else file
    experiment = config.load(source, settings, recorded=True)
    address = os.environ.get("RAY_ADDRESS")
    with started_early(experiment, address) as fork_server:
        _go_on(record, experiment, address, fork_server)


def _go_on(
    record: RunRecord, experiment: Experiment, address: str | None, fork_server: ForkServer | None
) -> None:
    from raysync.running.engines import engine_for
    from raysync.running.resuming import prepare_to_resume
    from raysync.running.run import run_in

    training, resume_from = prepare_to_resume(record, experiment, say)
    choice = experiment.paradigm
    _announce(experiment)
    with engine_for(training.experiment, say, address, fork_server) as engine:
        with run_lines(experiment.timing == "only") as lines:
            watch = lines.follow(choice.label)
            done = run_in(
                engine,
                training,
                choice,
                watch=watch,
                notify=say,
                resume_from=resume_from,
                diagnoses=True,
            )
        summaries = {choice.label: [done.summary]}
        print_table(summaries, experiment, [experiment.seed], training.primary)
        print_divergences(summaries)
        print_bottlenecks(summaries)
        console.print_plain(f"Record: {display_name(done.path)}")
        _say_where_the_model_is([done])


def _say_where_the_model_is(records: Sequence[RunRecord | None]) -> None:
    """Print the path of the trained model of a single run, if there is one."""
    [record, *others] = records
    if record is not None and not others and (record.path / MODEL_FILES["final"]).is_file():
        console.print_plain(f"Model: {display_name(record.model_file())}")


def _train_all(
    engine: Engine,
    training: TrainingPlan,
    choices: Sequence[ParadigmChoice],
    seeds: Sequence[int],
    comparison: Comparison | None,
) -> dict[str, list[RunRecord | None]]:
    """Return the records of each paradigm, one for each seed; None for a run that failed."""
    done: dict[str, list[RunRecord | None]] = {choice.label: [] for choice in choices}
    with run_lines(training.experiment.timing == "only") as lines:
        warn_of_the_jobs_folder(training.experiment)
        for remark in (*training.remarks, *_rates(training, choices)):
            say(remark)
        for group, step_s in training.estimated_s.items():
            say(
                f"Worker group {group!r} has no step time; estimated from the floating-point"
                f" operations: {step_s:.2g} s."
            )
        for seed, choice in product(seeds, choices):
            label = choice.label if len(seeds) == 1 else f"{choice.label}, seed {seed}"
            former = None if comparison is None else comparison.records.get((choice.label, seed))
            if former is not None and is_over(former):
                done[choice.label].append(former)
                continue
            try:
                record = _train_one(
                    engine,
                    training.with_seed(seed),
                    choice,
                    lines.follow(label),
                    former,
                    "" if comparison is None else comparison.id,
                    diagnoses=seed == seeds[0],  # the bottleneck is that of the cluster
                )
            except RunFailed as failure:
                say(f"{label} failed: {failure}")
                done[choice.label].append(None)
            else:
                done[choice.label].append(record)
    return done


def _rates(training: TrainingPlan, choices: Sequence[ParadigmChoice]) -> Iterator[str]:
    """Yield the learning rates in force, once for paradigms with the same rate."""
    labels: dict[str, list[str]] = {}
    for choice in choices if training.experiment.trains else ():
        labels.setdefault(training.rate_in_force(choice), []).append(choice.label)
    for rate, own in labels.items():
        yield rate if len(labels) == 1 else f"{', '.join(own)}: {rate}"


def _train_one(
    engine: Engine,
    training: TrainingPlan,
    choice: ParadigmChoice,
    watch: WatchCallback,
    former: RunRecord | None,
    comparison: str,
    diagnoses: bool,
) -> RunRecord:
    """Train one run, or resume its earlier record."""
    from raysync.running.resuming import find_resume_point
    from raysync.running.run import run_in

    return run_in(
        engine,
        training,
        choice,
        watch=watch,
        notify=say,
        comparison=comparison,
        resume_from=None if former is None else find_resume_point(former, training, say),
        diagnoses=diagnoses,
    )
