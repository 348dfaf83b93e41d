"""When do stale gradients hurt, and how much BSP suffices? results/windows.*.csv, in virtual time.

    python experiments/sync-switch/windows.py --data DATA      (3.5 hours of two cores)
    python experiments/labbook.py

notes.md says what is compared; it was written before the first run. Rows that are there are not
run again.
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
import yaml
from trials import TUNING_SEED, Train, Trial, at_the_end, data_folder, run_all, trained

HERE = Path(__file__).parent
COMMON: dict[str, Any] = yaml.safe_load((HERE / "windows.yaml").read_text(encoding="utf-8"))
SEEDS = COMMON.pop("seeds")
RATES = (0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625)
"""Of a push; an update of BSP is by n times as much. Halved while the smallest is the best."""
POINT = 0.01
"""At the common rate both paradigms are this close to their best accuracy."""
SHARES = (0.03125, 0.0625, 0.125, 0.25, 0.5)


def switched(first: str, then: str | list[str], fraction: float | list[float]) -> dict[str, Any]:
    """Return one paradigm after the other."""
    return {"name": "sync-switch", "first": first, "then": then, "fraction": fraction}


ARMS: dict[str, Any] = {
    "asp": "asp",
    **{f"bsp {share:.4g}": switched("bsp", "asp", share) for share in SHARES},
    "bsp": "bsp",
    "asp 0.5": switched("asp", "bsp", 0.5),
    "asp in quarter 1": switched("asp", "bsp", 0.25),
    "asp in quarter 2": switched("bsp", ["asp", "bsp"], [0.25, 0.25]),
    "asp in quarter 3": switched("bsp", ["asp", "bsp"], [0.5, 0.25]),
    "asp in quarter 4": switched("bsp", "asp", 0.75),
}
"""Name -> paradigm; a number is the share of the work that comes first."""
MOMENTA: dict[str, Any] = {
    "momentum 0": {"momentum": 0},
    "momentum 0.125": {"momentum": 0.125},
    "momentum linear": {"momentum_ramp": {"name": "linear", "over": 0.25}},
    "momentum exponential": {
        "momentum_ramp": {"name": "exponential", "over": 0.25, "start": 0.125}
    },
}
"""Name -> what momentum does under ASP, after 6.25 % of BSP."""
AT_BSPS_RATE = {8: ("bsp 0.0625", "bsp 0.5", "asp"), 16: ("bsp", "bsp 0.5", "bsp 0.0625", "asp")}
"""Number of workers -> what is run at the best rate of BSP, too."""
OF_SIXTEEN = ("asp", "bsp 0.0625", "bsp 0.5", "bsp")
EARLY = "early drop: "
EARLY_ARMS = ("bsp", "asp in quarter 2")
"""Run with drops of the learning rate at 25 and 75 % of the work, too; `EARLY` is before their
names."""


def train(trial: Trial, data: Path) -> Trial:
    """Train; return what came out."""
    arm = trial["arm"]
    update = COMMON["update"] | {"lr": trial["lr"]}
    if arm in MOMENTA:
        update |= {"phases": {"asp": MOMENTA[arm]}}
    if arm.startswith(EARLY):
        update |= {"schedule": update["schedule"] | {"milestones": [0.25, 0.75]}}
    settings = COMMON | {
        "seed": trial["seed"],
        "paradigm": ARMS["bsp 0.0625" if arm in MOMENTA else arm.removeprefix(EARLY)],
        "workers": [COMMON["workers"][0] | {"count": trial["workers"]}],
        "update": update,
        "data": COMMON["data"] | {"data_dir": str(data)},
    }
    record = trained(settings)
    return at_the_end(record) | {
        "train_loss": round(float(record.pushes.loss.tail(500).mean()), 6),
        "virtual_s": record.summary["seconds"],
        "diverged": record.summary["status"] == "diverged",
    }


def tried_rates(make: Train, table: Path) -> pd.DataFrame:
    """Try each rate under both paradigms, and halves while the smallest is the best of one."""
    rates = list(RATES)
    while True:
        grid = [
            {"arm": arm, "workers": 8, "seed": TUNING_SEED, "lr": lr}
            for lr in rates
            for arm in ("asp", "bsp")
        ]
        tried = run_all(make, grid, table)
        if rates[-1] not in set(tried.lr[tried.groupby("arm").accuracy.idxmax()]):
            return tried
        rates.append(rates[-1] / 2)


def common_rate(tried: pd.DataFrame) -> float:
    """Return the largest rate at which both paradigms are within a point of their best; if there is
    none, the one with the best sum.
    """
    accuracy = tried.pivot_table(index="lr", columns="arm", values="accuracy")
    good = accuracy[(accuracy >= accuracy.max() - POINT).all(axis="columns")]
    return float(good.index.max() if len(good) else accuracy.sum(axis="columns").idxmax())


def best_rate(tried: pd.DataFrame, arm: str) -> float:
    """Return the rate at which a paradigm was most accurate."""
    of_arm = tried[tried.arm == arm]
    return float(of_arm.lr[of_arm.accuracy.idxmax()])


def measured(tried: pd.DataFrame) -> Iterator[Trial]:
    """Yield the runs that count, those that decide most first."""
    lr = common_rate(tried)
    for seed in SEEDS:
        for arm in ARMS:
            yield {"arm": arm, "workers": 8, "seed": seed, "lr": lr}
    own = {arm: best_rate(tried, arm) for arm in ("asp", "bsp")}
    for arm, rate in own.items():
        for seed in SEEDS if rate != lr else ():
            yield {"arm": arm, "workers": 8, "seed": seed, "lr": rate}
    for seed in SEEDS:
        for arm in OF_SIXTEEN:
            yield {"arm": arm, "workers": 16, "seed": seed, "lr": lr}
    for seed in SEEDS:
        for arm in EARLY_ARMS:
            yield {"arm": EARLY + arm, "workers": 8, "seed": seed, "lr": lr}
        yield {"arm": "asp", "workers": 1, "seed": seed, "lr": lr}
    for seed in SEEDS if own["bsp"] != lr else ():
        for workers, arms in AT_BSPS_RATE.items():
            for arm in arms:
                yield {"arm": arm, "workers": workers, "seed": seed, "lr": own["bsp"]}


def main() -> None:
    """Choose the rate, then measure."""
    make = partial(train, data=data_folder(__doc__))
    tried, counting, momenta = (
        HERE / "results" / f"windows.{name}.csv" for name in ("rates", "train", "momentum")
    )
    rates = tried_rates(make, tried)
    run_all(make, measured(rates), counting)
    lr = common_rate(rates)
    run_all(
        make,
        [{"arm": arm, "workers": 8, "seed": seed, "lr": lr} for seed in SEEDS for arm in MOMENTA],
        momenta,
    )


if __name__ == "__main__":
    main()
