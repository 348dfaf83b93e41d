"""Train a small language model with local steps in many ways: results/local-steps.train.csv.

    python experiments/local-steps/train.py RUNS                  (25 minutes of two cores)
    python experiments/local-steps/train.py RUNS --ray            (15 minutes, after the first)
    python experiments/labbook.py

From one pretrained model, in virtual time. The outer rate of each method is chosen on a seed of its
own (results/local-steps.rates.csv), then five seeds are run. Rows that are there are not run again.
With --ray, some of these runs once more, by actors on this machine: results/local-steps.ray.csv.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
import torch
import yaml
from trials import TUNING_SEED, Trial, run_all

import raysync

HERE = Path(__file__).parent
RATES, TRAINED, CODED, ON_RAY = (
    HERE / "results" / f"local-steps.{name}.csv" for name in ("rates", "train", "codecs", "ray")
)
TRIAL = ("method", "speeds", "steps", "wire", "lr", "seed")
STEPS = (8, 32)
SPEEDS = {"equal": (1.0, 1.0, 1.0, 1.0), "unequal": (0.58, 0.75, 1.51, 3.33)}
"""Name -> the seconds of a step of each worker; the unequal ones are those of arXiv:2401.09135."""
WORKERS, PRETRAINING = 4, 400
"""The number of workers, and the updates before, of one worker."""
COMMON: dict[str, Any] = yaml.safe_load((HERE / "local-steps.yaml").read_text(encoding="utf-8"))
INNER = COMMON.pop("local")
SEEDS = COMMON.pop("seeds")
NESTEROV = {"momentum": 0.9, "nesterov": True}
SYNC, ASYNC = (0.1, 0.2, 0.35, 0.7, 1.0), (0.0125, 0.025, 0.05, 0.1, 0.2)
PLAIN = (0.06, 0.125, 0.25, 0.5, 1.0)
"""Outer rates that are tried. (With the three upper ones alone, the smallest was the best of most
methods; so they were extended before any other run.)"""
ADAMW = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)
"""Rates of AdamW that are tried where local steps are compared with an exchange at each step."""
OF_ADAMW = ("plain bsp", "diloco, inner rate", "plain bsp, cosine", "diloco, cosine")
"""The methods whose rate is that of AdamW, constant or falling to 0."""
DILOCO = {8: 0.2, 32: 0.7}
"""Steps -> the outer rate that was best for `diloco`."""
FALLING = {"lr": 0.004, "schedule": "cosine"}
"""AdamW's rate where outer ones are chosen anew: the best of `diloco, cosine` with 32 steps."""
OF_FALLING = (
    ("diloco", "equal"), ("async", "equal"),
    ("diloco", "unequal"), ("async", "unequal"), ("quorum", "unequal"),
)  # fmt: skip
OF_SPEEDS = {"async, dylu", "async, dn, dylu", "quorum", "ssp", "lagtuner"}
"""The methods that are one of the others, bit for bit, where all workers are equally fast."""
OF_EQUAL = {"snoo", "diloco, sgd outside"}
"""The methods that are run with equal workers only."""

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
        "diloco, sgd outside": (around("bsp", steps), {}, PLAIN),
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


def settings_of(run: Trial, model: Path, output: Path, second: float = 1.0) -> dict[str, Any]:
    """Return the experiment of a run."""
    method, speeds, steps, wire, lr, seed = (run[name] for name in TRIAL)
    seconds = SPEEDS[speeds][:1] if method == "snoo" else SPEEDS[speeds]
    settings = dict(COMMON) | {
        "seed": seed,
        "init_from": str(model),
        "workers": [{"name": f"w{i}", "step_s": each * second} for i, each in enumerate(seconds)],
        "output": str(output / f"{method}-{speeds}-{steps}-{wire}-{lr}-{seed}"),
        "cluster": {"wire": wire},
    }
    adamw = INNER | {"lr": lr, "schedule": "cosine" if method.endswith("cosine") else "constant"}
    if method.startswith("plain bsp"):  # AdamW on the server, a push for each batch
        return settings | {"paradigm": "bsp", "update": adamw}
    if method in OF_ADAMW:
        outer = NESTEROV | {"lr": DILOCO[steps]}
        return settings | {"paradigm": around("bsp", steps), "local": adamw, "update": outer}
    inner = INNER | FALLING if method.endswith(", falling") else INNER
    paradigm, update, _ = methods(steps, second)[method.removesuffix(", falling")]
    return settings | {"paradigm": paradigm, "local": inner, "update": update | {"lr": lr}}


