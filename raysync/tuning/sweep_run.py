"""Run a sweep: plan it, run it on Ray Tune, and write the table of its trials.

After Ctrl-C, Tune counts the trials in flight as ended and restores none (Ray 2.60). So `--resume`
gives Tune the trials that are left, by our own notes, as a new run. A begun trial of a grid resumes
from its record and repeats its earlier reports for Tune; a searcher's begun trials start again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import count as count_up
from math import isfinite
from pathlib import Path
from typing import Any, Literal, Self

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search import BasicVariantGenerator, Searcher

from raysync import config
from raysync.cluster.connection import Connection
from raysync.cluster.placement import cpus, process_count
from raysync.config import Experiment, Sweep
from raysync.config.resume_changes import (
    CHANGEABLE_IN_SWEEPS,
    check_changes,
    check_place,
    check_seeds,
)
from raysync.config.secret_masking import MASK
from raysync.core.metrics import LOSS
from raysync.errors import ConfigError, RunFailed
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
    remove_table,
    trial_name,
    write_note,
    write_table,
)
from raysync.record.trust import check_trusted
from raysync.record.writer import folder_name
from raysync.results.search_course import course_of
from raysync.running.engines import Notify
from raysync.training.loading import metrics_of, primary_of
from raysync.tuning.grid import (
    SEED,
    Point,
    check_keys,
    count,
    draws,
    examples,
    plain,
    points,
    seeds,
    space,
)
from raysync.tuning.progress import Show, SweepProgress, TimeBudget, TuneCallback
from raysync.tuning.trial import Trials, adapted, experiment_of, folder_of, settings_of, train
from raysync.tuning.tune_library import (
    aimed,
    check_metrics,
    quiet,
    scheduler,
    searcher,
    searcher_again,
)

MOST_UNASKED = 1000  # trials without --yes
OUTPUT = re.compile(r"\s*output\s*=")  # an override of the records' place
# Tune's own file, with the storage's URI and its secrets; only Tune's way to restore reads it
SETTINGS = "tuner.pkl"


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that has been checked."""

    experiment: Experiment
    sweep: Sweep
    trials: Trials
    # the points of a grid that are left to run; with a searcher, the points of trials in flight
    points: tuple[Point, ...] = ()
    examples: tuple[Point, ...] = ()  # the points; of a searcher, points with each of its choices
    count: int = 0  # left to run
    done: int = 0  # trials that an earlier call has finished
    # with a searcher, the points of ended trials with their metric
    found: tuple[tuple[Point, float | None], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The number of all trials; with a searcher, also those that repeat the best settings."""
        left = self.done + self.count
        return left if self.sweep.search is None else max(left, count(self.sweep))

    def with_points(self, points: Iterable[Point]) -> Self:
        """Return the plan of exactly these trials, without a searcher."""
        left = tuple(points)
        return replace(self, points=left, examples=left, count=len(left))

    @property
    def experiments(self) -> list[Experiment]:
        """The examples as experiments."""
        return [self.trials.experiment(point) for point in self.examples]


SweepEnding = Literal["done", "interrupted", "out of time"]


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
    former, settings = None, tuple(settings)
    if resume is not None:
        former = local_copy(newest_sweep(resume), without=[TUNE, CHECKPOINTS])
        check_trusted(former, trust=trust)
    origin = origin_of(file, settings, former)
    source, experiment = origin.source, experiment_of(origin)
    if former is not None:
        _check_former(former, experiment, moves=any(map(OUTPUT.match, settings)))
    sweep = experiment.sweep
    if sweep is None:
        raise ConfigError(
            f"{source}: no `sweep:` block in it; write sweep: {{grid: {{seed: [0, 1, 2], ...}}}}."
        )
    check_keys(sweep, source)
    primary = primary_of(experiment)
    check_metrics(sweep, metrics_of(experiment), primary, source)
    if sweep.stop and not experiment.trains:
        raise ConfigError(
            f"{source}: sweep.stop: trials end at evaluations, and timing: only has none; give"
            " stop: {after_s: ...} for each trial."
        )
    sweep = aimed(sweep, primary, source)
    if count(sweep) > MOST_UNASKED and not many:
        raise ConfigError(
            f"{source}: sweep: {count(sweep):,} trials; more than {MOST_UNASKED:,} need --yes."
        )
    listed = points if sweep.search is None else examples
    checked = listed(sweep, experiment.seed, source)
    folder = new_folder(experiment, "sweep") if former is None else former.absolute()
    trials = replace(
        Trials.of(origin, folder),
        uri=str(location_of(folder)) if is_copy(folder) else None,
        resume=former is not None,
        fixed={} if sweep.search is None or SEED not in sweep.grid else {SEED: seeds(sweep)[0]},
    )
    for point in checked:
        trials.check(point)
    empty = SweepPlan(experiment=experiment, sweep=sweep, trials=trials)
    checked_plan = (_with_grid if sweep.search is None else _with_search)(empty, checked)
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
    experiment = experiment_of(origin)
    with_secrets = {"checkpoint": experiment.checkpoint, "track": experiment.track}
    for name, setting in with_secrets.items():
        if MASK in str(setting):
            raise ConfigError(
                f"{display_name(former)}: the secrets in {name} are not recorded; name the file,"
                f" too: raysync sweep {origin.source} --resume FOLDER, or set {name} again."
            )
    return origin


def _check_former(former: Path, experiment: Experiment, *, moves: bool) -> None:
    """Refuse a sweep that still runs or has changed; note trials that ended without a note."""
    before = config.load(former / FILE, recorded=True)
    if moves:  # a new `output`
        check_place(before, experiment, former.absolute().parent)
    check_changes(
        before,
        config.parse(experiment.recorded.to_yaml(), source="experiment"),
        more=CHANGEABLE_IN_SWEEPS,
    )
    check_seeds(before, experiment)
    for note in notes(former):
        record = None if note.ended else newest_record(former, note.name)
        if record is None:
            continue
        if is_over(record):
            write_note(former, replace(note, ended=True))
        elif not record.ended:
            check_gone(record)


def _with_grid(plan: SweepPlan, grid_points: Sequence[Point]) -> SweepPlan:
    sweep, begun = plan.sweep, notes(plan.trials.folder)
    done = {repr(note.settings) for note in begun if _is_done(note)}
    numbered = _numbered(grid_points, begun)
    plan = plan.with_points(
        {"trial": number} | point for number, point in numbered if repr(point) not in done
    )
    distinct = len(draws(sweep, plan.experiment.seed, plan.trials.source))
    remark = (
        f"sweep.samples: {sweep.samples} draws are asked for, but only {distinct} differ; the"
        " others would be the same trials again, and are left out."
    )
    remarks = (remark,) if distinct < sweep.samples else ()
    return replace(plan, done=len(grid_points) - plan.count, remarks=remarks)


def _is_done(note: TrialNote) -> bool:
    return note.ended and not note.error


def _numbered(
    grid_points: Sequence[Point], begun: Sequence[TrialNote]
) -> Iterator[tuple[int, Point]]:
    """Number the points by their place in the grid; begun trials keep their numbers."""
    numbers = {repr(note.settings): int(note.name) for note in begun if note.name.isdigit()}
    taken = set(numbers.values())
    free = (number for number in count_up(len(grid_points)) if number not in taken)
    for place, point in enumerate(grid_points):
        number = numbers.get(repr(point))
        if number is None:
            number = next(free) if place in taken else place
        yield number, point


def _with_search(plan: SweepPlan, choices: Sequence[Point]) -> SweepPlan:
    sweep, folder = plan.sweep, plan.trials.folder
    begun = notes(folder)
    searched = [note for note in begun if not _is_repeat(note, sweep)]
    return replace(
        plan,
        points=tuple({"trial": note.name} | note.settings for note in searched if not note.ended),
        examples=tuple(choices),
        count=max(0, sweep.samples - sum(map(_is_done, searched))),
        done=sum(map(_is_done, begun)),
        found=tuple(_results(folder, searched, sweep.metric)),
    )


def _is_repeat(note: TrialNote, sweep: Sweep) -> bool:
    """Whether a trial of a search repeats the best settings with another seed."""
    return SEED in sweep.grid and SEED in note.settings


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
) -> tuple[SweepRecord, SweepEnding]:
    """Run a sweep's trials and write its table, also after an interruption.

    Args:
        notify: receives sentences that the user should read; the first one names the record.
        show: receives the progress of the sweep, several times a second.
        address: the cluster to join where `cluster.address` is `auto`; None: a private one.
        verbose: Tune prints its own table.

    Returns:
        The record, and how the sweep ended.

    Raises:
        ConfigError: none of the trials could begin.
        RunFailed: the time budget was over before one began.
    """
    folder = plan.trials.folder
    if plan.count <= 0 and not _repeats_of_best(plan):
        write_table(folder)  # a sweep that was killed at its end has no table yet
        return load_sweep(folder), "done"
    with recording(folder, Connection(notify, address)) as connection:
        connection.open(plan.experiment.cluster, cpus_of(plan))
        notify(f"{plan.experiment.name} begins; its records: {display_name(folder)}")
        for remark in plan.remarks:
            notify(remark)
        plan.trials.origin.write(folder)
        remove_table(folder)
        ending = train_all(plan, notify=notify, show=show, verbose=verbose, cores=connection.cores)
    if ending == "out of time" and not notes(folder):
        raise RunFailed(
            f"sweep.time_budget_s: {plan.sweep.time_budget_s:g} s were over before a trial began."
        )
    return load_sweep(folder), ending


@contextmanager
def recording(folder: Path, connection: Connection) -> Iterator[Connection]:
    """Close the connection at the end, and write the table of the trials that began."""
    try:
        yield connection
    finally:
        connection.close()
        if _downloaded_notes(folder):
            write_table(folder)


def _downloaded_notes(folder: Path) -> list[TrialNote]:
    """Read the notes of all trials; if any, get the records of trials on other nodes."""
    begun = notes(folder)
    if begun:
        with suppress(ConfigError):  # where nothing was recorded
            download(folder / RECORDS, without=[CHECKPOINTS])
    return begun


def train_all(
    plan: SweepPlan,
    *,
    notify: Notify,
    show: Show,
    verbose: bool = False,
    cores: Callable[[], float],
) -> SweepEnding:
    """Run the trials that are left on the connected cluster; return how that ended.

    Args:
        cores: returns the cores of the cluster.

    Raises:
        ConfigError: none of the trials could begin; the message is of the first one.
    """
    before, seconds = 0, plan.sweep.time_budget_s
    budget = None if seconds is None else TimeBudget(seconds)
    plan.trials.find_impossible(plan.examples)
    _write_file(plan)
    if plan.sweep.search is not None:
        for point in plan.points:  # they start again, under other names
            remove_note(plan.trials.folder, point["trial"])
    plan = _with_concurrency(plan, cores, notify)

    def show_all(progress: SweepProgress) -> None:
        done, share = before + progress.done, before + progress.progress
        show(replace(progress, done=done, progress=share))

    if plan.count > 0:
        ending, before = _train(plan, budget, notify, show_all, verbose)
        if ending != "done":
            return ending
    if repeats := _repeats_of_best(plan):
        return _train(repeats, budget, notify, show_all, verbose)[0]
    return "done"


def _train(
    plan: SweepPlan, budget: TimeBudget | None, notify: Notify, show: Show, verbose: bool
) -> tuple[SweepEnding, int]:
    """Run trials on Tune; return how that ended, and how many trials ended."""
    has_scheduler = plan.sweep.scheduler is not None
    callback = TuneCallback(
        plan.trials.folder, notify, show, has_scheduler=has_scheduler, budget=budget
    )
    with nullcontext() if verbose else quiet():
        tuner = _tuner(plan, callback, verbose)
        remove(join(plan.trials.uri or plan.trials.folder, TUNE, SETTINGS))
        tuner.fit()
    if len(callback.mistakes) == plan.count:
        raise ConfigError(callback.mistakes[0])
    if callback.budget_is_over and callback.done < plan.count:
        return "out of time", callback.done
    return "done" if callback.done == plan.count else "interrupted", callback.done


def _repeats_of_best(plan: SweepPlan) -> SweepPlan | None:
    """Return the trials of a search that repeat each paradigm's best settings with more seeds."""
    sweep, folder = plan.sweep, plan.trials.folder
    if sweep.search is None or len(seeds(sweep)) < 2 or not (folder / FILE).is_file():
        return None
    begun = _downloaded_notes(folder)
    course = course_of(load_sweep(folder)) if begun else None
    if course is None:
        return None
    ended = {repr(note.settings): note for note in begun if _is_repeat(note, sweep)}
    wanted = [
        best.settings | {SEED: plain(seed)}
        for best in course.best_of_paradigms.values()
        for seed in seeds(sweep)[1:]
    ]
    number = count_up(_next_number(folder))
    left = [
        {"trial": int(note.name) if note is not None else next(number)} | point
        for point in wanted
        if (note := ended.get(repr(point))) is None or not _is_done(note)
    ]
    without_search = sweep.model_copy(update={"search": None, "scheduler": None})
    return replace(plan, sweep=without_search).with_points(left) if left else None


def _next_number(folder: Path) -> int:
    """Return the first number that no trial has had, also before it started again."""
    names = [path.name for path in (folder / RECORDS).glob("*") if path.name.isdigit()]
    return max(map(int, names), default=-1) + 1


def _with_concurrency(plan: SweepPlan, cores: Callable[[], float], notify: Notify) -> SweepPlan:
    """Limit how many trials run at once on a real clock to those that share no cores."""
    if plan.sweep.concurrent is not None or plan.count < 2:
        return plan
    on_ray = [adapted(trial) for trial in plan.experiments if trial.engine == "ray"]
    processes = max(map(process_count, on_ray), default=0)
    if not processes:
        return plan
    available = cores()
    at_once = max(1, int(available // processes))
    if at_once >= plan.count:
        return plan
    notify(
        f"{at_once} trial{'s' * (at_once > 1)} at a time: each has {processes} processes, and there"
        f" are {available:g} cores, and trials that share cores measure each other."
        " sweep.concurrent sets another number."
    )
    return replace(plan, sweep=plan.sweep.model_copy(update={"concurrent": at_once}))


def new_folder(experiment: Experiment, kind: str) -> Path:
    check(experiment_folder(experiment.output, experiment.name))
    return folder_name(experiment.output, experiment.name, kind).absolute()


def _write_file(plan: SweepPlan) -> None:
    with written(plan.trials.folder, "output"):
        plan.trials.folder.mkdir(parents=True, exist_ok=True)
        (plan.trials.folder / FILE).write_text(plan.experiment.recorded.to_yaml(), encoding="utf-8")
    upload(plan.trials.folder / FILE)


def cpus_of(plan: SweepPlan) -> float:
    """Return the CPUs of the largest trial."""
    return max(cpus(adapted(trial)) if trial.engine == "ray" else 1 for trial in plan.experiments)


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
            stop=callback.budget,
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


def _namer(folder: Path) -> Callable[[Trial], str]:
    """Return a function that numbers a searcher's trials in the order of its suggestions."""
    numbers = count_up(_next_number(folder))
    names: dict[str, str] = {}  # trial's id -> name

    def name(trial: Trial) -> str:  # no object: Tune copies those for each trial
        if trial.trial_id not in names:
            names[trial.trial_id] = trial_name(next(numbers))
        return names[trial.trial_id]

    return name


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
    elif plan.trials.resume:
        in_flight = list(map(settings_of, plan.points))
        search = searcher_again(sweep, plan.found, in_flight, source)
    else:
        search = searcher(sweep, source)
    return tune.TuneConfig(
        search_alg=search,
        max_concurrent_trials=None if sweep.search is None else sweep.concurrent,
        scheduler=scheduler(sweep, source),
        num_samples=plan.count,
        reuse_actors=True,
        trial_name_creator=folder_of if sweep.search is None else _namer(plan.trials.folder),
        **options,
    )
