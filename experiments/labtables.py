"""The parts of the lab book's pages: the committed results of an experiment's folder, and tables of
them.

    FOLDER/entry.toml               its row in the index: claim, command, verdict, ...
    FOLDER/results/SWEEP.csv        one row a trial: what was varied, and its measures
    FOLDER/results/SWEEP.curves.csv its evaluations, where something was trained
    FOLDER/results/SWEEP.*.csv      what else the folder keeps of a sweep
    FOLDER/results/sweeps.csv       when, where and how long each sweep ran
    FOLDER/results/SCRIPT.md        what a script has measured, as a piece of a page
    FOLDER/tables.py                its tables, the numbers in its prose, its pictures

SWEEP is the name of the experiment file. The statistics are those of `raysync.results`.

On every page `mean ± half` and `mean (low to high)` are 95 % intervals over the seeds (Student's
t), and a standard deviation or a range is called so. Only runs count that ended by themselves, of
seeds that the experiment file declares: `counts` decides that, for sweeps and for scripts that read
records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from raysync import config
from raysync.config import Experiment, ParadigmChoice, Published
from raysync.record.reader import RunRecord, load
from raysync.results.columns import Form, ratio_text, with_interval
from raysync.results.statistics import Estimate, estimate, paired_difference, paired_ratio

NOT_REACHED = "not reached"
DIGITS = "%.6g"
TWO_TESTS = 0.90
"""The confidence whose interval lies within a margin if both one-sided tests of 5 % reject."""
OLDER = {"target_accuracy": "target_at_least", "time_to_accuracy_s": "time_to_target_s"}
"""Column of results that an older raysync measured -> its name today."""


# ---- which runs count ----


def seeds_of(experiment: Experiment) -> set[int]:
    """Return the seeds that an experiment file declares: those of its grid, of `compare`, or its
    only one.
    """
    grid = experiment.sweep.grid if experiment.sweep is not None else {}
    return {int(seed) for seed in grid.get("seed", experiment.seeds or (experiment.seed,))}


def counts(status: str, seed: int, experiment: Experiment) -> bool:
    """Return whether a run counts on a page: it ended by itself, and its file declares its seed.

    A diverged run counts as one, and has no result.
    """
    return status in ("finished", "diverged") and seed in seeds_of(experiment)


def counted(runs: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """Return the rows that count of a table with `seed`, and with `status` where a run can have
    ended otherwise.
    """
    statuses = runs.get("status", pd.Series("finished", index=runs.index))
    kept = [
        counts(status, seed, experiment) for status, seed in zip(statuses, runs.seed, strict=True)
    ]
    return runs[kept]


def records_of(paths: Iterable[Path], experiment: Experiment) -> list[RunRecord]:
    """Return the newest finished run of each paradigm and seed that a file of `compare`
    declares.
    """
    declared = {choice.label for choice in experiment.paradigms}
    newest: dict[tuple[str, int], RunRecord] = {}
    for record in map(load, sorted(paths, key=lambda path: path.name)):  # names begin with the time
        label, seed = record.config.paradigm.label, record.config.seed
        if (
            label in declared
            and record.summary["status"] == "finished"
            and counts("finished", seed, experiment)
        ):
            newest[label, seed] = record
    return list(newest.values())


def finished(record: RunRecord) -> RunRecord:
    """Return the record of a run that a script has just made, if it did all its work: otherwise its
    numbers do not count.

    Raises:
        ValueError: the run did not finish.
    """
    status = record.summary["status"]
    if status != "finished":
        raise ValueError(f"{record.path}: this run is {status}, so its numbers do not count")
    return record


# ---- the committed results ----


@cache
def _trials(folder: Path, sweep: str) -> pd.DataFrame:
    """Return the trials of a sweep that count, in a table that must not be changed."""
    table = Results(folder).of_runs(sweep).rename(columns=OLDER)
    return table.assign(
        label=table["config/paradigm"].map(label_of)
        if "config/paradigm" in table
        else table.paradigm
    )


@dataclass(frozen=True)
class Results:
    """The committed results of a folder."""

    folder: Path

    def trials(self, sweep: str) -> pd.DataFrame:
        """Return a row for each trial; its column `label` names the paradigm as tables do."""
        return _trials(self.folder, sweep)

    def table(self, name: str, **options: Any) -> pd.DataFrame:
        """Return results/NAME.csv."""
        return pd.read_csv(self.folder / "results" / f"{name}.csv", **options)

    def write(self, name: str, rows: pd.DataFrame) -> None:
        """Write results/NAME.csv."""
        file = self.folder / "results" / f"{name}.csv"
        rows.to_csv(file, index=False, float_format=DIGITS)

    def measured(self) -> dict[str, str]:
        """Return script -> what it has measured, for the mark of this name in a template."""
        return {
            file.stem: file.read_text(encoding="utf-8")
            for file in sorted((self.folder / "results").glob("*.md"))
        }

    def write_measured(self, script: str, text: str) -> None:
        """Write results/SCRIPT.md."""
        file = self.folder / "results" / f"{script}.md"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def of_runs(self, name: str, file: str = "") -> pd.DataFrame:
        """Return the runs that count in results/NAME.csv, which a script wrote.

        Args:
            name: the table.
            file: the experiment file of the runs; by default, that of the same name.
        """
        return counted(self.table(name), self.experiment(file or name))

    def curves(self, sweep: str) -> pd.DataFrame:
        """Return a row for each evaluation: trial, progress, seconds, accuracy."""
        return self.table(f"{sweep}.curves")

    @cached_property
    def sweeps(self) -> pd.DataFrame:
        """A row for each sweep: date, trials, minutes, cores, machine; the index is its name."""
        return self.table("sweeps", index_col="sweep")

    def experiment(self, sweep: str) -> Experiment:
        """Load the experiment file of a sweep."""
        return config.load(self.folder / f"{sweep}.yaml")

    def published(self, sweep: str) -> Published:
        """Return the published table of a sweep."""
        published = self.experiment(sweep).published
        assert published is not None, f"{sweep}.yaml has no published table"
        return published


@cache
def label_of(text: str) -> str:
    """Return the paradigm's name in tables, from its text in the table of a sweep."""
    value = yaml.safe_load(text)
    return ParadigmChoice.model_validate({"name": value} if isinstance(value, str) else value).label


