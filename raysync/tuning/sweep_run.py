"""Run a sweep: plan it, run it on Ray Tune, and write the table of its trials.

After Ctrl-C, Tune counts the trials in flight as ended and restores none (Ray 2.60). So `--resume`
gives Tune the trials that are left, by our own notes, as a new run. A begun trial of a grid resumes
from its record and repeats its earlier reports for Tune; a searcher's begun trials start again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import BasicVariantGenerator, Searcher

from raysync import config
from raysync.cluster.connection import Connection
from raysync.cluster.placement import cpus
from raysync.config import Experiment, Sweep
from raysync.config.resume_changes import check_changes, check_place
from raysync.config.secret_masking import MASK
from raysync.core.metrics import LOSS
from raysync.errors import ConfigError
from raysync.record.checkpoints import CHECKPOINTS
from raysync.record.resumption import check_gone, is_over
from raysync.record.storage import (
    Location,
    check,
    display_name,
    download,
    experiment_folder,
    is_copy,
    join,
    local_copy,
    location_of,
    remove,
    upload,
    written,
)
from raysync.record.sweeps import (
    FILE,
    RECORDS,
    TUNE,
    Origin,
    SweepRecord,
    TrialNote,
    load_sweep,
    newest_record,
    newest_sweep,
    notes,
    remove_note,
    trial_name,
    write_note,
    write_table,
)
from raysync.record.trust import check_trusted
from raysync.record.writer import folder_name
from raysync.running.engines import Notify
from raysync.training.tasks.task_loading import metrics_of, primary_of
from raysync.tuning.grid import Point, check_keys, count, examples, points, space
from raysync.tuning.progress import Show, TuneCallback
from raysync.tuning.trial import Trials, adapted, folder_of, settings_of, train
from raysync.tuning.tune_library import (
    aimed,
    check_metrics,
    quiet,
    scheduler,
    searcher,
    searcher_again,
)

MOST_UNASKED = 1000  # without --yes
OUTPUT = re.compile(r"\s*output\s*=")  # an override of the records' place
# Tune's own file, with the storage's URI and its secrets; only Tune's way to restore reads it
SETTINGS = "tuner.pkl"


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that has been checked."""

    experiment: Experiment
    sweep: Sweep
    trials: Trials
    points: tuple[Point, ...]
    """The points of a grid that are left; with a searcher, of trials in flight."""
    examples: tuple[Point, ...]
    """The points; with a searcher, points that show each of its choices."""
    count: int  # left to run
    done: int = 0  # trials that an earlier call has finished
    found: tuple[tuple[Point, float | None], ...] = ()
    """With a searcher, the points of ended trials and their metric."""


def plan(
    file: Path | None,
    settings: Iterable[str] = (),
    *,
    resume: Location | None = None,
    trust: bool = False,
    many: bool = False,
) -> SweepPlan:
    """Read a sweep file and check each of its trials.

    Args:
        file: an experiment file with a `sweep:` block; None: the resumed sweep's.
        settings: overrides, `key=value`; without a file, additional ones.
        resume: the folder or URI of the sweep to resume, or of several: then the latest.
        trust: whether the user trusts the resumed sweep; see `check_trusted`.
        many: allow more than `MOST_UNASKED` trials.

    Raises:
        ConfigError: the file has no sweep or is invalid, there are too many trials, or there is no
            sweep that can be resumed with these settings.
    """
    former = (
        None if resume is None else local_copy(newest_sweep(resume), without=[TUNE, CHECKPOINTS])
    )
    if former is not None:
        check_trusted(former, trust=trust)
    settings = tuple(settings)
    origin = origin_of(file, settings, former)
    source = origin.source
    experiment = config.parse(
        origin.text, origin.overrides, source=source, folder=Path(source).parent
    )
    if former is not None:
        _check_former(former, experiment, moves=any(map(OUTPUT.match, settings)))
    sweep = experiment.sweep
    if sweep is None:
        raise ConfigError(
            f"{source}: no `sweep:` block in it; write sweep: {{grid: {{seed: [0, 1, 2], ...}}}}."
        )
    check_keys(sweep, source)
    check_metrics(sweep, metrics_of(experiment), source)
    sweep = aimed(sweep, primary_of(experiment), source)
    if count(sweep) > MOST_UNASKED and not many:
        raise ConfigError(
            f"{source}: sweep: {count(sweep):,} trials; more than {MOST_UNASKED:,} need --yes."
        )
    listed = points if sweep.search is None else examples
    checked = listed(sweep, experiment.seed, source)
    folder = _new_folder(experiment) if former is None else former.absolute()
    trials = Trials(
        folder=folder,
        home=Path.cwd(),
        source=source,
        text=origin.text,
        overrides=origin.overrides,
        uri=str(location_of(folder)) if is_copy(folder) else None,
        resume=former is not None,
    )
    for point in checked:
        trials.check(point)
    with_points = _with_grid if sweep.search is None else _with_search
    checked_plan = with_points(experiment, sweep, trials, checked)
    _tune_config(checked_plan)  # raises if Tune has no such searcher or scheduler
    return checked_plan


