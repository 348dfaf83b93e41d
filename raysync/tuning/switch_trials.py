"""Run the search for the switch point: its trainings are the trials of a sweep that grows from
stage to stage.

    SEARCH/sweep.yaml, sweep.csv, records/   as in a sweep; varied: `paradigm.fraction`, `seed`
    SEARCH/search.json                       the result
    SEARCH/chosen.yaml                       the experiment with the fraction that was chosen

A training is identified by its fraction and seed, so the same search again, also after an
interruption or with another threshold or more repeats, uses the trainings that exist.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from raysync import config
from raysync.cluster.connection import Connection
from raysync.config import Experiment, Known, ParadigmChoice, Sweep, SwitchSearch
from raysync.config.secret_masking import masked
from raysync.core.metrics import MODES, known as known_names
from raysync.errors import ConfigError, RunFailed, unknown_name
from raysync.paradigms.syncswitch import SyncSwitch
from raysync.record.storage import is_uri
from raysync.record.sweeps import FILE, VARIED, load_sweep, notes, write_table
from raysync.record.writer import folder_name
from raysync.training.task_loading import metrics_of, primary_of
from raysync.tuning.grid import Point
from raysync.tuning.progress import Notify, Show
from raysync.tuning.sweep import Plan, cpus_of, train_all
from raysync.tuning.switch_search import FIRST_ALONE, Candidate, SearchResult, Training, search
from raysync.tuning.trial import Trials

KIND, RESULT, CHOSEN = "switch-search", "search.json", "chosen.yaml"
FRACTION, SEED = "paradigm.fraction", "seed"
BEGIN_WITH = 0.5
"""The first candidate. It is tried in any case, so it is trained together with `first`."""

Begin = Callable[[str, int], None]
"""Receives a description of the next stage, and its number of trainings."""


@dataclass(frozen=True)
class SearchPlan:
    """A search that has been checked."""

    experiment: Experiment
    search: SwitchSearch
    known: Known | None
    """The results of `first` alone, in a recurring search."""
    trials: Trials
    remark: str
    """What the user should know about earlier searches."""
    rises: bool
    """Whether a larger target is better."""


def plan(file: Path, settings: Iterable[str] = (), *, recurring: bool = False) -> SearchPlan:
    """Read a search file, and find the earlier search that goes on.

    Args:
        file: an experiment file with a `switch_search:` block and `paradigm: sync-switch`.
        settings: overrides, `key=value`.
        recurring: take the target of `first` alone from the block's `known`.

    Raises:
        ConfigError: the file has no such block or paradigm, its paradigm switches several times,
            it trains nothing, or nothing is known in a recurring search.
    """
    source, settings = str(file), tuple(settings)
    experiment = config.load(file, settings)
    search = experiment.switch_search
    if search is None:
        raise ConfigError(
            f"{source}: no `switch_search:` block in it; write switch_search: {{target:"
            " final_accuracy}."
        )
    _check(experiment, source)
    rises = _rises(experiment, search, source)
    if recurring and search.known is None:
        raise ConfigError(
            f"{source}: switch_search.known: --recurring needs the target of earlier runs; write "
            "known: {value: 0.92}."
        )
    folder, remark = _folder(experiment, source)
    trials = Trials(folder, Path.cwd(), source, file.read_text(encoding="utf-8"), settings)
    trials.experiment({FRACTION: BEGIN_WITH})
    known = search.known if recurring else None
    return SearchPlan(experiment, search, known, trials, remark, rises)


def run(
    plan: SearchPlan,
    *,
    notify: Notify,
    begin: Begin,
    show: Show,
    address: str | None = None,
    verbose: bool = False,
) -> SearchResult:
    """Search, run the trainings that are missing, and write the result.

    Args:
        plan: the search.
        notify: receives sentences that the user should read.
        begin: is called at the beginning of each stage.
        show: receives the progress of the stage, some times a second.
        address: the cluster to join where `cluster.address` is `auto`; None: a private one.
        verbose: Tune prints its own table.

    Raises:
        ConfigError: there is no such cluster.
        KeyboardInterrupt: the user has stopped it; the same call goes on.
        RunFailed: a training failed, or none of `first` alone has a value.
    """
    settings, folder = plan.search, plan.trials.folder
    if plan.remark:
        notify(plan.remark)
    # the results of an earlier call: this one can be stopped, and can have other settings
    for name in (RESULT, CHOSEN):
        (folder / name).unlink(missing_ok=True)
    trainings = _Trainings(plan, Connection(notify, address), notify, begin, show, verbose)
    try:
        trainings.make(
            ({} if plan.known else {FIRST_ALONE: settings.first_repeats})
            | {BEGIN_WITH: settings.candidate_repeats}
        )
        result = search(settings, trainings, plan.known, rises=plan.rises)
    finally:
        trainings.connection.close()
    (folder / FILE).write_text(plan.experiment.to_yaml(), encoding="utf-8")
    (folder / RESULT).write_text(
        json.dumps(_result_json(plan, result), indent=2) + "\n", encoding="utf-8"
    )
    (folder / CHOSEN).write_text(
        chosen(plan.experiment, result.fraction).to_yaml(), encoding="utf-8"
    )
    return result


def chosen(experiment: Experiment, fraction: float) -> Experiment:
    """Return the experiment with that fraction, and without the search."""
    choice = experiment.paradigm
    paradigm = ParadigmChoice.model_validate(
        {"name": choice.name, **choice.parameters, "fraction": fraction}
    )
    return experiment.model_copy(
        update={"paradigm": paradigm, "switch_search": None, "sweep": None}
    )


class _Trainings:
    """Runs the trainings that the search asks for; those that exist are not run again."""

    def __init__(
        self,
        plan: SearchPlan,
        connection: Connection,
        notify: Notify,
        begin: Begin,
        show: Show,
        verbose: bool,
    ) -> None:
        self.connection = connection
        self._plan = plan
        self._notify, self._begin, self._show, self._verbose = notify, begin, show, verbose
        self._existing = self._read()

    def __call__(self, fraction: float, repeats: int) -> list[Training]:
        self.make({fraction: repeats})
        return [self._existing[fraction, seed] for seed in self._seeds(repeats)]

    def make(self, repeats: dict[float, int]) -> None:
        """Run the trainings that are missing, side by side.

        Args:
            repeats: fraction -> its number of trainings.

        Raises:
            KeyboardInterrupt: the user has stopped it.
            RunFailed: a training failed.
        """
        required = [
            (fraction, seed) for fraction, count in repeats.items() for seed in self._seeds(count)
        ]
        missing = [key for key in required if key not in self._existing]
        if not missing:
            return
        fractions = dict.fromkeys(fraction for fraction, _ in missing)
        self._begin(
            f"fraction {', '.join(f'{fraction:g}' for fraction in fractions)}", len(missing)
        )
        stage = self._stage(missing)
        self.connection.open(stage.experiment.cluster, cpus_of(stage))
        try:
            ended = train_all(stage, notify=self._notify, show=self._show, verbose=self._verbose)
        finally:
            self._existing = self._read()
        if ended < stage.count:
            raise KeyboardInterrupt  # Tune has swallowed it
        if failed := set(missing) - self._existing.keys():
            raise RunFailed(
                f"{len(failed)} of {stage.count} trainings failed; the others are kept, and the"
                " same command runs these again"
            )

    def _seeds(self, count: int) -> range:
        seed = self._plan.experiment.seed
        return range(seed, seed + count)

    def _read(self) -> dict[tuple[float, int], Training]:
        """Write the table of all trainings, and return those that ended, by fraction and seed."""
        folder = self._plan.trials.folder
        if not notes(folder):
            return {}
        write_table(folder)
        rows: list[Any] = load_sweep(folder).table.to_dict("records")
        return {
            (row[VARIED + FRACTION], row[VARIED + SEED]): _training(row, self._plan.search.target)
            for row in rows
            if row["status"] in ("finished", "diverged")
        }

    def _stage(self, missing: list[tuple[float, int]]) -> Plan:
        """Plan these trainings as trials; one that began before keeps its number."""
        plan = self._plan
        numbers = {
            (note.settings[FRACTION], note.settings[SEED]): int(note.name)
            for note in notes(plan.trials.folder)
        }
        points: list[Point] = []
        for fraction, seed in missing:
            number = numbers.setdefault((fraction, seed), max(numbers.values(), default=-1) + 1)
            points.append({"trial": number, FRACTION: fraction, SEED: seed})
        varied = {
            FRACTION: [fraction for fraction, _ in missing],
            SEED: [seed for _, seed in missing],
        }
        sweep = Sweep.model_validate({"grid": varied, "concurrent": plan.search.concurrent})
        left = tuple(points)
        return Plan(plan.experiment, sweep, plan.trials, left, left, len(left))


def _check(experiment: Experiment, source: str) -> None:
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
            f"{source}: timing: only trains nothing, so there is no model to keep as good."
        )


def _rises(experiment: Experiment, search: SwitchSearch, source: str) -> bool:
    """Say whether a larger target is better.

    Raises:
        ConfigError: the task has no such metric, or it is not known which direction is better.
    """
    metric, metrics, primary = search.metric, metrics_of(experiment), primary_of(experiment)
    where = f"{source}: switch_search.target"
    if metrics is not None and metric not in known_names(metrics):
        raise unknown_name("metric", metric, known_names(metrics), where=where)
    mode = (MODES | {primary.name: primary.mode}).get(metric)
    if mode is None:
        raise ConfigError(
            f"{where}: {search.target}: it is not known which direction of {metric!r} is better;"
            f" the primary metric is {primary.name}."
        )
    return mode == "max"


def _folder(experiment: Experiment, source: str) -> tuple[Path, str]:
    """Return the folder of the latest search with the same trainings, else a new one; and a remark
    about that for the user.
    """
    if is_uri(experiment.output):
        raise ConfigError(
            f"{source}: output: {masked(str(experiment.output))}: a search needs a folder, because"
            " it goes on from the trainings in it; on a cluster, one that all nodes share."
        )
    output = Path(experiment.output)
    parent = output.expanduser() / experiment.name
    folders = sorted((file.parent for file in parent.glob(f"*-{KIND}-*/{FILE}")), reverse=True)
    for folder in folders:
        before = _searched(folder)
        if before is not None and _trained(before) == _trained(experiment):
            is_changed = before.switch_search != experiment.switch_search
            changed = " with another switch_search block" if is_changed else ""
            remark = f"This search began in {folder}{changed}; its trainings there are used."
            return folder.absolute(), remark
    remark = f"A new search: {source} trains something else than {folders[0]}." if folders else ""
    return folder_name(output, experiment.name, KIND).absolute(), remark


def _searched(folder: Path) -> Experiment | None:
    """Return the experiment of an earlier search; None: it cannot be read."""
    try:
        return config.load(folder / FILE, recorded=True)
    except ConfigError:
        return None


def _trained(experiment: Experiment) -> Experiment:
    """Return the part of an experiment that all trainings of a search share, as it is read from
    their folder.
    """
    return config.parse(chosen(experiment, FIRST_ALONE).to_yaml(), source="experiment")


def _training(row: dict[str, Any], target: str) -> Training:
    if row["status"] == "diverged":
        return Training(None, row["seconds"], "diverged")
    if pd.isna(row.get(target)):
        return Training(None, row["seconds"], "never converged")
    return Training(row[target], row["seconds"])


def _result_json(plan: SearchPlan, result: SearchResult) -> dict[str, Any]:
    """Return the contents of `search.json`: seconds, and costs in trainings of `first`."""

    def candidate_json(candidate: Candidate) -> dict[str, Any]:
        return {
            "fraction": candidate.fraction,
            "passes": candidate.passes,
            "value": candidate.value,
            "seconds": candidate.seconds,
            "ratio": result.ratio(candidate),
            "runs": [asdict(training) for training in candidate.trainings],
        }

    return {
        "target": plan.search.target,
        "threshold": plan.search.threshold,
        "recurring": plan.known is not None,
        "value": result.value,
        "fraction": result.fraction,
        "cost": result.cost,
        "amortisation": result.amortisation,
        "effective": result.effective,
        "seconds": result.seconds,
        "first_seconds": result.first_seconds,
        "first": candidate_json(result.first),
        "candidates": [candidate_json(each) for each in result.candidates],
    }
