"""Train a small language model with local steps in many ways: results/local-steps.train.csv.

    python experiments/local-steps/train.py RUNS                  (an hour of two cores)
    python experiments/local-steps/train.py RUNS --ray            (15 minutes, after the first)
    python experiments/labbook.py

From one pretrained model, in virtual time. The outer rate of each method is chosen on a seed of its
own (results/local-steps.rates.csv), then five seeds are run. Rows that are there are not run again.
With --ray, some of these runs once more, by actors on this machine: results/local-steps.ray.csv.
"""

import argparse
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # as many processes as cores

import pandas as pd
import torch
import yaml

import raysync

HERE = Path(__file__).parent
RATES, TRAINED, CODED, ON_RAY = (
    HERE / "results" / f"local-steps.{name}.csv" for name in ("rates", "train", "codecs", "ray")
)
FIELDS = (
    "method", "speeds", "steps", "wire", "lr", "seed", "loss", "virtual_s", "pushed_bytes",
    "staleness",
)  # fmt: skip
STEPS = (8, 32)
SPEEDS = {"equal": (1.0, 1.0, 1.0, 1.0), "unequal": (0.58, 0.75, 1.51, 3.33)}
"""Name -> the seconds of a step of each worker; the unequal ones are those of arXiv:2401.09135."""
WORKERS, PRETRAINING = 4, 400
"""The number of workers, and the updates before, of one worker."""
COMMON: dict[str, Any] = yaml.safe_load((HERE / "local-steps.yaml").read_text(encoding="utf-8"))
INNER = COMMON.pop("local")
SEEDS, TUNING_SEED = COMMON.pop("seeds"), 100
NESTEROV = {"momentum": 0.9, "nesterov": True}
SYNC, ASYNC = (0.1, 0.2, 0.35, 0.7, 1.0), (0.0125, 0.025, 0.05, 0.1, 0.2)
PLAIN = (0.06, 0.125, 0.25, 0.5, 1.0)
"""Outer rates that are tried. (With the three upper ones alone, the smallest was the best of most
methods; so they were extended before any other run.)"""
OF_SPEEDS = {"async, dylu", "async, dn, dylu", "quorum", "ssp", "lagtuner"}
"""The methods that are one of the others, bit for bit, where all workers are equally fast."""


SECOND, REPEATS = 0.1, 3
"""On Ray: what a virtual second takes there, and how often each run is made."""


def methods(
    steps: int, second: float = 1.0
) -> Mapping[str, tuple[dict[str, Any], dict[str, Any], Sequence[float]]]:
    """Return name -> paradigm, outer update, and the outer rates that are tried."""
    delayed = {"optimizer": {"name": "delayed-nesterov", "every": WORKERS}, "momentum": 0.9}
    by_speed = {"name": "local", "paradigm": "asp", "steps": steps, "by": "speed"}
    return {
        "snoo": (around("bsp", steps), NESTEROV, SYNC),
        "diloco": (around("bsp", steps), NESTEROV, SYNC),
        "async": (around("asp", steps), NESTEROV, ASYNC),
        "async, sgd outside": (around("asp", steps), {}, PLAIN),
        "async, dn": (around("asp", steps), delayed, SYNC),
        "async, dylu": (by_speed, NESTEROV, ASYNC),
        "async, dn, dylu": (by_speed, delayed, SYNC),
        "quorum": (
            around({"name": "quorum", "k": 2, "grace_s": 0.25 * steps * second}, steps),
            NESTEROV, SYNC,
        ),
        "ssp": (around({"name": "ssp", "staleness": 2}, steps), NESTEROV, ASYNC),
        "lagtuner": (around("lagtuner", steps), NESTEROV, ASYNC),
    }  # fmt: skip


def around(paradigm: str | dict[str, Any], steps: int) -> dict[str, Any]:
    """Return local steps around a paradigm."""
    return {"name": "local", "paradigm": paradigm, "steps": steps}


Run = tuple[str, str, int, str, float, int]
"""Method, speeds, steps, format of pushes, outer rate, seed."""


def settings_of(run: Run, model: Path, output: Path, second: float = 1.0) -> dict[str, Any]:
    """Return the experiment of a run."""
    method, speeds, steps, wire, lr, seed = run
    seconds = SPEEDS[speeds][:1] if method == "snoo" else SPEEDS[speeds]
    settings = dict(COMMON) | {
        "seed": seed,
        "init_from": str(model),
        "workers": [{"name": f"w{i}", "step_s": each * second} for i, each in enumerate(seconds)],
        "output": str(output / f"{method}-{speeds}-{steps}-{wire}-{lr}-{seed}"),
        "cluster": {"wire": wire},
    }
    if method == "plain bsp":  # AdamW on the server, a push for each batch
        return settings | {"paradigm": "bsp", "update": INNER}
    paradigm, update, _ = methods(steps, second)[method]
    return settings | {"paradigm": paradigm, "local": INNER, "update": update | {"lr": lr}}


