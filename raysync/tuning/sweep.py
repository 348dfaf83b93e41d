"""Runs a sweep: plans it, hands it to Ray Tune, and writes the table of what came out.

A trial's end is noted beside its records as it happens. `--resume` reads these notes and gives Tune
what is left, as a new run: after Ctrl-C, Tune itself counts the trials under way as ended and
restores none of them (Ray 2.60).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ray import cloudpickle, tune
from ray.tune.experiment import Trial
from ray.tune.search import BasicVariantGenerator

from raysync import config
from raysync.cluster.connection import Connection
from raysync.cluster.placement import cpus
from raysync.config import Experiment, Sweep
from raysync.config.masking import masked
from raysync.errors import ConfigError
from raysync.record.storage import (
    check,
    download,
    is_uri,
    join,
    listdir,
    local_copy,
    location_of,
    remove,
    upload,
)
from raysync.record.sweeps import (
    FILE,
    RECORDS,
    TUNE,
    SweepRecord,
    TrialNote,
    load_sweep,
    notes,
    trial_name,
    write_note,
    write_table,
)
from raysync.record.writer import folder_name
from raysync.tuning.grid import Point, check_keys, count, examples, points, space
from raysync.tuning.progress import SweepProgress, TuneCallback, listening
from raysync.tuning.trial import Trials, as_placed, name_of, settings_of, train
from raysync.tuning.tune_library import check_metrics, scheduler, searcher

MOST_UNASKED = 1000
"""Trials that are run without asking."""
SETTINGS = "tuner.pkl"
"""Tune's own, with the storage's URI and its secrets; only Tune's own way to restore reads it."""
SEARCHER_STATES = "searcher-state-*.pkl"
"""What `Searcher.restore_from_dir` looks for there."""

Notify = Callable[[str], None]
Show = Callable[[SweepProgress], None]


@dataclass(frozen=True)
class Plan:
    """A sweep that has been checked."""

    experiment: Experiment
    sweep: Sweep
    trials: Trials
    points: tuple[Point, ...]
    """Of a grid, those still to run; a searcher makes its own."""
    examples: tuple[Point, ...]
    """The same; of a searcher, what shows each of its choices."""
    count: int
    """Trials still to run."""
    resume: bool
    done: int = 0
    """Trials that an earlier call has brought to their end."""


def plan(
    file: Path, settings: Iterable[str] = (), *, resume: bool = False, many: bool = False
) -> Plan:
    """Read a sweep file and check each of its trials.

    Args:
        file: an experiment file with a `sweep:` block.
        settings: overrides, `key=value`.
        resume: go on with the latest sweep of this file.
        many: allow more than `MOST_UNASKED` trials.

    Raises:
        ConfigError: no sweep in it, a setting that does not exist, too many trials, nothing to go
            on with.
    """
    source, settings = str(file), tuple(settings)
    experiment = config.load(file, settings)
    sweep = experiment.sweep
    if sweep is None:
        raise ConfigError(
            f"{source}: no `sweep:` block in it; write sweep: {{grid: {{seed: [0, 1, 2], ...}}}}."
        )
    check_keys(sweep, source)
    check_metrics(sweep, source)
    if count(sweep) > MOST_UNASKED and not many:
        raise ConfigError(
            f"{source}: sweep: {count(sweep):,} trials; say --yes if more than {MOST_UNASKED:,} are"
            " meant."
        )
    made = [] if sweep.search is not None else points(sweep, experiment.seed, source)
    folder = _folder(experiment, source, resume)
    trials = Trials(
        folder,
        Path.cwd(),
        source,
        file.read_text(encoding="utf-8"),
        settings,
        str(location_of(folder)) if is_uri(experiment.output) else None,
    )
    shown = made if sweep.search is None else examples(sweep, experiment.seed, source)
    for point in shown:
        trials.check(point)
    done = {note.name for note in notes(trials.folder) if note.ended and not note.error}
    left = tuple(
        {"trial": number} | point
        for number, point in enumerate(made)
        if trial_name(number) not in done
    )
    _tune_config(sweep, left, len(left), source)  # refuses what Tune does not have
    if sweep.search is not None:
        count_left = sweep.samples - len(done)
        return Plan(experiment, sweep, trials, (), tuple(shown), count_left, resume, len(done))
    return Plan(experiment, sweep, trials, left, left, len(left), resume, len(made) - len(left))


