"""The toy of arXiv:2401.09135, a mixture of Gaussians: results/local-steps.toy.csv.

    python experiments/local-steps/toy.py            (a quarter of an hour of one core)
    python experiments/labbook.py

After the notebook that its authors published (google-deepmind/asyncdiloco), by raysync's own parts:
is synchronous ahead of asynchronous under outer Nesterov momentum, and not under plain SGD outside?
"""

import os
from collections.abc import Mapping
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
TABLE = HERE / "results" / "local-steps.toy.csv"
SEEDS = yaml.safe_load((HERE / "local-steps.yaml").read_text(encoding="utf-8"))["seeds"]
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
METHODS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "nesterov 0.7": ("nesterov", "sync", {"lr": 0.7} | NESTEROV),
    "nesterov 0.1": ("nesterov", "async", {"lr": 0.1} | NESTEROV),
    "nesterov 0.07": ("nesterov", "async", {"lr": 0.07} | NESTEROV),
    "nesterov 0.035": ("nesterov", "async", {"lr": 0.035} | NESTEROV),
    "sgd 1": ("sgd", "sync", {"lr": 1.0}),
    "sgd 0.5": ("sgd", "async", {"lr": 0.5}),
    "sgd 0.25": ("sgd", "async", {"lr": 0.25}),
}
"""Name -> outer optimizer, mode, update. The notebook divides an asynchronous push by two (the root
of the number of workers): that are the rates 0.035 and 0.5."""


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
    method: str, seed: int, data: Any, output: str, width: int = WIDTH, phases: int = PHASES
) -> raysync.RunRecord:
    """Train on four workers in virtual time."""
    _, mode, update = METHODS[method]
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
            "update": update,
            "evaluation": {"marks": 10},
            "keep": "none",
        },
        model=lambda: nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES)
        ),
        data=data,
    )


def main() -> None:
    """Run all, and write rows as they come."""
    data, rows = mixture(SAMPLES), []
    for seed in SEEDS:
        for method, (outer, mode, update) in METHODS.items():
            with TemporaryDirectory() as output:
                record = train(method, seed, data, output)
            assert record.summary["status"] in ("finished", "diverged"), record.summary
            losses = record.evaluations.loss
            rows.append({
                "method": method, "outer": outer, "mode": mode, "lr": update["lr"], "seed": seed,
                "loss": f"{losses.iloc[-1]:.6f}", "least": f"{losses.min():.6f}",
                "accuracy": f"{record.evaluations.accuracy.iloc[-1]:.4f}",
                "virtual_s": record.summary["seconds"],
                "staleness": record.summary["staleness_mean"],
            })  # fmt: skip
            pd.DataFrame(rows).to_csv(TABLE, index=False)


if __name__ == "__main__":
    main()
