"""Train the runs of a command in one session, and print their results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from raysync.cli.app import check_places, say_that_ray_starts, warn_of_the_jobs_folder
from raysync.cli.console import console, say
from raysync.cli.progress_lines import run_lines
from raysync.cli.table import Summaries, print_results
from raysync.cluster.ray_private.fork_server import ForkServer, started_early
from raysync.config import Experiment, ParadigmChoice, common_of, row_of
from raysync.config.secret_masking import masked
from raysync.errors import RunFailed
from raysync.record.comparisons import Comparison
from raysync.record.reader import RunRecord
from raysync.record.resumption import is_over
from raysync.record.storage import display_name, experiment_folder, folder_of, is_uri
from raysync.record.writer import MODEL_FILES
from raysync.results.collection import OF_RESULTS

if TYPE_CHECKING:
    from raysync.running.engines import Engine
    from raysync.training.preparation import TrainingPlan


def train(
    experiment: Experiment,
    choices: Sequence[ParadigmChoice],
    seeds: Sequence[int],
    comparison: Comparison | None = None,
) -> None:
    """Train each paradigm with each seed in one session, and print the results."""
    check_places(experiment)
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
    from raysync.engine.demands import check_metrics
    from raysync.running.engines import engine_for
    from raysync.training.preparation import prepare

    prepare_common = cache(lambda: prepare(common_of(experiment)))
    plans: dict[str, TrainingPlan] = {}  # label -> what its row trains
    for choice in choices:
        if choice.set is None:
            common = prepare_common()
            plan = replace(common, experiment=row_of(common.experiment, choice))
        else:
            plan = prepare(row_of(experiment, choice))
        plans[plan.experiment.label] = plan
    training = next(iter(plans.values()))
    for plan in plans.values():  # all are checked before the first one trains
        check_metrics(plan.experiment, plan.metrics, plan.primary)
        check_training(plan, plan.make(plan.experiment.paradigm))
    over = [] if comparison is None else list(map(is_over, comparison.records.values()))
    if any(over):
        say(f"{sum(over)} of {len(choices) * len(seeds)} runs have ended and are not repeated.")
    if sum(over) < len(choices) * len(seeds):
        announce(experiment)
    with engine_for(experiment, say, address, fork_server) as engine:
        try:
            done = _train_all(engine, plans, seeds, comparison)
        except (KeyboardInterrupt, SystemExit):
            if comparison is not None:
                say(f"To resume: raysync compare --resume {masked(str(comparison.location))}")
            raise
        # before the shutdown of Ray, which takes seconds, or more where Ray is stuck
        summaries: Summaries = {label: _summaries(runs) for label, runs in done.items()}
        answers = () if comparison is None else _answers(comparison, done, seeds)
        print_results(summaries, experiment, seeds, training.primary, answers)
        records = experiment_folder(experiment.output, experiment.name)
        # no folder: the first run could not begin
        if is_uri(records) or (records := folder_of(records)).is_dir():
            console.print_plain(f"Records: {masked(str(records))}")
        say_where_the_model_is([record for runs in done.values() for record in runs])
    if any(record is None for runs in done.values() for record in runs):
        raise typer.Exit(1)


def _summaries(runs: Sequence[RunRecord | None]) -> list[dict[str, Any] | None]:
    """Return the summaries of a paradigm's runs; beside whole runs, early ends lose results."""
    has_whole = any(record is not None and record.end.kind == "done" for record in runs)
    summaries: list[dict[str, Any] | None] = []
    for record in runs:
        summary = None if record is None else record.summary
        if record is not None and has_whole and record.end.kind != "done":
            summary = record.summary | {
                key: None for key in record.summary if key.startswith(OF_RESULTS)
            }
        summaries.append(summary)
    return summaries


def _answers(
    comparison: Comparison, done: Mapping[str, Sequence[RunRecord | None]], seeds: Sequence[int]
) -> Iterator[str]:
    """Say which paradigm leads, by the rules of every report."""
    from raysync.results.collection import FailedTrial, collection_of
    from raysync.results.ranking import rank_all
    from raysync.results.sentences import scenario_answer

    records = [record for runs in done.values() for record in runs if record is not None]
    if not records:
        return
    failed = [
        FailedTrial(trial=0, scenario="", paradigm=label, seed=seed, error="")
        for label, runs in done.items()
        for seed, record in zip(seeds, runs, strict=True)
        if record is None
    ]
    collection = collection_of(records, [Path(str(comparison.location))], failed=failed)
    yield from map(scenario_answer, rank_all(collection))


def announce(experiment: Experiment) -> None:
    if experiment.engine == "ray":
        workers = f"{experiment.worker_count} worker{'s' * (experiment.worker_count > 1)}"
        say_that_ray_starts(experiment, workers)


def _train_all(
    engine: Engine,
    plans: Mapping[str, TrainingPlan],
    seeds: Sequence[int],
    comparison: Comparison | None,
) -> dict[str, list[RunRecord | None]]:
    """Return the records of each paradigm, one for each seed; None for a run that failed."""
    from raysync.predict.diagnosis import bottleneck_of_run
    from raysync.running.resuming import find_resume_point
    from raysync.running.run import run_in

    done: dict[str, list[RunRecord | None]] = {label: [] for label in plans}
    training = next(iter(plans.values()))
    remarks = dict.fromkeys(remark for plan in plans.values() for remark in plan.remarks)
    with run_lines(training.experiment.timing == "only") as lines:
        warn_of_the_jobs_folder(training.experiment)
        for remark in (*remarks, *_rates(plans), *training.estimate_remarks):
            say(remark)
        for seed, (paradigm, common) in product(seeds, plans.items()):
            label = paradigm if len(seeds) == 1 else f"{paradigm}, seed {seed}"
            former = None if comparison is None else comparison.records.get((paradigm, seed))
            if former is not None and is_over(former):
                done[paradigm].append(former)
                continue
            try:
                plan = common.with_seed(seed)
                record: RunRecord | None = run_in(
                    engine,
                    plan,
                    plan.experiment.paradigm,
                    watch=lines.follow(label),
                    notify=say,
                    comparison="" if comparison is None else comparison.id,
                    resume_from=None if former is None else find_resume_point(former, plan, say),
                    # a cluster has one bottleneck, whatever the seed
                    diagnose=bottleneck_of_run if seed == seeds[0] else None,
                )
            except RunFailed as failure:
                say(f"{label} failed: {failure}")
                record = None
            done[paradigm].append(record)
    return done


def _rates(plans: Mapping[str, TrainingPlan]) -> Iterator[str]:
    """Yield the learning rates in force, once for paradigms with the same rate."""
    labels: dict[str, list[str]] = {}
    for label, plan in plans.items():
        if plan.experiment.trains:
            labels.setdefault(plan.rate_in_force(plan.experiment.paradigm), []).append(label)
    for rate, own in labels.items():
        yield rate if len(labels) == 1 else f"{', '.join(own)}: {rate}"


def say_where_the_model_is(records: Sequence[RunRecord | None]) -> None:
    """Print the path of the trained model of a single run, if there is one."""
    [record, *others] = records
    if record is not None and not others and (record.path / MODEL_FILES["final"]).is_file():
        console.print_plain(f"Model: {display_name(record.model_file())}")
