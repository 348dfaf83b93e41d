"""The benchmark of exchange on one GPU, as far as a CPU can show it."""

import os
from dataclasses import replace
from functools import partial
from itertools import count

import gpu_peers
import gpu_ways
import gpu_workload
import numpy as np
import pandas as pd
import pytest
from torch import nn

from raysync import config
from tests.builders.virtual import run

STEPS, BATCH = 3, 8
NUMBERS = count()


class Recording(nn.Module):
    """Writes each input of a training step into a file of its process."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.linear = folder, nn.Linear(192, 10)

    def forward(self, x):
        if self.training:
            np.save(self.folder / f"{os.getpid()}-{next(NUMBERS):05}.npy", x.numpy())
        return self.linear(x.flatten(1))


@pytest.fixture
def recorded(tmp_path):
    """A workload whose model records its inputs, and how to read them."""
    workload = replace(
        gpu_workload.TRIALS["resnet18"],
        model=Recording(tmp_path),
        data=partial(gpu_workload.images, (3, 8, 8), 64, 10),
        batch_size=BATCH,
    )

    def inputs():
        """Process -> its inputs in order; the files are removed."""
        found = {}
        for path in sorted(tmp_path.glob("*.npy")):
            found.setdefault(path.name.partition("-")[0], []).append(np.load(path).tobytes())
            path.unlink()
        return list(found.values())

    return workload, inputs


def batches_of(training):
    """The inputs of each worker slot, as its reader has them."""
    return [
        [
            training.reader(slot).read(clock, [BATCH])[0][0].numpy().tobytes()
            for clock in range(STEPS)
        ]
        for slot in training.groups
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("peer", "workers"), [("alone", 1), ("ddp", 2)])
def test_torchs_ways_train_on_the_batches_of_raysyncs_workers(recorded, peer, workers):
    """Bit for bit, augmented; raysync's workers run on the virtual engine, with the same reader."""
    workload, inputs = recorded
    training = workload.prepared(STEPS, workers)
    inputs()  # those of trials
    moments = gpu_peers.moments_of(getattr(gpu_peers, peer), training, workload, STEPS)
    seen = inputs()
    assert sorted(seen) == sorted(batches_of(training))
    assert moments.groupby("worker").size().to_dict() == dict.fromkeys(training.groups, STEPS)
    virtual = workload.prepared(STEPS, workers, engine="virtual")
    inputs()
    run(virtual)
    [of_raysync] = inputs()
    assert sorted(of_raysync) == sorted(batch for process in seen for batch in process)


def test_the_figures_count_while_all_workers_work():
    """One makes a step each second from 0 to 8, the other each two seconds from 1 to 9."""
    moments = pd.DataFrame(
        {"worker": ["a"] * 9 + ["b"] * 5, "at_s": [*range(9), 1, 3, 5, 7, 9], "samples": [4] * 14}
    )
    figures = gpu_ways.figures(moments, 1, 4)
    assert figures["median_ms"] == 1000
    assert figures["mean_ms"] == pytest.approx((7 * 1000 + 3 * 2000) / 10)
    # from 3 to 8: five steps of one, two and a half of the other
    assert figures["samples_per_s"] == pytest.approx(7.5 * 4 / 5)


def test_a_push_of_several_steps_is_as_many():
    moments = pd.DataFrame(
        {"worker": "a", "at_s": [0.0, 8.0, 16.0, 18.0], "samples": [64] * 3 + [16]}
    )
    figures = gpu_ways.figures(moments, 0, 4)
    assert figures["median_ms"] == figures["mean_ms"] == 500
    assert figures["samples_per_s"] == pytest.approx(8)


def test_workers_that_never_work_together_have_no_figures():
    moments = pd.DataFrame({"worker": ["a", "a", "b", "b"], "at_s": [0, 1, 2, 3], "samples": 4})
    with pytest.raises(ValueError, match="all workers"):
        gpu_ways.figures(moments, 0, 4)


def test_the_table_has_medians_and_ratios_with_their_range(tmp_path):
    file, about = tmp_path / "out.jsonl", {"model": "gpt2", "kind": "cpu", "tree": "here"}

    def save(way, workers, median_ms, rate):
        measures = {"median_ms": median_ms, "mean_ms": 2 * median_ms, "samples_per_s": rate}
        gpu_ways.save(file, **about, way=way, workers=workers, **measures, by="x", peak_mb=1000)

    for median_ms, rate in ((9, 90), (10, 100), (12, 110)):
        save(gpu_ways.PLAIN, 1, median_ms, rate)
    for median_ms, rate in ((13, 50), (15, 80), (14, 60)):
        save("one", 1, median_ms, rate)
    gpu_ways.save(file, **about, way="one", workers=1, failed="no room")
    save("two", 2, 30, 150)
    gpu_ways.save(file, **about, way="three", failed="exit 1")
    lines = gpu_ways.table(pd.read_json(file, lines=True)).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    by_way = {row[0]: row[3:] for row in rows}
    assert by_way["one"] == [
        "14.0",
        "28.0",
        "4.0",
        "60",
        "0.60 (0.50 to 0.80)",
        "1,000",
        "3",
        "1: no room",
    ]
    assert by_way["two"] == ["30.0", "60.0", "", "150", "1.50 (1.50 to 1.50)", "1,000", "1", ""]
    assert by_way["three"] == ["", "", "", "", "", "", "0", "1: exit 1"]


@pytest.mark.usefixtures("one_thread")
def test_a_way_that_fails_is_a_row_with_its_reason(monkeypatch):

    def broken():
        raise RuntimeError("no driver")

    small = replace(gpu_workload.TRIALS["resnet18"], model=broken)
    monkeypatch.setattr(gpu_workload, "TRIALS", {"resnet18": small})
    for way in (gpu_ways.Way(1, "alone"), gpu_ways.Way(1, settings={"paradigm": {"name": "asp"}})):
        row = gpu_ways.measured(way, "resnet18", "cpu", STEPS)
        assert "no driver" in row["failed"]
        assert "median_ms" not in row


def test_torchs_ways_run_once_a_turn_and_raysyncs_in_each_tree():
    found = gpu_ways.ways("cpu")
    runs = list(gpu_ways.runs_of_a_turn(found, ["before", "after"], ["DDP, 2", "bsp, auto, 1"]))
    assert runs == [
        ("before", gpu_ways.PLAIN),
        ("before", "DDP, 2 processes"),
        ("before", "raysync bsp, auto, 1 worker"),
        ("after", "raysync bsp, auto, 1 worker"),
    ]


def test_every_way_on_a_gpu_is_a_valid_experiment():
    """The server's share among them; a CPU has none."""
    on_gpu = gpu_ways.ways("cuda")
    for way in on_gpu.values():
        settings = {key: value for key, value in way.settings.items() if key != "paradigm"}
        for workload in gpu_workload.WORKLOADS.values():
            plain = workload.settings(100, way.workers, gpu_ways.GPUS[way.workers])
            config.validate(plain | settings)
        assert way.workers * gpu_ways.GPUS[way.workers] <= 1
    assert {name for name in on_gpu if "on the GPU" in name} == on_gpu.keys() - gpu_ways.ways("cpu")
