"""Ways to exchange on one GPU: raysync of one or several trees, beside torch's own ways.

    python experiments/benchmarks/gpu_ways.py OUT.jsonl NAME=TREE [NAME=TREE ...]
    python experiments/benchmarks/gpu_ways.py --table OUT.jsonl
    python experiments/benchmarks/gpu_ways.py OUT.jsonl here=. --kind cpu    tries the program

A line of JSON is written after each run, so a machine that is taken away leaves what was measured.
Each run is a process of its own, which imports the raysync of its tree (torch's ways read their
batches with that of the first tree); turns go in both orders. A way that fails is a line with its
reason. All ways read, augment and upload the same batches (`gpu_peers.py`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pandas as pd

FIRST = 50  # steps of each worker that are not counted; of few steps a quarter
RUN_S = 240.0
LEAST_S = 20.0  # no run begins with less time left
POLLS_S = 0.1  # between two readings of the GPU's memory
PLAIN = "plain torch"
GPUS = {1: 1, 2: 0.45, 4: 0.22}
"""Workers -> the share of the GPU that each reserves; evaluator and server take theirs from it."""
SERVER_GPUS = 0.1
LOCAL_STEPS, INNER_LR, OUTER_LR = 16, 0.001, 0.7
"""Of DiLoCo: AdamW's steps in a worker, their rate, and that of Nesterov's SGD between workers."""
DILOCO = {
    "paradigm": {"name": "diloco", "steps": LOCAL_STEPS},
    "local": {"optimizer": "adamw", "lr": INNER_LR},
    "update": {"lr": OUTER_LR, "momentum": 0.9, "nesterov": True},
}
MODELS = ("resnet18", "resnet50", "gpt2")
ABOUT = ("tree", "way", "model", "kind")
MEASURES = ("workers", "median_ms", "mean_ms", "samples_per_s", "peak_mb", "by", "failed")
"""Fields of a row; one that has failed has few."""


@dataclass(frozen=True)
class Way:
    """A way to train, with a number of workers."""

    workers: int
    peer: str = ""
    """The function of `gpu_peers.py`; raysync trains without one."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of raysync, with the paradigm."""
    shares_model: bool = False
    steps: int = 1
    """Between two exchanges."""


def ways(kind: str) -> dict[str, Way]:
    """Return the ways that a kind of device has, by name."""
    found = {PLAIN: Way(1, "alone")}
    found |= {f"DDP, {counted(n, 'process')}": Way(n, "ddp") for n in GPUS}
    found |= {f"Hogwild, {n} processes": Way(n, "alone", shares_model=True) for n in (2, 4)}
    if find_spec("torchft") is not None:
        for n in (1, 2):
            name = f"torchft's DiLoCo, 16 steps, {counted(n, 'process')}"
            found[name] = Way(n, "torchft_diloco", steps=LOCAL_STEPS)
    transports = {
        "object-ref": {"transport": "object-ref"},
        "auto": {"transport": "auto"},
        "server on the GPU": {"server_gpus": SERVER_GPUS},
    }
    if kind == "cpu":
        del transports["server on the GPU"]
    for n in GPUS:
        for paradigm in ("asp", "bsp"):
            for name, cluster in transports.items():
                settings = {"paradigm": {"name": paradigm}, "cluster": cluster}
                found[f"raysync {paradigm}, {name}, {counted(n, 'worker')}"] = Way(
                    n, settings=settings
                )
        name = f"raysync diloco, 16 steps, {counted(n, 'worker')}"
        found[name] = Way(n, settings=DILOCO, steps=LOCAL_STEPS)
    return found


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


# ---- one run ----


