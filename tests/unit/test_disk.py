"""Records on a disk that is full, or in a folder that is gone: one line, and nothing is lost that
was written.

`/dev/full` is a full disk: what is behind a link to it can be opened, but not written.
"""

import os
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

import raysync
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Ended
from raysync.errors import RunFailed
from raysync.paradigms import make
from raysync.record.measures import Measures
from raysync.record.reader import load
from raysync.record.storage import NEW, completed
from raysync.record.writer import DELAY, RecordWriter
from tests.builders.journals import journal
from tests.builders.messages import naming

LONG = {
    "name": "long",
    "engine": "virtual",
    "data": {"name": "digits", "train_samples": 160, "test_samples": 50},
    "workload": {"epochs": 4},
    "workers": [{"count": 2, "step_s": 0.01}],
}


def writer_in(folder):
    return RecordWriter(folder, "name: test\n", make("asp"), Measures(960), {}, datetime.now())


@pytest.mark.parametrize(
    "name", ["config.yaml", "environment.json", "journal.jsonl", "pushes.parquet"]
)
def test_a_record_that_cannot_begin_says_so_in_a_line(tmp_path, name):
    (tmp_path / (name if name == "journal.jsonl" else name + NEW)).symlink_to("/dev/full")
    with pytest.raises(RunFailed, match=naming(f"{tmp_path} No space left on device")):
        writer_in(tmp_path)


@pytest.mark.parametrize("name", ["evaluations.parquet", "summary.json"])
def test_what_cannot_be_completed_does_not_hide_the_journal(tmp_path, name):
    (tmp_path / (name + NEW)).symlink_to("/dev/full")
    with writer_in(tmp_path) as writer:
        writer.write([*journal("asp", 5), Ended("finished", 9.0)])
    assert "No space left on device" in writer.failure
    record = load(tmp_path)
    assert not record.complete
    assert not (tmp_path / "summary.json").exists()
    assert record.summary["pushes"] == len(record.pushes) == 5
    assert record.summary["status"] == "finished"


@pytest.fixture
def at_once(monkeypatch):
    """Every report reaches the file at once, however fast they come."""
    monkeypatch.setattr("raysync.record.writer.DELAY", timedelta(0))


def test_lines_that_come_fast_reach_the_file_a_little_later(tmp_path, monkeypatch):
    """By the clock, with a report that is empty, before a checkpoint that they lead up to, and at
    the end; what is in the file is always whole lines.
    """
    now, lines = [datetime(2026, 1, 1)], journal("asp", 20)
    clock = Mock(now=lambda: now[0], min=datetime.min)

    def there():
        written = list(load(tmp_path).journal())
        assert written == lines[: len(written)]
        return len(written)

    with writer_in(tmp_path) as writer:
        monkeypatch.setattr("raysync.record.writer.datetime", clock)
        for begin, end, delay, seen in ((0, 3, 0, 3), (3, 5, 0.5, 3), (5, 6, 0.5, 6), (6, 7, 0, 6)):
            now[0] += DELAY * delay
            writer.write(lines[begin:end])
            assert there() == seen
        writer.write([])
        assert there() == 7
        writer.write(lines[7:9])
        writer.write_checkpoint(Checkpoint(1, 5.0, {}, {}))
        assert there() == 9
        writer.write(lines[9:])
        monkeypatch.undo()
    assert there() == len(lines)


def test_a_disk_that_fills_up_ends_the_writing_but_not_the_measuring(tmp_path, at_once):
    lines, path = journal("asp", 20), tmp_path / "journal.jsonl"
    with writer_in(tmp_path) as writer:
        writer.write(lines[:10])
        [opened] = (
            int(each.name)
            for each in Path("/proc/self/fd").iterdir()
            if each.exists() and each.samefile(path)
        )
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, opened)
        os.close(full)
        with pytest.raises(RunFailed, match="No space left on device"):
            writer.write(lines[10:20])
        writer.write([*lines[20:], Ended("failed", 9.0, "the disk")])
    assert list(load(tmp_path).journal()) == lines[:10]
    assert writer.measures.ended.status == "failed"
    assert not (tmp_path / "summary.json").exists()


def test_a_folder_that_is_removed_during_a_run_ends_it_at_once(tmp_path, at_once):
    seen = []

    def watch(measures):
        if not seen:
            shutil.rmtree(tmp_path / "runs")
        seen.append(measures.progress)

    with pytest.raises(RunFailed, match=naming("journal.jsonl: removed")):
        raysync.run({**LONG, "output": str(tmp_path / "runs")}, watch=watch)
    assert seen[-1] < 1


def test_a_file_has_its_name_once_it_is_complete(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text("before")
    with pytest.raises(TypeError), completed(path) as new:
        new.open("w").writelines(["half", None])
    assert [one.name for one in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_text() == "before"
    with completed(path) as new:
        new.write_text("whole")
    assert [one.read_text() for one in tmp_path.iterdir()] == ["whole"]
