"""Ways to exchange at each step on one GPU, of one or several trees of raysync, beside plain torch.

    python experiments/benchmarks/gpu_ways.py OUT.jsonl NAME=TREE [NAME=TREE ...]

A line of JSON is written after each run, so a machine that is taken away leaves what was measured.
Each run is a process of its own, which imports the raysync of its tree; turns go in both orders.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FIRST = 50  # steps that are not counted
WAYS: dict[str, dict[str, Any]] = {
    "asp, object references": {"cluster": {"transport": "object-ref"}},
    "bsp, object references": {"paradigm": {"name": "bsp"}, "cluster": {"transport": "object-ref"}},
    "asp, shared memory": {"cluster": {"transport": "shared-memory"}},
    "bsp, shared memory": {"paradigm": {"name": "bsp"}, "cluster": {"transport": "shared-memory"}},
    "diloco, 16 steps": {
        "paradigm": {"name": "diloco", "steps": 16},
        "local": {"optimizer": "adamw", "lr": 0.001},
        "update": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
    },
}


def main() -> None:
    """Parse the command line, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("trees", nargs="+", metavar="NAME=TREE")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), metavar="WAY")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=8.0, help="no run begins later")
    parser.add_argument("--kind", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        [way] = asked.ways
        [tree] = asked.trees
        save(asked.output, tree=tree, way=way, **measured(way, asked.kind, asked.steps))
        return
    until = time.monotonic() + 60 * asked.minutes
    trees = dict(each.split("=", 1) for each in asked.trees)
    runs = [(name, way) for way in asked.ways for name in trees]
    runs = [(next(iter(trees)), "plain torch"), *runs]
    for turn in range(asked.turns):
        for name, way in runs[:: 1 if turn % 2 == 0 else -1]:
            left_s = until - time.monotonic()
            if left_s < 20:
                return
            command = [sys.executable, str(Path(__file__).resolve()), str(asked.output.resolve())]
            command += [name, "--one", "--ways", way]
            command += ["--steps", str(asked.steps), "--kind", asked.kind]
            benchmarks = str(Path(trees[name], "experiments/benchmarks").resolve())
            path = os.pathsep.join([str(Path(trees[name]).resolve()), benchmarks])
            if "PYTHONPATH" in os.environ:
                path += os.pathsep + os.environ["PYTHONPATH"]
            try:
                done = subprocess.run(
                    command,
                    env=os.environ | {"PYTHONPATH": path},
                    cwd=trees[name],  # Ray's workers import what lies where they are
                    timeout=min(120.0, left_s),
                    capture_output=True,
                    text=True,
                )
            except subprocess.TimeoutExpired:
                save(asked.output, tree=name, way=way, failed="too long")
                continue
            if done.returncode:
                line = (done.stderr.strip().splitlines() or ["?"])[-1]
                save(asked.output, tree=name, way=way, failed=line, s=done.returncode)


def measured(way: str, kind: str, steps: int) -> dict[str, Any]:
    """Return the milliseconds of a step, and what the run held."""
    from plain_training import Loop, Setting, synchronize

    small: dict[str, Any] = {"model": "mlp", "shape": (1, 28, 28), "precision": "float32"}
    setting = Setting(kind, steps=steps, **(small if kind == "cpu" else {}))
    began = time.monotonic()
    if way == "plain torch":
        loop = Loop(setting, setting.device())
        for _ in range(FIRST):
            loop.step()
        synchronize(loop.device)
        step_ms = 1000 * loop.step_s(steps)
        return {"median_ms": step_ms, "mean_ms": step_ms, "s": time.monotonic() - began}
    return _run(setting, WAYS[way]) | {"s": time.monotonic() - began}


def _run(setting: Any, settings: dict[str, Any]) -> dict[str, Any]:
    from report import finished

    from raysync import config
    from raysync.cluster.session import Session
    from raysync.running.run import run_in

    settings = dict(settings)
    paradigm = settings.pop("paradigm", {"name": "asp"})
    with Session() as session, tempfile.TemporaryDirectory() as output:
        training = setting.prepared(1, 1, output=output, **settings)
        record = finished(run_in(session, training, config.ParadigmChoice(**paradigm)))
        pushes = record.pushes
        steps_a_push = int(paradigm.get("steps", 1))
        at = pushes.applied_at_s.sort_values().iloc[FIRST // steps_a_push :]
        gaps = 1000 * at.diff().dropna() / steps_a_push
        return {
            "median_ms": gaps.median(),
            "mean_ms": gaps.mean(),
            "busy_ms": 1000 * pushes.busy_s.median() / steps_a_push,
            "pushes": len(pushes),
        } | _held()


def _held() -> dict[str, int]:
    """Return the segments of shared memory of all processes, and the memory of the GPU."""
    segments = set()
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if "memfd:raysync" in str(file.readlink()):
                segments.add(file.stat().st_ino)
        except OSError:
            continue  # it has been closed meanwhile
    held = {"segments": len(segments)}
    try:
        import torch

        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            held["gpu_mb"] = (total - free) // 2**20
    except ImportError:
        pass
    return held


def save(output: Path, **row: Any) -> None:
    """Append a row, and print it."""
    rounded = {key: round(x, 3) if isinstance(x, float) else x for key, x in row.items()}
    line = json.dumps(rounded)
    print(line, flush=True)
    with output.open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main()