def origin_of(
    file: Path | None, settings: Iterable[str] = (), former: Path | None = None
) -> Origin:
    """Return the source of a sweep's trials; raise `ConfigError` if secrets were not recorded."""
    if file is not None:
        config.load(file, settings := tuple(settings))  # raises the mistakes of the file
        return Origin(str(file), file.read_text(encoding="utf-8"), settings)
    if former is None:
        raise ConfigError(
            "Name an experiment file: raysync sweep FILE; or raysync sweep --resume FOLDER."
        )
    recorded = Origin.read(former)
    origin = Origin(recorded.source, recorded.text, (*recorded.overrides, *settings))
    experiment = config.parse(
        origin.text, origin.overrides, source=origin.source, folder=Path(origin.source).parent
    )
    with_secrets = {"checkpoint": experiment.checkpoint, "track": experiment.track}
    for name, setting in with_secrets.items():
        if MASK in str(setting):
            raise ConfigError(
                f"{display_name(former)}: the secrets in {name} are not recorded; name the file,"
                f" too: raysync sweep {origin.source} --resume FOLDER, or set {name} again."
            )
    return origin


def _check_former(former: Path, experiment: Experiment, *, moves: bool) -> None:
    """Refuse a sweep that still runs or has changed, and note ends that its process could not."""
    before = config.load(former / FILE, recorded=True)
    if moves:  # a new `output`
        check_place(before, experiment, former.absolute().parent)
    check_changes(before, config.parse(experiment.recorded.to_yaml(), source="experiment"))
    for note in notes(former):
        record = None if note.ended else newest_record(former, note.name)
        if record is None:
            continue
        if is_over(record):
            write_note(former, replace(note, ended=True))
        elif not record.ended:
            check_gone(record)


def _with_grid(
    experiment: Experiment, sweep: Sweep, trials: Trials, grid_points: Sequence[Point]
) -> SweepPlan:
    begun = notes(trials.folder)
    done = {note.name for note in begun if note.ended and not note.error}
    left = tuple(
        {"trial": number} | point
        for number, point in enumerate(grid_points)
        if trial_name(number) not in done
    )
    return SweepPlan(
        experiment=experiment,
        sweep=sweep,
        trials=trials,
        points=left,
        examples=left,
        count=len(left),
        done=len(grid_points) - len(left),
    )


def _with_search(
    experiment: Experiment, sweep: Sweep, trials: Trials, choices: Sequence[Point]
) -> SweepPlan:
    begun = notes(trials.folder)
    done = sum(note.ended and not note.error for note in begun)
    return SweepPlan(
        experiment=experiment,
        sweep=sweep,
        trials=trials,
        points=tuple({"trial": note.name} | note.settings for note in begun if not note.ended),
        examples=tuple(choices),
        count=sweep.samples - done,
        done=done,
        found=tuple(_results(trials.folder, begun, sweep.metric)),
    )


def _results(
    folder: Path, begun: Iterable[TrialNote], metric: str | None
) -> Iterator[tuple[Point, float | None]]:
    """Yield the points of ended trials, and their last metric; None: failed, or not finite."""
    for note in begun:
        if note.ended:
            record = None if note.error else newest_record(folder, note.name)
            summary = {} if record is None else record.summary
            value = summary.get(f"final_{metric}", summary.get(str(metric)))
            yield note.settings, value if value is not None and isfinite(value) else None


def run(
    plan: SweepPlan,
    *,
    notify: Notify,
    show: Show,
    address: str | None = None,
    verbose: bool = False,
) -> tuple[SweepRecord, bool]:
    """Run a sweep's trials and write its table, also after an interruption.

    Args:
        notify: receives sentences that the user should read; the first one names the record.
        show: receives the progress of the sweep, several times a second.
        address: the cluster to join where `cluster.address` is `auto`; None: a private one.
        verbose: Tune prints its own table.

    Returns:
        The record, and whether all trials ended; False after an interruption.
    """
    connection, done = Connection(notify, address), 0
    if plan.count <= 0:
        write_table(plan.trials.folder)  # a sweep that was killed at its end has no table yet
        return load_sweep(plan.trials.folder), True
    try:
        connection.open(plan.experiment.cluster, cpus_of(plan))
        notify(f"{plan.experiment.name} begins; its records: {display_name(plan.trials.folder)}")
        trials = plan.trials
        Origin(trials.source, trials.text, trials.overrides).write(trials.folder)
        done = train_all(plan, notify=notify, show=show, verbose=verbose)
    finally:
        connection.close()
        if notes(plan.trials.folder):
            with suppress(ConfigError):  # where nothing was recorded
                download(plan.trials.folder / RECORDS, without=[CHECKPOINTS])
            write_table(plan.trials.folder)
    return load_sweep(plan.trials.folder), done == plan.count


