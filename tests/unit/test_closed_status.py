"""The status of a closed run, from its columns and few of its lines, is that from all its lines."""

import io

import pytest
from rich.console import Console

import raysync
from raysync.cli.run_view import RunView
from raysync.core.journal import read
from raysync.record import closed_status as module
from raysync.record.closed_status import closed_status
from raysync.record.reader import measures_of
from raysync.record.run_status import RunStatus

CRASH = {"kind": "crash", "worker": "b-0", "at_s": 0.5, "rejoin_after_s": 0.3}
DIGITS = {"name": "digits", "train_samples": 320, "test_samples": 50}
LEARNING = {"timing": "with-gradients", "data": DIGITS, "workload": {"samples": 3200}}
RUNS = {
    "bounded": {"paradigm": {"name": "ssp", "staleness": 2}},
    "forecast": {"paradigm": "lagtuner"},
    "dropped": {"paradigm": "backup-workers"},
    "divided": {"paradigm": "balanced"},
    "crashed": {"paradigm": "asp", "faults": [CRASH]},
    "gone": {"paradigm": "bsp", "faults": [{**CRASH, "rejoin_after_s": None}]},
    "learned": {"paradigm": "asp", **LEARNING},
    "diverged": {"paradigm": "ssp", **LEARNING, "update": {"lr": 1e30}},
}


def record_of(tmp_path, **settings):
    return raysync.run(
        {
            "engine": "virtual",
            "timing": "only",
            "output": str(tmp_path),
            "workload": {"samples": 9600},
            "workers": [{"name": "a", "count": 3, "step_s": 0.02}, {"name": "b", "step_s": 0.05}],
        }
        | settings
    )


def shown(status):
    console = Console(width=160, file=io.StringIO())
    console.print(RunView(status, "a paradigm", {"engine": "virtual"}))
    return console.file.getvalue()


def from_all_lines(record):
    with (record.path / "journal.jsonl").open(encoding="utf-8") as file:
        head, lines = read(file)
        status = RunStatus(measures_of(head))
        for line in lines:
            status.feed(line)
    return status


@pytest.mark.parametrize("name", RUNS)
def test_it_is_that_of_all_lines(tmp_path, monkeypatch, name):
    monkeypatch.setattr(module, "TAIL", 20)
    record = record_of(tmp_path, **RUNS[name])
    status = closed_status(record)
    assert status is not None
    assert shown(status) == shown(from_all_lines(record))


def test_what_earlier_lines_alone_know_is_left_to_them(tmp_path, monkeypatch):
    """A switch sets leads anew; and a run that did not finish may have a worker that has been
    computing for long.
    """
    switched = record_of(tmp_path, paradigm={"name": "sync-switch", "fraction": 0.5})
    assert closed_status(switched) is None
    monkeypatch.setattr(module, "TAIL", 1)
    assert closed_status(record_of(tmp_path, **RUNS["diverged"])) is None


def test_few_lines_are_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TAIL", 10)
    monkeypatch.setattr(module, "WITH_EVENTS", 10)
    record = record_of(tmp_path, paradigm="lagtuner", workload={"samples": 32000})
    assert record.summary["pushes"] >= 1000
    _, before, tail = module._decoded(record)
    assert len(before) + len(tail) < 40


def test_a_run_that_was_cut_off_has_none(tmp_path):
    record = record_of(tmp_path, paradigm="asp")
    (record.path / "summary.json").unlink()
    assert closed_status(raysync.load(record.path)) is None
