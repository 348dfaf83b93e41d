"""What does a bound on the lead buy? results/bounds.*.csv, in virtual time.

    python experiments/lagtuner/bounds.py --data DATA      (55 minutes of two cores)
    python experiments/labbook.py

notes.md says what is compared; it was written before the first run. Rows that are there are not
run again.
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
COMMON: dict[str, Any] = yaml.safe_load((HERE / "bounds.yaml").read_text(encoding="utf-8"))
SEEDS = COMMON.pop("seeds")
JITTER = {"distribution": "lognormal", "sigma": 0.05}
EQUAL = {"name": "w", "count": 4, "step_s": 0.1, "jitter": JITTER}
CLUSTERS: dict[str, dict[str, Any]] = {
    "two unequal": {
        "workers": [
            {"name": "fast", "step_s": 0.1, "jitter": JITTER},
            {"name": "slow", "step_s": 0.1, "speed": 0.33, "jitter": JITTER},
        ]
    },
    "four unequal": {"workers": COMMON["workers"]},
    # another worker is slow for 60 s at a time: several hundred of its steps
    "changing": {
        "workers": [EQUAL],
        "faults": [
            {"kind": "slow-down", "workers": [f"w-{slot}"], "factor": 3,
             "start_s": 60.0 * (slot + 4 * turn), "lasts_s": 60.0}
            for turn in range(3)
            for slot in range(4)
        ],
    },
}  # fmt: skip
SHARDS = {"skewed": COMMON["data"], "alike": COMMON["data"] | {"partition": "iid"}}
ARMS: dict[str, Any] = {
    **{f"ssp {bound}": {"name": "ssp", "staleness": bound} for bound in (0, 1, 3, 6, 15)},
    "lagtuner hard": {"name": "lagtuner", "bound": "hard"},
    "lagtuner literal": {"name": "lagtuner", "bound": "literal"},
    "asp": "asp",
    "balanced": "balanced",
}
FIRST_TWO: dict[str, Any] = {
    "k-sync 2": {"name": "k-sync", "k": 2},
    "quorum 2": {"name": "quorum", "k": 2},
}
"""They wait for the first two workers; the pushes of the others are dropped, or come later."""
OF_ALIKE = ("ssp 0", "ssp 3", "ssp 15", "asp", "balanced", *FIRST_TWO)
RATES = (0.0125, 0.025, 0.05, 0.1, 0.2)


def train(trial: Trial, data: Path) -> Trial:
    """Train; return what came out."""
    record = trained(
        COMMON
        | CLUSTERS[trial["cluster"]]
        | {
            "seed": trial["seed"],
            "paradigm": (ARMS | FIRST_TWO)[trial["arm"]],
            "update": COMMON["update"] | {"lr": trial["lr"]},
            "data": SHARDS[trial["shards"]] | {"data_dir": str(data)},
        }
    )
    summary = record.summary
    return at_the_end(record) | {
        "virtual_s": summary["seconds"],
        "lead_max": summary["lead_max"],
        "staleness": round(summary["staleness_mean"], 4),
    }


def arms() -> Iterator[Trial]:
    """Yield what is compared."""
    for cluster in CLUSTERS:
        for arm in ARMS:
            yield {"shards": "skewed", "cluster": cluster, "arm": arm}
    for arm in FIRST_TWO:
        yield {"shards": "skewed", "cluster": "four unequal", "arm": arm}
    for arm in OF_ALIKE:
        yield {"shards": "alike", "cluster": "four unequal", "arm": arm}


def rates(arm: Trial) -> Sequence[float]:
    """Return the rates that are tried first."""
    return RATES


def main() -> None:
    """Choose the rates, then measure."""
    make = partial(train, data=data_folder(__doc__))
    tried, measured = (HERE / "results" / f"bounds.{name}.csv" for name in ("rates", "train"))
    best = tuned(make, [arm | {"seed": TUNING_SEED} for arm in arms()], rates, tried)
    run_all(make, [arm | {"seed": seed} for seed in SEEDS for arm in best], measured)


if __name__ == "__main__":
    main()