def train(run: Run, model: Path, output: Path) -> list[Any]:
    """Train; return the row."""
    wire = run[3]
    record = raysync.run(settings_of(run, model, output))
    assert record.summary["status"] in ("finished", "diverged"), record.summary
    loss = float(record.evaluations.loss.iloc[-1])
    pushes = len(record.pushes)
    size = {"float32": 1.0, "int8": 0.25, "top-k": 0.02}[wire]
    pushed = 4 * record.summary["parameters"] * pushes * size
    return [*run, f"{loss:.6f}", record.summary["seconds"], f"{pushed:.0f}",
            record.summary["staleness_mean"]]  # fmt: skip


def pretrained(output: Path) -> Path:
    """Return the folder of a model that one worker has trained, as all begin with."""
    found = sorted((output / "pretrained").glob("*/*/model.safetensors"))
    if not found:
        raysync.run(
            dict(COMMON)
            | {
                "seed": 1000,
                "workers": [{"step_s": 1.0}],
                "paradigm": "bsp",
                "update": INNER,
                "workload": {"samples": PRETRAINING * COMMON["batch_size"]},
                "keep": "final",
                "output": str(output / "pretrained"),
            }
        )
        found = sorted((output / "pretrained").glob("*/*/model.safetensors"))
    return found[-1]


def run_all(runs: Sequence[Run], table: Path, output: Path) -> None:
    """Run what has no row yet, and write rows as they come."""
    names = ["tuning_seed" if (table, name) == (RATES, "seed") else name for name in FIELDS]
    done = set()
    if table.is_file():
        rows = pd.read_csv(table)[names[:6]]
        done = {tuple(row) for row in rows.itertuples(index=False)}
    else:
        table.write_text(",".join(names) + "\n", encoding="utf-8")
    left, model = [run for run in runs if run not in done], pretrained(output)
    with (
        ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool,
        table.open("a", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        for future in as_completed([pool.submit(train, run, model, output) for run in left]):
            writer.writerow(future.result())
            file.flush()
    pd.read_csv(table).sort_values(names[:6]).to_csv(table, index=False)


def tuning() -> Iterator[Run]:
    """Yield the runs that choose outer rates."""
    for steps in STEPS:
        for speeds in SPEEDS:
            apart = OF_SPEEDS if speeds == "equal" else {"snoo"}
            for method, (_, _, rates) in methods(steps).items():
                for lr in () if method in apart else rates:
                    yield method, speeds, steps, "float32", lr, TUNING_SEED


def measured() -> Iterator[Run]:
    """Yield the runs with the rates that were best."""
    tried = pd.read_csv(RATES)
    best = tried.loc[tried.groupby(["method", "speeds", "steps"]).loss.idxmin()]
    for row in best.itertuples():
        for seed in SEEDS:
            yield row.method, row.speeds, row.steps, "float32", row.lr, seed
    for seed in SEEDS:
        yield "plain bsp", "equal", 1, "float32", INNER["lr"], seed


def coded() -> Iterator[Run]:
    """Yield the runs with codecs, at the rates of DiLoCo."""
    tried = pd.read_csv(RATES)
    best = tried.loc[tried.groupby(["method", "speeds", "steps"]).loss.idxmin()]
    diloco = best[(best.method == "diloco") & (best.speeds == "equal")]
    for row in diloco.itertuples():
        for wire in ("float32", "int8", "top-k"):
            for seed in SEEDS:
                yield row.method, row.speeds, row.steps, wire, row.lr, seed


def on_ray(output: Path) -> None:
    """Make three methods' runs of the first seed in virtual time and, in turn, on Ray."""
    best = pd.read_csv(TRAINED).query("speeds == 'unequal' and seed == @SEEDS[0]")
    best, rows = best[best.method.isin(["diloco", "async", "quorum"])], []
    model = pretrained(output)
    for run in best[list(FIELDS[:6])].itertuples(index=False, name=None):
        virtual = raysync.run(settings_of(run, model, output) | {"keep": "final"})
        described = settings_of(run, model, output / "ray", SECOND) | {"keep": "final"}
        for repeat in range(REPEATS):
            record = raysync.run(described | {"engine": "ray"})
            weights = zip(virtual.state_dict().values(), record.state_dict().values(), strict=True)
            rows.append({
                "method": run[0], "steps": run[2], "lr": run[4], "repeat": repeat,
                "same_weights": all(torch.equal(*pair) for pair in weights),
                **_measured(virtual, "virtual", 1.0), **_measured(record, "ray", SECOND),
            })  # fmt: skip
            pd.DataFrame(rows).to_csv(ON_RAY, index=False)


def _measured(record: raysync.RunRecord, engine: str, second: float) -> dict[str, Any]:
    """Return what is compared, in seconds that are those of the virtual clock."""
    assert record.summary["status"] == "finished", record.summary
    return {
        f"{engine}_loss": f"{record.evaluations.loss.iloc[-1]:.6f}",
        f"{engine}_s": f"{record.summary['seconds'] / second:.2f}",
        f"{engine}_staleness": f"{record.summary['staleness_mean']:.4f}",
    }


def main() -> None:
    """Choose the rates, then run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="a folder for the records")
    parser.add_argument("--ray", action="store_true", help="some runs once more, on Ray")
    arguments = parser.parse_args()
    output = arguments.runs
    if arguments.ray:
        on_ray(output)
        return
    run_all(list(tuning()), RATES, output)
    run_all(list(measured()), TRAINED, output)
    run_all(list(coded()), CODED, output)


if __name__ == "__main__":
    main()