def by_seed(trials: pd.DataFrame, key: str) -> dict[int, float | None]:
    """Return seed -> value of trials that are repeats; None where a trial has none."""
    assert trials.seed.is_unique, "these are not repeats: they differ in more than their seed"
    return {
        int(seed): None if pd.isna(value) else float(value)
        for seed, value in zip(trials.seed, trials[key], strict=True)
    }


def mean(trials: pd.DataFrame, key: str) -> Estimate:
    """Estimate mean and interval over the seeds."""
    return estimate(list(by_seed(trials, key).values()))


def percent_cell(trials: pd.DataFrame) -> str:
    """Return `47.3 ± 4.7`: the final accuracies in percent; `(2 of 3)`: the other runs diverged."""
    final = (100 * trials.final_accuracy).where(trials.status == "finished")
    return mean_cell(trials.assign(percent=final), "percent", ".1f")


def points_cell(ours: pd.DataFrame, theirs: pd.DataFrame) -> str:
    """Return `+4.9 (-2.0 to +11.8)`: by how many points ours are more accurate, paired over the
    common seeds.
    """
    gap = paired_difference(by_seed(ours, "final_accuracy"), by_seed(theirs, "final_accuracy"))
    assert gap.mean is not None, "no seed has a result of both"
    return interval_cell(gap, "+.1f", 100)


@dataclass(frozen=True)
class Gap:
    """A difference of mean accuracies in points, judged by a margin."""

    count: int
    mean: float
    low: float
    high: float
    """The 95 % interval."""
    within: float
    """The distance from 0 within which the 90 % interval lies: two one-sided tests of 5 %."""
    margin: float

    @property
    def verdict(self) -> str:
        small = self.within < self.margin
        if self.high < 0:
            return "worse, within the margin" if small else "worse"
        if small:
            return "as good"
        return "better" if self.low > 0 else "undecided"

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def paired_gap(
    ours: pd.DataFrame, theirs: pd.DataFrame, margin: float, key: str = "accuracy"
) -> Gap:
    """Return by how many points ours are more accurate, paired over the common seeds."""
    pairs = (by_seed(ours, key), by_seed(theirs, key))
    sure, tested = paired_difference(*pairs), paired_difference(*pairs, TWO_TESTS)
    values = (sure.mean, sure.low, sure.high, tested.low, tested.high)
    mean, low, high, *ends = (100 * value for value in values if value is not None)
    return Gap(sure.count, mean, low, high, max(map(abs, ends)), margin)


