"""Compute how much of the time workers compute, by link and local steps, beside what others have
measured: results/local-steps.time.csv.

    python experiments/local-steps/time.py && python experiments/labbook.py     (seconds)
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import yaml

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.events import Pushed
from raysync.core.journal import Entry
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine

HERE = Path(__file__).parent
RING = {"name": "bsp", "exchange": "ring"}
FIELDS = ("setting", "mbit_per_s", "paradigm", "steps", "published", "ours", "is_given")

UTILISATION = {
    50: {1: 0.07, 8: 0.55, 32: 2.41, 128: 11.55},
    200: {1: 0.32, 8: 2.48, 32: 10.01, 128: 36.09},
    1000: {1: 1.74, 8: 12.35, 32: 36.01, 128: 71.52},
    5000: {1: 7.76, 8: 40.24, 32: 68.10, 128: 87.00},
}
"""diloco-measured (README of 2026-08-18): 4 workers with an L40S each, 30.8 million parameters;
Mbit/s -> local steps -> the share of the time that is computing, in percent."""
TOKENS = {1000: {1: 5.3, 100: 37.4}, 100: {1: 1.6, 100: 32.0}, 50: {1: 0.9, 100: 27.4}}
"""ft-diloco (README of 2026-06-13): 32 replicas; Mbit/s -> local steps -> thousands of tokens/s."""
VECTOR_BYTES = 4 * 30.8e6
PYTHIA_BYTES = 4 * 70_426_624
ROUNDS = 20


def share_of_computing(steps: int, paradigm: dict[str, str], **settings: object) -> float:
    """Run in time only; return computing / (workers x seconds)."""
    training = prepare(
        config.validate(
            {
                "engine": "virtual",
                "timing": "only",
                "batch_size": 1,
                "local": {"steps": steps},
                "workload": {"iterations_per_worker": steps * ROUNDS},
                **settings,
            }
        )
    )
    choice = ParadigmChoice.model_validate(paradigm)
    lines = [line for lines in VirtualEngine().run(training, choice.make()) for line in lines]
    pushes = [each.event for each in lines if isinstance(each, Entry)]
    busy_s = sum(each.busy_s for each in pushes if isinstance(each, Pushed))
    return busy_s / (len(training.groups) * lines[-1].at)


def ring_share(workers: int, mbit_per_s: float, steps: int, step_s: float) -> float:
    """Return the share of computing by an all-reduce over such links."""
    link = {"bandwidth_bytes_per_s": mbit_per_s * 1e6 / 8}
    return share_of_computing(
        steps,
        RING,
        workers=[{"count": workers, "step_s": step_s, "link": link}],
        network={"vector_bytes": VECTOR_BYTES},
    )


def rounds_s(workers: int, mbit_per_s: float) -> float:
    """Return the seconds of a ring's exchange."""
    return 2 * (workers - 1) / workers * VECTOR_BYTES / (mbit_per_s * 1e6 / 8)


def utilisation_rows() -> Iterator[tuple[object, ...]]:
    """Yield the points of diloco-measured. The seconds of a step are set by one of them: the one
    with the slowest link and the most steps.
    """
    given = UTILISATION[50][128] / 100
    step_s = rounds_s(4, 50) / (128 * (1 - given) / given)
    for rate, points in UTILISATION.items():
        for steps, published in points.items():
            ours = 100 * ring_share(4, rate, steps, step_s)
            is_given = (rate, steps) == (50, 128)
            yield "diloco-measured", rate, "bsp", steps, published, f"{ours:.4g}", is_given


def token_rows() -> Iterator[tuple[object, ...]]:
    """Yield the points of ft-diloco. How long the exchange is in steps, and how many tokens a step
    has, are set by the two with the slowest link.
    """
    ratio = TOKENS[50][100] / TOKENS[50][1]
    exchange_steps = (ratio - 1) / (1 - ratio / 100)
    step_s = rounds_s(32, 50) / exchange_steps
    most = TOKENS[50][1] / ring_share(32, 50, 1, step_s)
    for rate, points in TOKENS.items():
        for steps, published in points.items():
            ours = most * ring_share(32, rate, steps, step_s)
            yield "ft-diloco", rate, "bsp", steps, published, f"{ours:.4g}", rate == 50


def halos_rows() -> Iterator[tuple[object, ...]]:
    """Yield what HALoS's cluster would do; nothing is published for it in these terms."""
    text = (HERE.parent / "clusters" / "halos-4x4.yaml").read_text(encoding="utf-8")
    cluster = yaml.safe_load(text)
    network = cluster["network"] | {"vector_bytes": PYTHIA_BYTES}
    for paradigm in ("bsp", "asp"):
        for steps in (1, 8, 32, 128):
            ours = 100 * share_of_computing(
                steps, {"name": paradigm}, workers=cluster["workers"], network=network
            )
            yield "halos-4x4", "", paradigm, steps, "", f"{ours:.4g}", False


def main() -> None:
    """Write the table."""
    path = HERE / "results" / "local-steps.time.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(FIELDS)
        for rows in (utilisation_rows, token_rows, halos_rows):
            table.writerows(rows())


if __name__ == "__main__":
    main()
