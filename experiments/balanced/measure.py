"""Run the experiment files of this folder on the virtual clock, one run after the other.

    python experiments/balanced/measure.py pre-study DATA RUNS    which learning rate, which target
    python experiments/balanced/measure.py compare DATA RUNS      the comparison, all seeds
    python experiments/balanced/measure.py write RUNS             results/*.csv from the records
    python experiments/balanced/measure.py draw                   balanced.png from the results

DATA is a folder with FashionMNIST, RUNS one for the records. A run that is there is not repeated,
so what was interrupted goes on; all files are run with a seed before the next seed's turn.
"""

import argparse
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labbook import tables_of  # noqa: E402
from labtables import Results, records_of  # noqa: E402
from pictures import draw_balanced  # noqa: E402

from raysync import config  # noqa: E402
from raysync.record.reader import RunRecord  # noqa: E402
from raysync.running.engines import engine_for  # noqa: E402
from raysync.running.run import run_in  # noqa: E402
from raysync.training.preparation import prepare  # noqa: E402

RATES = {"lr-fashion": (0.005, 0.01, 0.02, 0.05, 0.1), "lr-text": (0.001, 0.003, 0.01)}
"""File of the pre-study -> the learning rates that it tries."""
COMPARED = tuple(
    f"{task}-{cluster}" for task in ("fashion", "text") for cluster in ("two", "four", "drift")
)
JUDGED = ("bsp", "asp", "balanced", "balanced(paradigm=asp)")
"""The labels of the paradigms that the goals are about."""
KEPT = (
    "final_accuracy",
    "final_loss",
    "time_to_target_s",
    "seconds",
    "throughput_samples_per_s",
    "wait_fraction",
    "staleness_mean",
    "lead_max",
    "wall_seconds",
)


def runs_in(folder: Path) -> list[Path]:
    """Return the folders of the runs that lie there."""
    return [file.parent for file in sorted(folder.glob("*/summary.json"))]


def run(name: str, seed: int, runs: Path, *overrides: str, labels: Collection[str] = ()) -> None:
    """Run an experiment file with a seed under each paradigm, or those of some labels, whose run is
    not there yet.
    """
    experiment = config.load(HERE / f"{name}.yaml", [f"output={runs}", f"seed={seed}", *overrides])
    there = {
        record.config.paradigm.label
        for record in records_of(runs_in(runs / experiment.name), experiment)
        if record.config.seed == seed
    }
    choices = [
        choice
        for choice in experiment.paradigms
        if choice.label not in there and (not labels or choice.label in labels)
    ]
    if not choices:
        return
    training = prepare(experiment)
    with engine_for(experiment) as engine:
        for choice in choices:
            summary = run_in(engine, training, choice).summary
            print(
                f"{name} seed {seed} {choice.label}: {summary['throughput_samples_per_s']:.0f}"
                f" samples/s, accuracy {summary['final_accuracy']:.1%},"
                f" {summary['wall_seconds']:.0f} s",
                flush=True,
            )


def data_of(name: str, data: Path) -> list[str]:
    """Return the setting that says where the data of a file lie, if it needs any."""
    return [f"data.data_dir={data}"] if "fashion" in name else []


def study(data: Path, runs: Path) -> None:
    """Run the pre-studies."""
    for name, rates in RATES.items():
        for rate in rates:
            for seed in config.load(HERE / f"{name}.yaml").seeds:
                run(name, seed, runs / f"{rate:g}", f"update.lr={rate:g}", *data_of(name, data))


def compare(data: Path, runs: Path) -> None:
    """Run the comparison: first what the goals are about, under all seeds, then the rest."""
    seeds = {name: config.load(HERE / f"{name}.yaml").seeds for name in COMPARED}
    for labels in (JUDGED, ()):
        for seed in sorted({seed for each in seeds.values() for seed in each}):
            for name in COMPARED:
                if seed in seeds[name]:
                    run(name, seed, runs, *data_of(name, data), labels=labels)


def rows_of(record: RunRecord) -> dict[str, object]:
    """Return what the tables need of a run."""
    return {
        "paradigm": record.config.paradigm.label,
        "seed": record.config.seed,
        "status": record.summary["status"],
        **{key: record.summary.get(key) for key in KEPT},
    }


def curve_of(record: RunRecord) -> pd.DataFrame:
    """Return the evaluations of a run."""
    return record.evaluations.rename(columns={"at": "seconds"}).assign(
        paradigm=record.config.paradigm.label, seed=record.config.seed
    )[["paradigm", "seed", "progress", "seconds", "accuracy", "loss"]]


def studied(runs: Path, name: str) -> Iterator[pd.DataFrame]:
    """Yield the curves of a pre-study, with their learning rates."""
    for rate in RATES[name]:
        experiment = config.load(HERE / f"{name}.yaml")
        for record in records_of(runs_in(runs / f"{rate:g}" / experiment.name), experiment):
            yield curve_of(record).assign(rate=rate, status=record.summary["status"])


def write(runs: Path) -> None:
    """Write the tables of the runs that count."""
    for name in RATES:
        pd.concat(studied(runs, name)).to_csv(
            HERE / "results" / f"{name}.csv", index=False, float_format="%.6g"
        )
    for name in COMPARED:
        experiment = config.load(HERE / f"{name}.yaml")
        records = records_of(runs_in(runs / experiment.name), experiment)
        order = [choice.label for choice in experiment.paradigms]
        rows = pd.DataFrame([rows_of(record) for record in records])
        rows["order"] = rows.paradigm.map(order.index)
        rows = rows.sort_values(["order", "seed"]).drop(columns="order")
        rows.to_csv(HERE / "results" / f"{name}.csv", index=False, float_format="%.6g")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command, folders in {
        "pre-study": ("data", "runs"),
        "compare": ("data", "runs"),
        "write": ("runs",),
        "draw": (),
    }.items():
        each = commands.add_parser(command)
        for folder in folders:
            each.add_argument(folder, type=Path)
    arguments = parser.parse_args()
    match arguments.command:
        case "pre-study":
            study(arguments.data, arguments.runs)
        case "compare":
            compare(arguments.data, arguments.runs)
        case "write":
            write(arguments.runs)
        case "draw":
            draw_balanced(tables_of(HERE).points(Results(HERE)), HERE / "balanced.png")


if __name__ == "__main__":
    main()