def ratio(ours: pd.DataFrame, theirs: pd.DataFrame, key: str) -> Estimate:
    """Estimate ours / theirs, paired over the common seeds."""
    return paired_ratio(by_seed(ours, key), by_seed(theirs, key))


def to_asp(trials: pd.DataFrame, label: str, key: str) -> Estimate:
    """Estimate a measure of a paradigm as a ratio to ASP's of the same seeds."""
    return ratio(trials[trials.label == label], trials[trials.label == "asp"], key)


def range_text(values: Sequence[float] | pd.Series, form: str = ".2f") -> str:
    """Return `1.2 to 3.4`: the smallest and the largest value."""
    return f"{min(values):{form}} to {max(values):{form}}"


def mean_cell(trials: pd.DataFrame, key: str, form: Form | str) -> str:
    """Return `3.42 ± 0.31 (2 of 3)`."""
    value = mean(trials, key)
    chosen = form if callable(form) else lambda _: form
    return with_interval(value, chosen)


def interval_cell(value: Estimate, form: str, scale: float = 1) -> str:
    """Return `+0.4 (-0.5 to +1.3)`, or `-` where nothing has a value; see `ratio_cell`."""
    if value.mean is None:
        return "-"
    return _with_ends(value, lambda number: format(scale * number, form))


def ratio_cell(value: Estimate) -> str:
    """Return `1.85 (1.70 to 2.02)`; the interval is left out where it is as narrow as the digits,
    or where there is none.
    """
    if value.mean is None:
        return NOT_REACHED
    pairs = f", {value.count} of {value.total} pairs" if not value.complete else ""
    return _with_ends(value, ratio_text) + pairs


def _with_ends(value: Estimate, text: Callable[[float], str]) -> str:
    numbers = (value.mean, value.low, value.high)
    mean_text, *ends = (text(number) for number in numbers if number is not None)
    return f"{mean_text} ({' to '.join(ends)})" if len(set(ends)) > 1 else mean_text


# ---- tables ----


def tabulate(rows: Iterable[Mapping[str, object]]) -> str:
    """Return a table in Markdown, from rows of heading -> cell; a cell that a row lacks is empty.

    Spaces around a heading are not shown: they tell apart headings that read the same.
    """
    rows = list(rows)
    header = list(dict.fromkeys(heading for row in rows for heading in row))
    cells = [[row.get(heading, "") for heading in header] for row in rows]
    return markdown([heading.strip() for heading in header], cells)


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def rows_of(text: str) -> list[list[list[str]]]:
    """Return the rows of the tables in a text without their headings, as cells."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
        for table in tables
    ]


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell such as `0.51 (0.49 to 0.53)`, in their order."""
    return [float(each.replace(",", "")) for each in re.findall(r"-?\d[\d,]*\.?\d*", cell)]


def sweeps_table(results: Results) -> str:
    """Tabulate the sweeps of the folder and what they took here; name the files that have
    not run.
    """
    sweeps = results.sweeps.loc[sorted(results.sweeps.index, key=_natural)]
    minutes = "minutes of the trials on all cores"
    rows = [
        {
            "sweep": f"`{name}.yaml`",
            "trials": sweep.trials,
            minutes: f"{sweep.minutes:.1f}",
            "date": sweep.date,
            "machine": f"{sweep.cores} cores, {sweep.machine}",
        }
        for name, sweep in sweeps.iterrows()
    ]
    of_all = {minutes: f"{sweeps.minutes.sum():.0f}"}
    rows.append({"sweep": "all", "trials": sweeps.trials.sum()} | of_all)
    files = [
        file.stem
        for file in sorted(results.folder.glob("*.yaml"))
        if results.experiment(file.stem).sweep
    ]
    return f"{tabulate(rows)}\n\n{not_run(results, files)}".rstrip()


def not_run(results: Results, sweeps: Sequence[str]) -> str:
    """Name those of the sweeps that have no results yet; "" if all have some."""
    names = ", ".join(f"`{name}.yaml`" for name in sweeps if name not in results.sweeps.index)
    return f"Not run yet: {names}." if names else ""


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts table-4 before table-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
