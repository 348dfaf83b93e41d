"""What `raysync whatif` costs: ten paradigms on the step times of many ranks, the whole command.

python experiments/benchmarks/whatif.py            prints the table
python experiments/benchmarks/whatif.py --write    and writes results/whatif.md
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from report import main, markdown, measured_on

SIZES = ((8, 500), (64, 2_000))
"""Ranks and steps."""
LEFT_OUT = "lagtuner(bound=literal)"
"""Of the eleven paradigms that it tries by itself: the claim is about ten."""
LABELS = """
import sys; from raysync.predict.candidates import standard_paradigms
for each in standard_paradigms(int(sys.argv[1])):
    print(each.label, each.model_dump_json(), sep="\\t")
"""


def paradigms(ranks: int) -> list[str]:
    """Return the arguments that name the paradigms."""
    listed = subprocess.run(
        [sys.executable, "-c", LABELS, str(ranks)], capture_output=True, text=True, check=True
    ).stdout
    choices = dict(line.split("\t") for line in listed.splitlines())
    del choices[LEFT_OUT]
    return [text for choice in choices.values() for text in ("--paradigm", choice)]


def table(path: Path, ranks: int, steps: int) -> None:
    """Write step times with a straggler among the ranks."""
    drawn = np.random.default_rng(0).lognormal(-2, 0.2, (steps, ranks))
    drawn[:, 0] *= 1.8
    header = ",".join(f"rank{rank}" for rank in range(ranks))
    np.savetxt(path, drawn, delimiter=",", header=header, comments="", fmt="%.6g")


def spent_s() -> float:
    """Return the processor seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cost(ranks: int, steps: int) -> list[object]:
    """Return a row of the table."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "steps.csv")
        table(path, ranks, steps)
        arguments = paradigms(ranks)
        command = [sys.executable, "-m", "raysync", "whatif", path, *arguments]
        load, spent, began = os.getloadavg()[0], spent_s(), time.perf_counter()
        subprocess.run(
            [*command, "--price-per-hour", "3", "-o", path.with_suffix(".html")],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        wall = time.perf_counter() - began
    count = len(arguments) // 2
    return [ranks, steps, count, f"{wall:.1f}", f"{spent_s() - spent:.1f}", f"{load:.1f}"]


def measure() -> str:
    """Return the table and what it was measured on."""
    header = ["ranks", "steps", "paradigms", "seconds", "processor seconds", "load before"]
    return markdown(header, [cost(*size) for size in SIZES]) + "\n\n" + measured_on()


if __name__ == "__main__":
    main(__file__, __doc__ or "", measure)
