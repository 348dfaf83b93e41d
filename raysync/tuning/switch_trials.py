"""Runs the search for the switch point: its trainings are the trials of a sweep that grows from
stage to stage.

    SEARCH/sweep.yaml, sweep.csv, records/   as of a sweep; varied: `paradigm.fraction`, `seed`
    SEARCH/search.json                       what was found
    SEARCH/chosen.yaml                       the experiment with the fraction that was found

A training is told by its fraction and seed, so whoever asks again, also after an interruption or
with another threshold or more repeats, gets the one that is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from raysync import config
from raysync.cluster.connection import Connection
from raysync.config import Experiment, Known, ParadigmChoice, Sweep, SwitchSearch
from raysync.config.masking import masked
from raysync.errors import ConfigError, RunFailed
from raysync.paradigms.syncswitch import SyncSwitch
from raysync.record.storage import is_uri
from raysync.record.sweeps import FILE, VARIED, load_sweep, notes, write_table
from raysync.record.writer import folder_name
from raysync.tuning.grid import Point
from raysync.tuning.sweep import Notify, Plan, Show, cpus_of, train_all
from raysync.tuning.switch_search import FIRST_ALONE, Found, Run, Tried, search
from raysync.tuning.trial import Trials

KIND, RESULT, CHOSEN = "switch-search", "search.json", "chosen.yaml"
FRACTION, SEED = "paradigm.fraction", "seed"
BEGIN_WITH = 0.5
"""The first candidate; it is tried in any case, so beside the runs of `first`."""

Begin = Callable[[str, int], None]
"""Hears what is trained next, and how many trainings that are."""


@dataclass(frozen=True)
class SearchPlan:
    """A search that has been checked."""

    experiment: Experiment
    search: SwitchSearch
    known: Known | None
    """Of a recurring search."""
    trials: Trials
    remark: str
    """What the user should know of earlier searches."""


def plan(file: Path, settings: Iterable[str] = (), *, recurring: bool = False) -> SearchPlan:
    """Read a search file, and find the search of it that goes on.

    Args:
        file: an experiment file with a `switch_search:` block and `paradigm: sync-switch`.
        settings: overrides, `key=value`.
        recurring: take the accuracy of `first` alone from the block's `known`.

    Raises:
        ConfigError: no such block or paradigm, several switches, nothing is trained, nothing is
            known.
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
    if recurring and search.known is None:
        raise ConfigError(
            f"{source}: switch_search.known: --recurring needs the accuracy of earlier runs; write "
            "known: {accuracy: 0.92}."
        )
    folder, remark = _folder(experiment, source)
    trials = Trials(folder, Path.cwd(), source, file.read_text(encoding="utf-8"), settings)
    trials.experiment({FRACTION: BEGIN_WITH})
    return SearchPlan(experiment, search, search.known if recurring else None, trials, remark)


def run(
    plan: SearchPlan,
    *,
    notify: Notify,
    begin: Begin,
    show: Show,
    address: str | None = None,
    verbose: bool = False,
) -> Found:
    """Search, train what is not there yet, and write what was found.

    Args:
        plan: of the search.
        notify: is told, in a sentence, what the user should know.
        begin: hears of each stage.
        show: hears how the trainings of a stage stand, some times a second.
        address: the cluster to join where `cluster.address` is `auto`; None: a private one.
        verbose: Tune prints its own table.

    Raises:
        ConfigError: there is no such cluster.
        KeyboardInterrupt: the user has stopped it; the same call goes on.
        RunFailed: a training broke, or none of `first` alone came to an accuracy.
    """
    settings, folder = plan.search, plan.trials.folder
    if plan.remark:
        notify(plan.remark)
    for name in (
        RESULT,
        CHOSEN,
    ):  # of an earlier call; this one may be stopped, and ask for something else
        (folder / name).unlink(missing_ok=True)
    trainings = _Trainings(plan, Connection(notify, address), notify, begin, show, verbose)
    try:
        trainings.make(
            ({} if plan.known else {FIRST_ALONE: settings.first_repeats})
            | {BEGIN_WITH: settings.candidate_repeats}
        )
        found = search(settings, trainings, plan.known)
    finally:
        trainings.connection.close()
    (folder / FILE).write_text(plan.experiment.to_yaml(), encoding="utf-8")
    (folder / RESULT).write_text(
        json.dumps(_result(plan, found), indent=2) + "\n", encoding="utf-8"
    )
    (folder / CHOSEN).write_text(
        chosen(plan.experiment, found.fraction).to_yaml(), encoding="utf-8"
    )
    return found


def chosen(experiment: Experiment, fraction: float) -> Experiment:
    """The experiment with that fraction, and without the search."""
    choice = experiment.paradigm
    paradigm = ParadigmChoice.model_validate(
        {"name": choice.name, **choice.parameters, "fraction": fraction}
    )
    return experiment.model_copy(
        update={"paradigm": paradigm, "switch_search": None, "sweep": None}
    )