def run(
    plan: Plan, *, notify: Notify, show: Show, address: str | None = None, verbose: bool = False
) -> tuple[SweepRecord, bool]:
    """Run the trials of a sweep, and write its table, also when it is interrupted.

    Args:
        plan: of the sweep.
        notify: is told, in a sentence, what the user should know.
        show: hears how the sweep stands, some times a second.
        address: the cluster to join where `cluster.address` is `auto`; None: a private one.
        verbose: Tune prints its own table.

    Returns:
        What the sweep left, and whether all of its trials came to an end: not if it was
        interrupted.

    Raises:
        ConfigError: there is no such cluster.
    """
    connection, done = Connection(notify, address), 0
    if plan.count <= 0:
        write_table(plan.trials.folder)  # a sweep that was killed at its end has none yet
        return load_sweep(plan.trials.folder), True
    try:
        connection.open(plan.experiment.cluster, cpus_of(plan))
        done = train_all(plan, notify=notify, show=show, verbose=verbose)
    finally:
        connection.close()
        if notes(plan.trials.folder):
            with suppress(ConfigError):  # nothing was recorded
                download(plan.trials.folder / RECORDS)
            write_table(plan.trials.folder)
    return load_sweep(plan.trials.folder), done == plan.count


def train_all(plan: Plan, *, notify: Notify, show: Show, verbose: bool = False) -> int:
    """Run the trials that are left, on the cluster that is connected; `run` has the arguments.

    Returns:
        How many came to an end, failed ones too.

    Raises:
        ConfigError: none of them could begin; what is wrong with the first one.
    """
    trial_log = _TrialLog(plan.trials.folder, notify, show)
    plan.trials.find_impossible(plan.examples)
    _begin(plan)
    with listening(trial_log), _quiet(verbose):
        tuner = _tuner(plan, verbose)
        remove(join(plan.trials.uri or plan.trials.folder, TUNE, SETTINGS))
        tuner.fit()
    if len(trial_log.mistakes) == plan.count:
        raise ConfigError(trial_log.mistakes[0])
    return trial_log.done


class _TrialLog:
    """Notes what becomes of the trials."""

    def __init__(self, folder: Path, notify: Notify, show: Show) -> None:
        self.progressed = show
        self.done = 0
        """Trials that came to an end."""
        self.mistakes: list[str] = []
        """The mistakes of those that could not begin."""
        self._folder = folder
        self._notify = notify

    def started(self, trial: Trial) -> None:
        self._write(trial, ended=False)

    def ended(self, trial: Trial) -> None:
        self.done += 1
        self._write(trial, ended=True)

    def failed(self, trial: Trial) -> None:
        self.done += 1
        cause = _died_of(trial)
        if isinstance(cause, ConfigError):
            self.mistakes.append(str(cause))
        error = " ".join(str(cause).split())
        self._write(trial, ended=True, error=error)
        settings = ", ".join(f"{key}={value}" for key, value in settings_of(trial.config).items())
        self._notify(f"The trial with {settings} failed: {error}")

    def _write(self, trial: Trial, *, ended: bool, error: str = "") -> None:
        name = name_of(trial.config, trial.trial_id)
        try:
            write_note(self._folder, TrialNote(name, settings_of(trial.config), ended, error))
        except (
            ConfigError
        ) as unreachable:  # the trials go on; the table at the end needs no notes from there
            self._notify(str(unreachable))


def _died_of(trial: Trial) -> BaseException | str:
    """The error, or its last line. (`trial.get_error()` finds it some time later, once it is
    stored.)
    """
    if trial.pickled_error_file is None:
        return Path(trial.error_file).read_text(encoding="utf-8").strip().splitlines()[-1]
    error: BaseException = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    return getattr(error, "cause", None) or error


