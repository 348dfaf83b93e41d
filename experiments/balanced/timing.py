"""What needs no gradients: the pace, how soon shares settle, and the published machine.

    python experiments/balanced/timing.py RUNS     results/pace-*.csv, settle.csv, external.csv

A round is settled if the rule, told the true speeds, would leave the sizes of its batches as they
are: another division would shorten its longest step by no more than the hysteresis.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import finished  # noqa: E402

from raysync import config  # noqa: E402
from raysync.config import Experiment  # noqa: E402
from raysync.config.faults import SlowDown  # noqa: E402
from raysync.core.decisions import Release  # noqa: E402
from raysync.core.ids import Slot, WorkerId  # noqa: E402
from raysync.core.journal import Entry  # noqa: E402
from raysync.paradigms.balanced import Balanced  # noqa: E402
from raysync.paradigms.batch_shares import DeviceSpeed, divide  # noqa: E402
from raysync.record.reader import RunRecord  # noqa: E402
from raysync.running.engines import engine_for  # noqa: E402
from raysync.running.run import run_in  # noqa: E402
from raysync.training.preparation import prepare  # noqa: E402

FACTORS = (1.5, 2, 4)
SIGMAS = (0, 0.02, 0.05, 0.1)
PACE = ("status", "throughput_samples_per_s", "wait_fraction", "staleness_mean", "lead_max")
"""What is kept of a run of pace-*.yaml."""
PACED = ("pace-two", "pace-four", "pace-drift")
SETTLED_AFTER = 10
"""The rounds within which the shares should have settled."""
SIZES = {"200 each": 200, "300 and 200": 300}
"""What the page calls the published batch sizes -> that of the A6000."""


def run(experiment: Experiment, label: str = "balanced") -> RunRecord:
    """Return the record of a run in time only under the paradigm of that label."""
    [choice] = [choice for choice in experiment.paradigms if choice.label == label]
    with engine_for(experiment) as engine:
        return finished(run_in(engine, prepare(experiment), choice))


def pace(name: str, runs: Path) -> Iterator[dict[str, object]]:
    """Yield a row for each paradigm and seed of a file; and for two of them without jitter."""
    file = HERE / f"{name}.yaml"
    calm = [f"workers.{group}.jitter.sigma=0" for group in range(len(config.load(file).workers))]
    for seed, (settings, labels) in product(
        config.load(file).seeds, (((), ()), (calm, ("asp", "balanced")))
    ):
        experiment = config.load(file, [f"output={runs}", f"seed={seed}", *settings])
        for choice in experiment.paradigms:
            if not labels or choice.label in labels:
                summary = run(experiment, choice.label).summary
                yield {
                    "paradigm": choice.label,
                    "sigma": experiment.workers[0].jitter.sigma,
                    "seed": seed,
                    **{key: summary[key] for key in PACE},
                }


def shares(record: RunRecord) -> dict[int, dict[str, int]]:
    """Return round -> slot -> the samples of its batch."""
    rounds: dict[int, dict[str, int]] = {}
    for line in record.journal():
        for decision in line.decisions if isinstance(line, Entry) else ():
            if isinstance(decision, Release):
                size = decision.batch_size or record.config.batch_size
                slot = WorkerId(decision.worker).slot
                rounds.setdefault(decision.clock, {})[slot] = size
    return rounds


def is_settled(
    experiment: Experiment, sizes: Mapping[str, int], factors: Mapping[str, float]
) -> bool:
    """Say whether the rule would leave these sizes as they are.

    Args:
        experiment: whose workers take `step_s` for a batch of the common size.
        sizes: slot -> the samples of its batch.
        factors: slot -> the factor of a fault on its step, where there is one.
    """
    groups = {group.name: group for group in experiment.workers}
    devices = [
        DeviceSpeed(
            groups[Slot(slot).group].step_s
            / groups[Slot(slot).group].speed
            / experiment.batch_size
            * factors.get(slot, 1.0),
            2 * experiment.network.link.latency_s,
        )
        for slot in sizes
    ]
    longest_s, best_s = (
        max(device.seconds(size) for device, size in zip(devices, each, strict=True))
        for each in (sizes.values(), divide(devices, sum(sizes.values())))
    )
    return longest_s - best_s <= Balanced.hysteresis * longest_s


def settling(record: RunRecord) -> dict[str, object]:
    """Return after how many rounds the shares were settled when the worker had slowed down, and
    when it had recovered, and the share of the rounds in which they were from then on.
    """
    [fault] = record.config.faults
    assert isinstance(fault, SlowDown)
    assert fault.clocks is not None, "a fault by seconds"
    slow, fast = fault.clocks
    rounds = shares(record)
    complete = [clock for clock in sorted(rounds) if len(rounds[clock]) == len(rounds[0])]
    settled = [
        is_settled(
            record.config,
            rounds[clock],
            dict.fromkeys(fault.workers, fault.factor if slow <= clock < fast else 1.0),
        )
        for clock in complete
    ]
    row: dict[str, object] = {}
    for change, part in (("slower", settled[slow:fast]), ("faster", settled[fast:])):
        row[f"{change}_rounds"] = part.index(True) if True in part else None
        later = part[SETTLED_AFTER:]
        row[f"{change}_share_settled"] = sum(later) / len(later)
    return row


def settle(runs: Path) -> Iterator[dict[str, object]]:
    """Yield a row for each factor, jitter and seed."""
    seeds = config.load(HERE / "settle.yaml").seeds
    for factor, sigma, seed in product(FACTORS, SIGMAS, seeds):
        settings = [
            f"output={runs}",
            f"seed={seed}",
            f"faults.0.factor={factor}",
            *(f"workers.{group}.jitter.sigma={sigma}" for group in range(3)),
        ]
        record = run(config.load(HERE / "settle.yaml", settings))
        yield {"factor": factor, "sigma": sigma, "seed": seed, **settling(record)}


def external(runs: Path) -> Iterator[dict[str, object]]:
    """Yield a row for each setting of the published machine."""
    for name, size in SIZES.items():
        settings = [f"output={runs}", f"workers.0.batch_size={size}"]
        experiment = config.load(HERE / "external.yaml", settings)
        for paradigm in ("bsp", "balanced"):
            record = run(experiment, paradigm)
            last = shares(record)[max(shares(record)) - 1]
            yield {
                "sizes": name,
                "paradigm": paradigm,
                "seed": experiment.seed,
                "a6000": last["a6000-0"] if paradigm == "balanced" else size,
                "rtx2080ti": last["rtx2080ti-0"] if paradigm == "balanced" else 200,
                "images_per_s": record.summary["throughput_samples_per_s"],
            }


def main() -> None:
    """Run the command."""
    [runs] = map(Path, sys.argv[1:])
    tables = {
        **{name: pace(name, runs) for name in PACED},
        "settle": settle(runs),
        "external": external(runs),
    }
    for name, rows in tables.items():
        file = HERE / "results" / f"{name}.csv"
        pd.DataFrame(rows).to_csv(file, index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
