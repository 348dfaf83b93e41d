"""The lab book: write all pages in this folder, and the index, from their templates and the
results beside them.

    python experiments/labbook.py              from the committed results
    python experiments/labbook.py --runs RUNS  takes over the newest sweeps there, draws pictures
    python experiments/labbook.py --check      changes nothing; names the pages that differ

README.md of a folder begins with its answer, and notes.md has what a reviewer needs beyond it. Each
is written from a template beside it, README.md.in or notes.md.in, which has `{{table: NAME}}` for a
table and, in the prose, `{{NAME}}` for a number. The index README.md.in has `{{FOLDER/NAME}}`, as
has first-page.md.in, a table of the project's README. `labtables.py` describes where the results
are.
"""

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from labtables import DIGITS, Results, counted, tabulate  # noqa: E402

from raysync import config  # noqa: E402
from raysync.config import Experiment  # noqa: E402
from raysync.record.sweeps import SweepRecord, load_sweep  # noqa: E402

MARK = re.compile(r"\{\{(table: )?(.+?)\}\}")
SOURCE = "<!-- Written from {}: change that file, then run python experiments/labbook.py -->\n"
FIRST_PAGE, FIRST_TABLE = HERE.parent / "README.md", HERE / "first-page.md.in"
KEPT = (
    "status",
    "paradigm",
    "parameters",
    "seed",
    "target_at_least",
    "final_accuracy",
    "time_to_target_s",
    "seconds",
    "throughput_samples_per_s",
    "wait_fraction",
    "staleness_mean",
    "staleness_max",
    "lead_max",
    "wall_seconds",
)
"""The columns that tables need of a trial."""


def entries() -> dict[Path, dict[str, Any]]:
    """Return folder -> the settings of its entry.toml."""
    return {
        file.parent: tomllib.loads(file.read_text(encoding="utf-8"))
        for file in sorted(HERE.glob("*/entry.toml"))
    }


def tables_of(folder: Path) -> ModuleType | None:
    """Load the tables.py of a folder, if it has one."""
    file = folder / "tables.py"
    if not file.is_file():
        return None
    spec = spec_from_file_location(f"tables_of_{folder.name.replace('-', '_')}", file)
    assert spec is not None, file
    assert spec.loader is not None, file
    module = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def template_of(page: Path) -> Path:
    """Return the file from which a page is written."""
    return page.with_name(f"{page.name}.in")


def filled(template: str, tables: Mapping[str, str], facts: Mapping[str, str]) -> str:
    """Return a template with its marks filled."""

    def fill(mark: re.Match[str]) -> str:
        text = (tables if mark[1] else facts)[mark[2]].strip("\n")
        assert text, f"{mark[0]} is empty"
        return text

    return MARK.sub(fill, template)


def written(page: Path, tables: Mapping[str, str], facts: Mapping[str, str]) -> str:
    """Return the text that a page should have; its first line names the template."""
    template = template_of(page)
    return SOURCE.format(template.name) + filled(
        template.read_text(encoding="utf-8"), tables, facts
    )


def answer(page: str) -> str:
    """Return the first paragraph of a page in one line."""
    _, paragraph, *_ = page.split("\n\n")
    return " ".join(paragraph.split())


def pages() -> dict[Path, str]:
    """Return each page -> the text that it should have."""
    texts, rows, of_all = {}, [], {}
    for folder, entry in entries().items():
        module, results = tables_of(folder), Results(folder)
        facts = module.facts(results) if hasattr(module, "facts") else {}
        tables = module.tables(results) if module is not None else {}
        for page in (folder / "README.md", folder / "notes.md"):
            if template_of(page).is_file():
                texts[page] = written(page, results.measured() | tables, facts)
        of_all |= {f"{folder.name}/{name}": fact for name, fact in facts.items()}
        rows.append(index_row(folder, entry, answer(texts[folder / "README.md"])))
    index = HERE / "README.md"
    texts[index] = written(index, {"index": tabulate(rows)}, of_all)
    first_table = filled(FIRST_TABLE.read_text(encoding="utf-8"), {}, of_all)
    texts[FIRST_PAGE] = with_table(FIRST_PAGE.read_text(encoding="utf-8"), first_table)
    return texts


def with_table(page: str, table: str) -> str:
    """Return a page with a table in place of the one that has the same heading."""
    heading, _, _ = table.partition("\n")
    before, found, rest = page.partition(f"{heading}\n")
    assert found, f"no table begins with {heading}"
    _, _, after = rest.partition("\n\n")
    return f"{before}{table}\n{after}"