def _folder(experiment: Experiment, source: str, resume: bool) -> Path:
    """Of the sweep, or a copy of it; a new one is made when it begins."""
    if not resume:
        check(join(experiment.output, experiment.name))
        return folder_name(experiment.output, experiment.name, "sweep").absolute()
    output = (
        experiment.output if is_uri(experiment.output) else Path(experiment.output).expanduser()
    )
    beside = join(output, experiment.name)
    sweeps = (join(beside, name) for name in reversed(listdir(beside)) if "-sweep-" in name)
    found = next((one for one in sweeps if FILE in listdir(one)), None)
    if found is None:
        raise ConfigError(f"{source}: no sweep of it to go on with in {masked(str(beside))}.")
    folder = local_copy(found)
    if config.load(folder / FILE) != config.validate(yaml.safe_load(experiment.to_yaml())):
        raise ConfigError(
            f"{source}: not what {masked(str(found))} began with; a sweep goes on with the "
            "same settings."
        )
    return folder.absolute()


def _begin(plan: Plan) -> None:
    plan.trials.folder.mkdir(parents=True, exist_ok=True)
    (plan.trials.folder / FILE).write_text(plan.experiment.to_yaml(), encoding="utf-8")
    upload(plan.trials.folder / FILE)


def cpus_of(plan: Plan) -> float:
    """CPUs that the largest trial needs."""
    experiments = [plan.trials.experiment(point) for point in plan.examples]
    return max(cpus(as_placed(one)) if one.engine == "ray" else 1 for one in experiments)


def _tuner(plan: Plan, verbose: bool) -> tune.Tuner:
    folder, sweep, source = plan.trials.folder, plan.sweep, plan.trials.source
    function = tune.with_resources(
        tune.with_parameters(train, trials=plan.trials), plan.trials.resources
    )
    learned = folder / TUNE if any((folder / TUNE).glob(SEARCHER_STATES)) else None
    choices = space(sweep, source) if learned is None else {}  # a searcher that goes on has them
    return tune.Tuner(
        function,
        param_space=choices if sweep.search else dict.fromkeys(plan.points[0]),
        tune_config=_tune_config(sweep, plan.points, plan.count, source, learned),
        run_config=tune.RunConfig(
            name=TUNE,
            storage_path=plan.trials.uri or str(folder),
            callbacks=[TuneCallback()],
            stop=dict(sweep.stop) or None,
            verbose=2 if verbose else 0,
            progress_reporter=_reporter(sweep) if verbose else None,
        ),
    )


def _reporter(sweep: Sweep) -> tune.CLIReporter:
    """Tune's table, with what is varied and what is reported."""
    return tune.CLIReporter(
        parameter_columns=[*sweep.grid, *sweep.sample],
        metric_columns=["progress", "accuracy", "loss"],
        max_column_length=40,
    )


def _tune_config(
    sweep: Sweep, left: Iterable[Point], samples: int, source: str, learned: Path | None = None
) -> tune.TuneConfig:
    """
    Args:
        sweep: to run.
        left: points of its grid.
        samples: how many trials.
        source: the file, for errors.
        learned: folder of the Tune run whose searcher goes on.
    """
    looks: dict[str, Any] = (
        {"metric": sweep.metric, "mode": sweep.mode} if sweep.search or sweep.scheduler else {}
    )
    search = searcher(sweep, source)
    if search is None:
        search = BasicVariantGenerator(
            points_to_evaluate=[dict(one) for one in left], max_concurrent=sweep.concurrent or 0
        )
    else:
        looks["max_concurrent_trials"] = sweep.concurrent
        if learned is not None:
            search.restore_from_dir(str(learned))
    return tune.TuneConfig(
        search_alg=search,
        scheduler=scheduler(sweep, source),
        num_samples=samples,
        time_budget_s=sweep.time_budget_s,
        reuse_actors=True,
        **looks,
    )


@contextmanager
def _quiet(verbose: bool) -> Iterator[None]:
    """Tune's own words only if they are wanted."""
    loggers = [] if verbose else [logging.getLogger(name) for name in ("ray.tune", "optuna")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
