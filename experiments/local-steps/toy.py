"""The toy of arXiv:2401.09135, a mixture of Gaussians: results/local-steps.toy.csv.

    python experiments/local-steps/toy.py            (25 minutes of one core)
    python experiments/labbook.py

After the notebook of its authors (google-deepmind/asyncdiloco), made of raysync's own parts:
is synchronous ahead of asynchronous under outer Nesterov momentum, and not under plain SGD outside?
"""

import os
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pandas as pd
import yaml
from torch import nn

import raysync

HERE = Path(__file__).parent
TABLE, RATES = (HERE / "results" / f"local-steps.{name}.csv" for name in ("toy", "toy-rates"))
SEEDS = yaml.safe_load((HERE / "local-steps.yaml").read_text(encoding="utf-8"))["seeds"]
TUNING_SEED = 100
FEATURES, CLASSES, CLUSTERS, NOISE = 512, 4, 8, 0.5
"""Of the mixture: the clusters of a class, and the standard deviation around their centres."""
BATCH, STEPS, SPEEDS = 32, 20, (0.58, 0.75, 1.51, 3.33)
INNER = {
    "optimizer": "adamw", "lr": 2e-4, "weight_decay": 1e-3, "schedule": "cosine",
    "keeps_state": False,
}  # fmt: skip
NESTEROV = {"momentum": 0.9, "nesterov": True}
WIDTH, PHASES, SAMPLES = 2048, 50, 128_000
"""Of the network's hidden layer; of each worker, on average; in the training set."""
Run = tuple[str, str, float]
"""Outer optimizer, mode, rate."""
GIVEN: tuple[Run, ...] = (
    ("nesterov", "sync", 0.7),
    ("nesterov", "async", 0.1),
    ("nesterov", "async", 0.07),
    ("nesterov", "async", 0.035),
    ("sgd", "sync", 1.0),
    ("sgd", "async", 0.5),
    ("sgd", "async", 0.25),
)
"""What was written down before the first run. The notebook halves what is pushed asynchronously (by
the root of the number of workers): that are the rates 0.035 and 0.5."""
TRIED = {
    ("nesterov", "sync"): (0.1, 0.2, 0.35, 0.7, 1.0),
    ("nesterov", "async"): (0.0125, 0.025, 0.05, 0.1, 0.2),
    ("sgd", "sync"): (0.25, 0.5, 1.0, 2.0, 4.0),
    ("sgd", "async"): (0.0625, 0.125, 0.25, 0.5, 1.0),
}
"""The rates of which each then gets its best, on a seed of its own: those of train.py; those of
synchronous SGD are four times those of a single push."""


def mixture(samples: int, test_samples: int = 10_000) -> Any:
    """Return the data: unit centres, as many samples of each cluster."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES * CLUSTERS, FEATURES)).astype(np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        cluster = np.arange(count) % len(centres)
        noise = rng.standard_normal((count, FEATURES), np.float32)
        return centres[cluster] + np.float32(NOISE) * noise, cluster % CLASSES

    return raysync.data_set("mixture", part(samples), part(test_samples))


def train(
    run: Run, seed: int, data: Any, output: str, width: int = WIDTH, phases: int = PHASES
) -> raysync.RunRecord:
    """Train on four workers in virtual time."""
    outer, mode, lr = run
    paradigm = {"sync": "bsp", "async": "asp"}[mode]
    return raysync.run(
        {
            "engine": "virtual",
            "output": output,
            "seed": seed,
            "batch_size": BATCH,
            "workers": [{"name": f"w{i}", "step_s": each} for i, each in enumerate(SPEEDS)],
            "workload": {"samples": phases * len(SPEEDS) * STEPS * BATCH},
            "paradigm": {"name": "local", "paradigm": paradigm, "steps": STEPS},
            "local": INNER,
            "update": {"lr": lr} | (NESTEROV if outer == "nesterov" else {}),
            "evaluation": {"marks": 10},
            "keep": "none",
        },
        model=lambda: nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES)
        ),
        data=data,
    )


def losses(run: Run, seed: int, data: Any, **size: int) -> dict[str, Any]:
    """Train; return what came out."""
    with TemporaryDirectory() as output:
        record = train(run, seed, data, output, **size)
        summary, evaluations = record.summary, record.evaluations
    assert summary["status"] in ("finished", "diverged"), summary
    return {
        "loss": round(evaluations.loss.iloc[-1], 6),
        "least": round(evaluations.loss.min(), 6),
        "accuracy": evaluations.accuracy.iloc[-1],
        "virtual_s": round(summary["seconds"], 2),
        "staleness": summary["staleness_mean"],
    }


def run_all(rates: str, runs: Iterable[Run], seeds: Iterable[int], table: Path, data: Any) -> None:
    """Run what has no row yet, and write rows as they come."""
    names = ("rates", "outer", "mode", "lr", "tuning_seed" if table == RATES else "seed")
    rows = pd.read_csv(table).to_dict("records") if table.is_file() else []
    done = {tuple(row[name] for name in names) for row in rows}
    for seed, run in product(seeds, list(runs)):
        if (key := (rates, *run, seed)) not in done:
            rows.append(dict(zip(names, key, strict=True)) | losses(run, seed, data))
            pd.DataFrame(rows).to_csv(table, index=False)


def main() -> None:
    """Run at the rates that were given; then choose some, and run at these."""
    data = mixture(SAMPLES)
    run_all("given", GIVEN, SEEDS, TABLE, data)
    run_all("tried", [(*of, lr) for of in TRIED for lr in TRIED[of]], [TUNING_SEED], RATES, data)
    tried = pd.read_csv(RATES)
    best = tried.loc[tried.groupby(["outer", "mode"]).loss.idxmin(), ["outer", "mode", "lr"]]
    run_all("best of five", best.itertuples(index=False, name=None), SEEDS, TABLE, data)


if __name__ == "__main__":
    main()
