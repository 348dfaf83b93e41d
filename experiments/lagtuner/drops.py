"""Table 2 with its learning-rate drops: results/drops.*.csv, in virtual time.

    python experiments/lagtuner/drops.py --data DATA      (35 minutes of two cores)
    python experiments/labbook.py

notes.md says what is compared; it was written before the first run. Rows that are there are not
run again.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
import yaml
from trials import TUNING_SEED, Trial, at_the_end, data_folder, run_all, trained, tuned

HERE = Path(__file__).parent
COMMON: dict[str, Any] = yaml.safe_load((HERE / "drops.yaml").read_text(encoding="utf-8"))
SEEDS = COMMON.pop("seeds")
ARMS: dict[str, Any] = {
    "bsp": "bsp",
    "asp": "asp",
    **{f"ssp {bound}": {"name": "ssp", "staleness": bound} for bound in (3, 6, 15)},
    "lagtuner hard": {"name": "lagtuner", "bound": "hard"},
    "lagtuner literal": {"name": "lagtuner", "bound": "literal"},
}
RATES = (0.025, 0.05, 0.1, 0.2, 0.4)
FIRST_DROP = 2 / 3
SMOOTHED = 3
"""A curve is smoothed by the mean of so many evaluations."""


def reached_s(evaluations: pd.DataFrame, target: float) -> float:
    """Return the time at which the smoothed accuracy is at a target, between two marks by a line;
    not a number: never.
    """
    smooth = evaluations.accuracy.rolling(SMOOTHED, min_periods=1).mean().tolist()
    times = evaluations["at"].tolist()
    for index, value in enumerate(smooth):
        if value >= target:
            if index == 0:
                return float(times[0])
            before, at = smooth[index - 1], times[index - 1]
            return float(at + (times[index] - at) * (target - before) / (value - before))
    return float("nan")


def plateaus(evaluations: pd.DataFrame) -> tuple[float, float]:
    """Return the mean accuracy of the last evaluations before the first drop, and of the last."""
    before = evaluations[evaluations.progress < FIRST_DROP].accuracy.tail(SMOOTHED)
    return float(before.mean()), float(evaluations.accuracy.tail(SMOOTHED).mean())


def train(trial: Trial, data: Path, targets: Sequence[float]) -> Trial:
    """Train; return what came out."""
    record = trained(
        COMMON
        | {
            "seed": trial["seed"],
            "paradigm": ARMS[trial["arm"]],
            "update": COMMON["update"] | {"lr": trial["lr"]},
            "data": COMMON["data"] | {"data_dir": str(data)},
        }
    )
    evaluations = record.evaluations
    low, high = plateaus(evaluations[evaluations.progress < 1])
    times = {
        f"to_{name}_s": round(reached_s(evaluations, target), 3)
        for name, target in zip(("between", "top"), targets, strict=True)
    }
    return at_the_end(record) | {
        "first_plateau": round(low, 6),
        "last_plateau": round(high, 6),
        "virtual_s": record.summary["seconds"],
        "lead_max": record.summary["lead_max"],
        **times,
    }


def rates(arm: Trial) -> Sequence[float]:
    """Return the rates that are tried first."""
    return RATES


def main() -> None:
    """Choose the rates and the targets, then measure."""
    data = data_folder(__doc__)
    tried, measured = (HERE / "results" / f"drops.{name}.csv" for name in ("rates", "train"))
    no_targets = (float("inf"), float("inf"))
    make = partial(train, data=data, targets=no_targets)
    best = tuned(make, [{"arm": arm, "seed": TUNING_SEED} for arm in ARMS], rates, tried)
    rate_of = {trial["arm"]: trial["lr"] for trial in best}
    rows = pd.read_csv(tried).set_index(["arm", "lr"])
    row = rows.loc["bsp", rate_of["bsp"]]
    between = (row.first_plateau + row.last_plateau) / 2
    make = partial(train, data=data, targets=(between, row.last_plateau))
    run_all(make, [arm | {"seed": seed} for seed in SEEDS for arm in best], measured)


if __name__ == "__main__":
    main()