def train(run: Trial, model: Path, output: Path) -> Trial:
    """Train; return what came out."""
    record = raysync.run(settings_of(run, model, output))
    assert record.summary["status"] in ("finished", "diverged"), record.summary
    size = {"float32": 1.0, "int8": 0.25, "top-k": 0.02}[run["wire"]]
    return {
        "loss": round(float(record.evaluations.loss.iloc[-1]), 6),
        "virtual_s": record.summary["seconds"],
        "pushed_bytes": round(4 * record.summary["parameters"] * len(record.pushes) * size),
        "staleness": record.summary["staleness_mean"],
    }


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


def run(*values: Any) -> Trial:
    """Return a run: method, speeds, steps, format of pushes, outer rate, seed."""
    return dict(zip(TRIAL, values, strict=True))


def tuning() -> Iterator[Trial]:
    """Yield the runs that choose outer rates."""
    for steps in STEPS:
        for speeds in SPEEDS:
            apart = OF_SPEEDS if speeds == "equal" else OF_EQUAL
            for method, (_, _, rates) in methods(steps).items():
                for lr in () if method in apart else rates:
                    yield run(method, speeds, steps, "float32", lr, TUNING_SEED)
    for method, speeds in OF_FALLING:
        for lr in methods(32)[method][2]:
            yield run(f"{method}, falling", speeds, 32, "float32", lr, TUNING_SEED)
    for method in OF_ADAMW:
        for steps in (1,) if method.startswith("plain") else STEPS:
            for lr in ADAMW:
                yield run(method, "equal", steps, "float32", lr, TUNING_SEED)


def measured(tried: pd.DataFrame) -> Iterator[Trial]:
    """Yield the runs with the rates that were best."""
    best = tried.loc[tried.groupby(["method", "speeds", "steps"]).loss.idxmin()]
    for row in best.itertuples():
        for seed in SEEDS:
            yield run(row.method, row.speeds, row.steps, "float32", row.lr, seed)


def coded(tried: pd.DataFrame) -> Iterator[Trial]:
    """Yield the runs with codecs, at the rates of DiLoCo."""
    best = tried.loc[tried.groupby(["method", "speeds", "steps"]).loss.idxmin()]
    diloco = best[(best.method == "diloco") & (best.speeds == "equal")]
    for row in diloco.itertuples():
        for wire in ("float32", "int8", "top-k"):
            for seed in SEEDS:
                yield run(row.method, row.speeds, row.steps, wire, row.lr, seed)


def on_ray(output: Path) -> None:
    """Make three methods' runs of the first seed in virtual time and, in turn, on Ray."""
    best = pd.read_csv(TRAINED).query("speeds == 'unequal' and seed == @SEEDS[0]")
    best, rows = best[best.method.isin(["diloco", "async", "quorum"])], []
    model = pretrained(output)
    torch.set_num_threads(1)  # as each actor has: sums in several threads have other last bits
    for trial in best[list(TRIAL)].to_dict("records"):
        virtual = raysync.run(settings_of(trial, model, output) | {"keep": "final"})
        described = settings_of(trial, model, output / "ray", SECOND) | {"keep": "final"}
        for repeat in range(REPEATS):
            record = raysync.run(described | {"engine": "ray"})
            weights = zip(virtual.state_dict().values(), record.state_dict().values(), strict=True)
            rows.append({
                **{name: trial[name] for name in ("method", "steps", "lr")}, "repeat": repeat,
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
    make = partial(train, model=pretrained(output), output=output)
    tried = run_all(make, tuning(), RATES)
    run_all(make, measured(tried), TRAINED)
    run_all(make, coded(tried), CODED)


if __name__ == "__main__":
    main()
