"""Train on hosts of a real network: results/network.measured.csv, a row for each run.

    python experiments/network/measure.py RUNS                        (25 minutes, as root)
    python experiments/network/measure.py RUNS --cases equal --turns 1

Rows are added to those in the table: remove it to begin anew. `RUNS` is a folder for the records.
"""

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from cases import CASES, EXPERIMENT, KEPT, Case, row
from hosts import RayHosts, available, ended_by_sigterm

from raysync import config
from raysync.record.reader import load

TABLE = Path(__file__).parent / "results" / "network.measured.csv"
FIELDS = ("case", "paradigm", "turn", *KEPT, "date")
RAYSYNC = str(Path(sys.executable).with_name("raysync"))
CPUS = (4, 2, 2, 2)
"""What the hosts declare to Ray: on the first only there is room for the evaluator."""


def rows(hosts: RayHosts, name: str, case: Case, turn: int, runs: Path) -> Iterator[dict]:
    """Run a case under its paradigms, and yield their rows."""
    hosts.set_rates(case.rates)
    output = runs.absolute() / f"{time.strftime('%Y%m%d-%H%M%S')}-{turn}"
    experiment = config.load(EXPERIMENT)
    chosen = [one for one in experiment.paradigms if one.label in case.labels]
    paradigms = ", ".join(one.model_dump_json(exclude_defaults=True) for one in chosen)
    settings = [*case.settings, f"output={output}", f"paradigms=[{paradigms}]"]
    command = [RAYSYNC, "compare", str(EXPERIMENT)]
    for setting in settings:
        command += ["--set", setting]
    with (runs / "log.txt").open("a", encoding="utf-8") as log:
        hosts.run(
            1, command, env=hosts.environment, stdout=log, stderr=subprocess.STDOUT, check=True
        )
    for path in sorted((output / experiment.name).glob("*/journal.jsonl")):
        yield row(name, turn, load(path.parent)) | {"date": time.strftime("%Y-%m-%d")}


def main() -> None:
    """Measure, and write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="a folder for the records")
    parser.add_argument("--cases", default="", help="only those whose name has this in it")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    if reason := available():
        sys.exit(f"There can be no hosts here: {reason}.")
    cases = {name: case for name, case in CASES.items() if given.cases in name}
    given.runs.mkdir(parents=True, exist_ok=True)
    before = pd.read_csv(TABLE).groupby("case").turn.max() if TABLE.is_file() else {}
    with (
        ended_by_sigterm(),
        TABLE.open("a", newline="", encoding="utf-8") as file,
        RayHosts(4, 100e6, CPUS) as hosts,
    ):
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if not file.tell():
            table.writeheader()
        for turn in range(1, given.turns + 1):
            for name, case in cases.items():
                for each in rows(hosts, name, case, before.get(name, 0) + turn, given.runs):
                    table.writerow(each)
                    file.flush()
                    print(*each.values(), flush=True)


if __name__ == "__main__":
    main()