class _Trainings:
    """Makes the runs that the search asks for; those that are there are not made again."""

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
        self._there = self._look()

    def __call__(self, fraction: float, repeats: int) -> list[Run]:
        self.make({fraction: repeats})
        return [self._there[fraction, seed] for seed in self._seeds(repeats)]

    def make(self, repeats: dict[float, int]) -> None:
        """Train what is missing of so many runs of each fraction, side by side.

        Raises:
            KeyboardInterrupt: the user has stopped it.
            RunFailed: a training broke.
        """
        wanted = [
            (fraction, seed) for fraction, count in repeats.items() for seed in self._seeds(count)
        ]
        missing = [one for one in wanted if one not in self._there]
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
            self._there = self._look()
        if ended < stage.count:
            raise KeyboardInterrupt  # Tune has swallowed it
        if broken := set(missing) - self._there.keys():
            raise RunFailed(
                f"{len(broken)} of {stage.count} trainings broke; the others are kept, and the same"
                " command makes these again"
            )

    def _seeds(self, count: int) -> range:
        seed = self._plan.experiment.seed
        return range(seed, seed + count)

    def _look(self) -> dict[tuple[float, int], Run]:
        """The runs that came to an end, by fraction and seed; writes the table of all."""
        folder = self._plan.trials.folder
        if not notes(folder):
            return {}
        write_table(folder)
        rows: list[Any] = load_sweep(folder).table.to_dict("records")
        return {
            (row[VARIED + FRACTION], row[VARIED + SEED]): _run(row, self._plan.search.target)
            for row in rows
            if row["status"] in ("finished", "diverged")
        }

    def _stage(self, missing: list[tuple[float, int]]) -> Plan:
        """These trainings as trials; one that was begun keeps its number."""
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
        made = tuple(points)
        return Plan(plan.experiment, sweep, plan.trials, made, made, len(made), resume=True)


def _check(experiment: Experiment, source: str) -> None:
    choice = experiment.paradigm
    if choice.name != SyncSwitch.name:
        raise ConfigError(
            f"{source}: paradigm: {choice.label}; what is searched is the fraction of a switch: "
            f"{{name: {SyncSwitch.name}, first: bsp, then: asp}}."
        )
    then = choice.parameters.get("then")
    if isinstance(then, list) and len(then) > 1:
        raise ConfigError(
            f"{source}: paradigm.then: {len(then)} switches; the search is for one, so give one"
            " phase."
        )
    if experiment.timing == "only":
        raise ConfigError(
            f"{source}: timing: only trains nothing, so there is no accuracy to keep."
        )


def _folder(experiment: Experiment, source: str) -> tuple[Path, str]:
    """Of the latest search with the same trainings, else a new one; and what is to be said about
    that.
    """
    if is_uri(experiment.output):
        raise ConfigError(
            f"{source}: output: {masked(str(experiment.output))}: a search goes on from what "
            "it finds there; give it a folder, on a cluster one that all nodes share."
        )
    output = Path(experiment.output)
    beside = output.expanduser() / experiment.name
    folders = sorted((one.parent for one in beside.glob(f"*-{KIND}-*/{FILE}")), reverse=True)
    for folder in folders:
        before = _searched(folder)
        if before is not None and _trained(before) == _trained(experiment):
            changed = (
                " with another switch_search block"
                if before.switch_search != experiment.switch_search
                else ""
            )
            return (
                folder.absolute(),
                f"This search began in {folder}{changed}; what was trained there counts.",
            )
    remark = f"A new search: {source} trains something else than {folders[0]}." if folders else ""
    return folder_name(output, experiment.name, KIND).absolute(), remark


def _searched(folder: Path) -> Experiment | None:
    """What that search began with; None: nothing that can be read."""
    try:
        return config.load(folder / FILE)
    except ConfigError:
        return None


def _trained(experiment: Experiment) -> Experiment:
    """What all trainings of a search have in common, as its folder has it."""
    return config.validate(yaml.safe_load(chosen(experiment, FIRST_ALONE).to_yaml()))


def _run(row: dict[str, Any], target: str) -> Run:
    if row["status"] == "diverged":
        return Run(None, row["seconds"], "diverged")
    return (
        Run(row[target], row["seconds"])
        if pd.notna(row[target])
        else Run(None, row["seconds"], "never converged")
    )


def _result(plan: SearchPlan, found: Found) -> dict[str, Any]:
    """For `search.json`; seconds, and costs in trainings of `first`."""

    def told(tried: Tried) -> dict[str, Any]:
        return {
            "fraction": tried.fraction,
            "passes": tried.passes,
            "accuracy": tried.accuracy,
            "seconds": tried.seconds,
            "ratio": found.ratio(tried),
            "runs": [asdict(run) for run in tried.runs],
        }

    return {
        "target": plan.search.target,
        "threshold": plan.search.threshold,
        "recurring": plan.known is not None,
        "accuracy": found.accuracy,
        "fraction": found.fraction,
        "cost": found.cost,
        "amortisation": found.amortisation,
        "effective": found.effective,
        "seconds": found.seconds,
        "first_seconds": found.first_seconds,
        "first": told(found.first),
        "candidates": [told(one) for one in found.candidates],
    }
