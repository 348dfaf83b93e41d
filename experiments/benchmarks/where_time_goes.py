"""Where the processor time of a run goes, by py-spy (`pip install py-spy`).

    python experiments/benchmarks/where_time_goes.py           prints the table
    python experiments/benchmarks/where_time_goes.py --write   and writes results/where_time_goes.md

Five workers train the convnet under ASP. Each actor's processor time per gradient is the operating
system's count; py-spy's samples of the thread that runs raysync show what it did: torch and NumPy,
reading and writing pipes (with the waking up), the rest of raysync's Python, or Ray. Other threads
are all Ray's.
"""

import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from pathlib import Path

import psutil
from report import main, markdown, measured_on

from raysync import config
from raysync.cluster.session import Session
from raysync.running.run import run_in
from raysync.training.preparation import prepare

WORKERS, ITERATIONS, BATCH, SECONDS = 5, 1500, 128, 6
KINDS = {"Worker": WORKERS, "Server": 1, "Controller": 1}
PARTS = ("torch", "pipes", "rest of raysync", "Ray")


def part_of(stack: str) -> str:
    """Return the part that a sample of py-spy counts for: that of the innermost frame that
    has one.
    """
    for frame in reversed(stack.split(";")):
        if "/torch/" in f"/{frame}" or "(torch/" in frame or "numpy" in frame:
            return "torch"
        if "shared/pipes.py" in frame or "selectors.py" in frame:
            return "pipes"
        if "(raysync/" in frame:
            return "rest of raysync"
        if "(ray/" in frame:
            return "Ray"
    return "Ray"


def sampled(pid: int) -> Counter[str]:
    """Return py-spy's samples of the busy threads of a process that run raysync."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw")
        subprocess.run(
            [
                "py-spy",
                "record",
                "--pid",
                str(pid),
                "--duration",
                str(SECONDS),
                "--rate",
                "400",
                "--threads",
                "--format",
                "raw",
                "--output",
                raw,
            ],
            check=True,
            capture_output=True,
        )
        samples: Counter[str] = Counter()
        for line in raw.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            if "(raysync/cluster/actors/" in stack or "(raysync/cluster/controller.py" in stack:
                samples[part_of(stack)] += int(count)
        return samples


def actors() -> dict[str, list[psutil.Process]]:
    """Return the actors' processes by kind."""
    processes = defaultdict(list)
    for process in psutil.Process().children(recursive=True):
        kind = " ".join(process.cmdline()).removeprefix("ray::").partition(".")[0].strip()
        if kind in KINDS:
            processes[kind].append(process)
    return processes


def busy_s(process: psutil.Process) -> float:
    """Return the processor seconds that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


def measure() -> str:
    """Measure, and return the table."""
    if shutil.which("py-spy") is None:
        sys.exit("py-spy is not installed: pip install py-spy")
    samples: dict[str, Counter[str]] = {}

    def look() -> None:
        for kind, processes in actors().items():
            samples[kind] = sampled(processes[0].pid)

    with tempfile.TemporaryDirectory() as output, Session() as session:
        training = prepare(
            config.validate(
                {
                    "model": "convnet",
                    "data": {"name": "synthetic", "test_samples": 200},
                    "workers": [{"count": WORKERS}],
                    "batch_size": BATCH,
                    "workload": {"iterations_per_worker": ITERATIONS},
                    "evaluation": {"marks": 1},
                    "output": output,
                }
            )
        )
        asp = config.ParadigmChoice(name="asp")
        run_in(session, training, asp)
        before = {kind: sum(map(busy_s, processes)) for kind, processes in actors().items()}
        run_in(session, training, asp)
        used = {
            kind: sum(map(busy_s, processes)) - before[kind] for kind, processes in actors().items()
        }
        observer = threading.Thread(target=look)  # in a run of its own: sampling costs time, too
        run_in(
            session,
            training,
            asp,
            watch=lambda measures: None if observer.ident else observer.start(),
        )
        observer.join()
    rows = []
    for kind, count in KINDS.items():
        name = f"{count} workers" if count > 1 else kind.lower()
        shares = [f"{samples[kind][part] / samples[kind].total():.0%}" for part in PARTS]
        rows.append([name, f"{1000 * used[kind] / (WORKERS * ITERATIONS):.2f}", *shares])
    header = ["ASP", "ms of processor a gradient", *PARTS]
    return f"{markdown(header, rows)}\n\n{measured_on()}"


if __name__ == "__main__":
    main(__file__, __doc__, measure)