def index_row(folder: Path, entry: dict[str, Any], says: str) -> dict[str, str]:
    """Return a row of the index, with date, machine and minutes of the sweeps, if there are any.

    `minutes` of entry.toml are of what is no sweep.
    """
    minutes, where = str(entry.get("minutes", "")), entry.get("date_machine", "")
    if (folder / "results" / "sweeps.csv").is_file():
        sweeps = Results(folder).sweeps
        minutes = f"{max(1, sweeps.minutes.sum() + entry.get('minutes', 0)):.0f}"
        where = f"{sweeps.date.max()}, {sweeps.cores.max()} cores, {sweeps.machine.iloc[-1]}"
    return {
        "experiment": f"[{folder.name}]({folder.name}/README.md)",
        "answer": says,
        "verdict": entry["verdict"],
        "command": f"`{entry['command']}`",
        "minutes": minutes,
        "date, machine": where,
    }


def take_over(runs: Path) -> None:
    """Copy what tables need of the newest sweep of each experiment file, and draw the pictures of
    its folder.

    A `tables.py` may have `keep(results, sweeps)`, for what its tables need of journals, and
    `draw(results, sweeps)`.
    """
    for folder in entries():
        sweeps = {}
        for file in sorted(folder.glob("*.yaml")):
            experiment = config.load(file)
            sweep = newest(runs / experiment.name)
            if sweep is not None:
                sweeps[file.stem] = sweep
                copy(sweep, experiment, folder / "results", file.stem)
        module = tables_of(folder)
        if sweeps and hasattr(module, "keep"):
            module.keep(Results(folder), sweeps)
        if sweeps and hasattr(module, "draw"):
            module.draw(Results(folder), sweeps)


def newest(folder: Path) -> SweepRecord | None:
    """Return the newest sweep of an experiment that was not interrupted."""
    sweeps = (
        load_sweep(table.parent)
        for table in sorted(folder.glob("*-sweep-*/sweep.parquet"), reverse=True)
    )
    return next(
        (sweep for sweep in sweeps if not {"stopped", "unfinished"} & set(sweep.table.status)), None
    )


def copy(sweep: SweepRecord, experiment: Experiment, results: Path, name: str) -> None:
    """Copy the rows of a sweep's trials that count, their curves, and where it ran, into a folder
    of results.
    """
    results.mkdir(exist_ok=True)
    table = counted(sweep.table, experiment)
    kept = [
        "trial",
        *(f"config/{key}" for key in sweep.varied),
        *(key for key in KEPT if key in table),
    ]
    table[kept].to_csv(results / f"{name}.csv", index=False, float_format=DIGITS)
    curves = [sweep.records[trial].evaluations.assign(trial=trial) for trial in table.trial]
    evaluations = pd.concat(curves).rename(columns={"at": "seconds"})
    if len(evaluations):
        kept = ["trial", "progress", "seconds", "accuracy"]
        evaluations[kept].to_csv(results / f"{name}.curves.csv", index=False, float_format=DIGITS)
    _note(sweep, table, results / "sweeps.csv", name)


def _note(sweep: SweepRecord, table: pd.DataFrame, file: Path, name: str) -> None:
    """Note where and when a sweep ran, and the minutes that its trials took on so many cores."""
    ran = next(iter(sweep.records.values())).environment
    cores = os.cpu_count() or 1
    row = {
        "sweep": name,
        "date": ran["started"][:10],
        "trials": len(table),
        "cores": cores,
        "minutes": round(table.wall_seconds.sum() / cores / 60, 1),
        "machine": ran["machine"],
        "python": ran["python"],
        "torch": ran["packages"]["torch"],
        "ray": ran["packages"]["ray"],
    }
    noted = pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=list(row))
    rows = [*noted[noted["sweep"] != name].to_dict("records"), row]
    pd.DataFrame(rows).sort_values("sweep").to_csv(file, index=False)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="where `raysync sweep` left its records")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if a page differs"
    )
    arguments = parser.parse_args()
    if arguments.runs is not None:
        take_over(arguments.runs)
    differ = {
        page: text for page, text in pages().items() if page.read_text(encoding="utf-8") != text
    }
    for page, text in differ.items():
        print(f"{page.relative_to(HERE.parent)}: {'differs' if arguments.check else 'written'}")
        if not arguments.check:
            page.write_text(text, encoding="utf-8")
    sys.exit(bool(arguments.check and differ))


if __name__ == "__main__":
    main()