def measured(way: Way, model: str, kind: str, steps: int | None) -> dict[str, Any]:
    """Return what a run says of its steps, or why it failed."""
    from gpu_workload import TRIALS, WORKLOADS
    from plain_training import told

    workload = (TRIALS if kind == "cpu" else WORKLOADS)[model]
    steps = steps or workload.steps
    began, row = time.monotonic(), {"workers": way.workers}
    with peak_memory() as memory:
        try:
            moments, facts = (_of_peer if way.peer else _of_raysync)(way, workload, steps)
            first = min(FIRST, steps // 4) // way.steps
            row |= figures(moments, first, workload.batch_size) | facts
        except Exception as error:  # the other ways still count
            row["failed"] = told(error).removeprefix("failed: ")
    return row | memory | {"s": time.monotonic() - began}


def _of_peer(way: Way, workload: Any, steps: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    import gpu_peers

    gpus = GPUS[way.workers] if workload.kind == "cuda" else 0
    training = workload.prepared(steps, way.workers, gpus)
    moments = gpu_peers.moments_of(
        getattr(gpu_peers, way.peer), training, workload, steps, shares_model=way.shares_model
    )
    number = moments.groupby("worker").cumcount() + 1
    exchanges = moments[number % way.steps == 0].assign(samples=workload.batch_size * way.steps)
    if way.peer != "ddp":
        return exchanges, {}
    return exchanges, {"by": gpu_peers.ddp_backend(workload.kind, way.workers)}


def _of_raysync(way: Way, workload: Any, steps: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    from report import finished

    from raysync import config
    from raysync.cluster.session import Session
    from raysync.running.run import run_in

    settings = dict(way.settings)
    paradigm = config.ParadigmChoice(**settings.pop("paradigm"))
    gpus = GPUS[way.workers] if workload.kind == "cuda" else 0
    with Session() as session, tempfile.TemporaryDirectory() as output:
        training = workload.prepared(steps, way.workers, gpus, output=output, **settings)
        record = finished(run_in(session, training, paradigm))
        pushes, places = record.pushes, record.environment["places"].values()
    moments = pushes.rename(columns={"applied_at_s": "at_s"})[["worker", "at_s", "samples"]]
    transports = {place["transport"] for place in places if place.get("transport")}
    busy_ms = 1000 * workload.batch_size * pushes.busy_s / pushes.samples
    return moments.dropna(), {"by": ", ".join(sorted(transports)), "busy_ms": busy_ms.median()}


def figures(moments: pd.DataFrame, first: int, batch_size: int) -> dict[str, float]:
    """Return milliseconds of a worker's step, and samples per second of all workers.

    Args:
        moments: `worker`, `at_s` and the `samples` since its last one, a row for each exchange.
        first: rows of each worker before those that count.
        batch_size: the samples of a step.
    """
    moments = moments.sort_values("at_s", kind="stable")
    moments = moments[moments.groupby("worker").cumcount() >= first]
    at_s = moments.groupby("worker").at_s
    gaps_ms = (1000 * at_s.diff() * batch_size / moments.samples).dropna()
    begin, end = at_s.min().max(), at_s.max().min()  # all of them work between these
    if not begin < end:
        raise ValueError("too few steps: at no time do all workers make steps that count")
    # A few exchanges of many steps: one that is under way at begin or end counts in part.
    samples = sum(
        np.ptp(np.interp([begin, end], of_worker.at_s, of_worker.samples.cumsum()))
        for _, of_worker in moments.groupby("worker")
    )
    return {
        "median_ms": float(gaps_ms.median()),
        "mean_ms": float(gaps_ms.mean()),
        "samples_per_s": float(samples / (end - begin)),
    }


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Measure the most memory of the GPU that is used, of all processes.

    A thread reads it ten times a second. What was used at the start, with this process's own CUDA
    context, does not count.
    """
    import torch

    peak: dict[str, int] = {}
    if not torch.cuda.is_available():
        yield peak
        return

    def used_mb() -> int:
        free, total = torch.cuda.mem_get_info()
        return (total - free) // 2**20

    base_mb, over = used_mb(), Event()

    def poll() -> None:
        peak["peak_mb"] = 0
        while not over.wait(POLLS_S):
            peak["peak_mb"] = max(peak["peak_mb"], used_mb() - base_mb)

    thread = Thread(target=poll)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def save(output: Path, **row: Any) -> None:
    """Append a row, and print it."""
    rounded = {key: round(x, 3) if isinstance(x, float) else x for key, x in row.items()}
    line = json.dumps(rounded)
    print(line, flush=True)
    with output.open("a") as file:
        file.write(line + "\n")


# ---- the table ----


def table(rows: pd.DataFrame) -> str:
    """Return a table in Markdown for each model and kind of device.

    Cells are medians over runs. The ratio is a run's samples per second, in the median of plain
    torch's, with the range over the runs.
    """
    from report import tabulate

    rows = rows.reindex(columns=[*ABOUT, *MEASURES])
    parts = []
    for (model, kind), of_model in rows.groupby(["model", "kind"], sort=False):
        plain = of_model[of_model.way == PLAIN]
        ways_of = of_model.groupby(["way", "tree"], sort=False)
        cells = [{"way": way, "tree": tree} | _cells(runs, plain) for (way, tree), runs in ways_of]
        parts.append(f"{model}, {kind}\n\n{tabulate(cells)}\n")
    return "\n".join(parts)


def _cells(runs: pd.DataFrame, plain: pd.DataFrame) -> dict[str, str]:
    """Return heading -> cell of one way's runs."""
    done = runs[runs.failed.isna()]
    reasons = runs.failed.value_counts(sort=False)
    step_ms = done.median_ms.median()
    alone = (done.workers == 1).all()
    beyond_ms = step_ms - plain.median_ms.median() if alone else float("nan")
    return {
        "by": ", ".join(done.by.dropna().unique()),
        "ms of a worker's step, median": _number(step_ms, ".1f"),
        "mean": _number(done.mean_ms.median(), ".1f"),
        "ms beyond plain torch's": _number(beyond_ms, ".1f"),
        "samples/s": _number(done.samples_per_s.median(), ",.0f"),
        "of plain torch": _ratio(done.samples_per_s / plain.samples_per_s.median()),
        "peak memory of the GPU, MB": _number(done.peak_mb.median(), ",.0f"),
        "runs": str(len(done)),
        "failed": "; ".join(f"{count}: {reason}" for reason, count in reasons.items()),
    }


def _ratio(ratios: pd.Series) -> str:
    if ratios.isna().all():
        return ""
    return f"{ratios.median():.2f} ({ratios.min():.2f} to {ratios.max():.2f})"


def _number(value: float, form: str) -> str:
    return "" if pd.isna(value) else format(value, form)


# ---- the command ----


def main() -> None:
    """Parse the command line; measure, or print the tables of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, nargs="?", metavar="OUT.jsonl")
    parser.add_argument("trees", nargs="*", metavar="NAME=TREE")
    parser.add_argument("--model", default=MODELS[0], choices=MODELS)
    parser.add_argument("--ways", nargs="*", metavar="WORDS", help="those that contain one of them")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each worker; default: as fits the model")
    parser.add_argument("--minutes", type=float, default=8.0, help="no run begins later")
    parser.add_argument("--kind", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--table", type=Path, metavar="FILE", help="print its tables")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.table:
        print(table(pd.read_json(asked.table, lines=True)))
    elif not (asked.output and asked.trees):
        parser.error("OUT.jsonl and a NAME=TREE are needed, or --table FILE")
    elif asked.one:
        way = ways(asked.kind)[asked.one]
        measures = measured(way, asked.model, asked.kind, asked.steps)
        save(asked.output, **_about(asked.trees[0], asked.one, asked), **measures)
    else:
        measure_all(asked)


def measure_all(asked: argparse.Namespace) -> None:
    """Measure in turns, until the time is over."""
    until = time.monotonic() + 60 * asked.minutes
    trees = dict(each.split("=", 1) for each in asked.trees)
    runs = list(runs_of_a_turn(ways(asked.kind), list(trees), asked.ways))
    for turn in range(asked.turns):
        for name, way in runs[:: 1 if turn % 2 == 0 else -1]:
            left_s = until - time.monotonic()
            if left_s < LEAST_S:
                return
            if failed := run_apart(asked, name, trees[name], way, min(RUN_S, left_s)):
                save(asked.output, **_about(name, way, asked), failed=failed)


def runs_of_a_turn(
    found: dict[str, Way], trees: list[str], words: list[str] | None
) -> Iterator[tuple[str, str]]:
    """Yield tree and way of each run: torch's own ways in the first tree alone, plain torch always.

    Args:
        words: a way must contain one of them; None: all ways.
    """
    for name, way in found.items():
        if name == PLAIN or words is None or any(each in name for each in words):
            for tree in trees[:1] if way.peer else trees:
                yield tree, name


def run_apart(
    asked: argparse.Namespace, name: str, tree: str, way: str, limit_s: float
) -> str | None:
    """Run one way in a process of its own, which saves its row; return why it has not."""
    here = Path(__file__).resolve()
    command = [sys.executable, str(here), str(asked.output.resolve()), name, "--one", way]
    command += ["--model", asked.model, "--kind", asked.kind]
    if asked.steps:
        command += ["--steps", str(asked.steps)]
    paths = [str(Path(tree).resolve()), str(here.parent), os.environ.get("PYTHONPATH", "")]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            cwd=tree,  # Ray's workers import what lies where they are
            timeout=limit_s,
            stdout=sys.stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return f"longer than {limit_s:.0f} s"
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["?"])[-1]
    return f"exit {done.returncode}: {last}".replace("|", "/")


def _about(tree: str, way: str, asked: argparse.Namespace) -> dict[str, str]:
    return dict(zip(ABOUT, (tree, way, asked.model, asked.kind), strict=True))


if __name__ == "__main__":
    main()
