"""How long it takes until training begins, and how much memory a run holds.

    python experiments/benchmarks/startup.py            prints the tables
    python experiments/benchmarks/startup.py --write    and writes results/startup.md

Seconds from the command `raysync run` to the first push, in new processes each time, in turns with
worker processes that are forked and with such that import torch for themselves; and, at the end of
a run of four workers, the memory of each actor (RSS counts pages that it shares with others, USS
only its own) and the most that Ray's object store held, sampled several times a second.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import ray
from padded import Padded
from ray._private.internal_api import node_stats
from report import interval, main, measured_on, tabulate

from raysync import config
from raysync.cluster.session import Session
from raysync.running.run import run_in
from raysync.training.preparation import prepare

STARTS, WORKERS, MIB = 5, 4, 2**20
PADDINGS = {"convnet": 1, "convnet + 2.5 M": 2_500_000, "convnet + 25 M": 25_000_000}


def first_push_s(forks: bool) -> float:
    """Return the seconds from starting `raysync run` to the first push, by the record's journal."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "experiment.yaml")
        file.write_text(
            f"workers: [{{count: {WORKERS}}}]\noutput: {folder}/runs\nworkload: {{epochs: 20}}\n"
            f"cluster: {{fork_workers: {str(forks).lower()}}}\n"
        )
        began = time.perf_counter()
        command = subprocess.Popen(
            [sys.executable, "-m", "raysync", "run", file],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        times: list[float] = []
        while not times:
            time.sleep(0.01)
            seen = time.perf_counter() - began
            lines = [
                json.loads(line)
                for journal in Path(folder).glob("runs/*/*/journal.jsonl")
                for line in journal.read_text().splitlines(keepends=True)
                if line.endswith("\n")
            ]
            events = [line["event"] for line in lines if "event" in line]
            pushed = [line["at"] for line in events if line["type"] == "Pushed"]
            # the journal is written a few times a second
            times = [seen - (events[-1]["at"] - pushed[0])] if pushed else []
        command.communicate()
        return times[0]


def actors() -> dict[str, psutil.Process]:
    """Return the actors' processes of this cluster, by the name that Ray gives them."""
    processes = {}
    for process in psutil.Process().children(recursive=True):
        title = " ".join(process.cmdline())
        if title.startswith("ray::") and "Agent" not in title and "IDLE" not in title:
            processes.setdefault(title.removeprefix("ray::").partition(".")[0].strip(), process)
    return processes


def stored_bytes() -> int:
    """Return the bytes that the object store holds now."""
    [node] = ray.nodes()
    # Ray 2.60 has no public function for it
    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"])
    return int(stats.store_stats.object_store_bytes_used)


def memory(session: Session, padding: int) -> tuple[dict[str, str], float]:
    """Return the MiB of each kind of actor as `RSS (USS)`, and the most that the store held."""
    stored: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        experiment = config.validate(
            {
                "data": {"name": "synthetic", "test_samples": 100},
                "batch_size": 128,
                "workers": [{"count": WORKERS}],
                "workload": {"iterations_per_worker": 60},
                "evaluation": {"marks": 1},
                "output": folder,
            }
        )
        run_in(
            session,
            prepare(experiment, model=Padded(padding)),
            config.ParadigmChoice(name="asp"),
            watch=lambda measures: stored.append(stored_bytes()),
        )
    sizes = {}
    for name, process in actors().items():
        info = process.memory_full_info()
        sizes[name] = f"{info.rss / MIB:.0f} ({info.uss / MIB:.0f})"
    return sizes, max(stored) / MIB


def measure() -> str:
    """Measure, and return the tables."""
    pairs = [(first_push_s(True), first_push_s(False)) for _ in range(STARTS)]
    forked, imported = zip(*pairs, strict=True)
    ratios = [one / other for one, other in pairs]
    rows = []
    for name, padding in PADDINGS.items():
        with Session() as session:
            sizes, stored = memory(session, padding)
        rows.append(
            {
                "ASP, 4 workers": name,
                "server": sizes["Server"],
                "a worker": sizes["Worker"],
                "evaluator": sizes["Evaluator"],
                "controller": sizes["Controller"],
                "object store, most": f"{stored:.0f}",
            }
        )
        print(rows[-1], flush=True)
    return (
        f"From `raysync run` (digits, {WORKERS} workers, a private cluster) to the first push:"
        f" {interval(forked)} s with forked worker processes, {interval(imported)} s with"
        f" `cluster.fork_workers: false`; the ratio is {interval(ratios)}. {STARTS} turns.\n\nMiB"
        f" of memory, RSS (USS):\n\n{tabulate(rows)}\n\n{measured_on()}"
    )


if __name__ == "__main__":
    main(__file__, __doc__, measure)
