"""The status of a finished run, from its columns and few of its lines, is that from all of them."""

import io

import pytest
from rich.console import Console

import raysync
from raysync.cli.run_view import RunView
from raysync.core.journal import Decoder, decode, read
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
    "never-pushed": {
        "paradigm": "backup-workers",
        "faults": [CRASH],
        "workers": [
            {"name": name, "step_s": s} for name, s in (("a", 0.02), ("c", 0.03), ("b", 50))
        ],
    },
    "learned": {"paradigm": "asp", **LEARNING},
    "switched": {"paradigm": {"name": "sync-switch", "fraction": 0.5}},
}
DIVERGED = {"paradigm": "ssp", **LEARNING, "update": {"lr": 1e30}}


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


def without_frequent(status):
    """The view without the holds and drops, which are left out if they were long ago."""
    frequent = [event.text for event in status.events if not event.rare]
    lines = shown(status).splitlines()
    return [line for line in lines if not any(text in line for text in frequent)]


def from_all_lines(record):
    with (record.path / "journal.jsonl").open(encoding="utf-8") as file:
        head, lines = read(file)
        status = RunStatus(measures_of(head))
        for line in lines:
            status.feed(line)
    return status


@pytest.mark.parametrize("name", RUNS)
def test_it_is_that_of_all_lines(tmp_path, monkeypatch, name):
    record = record_of(tmp_path, **RUNS[name])
    full = from_all_lines(record)
    assert shown(closed_status(record)) == shown(full)
    monkeypatch.setattr(module, "LAST_BYTES", 5_000)
    status = closed_status(record)
    assert status.measures.wait_fraction == pytest.approx(full.measures.wait_fraction)
    assert without_frequent(status) == without_frequent(full)
    assert status.events == [event for event in full.events if event in status.events]


def test_few_lines_are_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LAST_BYTES", 5_000)
    record = record_of(tmp_path, paradigm="lagtuner", workload={"samples": 32000})
    assert record.summary["pushes"] >= 1000
    decoded = []
    monkeypatch.setattr(Decoder, "decode", lambda _, text: decoded.append(text) or decode(text))
    closed_status(record)
    assert 10 < len(decoded) < 40


def test_a_run_that_did_not_finish_has_none(tmp_path):
    """A worker of it may have been computing for long."""
    assert closed_status(record_of(tmp_path, **DIVERGED)) is None
    record = record_of(tmp_path, paradigm="asp")
    (record.path / "summary.json").unlink()
    assert closed_status(raysync.load(record.path)) is None
