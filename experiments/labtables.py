"""What the pages of the lab book are made of: the committed results of an experiment's folder, and tables of them.

    FOLDER/entry.toml               its row in the index: claim, command, verdict, ...
    FOLDER/results/SWEEP.csv        one row a trial: what was varied, and the measures of `summary.json` that tables need
    FOLDER/results/SWEEP.curves.csv its evaluations, where something was trained
    FOLDER/results/SWEEP.*.csv      what else the folder keeps of a sweep
    FOLDER/results/sweeps.csv       when, where and how long each sweep ran
    FOLDER/tables.py                its tables, the numbers in its prose, its pictures

SWEEP is the name of the experiment file. Everything here comes from `raysync.results`, which owns the statistics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pandas as pd
import yaml

from raysync import config
from raysync.config import Experiment, ParadigmChoice, Published
from raysync.results.shown import Form, ratio_text, with_interval
from raysync.results.statistics import Estimate, estimate, paired_ratio

NOT_REACHED = "not reached"


@cache
def _trials(file: Path) -> pd.DataFrame:
    """A sweep's table, which nobody changes."""
    table = pd.read_csv(file)
    return table.assign(rule=table["config/paradigm"].map(rule) if "config/paradigm" in table else table.paradigm)


@dataclass(frozen=True)
class Results:
    """The committed results of a folder."""

    folder: Path

    def trials(self, sweep: str) -> pd.DataFrame:
        """One row a trial; column `rule`: the paradigm as tables call it."""
        return _trials(self.folder / "results" / f"{sweep}.csv")

    def curves(self, sweep: str) -> pd.DataFrame:
        """One row an evaluation: trial, progress, seconds, accuracy."""
        return pd.read_csv(self.folder / "results" / f"{sweep}.curves.csv")

    @cached_property
    def sweeps(self) -> pd.DataFrame:
        """One row a sweep: date, trials, minutes, cores, machine; the index is its name."""
        return pd.read_csv(self.folder / "results" / "sweeps.csv", index_col="sweep")

    def experiment(self, sweep: str) -> Experiment:
        """The file that the sweep was of."""
        return config.load(self.folder / f"{sweep}.yaml")

    def published(self, sweep: str) -> Published:
        """Its published table."""
        published = self.experiment(sweep).published
        assert published is not None, f"{sweep}.yaml has no published table"
        return published


@cache
def rule(text: str) -> str:
    """The paradigm of a trial as tables call it, from the text that a sweep's table has."""
    value = yaml.safe_load(text)
    return ParadigmChoice.model_validate({"name": value} if isinstance(value, str) else value).label


def by_seed(trials: pd.DataFrame, key: str) -> dict[int, float | None]:
    """Seed -> value of the trials, which are repeats; None: the trial has none."""
    assert trials.seed.is_unique, "these are not repeats: they differ in more than their seed"
    return {int(seed): None if pd.isna(value) else float(value)
            for seed, value in zip(trials.seed, trials[key], strict=True)}


def mean(trials: pd.DataFrame, key: str) -> Estimate:
    """Mean and interval over the seeds."""
    return estimate(list(by_seed(trials, key).values()))


def ratio(ours: pd.DataFrame, theirs: pd.DataFrame, key: str) -> Estimate:
    """Ours / theirs, paired over the common seeds."""
    return paired_ratio(by_seed(ours, key), by_seed(theirs, key))


def mean_cell(trials: pd.DataFrame, key: str, form: Form) -> str:
    """`3.42 ± 0.31 (2 of 3)`."""
    one = mean(trials, key)
    return with_interval(one.mean, one.low, one.high, one.count, one.total, form)


def ratio_cell(one: Estimate) -> str:
    """`1.85 (1.70 to 2.02)`; the interval is left out where it is as narrow as the digits, or where there is none."""
    if one.mean is None:
        return NOT_REACHED
    pairs = f", {one.count} of {one.total} pairs" if not one.complete else ""
    if one.low is None or one.high is None or ratio_text(one.low) == ratio_text(one.high):
        return ratio_text(one.mean) + pairs
    return f"{ratio_text(one.mean)} ({ratio_text(one.low)} to {ratio_text(one.high)}){pairs}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as the pages have it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_rules(trials: pd.DataFrame, cells: dict[str, Callable[[pd.DataFrame], str]]) -> str:
    """A table with a row for each paradigm, in the order of the trials: heading -> cell of its repeats."""
    rows = [[f"`{name}`", *(cell(trials[trials.rule == name]) for cell in cells.values())]
            for name in dict.fromkeys(trials.rule)]
    return markdown(["paradigm", *cells], rows)


def sweeps_table(results: Results) -> str:
    """What there is to run in the folder, and what it took here; which files have not run yet."""
    there = results.sweeps.loc[sorted(results.sweeps.index, key=_natural)]
    rows = [[f"`{name}.yaml`", str(one.trials), f"{one.minutes:.1f}", one.date, f"{one.cores} cores, {one.machine}"]
            for name, one in there.iterrows()]
    rows.append(["all", str(there.trials.sum()), f"{there.minutes.sum():.0f}", "", ""])
    table = markdown(["sweep", "trials", "minutes of the trials on all cores", "date", "machine"], rows)
    files = [file.stem for file in sorted(results.folder.glob("*.yaml")) if results.experiment(file.stem).sweep]
    return f"{table}\n\n{not_run(results, files)}".rstrip()


def not_run(results: Results, sweeps: Sequence[str]) -> str:
    """Which of these sweeps have no results yet; nothing, if all have."""
    names = ", ".join(f"`{name}.yaml`" for name in sweeps if name not in results.sweeps.index)
    return f"Not run yet: {names}." if names else ""


def _natural(name: str) -> list[tuple[int, str]]:
    """For table-4 before table-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