def train_all(plan: SweepPlan, *, notify: Notify, show: Show, verbose: bool = False) -> int:
    """Run the trials that are left on the connected cluster, and count the ended ones.

    Raises:
        ConfigError: none of the trials could begin; the message is of the first one.
    """
    callback = TuneCallback(plan.trials.folder, notify, show)
    plan.trials.find_impossible(plan.examples)
    _write_file(plan)
    if plan.sweep.search is not None:
        for point in plan.points:  # they start again, under other names
            remove_note(plan.trials.folder, point["trial"])
    with nullcontext() if verbose else quiet():
        tuner = _tuner(plan, callback, verbose)
        remove(join(plan.trials.uri or plan.trials.folder, TUNE, SETTINGS))
        tuner.fit()
    if len(callback.mistakes) == plan.count:
        raise ConfigError(callback.mistakes[0])
    return callback.done


def _new_folder(experiment: Experiment) -> Path:
    check(experiment_folder(experiment.output, experiment.name))
    return folder_name(experiment.output, experiment.name, "sweep").absolute()


def _write_file(plan: SweepPlan) -> None:
    with written(plan.trials.folder, "output"):
        plan.trials.folder.mkdir(parents=True, exist_ok=True)
        (plan.trials.folder / FILE).write_text(plan.experiment.recorded.to_yaml(), encoding="utf-8")
    upload(plan.trials.folder / FILE)


def cpus_of(plan: SweepPlan) -> float:
    """Return the CPUs of the largest trial."""
    experiments = [plan.trials.experiment(point) for point in plan.examples]
    return max(cpus(adapted(trial)) if trial.engine == "ray" else 1 for trial in experiments)


def _tuner(plan: SweepPlan, callback: TuneCallback, verbose: bool) -> tune.Tuner:
    folder, sweep = plan.trials.folder, plan.sweep
    function = tune.with_resources(
        tune.with_parameters(train, trials=plan.trials), plan.trials.resources
    )
    return tune.Tuner(
        function,
        param_space=_param_space(plan),
        tune_config=_tune_config(plan),
        run_config=tune.RunConfig(
            name=TUNE,
            storage_path=plan.trials.uri or str(folder),
            callbacks=[callback],
            stop=dict(sweep.stop) or None,
            verbose=2 if verbose else 0,
            progress_reporter=_reporter(sweep) if verbose else None,
        ),
    )


def _param_space(plan: SweepPlan) -> dict[str, Any]:
    if plan.sweep.search is None:
        return dict.fromkeys(plan.points[0])
    if plan.trials.resume:
        return {}  # its searcher has the points
    return space(plan.sweep, plan.trials.source)


def _reporter(sweep: Sweep) -> tune.CLIReporter:
    return tune.CLIReporter(
        parameter_columns=[*sweep.grid, *sweep.sample],
        metric_columns=list(dict.fromkeys(["progress", sweep.metric, LOSS])),
        max_column_length=40,
    )


def _tune_config(plan: SweepPlan) -> tune.TuneConfig:
    sweep, source = plan.sweep, plan.trials.source
    options: dict[str, Any] = (
        {"metric": sweep.metric, "mode": sweep.mode} if sweep.search or sweep.scheduler else {}
    )
    search: Searcher | BasicVariantGenerator | None
    if sweep.search is None:
        search = BasicVariantGenerator(
            points_to_evaluate=[dict(point) for point in plan.points],
            max_concurrent=sweep.concurrent or 0,
        )
    else:
        options["max_concurrent_trials"] = sweep.concurrent
        if plan.trials.resume:
            in_flight = [settings_of(point) for point in plan.points]
            search = searcher_again(sweep, plan.found, in_flight, source)
        else:
            search = searcher(sweep, source)
    return tune.TuneConfig(
        search_alg=search,
        scheduler=scheduler(sweep, source),
        num_samples=plan.count,
        time_budget_s=sweep.time_budget_s,
        reuse_actors=True,
        trial_name_creator=folder_of,
        **options,
    )
