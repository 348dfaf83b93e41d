"""What it costs to read samples one by one, instead of from memory.

    python experiments/benchmarks/lazy.py            prints the table
    python experiments/benchmarks/lazy.py --write    and writes results/lazy.md

One worker's steps (read a batch, forward, backward, with one thread) on images of 28x28, which are
PNG files for the lazy path; each contender is a process of its own in each turn, for its memory.
The images are random, so they compress badly: reading is dearer than that of real ones.
"""

import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image
from report import interval, main, measured_on, tabulate
from torch.utils.data import Dataset

from raysync import config, data_set
from raysync.training.data.batch_reader import BatchReader
from raysync.training.preparation import prepare
from raysync.training.worker.gradient import GradientComputation

IMAGES, TURNS, STEPS, BATCH, MIB = 4000, 5, 60, 32, 2**20
MODELS = ("convnet", "fashion-cnn")
CONTENDERS = {
    "in memory": None,
    "lazily, in its own process": 0,
    "lazily, 1 process ahead": 1,
    "lazily, 2 processes ahead": 2,
}


class Files(Dataset):
    """The PNG files of a folder; the label is the index modulo 10."""

    def __init__(self, folder: str) -> None:
        self.files = sorted(Path(folder).glob("*.png"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """Return the pixels, from 0 to 1, and the label."""
        with Image.open(self.files[index]) as image:
            return np.asarray(image, np.float32)[None] / 255, index % 10


def write(folder: str) -> None:
    """Write random images."""
    rng = np.random.default_rng(0)
    for index in range(IMAGES):
        pixels = rng.integers(256, size=(28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(Path(folder, f"{index:05}.png"))


def measured(folder: str, model: str, workers: int | None) -> dict[str, float]:
    """Return milliseconds a step, and the memory that the training added, in this process."""
    torch.set_num_threads(1)  # as a worker has it that shares the cores with others
    files = Files(folder)
    before = psutil.Process().memory_info().rss
    if workers is None:
        x = np.stack([files[index][0] for index in range(IMAGES)])
        pair = x, np.arange(IMAGES) % 10
        data = data_set("files", pair, pair, classes=10)
    else:
        data = data_set("files", files, files, classes=10)
    experiment = {"model": model, "workers": [{"name": "w"}], "batch_size": BATCH}
    training = prepare(config.validate(experiment), data=data)
    computation = GradientComputation(training.build(), training.task)
    samples = training.task.train_set()
    batches = training.batches("w-0")
    reader = BatchReader(samples, training.task.collate, batches, workers or 0)
    for clock in range(5):
        computation.compute(reader, clock, BATCH)
    began = time.perf_counter()
    for clock in range(5, 5 + STEPS):
        computation.compute(reader, clock, BATCH)
    seconds = time.perf_counter() - began
    readers = [psutil.Process(child.pid) for child in multiprocessing.active_children()]
    uss = sum(process.memory_full_info().uss for process in readers)
    return {
        "ms": 1000 * seconds / STEPS,
        "mib": (psutil.Process().memory_info().rss - before) / MIB,
        "readers_mib": uss / MIB,
    }


def turns(folder: str, model: str) -> dict[str, list[dict[str, float]]]:
    """Measure all contenders in turns."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(TURNS):
        for name, workers in CONTENDERS.items():
            command = [sys.executable, __file__, "measure", folder, model, json.dumps(workers)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[name].append(json.loads(output.splitlines()[-1]))
    return results


def tables() -> str:
    """Return the table of all models."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        for model in MODELS:
            results = turns(folder, model)
            base = [turn["ms"] for turn in results["in memory"]]
            for name, measures in results.items():
                times = [turn["ms"] for turn in measures]
                ratios = [one / other for one, other in zip(times, base, strict=True)]
                memory, readers = (
                    np.median([turn[key] for turn in measures]) for key in ("mib", "readers_mib")
                )
                rows.append(
                    {
                        "model": model,
                        "samples": name,
                        "ms a step": f"{np.median(times):.1f}",
                        "of in memory": interval(ratios) if name != "in memory" else "",
                        "MiB": f"{memory:.0f}",
                        "MiB of the readers": f"{readers:.0f}" if CONTENDERS[name] else "",
                    }
                )
    return (
        f"{tabulate(rows)}\n\n{TURNS} turns of {STEPS} steps of {BATCH}; medians, and median ratios"
        f" with their 95 % intervals; memory beyond that of the imports. {measured_on()}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        _, _, folder, model, workers = sys.argv
        print(json.dumps(measured(folder, model, json.loads(workers))))
    else:
        main(__file__, __doc__, tables)
