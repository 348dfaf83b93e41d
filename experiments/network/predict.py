"""Predict the cases in virtual time: results/network.virtual.csv, a row for each run.

python experiments/network/predict.py && python experiments/labbook.py    (seconds)
"""

import csv
import json
import tempfile
from itertools import product
from pathlib import Path

import yaml
from cases import CASES, EXPERIMENT, KEPT, Case, row

from raysync import config
from raysync.config import Experiment
from raysync.running.run import run_in
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine

SEEDS = 5
"""How unequally transfers share a link is drawn; the prediction is the mean."""
TABLE = Path(__file__).parent / "results" / "network.virtual.csv"


def network(case: Case) -> list[str]:
    """Return the settings that describe the hosts of a case, as they were measured."""
    measured = yaml.safe_load(case.profile.read_text(encoding="utf-8"))
    links = [each.get("link", {}) for each in measured["workers"]]
    described = [f"workers.{index}.link={json.dumps(link)}" for index, link in enumerate(links)]
    return [*described, f"network={json.dumps(measured['network'])}"]


def experiment(case: Case, *more: str) -> Experiment:
    """Return the experiment of a case for the virtual engine, in time only."""
    settings = [*case.settings, *network(case), "engine=virtual", "timing=only", *more]
    return config.load(EXPERIMENT, settings)


def rows(output: str) -> list[dict[str, object]]:
    """Return the rows of all cases."""
    found = []
    for (name, case), seed in product(CASES.items(), range(SEEDS)):
        described = experiment(case, f"output={output}", f"seed={seed}")
        training, engine = prepare(described), VirtualEngine()
        for choice in described.paradigms:
            if choice.label in case.labels:
                found.append(row(name, seed, run_in(engine, training, choice)))
    return found


def main() -> None:
    """Write the table."""
    with tempfile.TemporaryDirectory() as output:
        found = rows(output)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        names = [key for key in ("case", "paradigm", "turn", *KEPT) if key != "wall_seconds"]
        table = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(found)


if __name__ == "__main__":
    main()
