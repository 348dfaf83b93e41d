"""How stale may a gradient be, by optimizer? Trains, in virtual time: results/staleness.*.csv.

    python experiments/staleness/train.py --data DATA      (two hours of two cores)
    python experiments/labbook.py

Under ASP with 1 + n equally fast workers, each gradient is of weights n updates old. The rate of
each optimizer at each delay is chosen on samples taken from the training set, with a seed of its
own; then ten seeds are measured on the test set. Rows that are there are not run again.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml
from trials import TUNING_SEED, Trial, at_the_end, data_folder, run_all, trained, tuned

HERE = Path(__file__).parent
COMMON: dict[str, Any] = yaml.safe_load((HERE / "staleness.yaml").read_text(encoding="utf-8"))
SEEDS = COMMON.pop("seeds")
DELAYS = (0, 1, 2, 4, 8)
OPTIMIZERS: dict[str, tuple[dict[str, Any], float]] = {
    "sgd": ({}, 0.03),
    "momentum 0.9": ({"momentum": 0.9}, 0.003),
    "adamw": ({"optimizer": "adamw", "betas": [0.9, 0.999]}, 0.0003),
    "adamw, beta1 0.99": ({"optimizer": "adamw", "betas": [0.99, 0.999]}, 0.0003),
    "muon": ({"optimizer": "muon", "momentum": 0.95}, 0.0003),
}
"""Name -> its settings, and the lowest of the five rates that are tried first."""
FACTOR, RATES = 10**0.5, 5
IMAGES: dict[str, Any] = {"model": "convnet", "batch_size": 32, "workload": {"samples": 65536}}
TASKS = ("text", "images")


def settings_of(trial: Trial, data: Path) -> dict[str, Any]:
    """Return the experiment of a trial."""
    optimizer, _ = OPTIMIZERS[trial["optimizer"]]
    settings = COMMON | {
        "seed": trial["seed"],
        "workers": [COMMON["workers"][0] | {"count": 1 + trial["delay"]}],
        "update": COMMON["update"] | optimizer | {"lr": trial["lr"]},
    }
    samples = dict(COMMON["data"])
    if trial["task"] == "images":
        settings |= IMAGES
        samples = {"name": "fashion-mnist", "data_dir": str(data), "partition": "shared"}
    if trial["seed"] == TUNING_SEED:
        samples["validation_samples"] = 2000
    return settings | {"data": samples}


def train(trial: Trial, data: Path) -> Trial:
    """Train; return what came out."""
    record = trained(settings_of(trial, data))
    return at_the_end(record) | {"staleness": round(record.summary["staleness_mean"], 4)}


def arms() -> Iterator[Trial]:
    """Yield what is compared."""
    for task in TASKS:
        for optimizer in OPTIMIZERS:
            for delay in DELAYS:
                yield {"task": task, "optimizer": optimizer, "delay": delay}


def rates(arm: Trial) -> Sequence[float]:
    """Return the rates that are tried first."""
    lowest = OPTIMIZERS[arm["optimizer"]][1]
    return [float(f"{lowest * FACTOR**index:.4g}") for index in range(RATES)]


def main() -> None:
    """Choose the rates, then measure."""
    make = partial(train, data=data_folder(__doc__))
    tried, measured = (HERE / "results" / f"staleness.{name}.csv" for name in ("rates", "train"))
    best = tuned(make, [arm | {"seed": TUNING_SEED} for arm in arms()], rates, tried)
    run_all(make, [arm | {"seed": seed} for seed in SEEDS for arm in best], measured)


if __name__ == "__main__":
    main()
