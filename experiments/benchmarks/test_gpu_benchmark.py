"""The program for the first hour on a GPU machine, as far as a CPU can show it."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import gpu
import pandas as pd
import pytest
import step_options

from raysync.training.vectors.wire import FORMATS


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_parts_of_a_push_are_measured():
    store = {}

    def put(array):
        store[len(store)] = array
        return len(store) - 1

    measured = gpu.budget(gpu.SMALL, put, store.__getitem__)
    parts = "draw, batch up, forward, backward", "draw a batch and augment it"
    assert measured[parts[0]] > measured[parts[1]] > 0
    size = len(store[0])
    assert {array.size for array in store.values() if not isinstance(array, bytes)} == {size}


def test_a_part_that_fails_is_named_and_the_others_go_on(monkeypatch):
    def broken(setting):
        raise ValueError("no driver")

    parts = {"First": lambda setting: "a table\n", "Second": broken, "Third": gpu.numerics}
    monkeypatch.setattr(gpu, "PARTS", parts)
    text = "".join(gpu.sections(gpu.SMALL))
    assert "### First\n\na table\n" in text
    assert "- Second: failed: ValueError: no driver\n" in text
    assert "- Third: the numbers of a GPU beside those of a CPU need a GPU.\n" in text
    assert "this is a trial of the program on a CPU" in text


@pytest.mark.usefixtures("one_thread")
def test_every_option_is_measured_beside_what_it_changes(monkeypatch):
    """Without compiling anything: that takes longer than all else."""

    def ms(work, device):
        work()
        return 1.0

    compiled = []
    monkeypatch.setattr(step_options, "ms", ms)
    monkeypatch.setattr(step_options.torch, "compile", lambda loss: compiled.append(loss) or loss)
    rows = list(step_options.computing_options(gpu.SMALL))
    assert len(rows) == len(step_options.PRECISIONS) * len(step_options.CHOICES)
    assert {row[2] for row in rows} == {"", "compiled"}
    assert compiled
    apart = {float(row[-1]) for row in rows}
    assert apart == {0.0}, "on a CPU"
    assert [row[0] for row in step_options.wire_options(gpu.SMALL)] == list(FORMATS)


def test_without_a_gpu_the_program_says_how_to_try_it(monkeypatch, capsys):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit, match="2"):
        gpu.main()
    assert "--try runs the program on its CPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "expected"), [(1, [1]), (2, [1, 2]), (4, [1, 4]), (6, [1, 4, 6]), (8, [1, 4, 8])]
)
def test_all_gpus_of_a_machine_have_a_row(there, expected):
    assert gpu.counts(there) == expected


def test_a_ddp_that_fails_costs_its_row_alone(monkeypatch):
    """Of two workers, for which there is no estimate either."""

    def no_peers(setting, count):
        raise RuntimeError("Process 1 terminated\n\nTraceback ...\nDistBackendError: NCCL error")

    record = SimpleNamespace(
        summary={"throughput_samples_per_s": 50.0},
        pushes=pd.DataFrame({"clock": [0, 1], "busy_s": [0.2, 0.1]}),
    )
    monkeypatch.setattr(gpu, "device_count", lambda setting: 2)
    monkeypatch.setattr(gpu, "plain_samples_per_s", lambda setting: 100.0)
    monkeypatch.setattr(gpu, "ddp_samples_per_s", no_peers)
    monkeypatch.setattr(gpu, "Session", nullcontext)
    monkeypatch.setattr(gpu, "run_of", lambda *arguments: record)
    lines = gpu.workers(gpu.SMALL).splitlines()
    cause = "failed: RuntimeError: DistBackendError: NCCL error"
    assert f"| DDP | 2 | {cause} |  |  |  |" in lines
    rows = [line for line in lines if line.startswith("| raysync, ")]
    assert len(rows) == 2 * len(gpu.WAYS)
    assert all("| 50 | 0.50 |" in row for row in rows)


def test_a_gpu_without_tf32_computes_in_float32_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr(gpu.torch.cuda, "get_device_capability", lambda name: (7, 5))
    monkeypatch.setattr(gpu.torch.cuda, "get_device_name", lambda name: "Tesla T4")
    monkeypatch.setattr(gpu.torch.cuda, "device_count", lambda: 2)
    setting = gpu.large_setting()
    assert setting.precision == "float32"
    limits = list(gpu.limits(setting))
    assert any(limit.startswith("tf32") for limit in limits)
    assert any(limit.startswith("4 and 8 workers") for limit in limits)
