"""Run the search for the switch point as a sweep that grows from stage to stage.

    SEARCH/sweep.yaml, sweep.csv, records/   as in a sweep; varied: `paradigm.fraction`, `seed`
    SEARCH/records/0.5-0/                    the training with that fraction and seed
    SEARCH/search.json, chosen.yaml          the result; the experiment with the chosen fraction

The same search again, even with another threshold or more repeats, uses existing trainings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from raysync import config
from raysync.cluster.connection import Connection
from raysync.config import Experiment, Sweep, SwitchSearch
from raysync.config.secret_masking import masked
from raysync.core.metrics import MODES, known as known_names
from raysync.errors import ConfigError, RunFailed
from raysync.paradigms.syncswitch import SyncSwitch
from raysync.record.storage import experiment_folder, folder_of, is_uri
from raysync.record.sweeps import FILE, VARIED, Origin, remove_table, table_of
from raysync.running.engines import Notify
from raysync.training.loading import metrics_of, primary_of
from raysync.tuning.fraction_search import (
    FIRST_ALONE,
    FIRST_CANDIDATE,
    SearchResult,
    Training,
    search,
)
from raysync.tuning.progress import Show
from raysync.tuning.sweep_run import SweepPlan, cpus_of, new_folder, recording, train_all
from raysync.tuning.trial import Trials
from raysync.tuning.tune_library import check_metric

KIND, RESULT, CHOSEN = "switch-search", "search.json", "chosen.yaml"
FRACTION, SEED = "paradigm.fraction", "seed"

# called with a description of the next stage, and its number of trainings
Begin = Callable[[str, int], None]


@dataclass(frozen=True, kw_only=True)
class SearchPlan(SweepPlan):
    """A search that has been checked; each of its stages is a sweep of its own points."""

    search: SwitchSearch  # with `known` only in a recurring search
    rises: bool  # whether a larger target is better


def plan(file: Path, settings: Iterable[str] = (), *, recurring: bool = False) -> SearchPlan:
    """Read a search file, and find the earlier search to continue.

    Args:
        file: an experiment file with a `switch_search:` block and `paradigm: sync-switch`.
        settings: overrides, `key=value`.
        recurring: read the target of `first` alone from the block's `known`.

    Raises:
        ConfigError: the file has no such block or paradigm, its paradigm switches several times, it
            trains nothing, or a recurring search has no `known`.
    """
    source, settings = str(file), tuple(settings)
    experiment = config.load(file, settings)
    search = experiment.switch_search
    if search is None:
        raise ConfigError(
            f"{source}: no `switch_search:` block in it; write switch_search: {{target:"
            " final_accuracy}."
        )
    _check_trainable(experiment, source)
    rises = _target_rises(experiment, search, source)
    if recurring and search.known is None:
        raise ConfigError(
            f"{source}: switch_search.known: --recurring needs the target of earlier runs; set"
            " known: {value: 0.92}."
        )
    folder, remarks = _folder(experiment, source)
    trials = Trials.of(Origin(source, file.read_text(encoding="utf-8"), settings), folder)
    trials.check({FRACTION: FIRST_CANDIDATE})
    grid = {FRACTION: (FIRST_CANDIDATE,), SEED: (experiment.seed,)}  # each stage has its own
    return SearchPlan(
        experiment=experiment,
        sweep=Sweep(grid=grid, concurrent=search.concurrent),
        trials=trials,
        remarks=remarks,
        search=search if recurring else search.model_copy(update={"known": None}),
        rises=rises,
    )


def _check_trainable(experiment: Experiment, source: str) -> None:
    choice = experiment.paradigm
    if choice.name != SyncSwitch.name:
        raise ConfigError(
            f"{source}: paradigm: {choice.label}; the search is for the fraction of a switch: "
            f"{{name: {SyncSwitch.name}, first: bsp, then: asp}}."
        )
    then = choice.parameters.get("then")
    if isinstance(then, list) and len(then) > 1:
        raise ConfigError(
            f"{source}: paradigm.then: {len(then)} switches; the search is for one switch, so give"
            " one paradigm."
        )
    if experiment.timing == "only":
        raise ConfigError(
            f"{source}: timing: only trains nothing, so there is no result to preserve."
        )


def _target_rises(experiment: Experiment, search: SwitchSearch, source: str) -> bool:
    metric, metrics, primary = search.metric, metrics_of(experiment), primary_of(experiment)
    where = f"{source}: switch_search.target"
    if metrics is not None:
        check_metric(metric, known_names(metrics), where)
    mode = (MODES | {primary.name: primary.mode}).get(metric)
    if mode is None:
        raise ConfigError(
            f"{where}: {search.target}: it is not known which direction of {metric!r} is better;"
            f" the primary metric is {primary.name}."
        )
    return mode == "max"


def _folder(experiment: Experiment, source: str) -> tuple[Path, tuple[str, ...]]:
    """Find the latest search with the same trainings, or a new folder; with remarks."""
    if is_uri(experiment.output):
        raise ConfigError(
            f"{source}: output: {masked(str(experiment.output))}: a search needs a folder, not a"
            " URI, because it reuses its earlier trainings there; on a cluster, a folder that all"
            " nodes share."
        )
    parent = folder_of(experiment_folder(experiment.output, experiment.name))
    folders = sorted((file.parent for file in parent.glob(f"*-{KIND}-*/{FILE}")), reverse=True)
    for folder in folders:
        with suppress(ConfigError):  # for a file that cannot be read
            before = config.load(folder / FILE, recorded=True)
            if _common(before) == _common(experiment):
                changed = before.switch_search != experiment.switch_search
                what = " with another switch_search block" * changed
                remark = f"This search began in {folder}{what}; its trainings there are used."
                return folder.absolute(), (remark,)
    remarks = (
        f"This is a new search: {source} has other settings than the search in {folder}."
        for folder in folders[:1]
    )
    return new_folder(experiment, KIND), tuple(remarks)


def _common(experiment: Experiment) -> str:
    """Return what all trainings of a search share, in the form of their records."""
    return chosen(experiment.recorded, FIRST_ALONE).to_yaml()


def run(
    plan: SearchPlan,
    *,
    notify: Notify,
    begin: Begin,
    show: Show,
    address: str | None = None,
    verbose: bool = False,
) -> SearchResult:
    """Search, run missing trainings, and write the result; other arguments as for `sweep_run.run`.

    Raises:
        ConfigError: there is no such cluster.
        KeyboardInterrupt: the user stopped it; the same call continues.
        RunFailed: a training failed, or none of `first` alone has a value.
    """
    folder = plan.trials.folder
    for remark in plan.remarks:
        notify(remark)
    # remove an earlier call's results: this call can be stopped, and can have other settings
    for name in (RESULT, CHOSEN):
        (folder / name).unlink(missing_ok=True)
    remove_table(folder)
    with recording(folder, Connection(notify, address)) as connection:

        def train_stage(stage: SearchPlan) -> None:
            fractions = dict.fromkeys(f"{point[FRACTION]:g}" for point in stage.points)
            begin(f"fraction {', '.join(fractions)}", stage.count)
            connection.open(stage.experiment.cluster, cpus_of(stage))
            cores = connection.cores
            if train_all(stage, notify=notify, show=show, verbose=verbose, cores=cores) != "done":
                raise KeyboardInterrupt  # Tune has swallowed it

        train = partial(_trainings, plan, train_stage)
        result = search(plan.search, train, plan.search.known, rises=plan.rises)
    contents = {
        "target": plan.search.target,
        "threshold": plan.search.threshold,
        "recurring": plan.search.known is not None,
        **result.plain(),
    }
    for name, text in (
        (FILE, plan.experiment.recorded.to_yaml()),
        (RESULT, json.dumps(contents, indent=2) + "\n"),
        (CHOSEN, chosen(plan.experiment, result.fraction).to_yaml()),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    return result


def _trainings(
    plan: SearchPlan, train_stage: Callable[[SearchPlan], None], fraction: float, repeats: int
) -> list[Training]:
    """Return the trainings of a fraction; missing ones run first.

    Raises `RunFailed` if one failed.
    """
    wanted = {fraction: repeats}
    if fraction == FIRST_ALONE:  # the first candidate is always tried, so it runs beside `first`
        wanted[FIRST_CANDIDATE] = plan.search.candidate_repeats
    seed = plan.experiment.seed
    keys = [(fraction, seed + i) for fraction, count in wanted.items() for i in range(count)]
    existing = _existing(plan)
    missing = [
        {"trial": f"{fraction:g}-{seed}", FRACTION: fraction, SEED: seed}
        for fraction, seed in keys
        if (fraction, seed) not in existing
    ]
    if missing:
        train_stage(plan.with_points(missing))
        existing = _existing(plan)
    if failed := set(keys) - existing.keys():
        raise RunFailed(
            f"{len(failed)} of {len(missing)} trainings failed; the others are kept, and the same"
            " command repeats the failed ones"
        )
    return [existing[key] for key in keys[:repeats]]


def _existing(plan: SearchPlan) -> dict[tuple[float, int], Training]:
    """Return the trainings that have ended, by fraction and seed."""
    rows: list[Any] = table_of(plan.trials.folder).to_dict("records")
    return {
        (row[VARIED + FRACTION], row[VARIED + SEED]): _training_of(row, plan.search.target)
        for row in rows
        if row["status"] in ("finished", "diverged")
    }


def _training_of(row: dict[str, Any], target: str) -> Training:
    why = "never converged" if pd.isna(row.get(target)) else ""
    why = "diverged" if row["status"] == "diverged" else why
    return Training(None if why else row[target], row["seconds"], why)


def chosen(experiment: Experiment, fraction: float) -> Experiment:
    paradigm = experiment.paradigm.model_copy(update={"fraction": fraction})
    alone = {"switch_search": None, "sweep": None}
    return experiment.model_copy(update={"paradigm": paradigm, **alone})
