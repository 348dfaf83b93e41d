"""Checkpoints of records: what is read is what was written, and a run that was lost goes on with
nothing lost or told twice. An engine that trains nothing stands for the others.
"""

import errno
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import get_native_id
from uuid import uuid4

import pandas as pd
import pytest

import raysync
from raysync import config
from raysync.core.checkpoint import Checkpoint
from raysync.core.decisions import Apply
from raysync.core.events import Left, Pushed
from raysync.core.journal import (
    Checkpointed,
    Ended,
    Entry,
    Evaluation,
    Remark,
    Resumed,
    decode,
    encode,
    header,
    read,
)
from raysync.core.replay import replay
from raysync.core.stages import rosters_in
from raysync.errors import ConfigError
from raysync.paradigms import make, rebuild
from raysync.record import checkpoints, storage
from raysync.record.checkpoints import (
    CHECKPOINT_SCHEMA,
    LOWEST_PRIORITY,
    CheckpointWriter,
    numbers_in,
    read_checkpoint,
)
from raysync.record.collector import Collector
from raysync.record.event_text import seconds, texts_of
from raysync.record.journal_file import JournalTail, Resumption, truncate
from raysync.record.measures import Measures
from raysync.record.metrics_registry import RunLabels
from raysync.record.reader import load, measures_of
from raysync.record.resumption import newest_checkpoint
from raysync.record.run_status import RunStatus
from raysync.record.uploader import Uploader
from raysync.record.writer import RecordWriter
from raysync.results.collection import collect
from raysync.results.figures.journal_events import run_events_of
from raysync.results.markdown import markdown
from raysync.results.page import write_html
from raysync.results.sentences import resumptions
from raysync.results.trace import trace
from raysync.tracking.callback import RunStart
from raysync.tracking.observers import Observers
from tests.builders.journals import journal
from tests.builders.messages import naming, tells
from tests.fakes.engines import SETTINGS, lost


@pytest.fixture(autouse=True)
def no_copy_is_left():
    yield
    storage.clean()


def replayed(folder):
    with (Path(folder) / "journal.jsonl").open(encoding="utf-8") as journal:
        return replay(journal, rebuild)


def of(record, kind):
    return [line for line in record.journal() if isinstance(line, kind)]


KEPT = {"fast-0#1": b"moments", "slow-1#12": b""}


def a_checkpoint(number, **servers):
    return Checkpoint(number, 1.5 * number, {"number": number, "nan": None}, servers, KEPT)


def test_what_is_read_is_what_was_written_and_the_latest_are_kept(tmp_path):
    writer = CheckpointWriter(tmp_path / "all", keep=2)
    servers = {"server": [b"0", b"", b"2" * 10_000], "server of stage 1": [b"of another"]}
    (tmp_path / "all" / "000003.new").mkdir(parents=True)  # of one that was cut off
    for number in (1, 2, 3):
        writer.write(a_checkpoint(number, **servers))
        assert read_checkpoint(tmp_path / "all" / f"00000{number}") == a_checkpoint(
            number, **servers
        )
    assert storage.listdir(tmp_path / "all") == ["000002", "000003"]
    assert read_checkpoint(tmp_path / "all" / "000001") is None


@pytest.mark.parametrize("name", ["ssp", "bsp", "asp"])
def test_a_lost_run_goes_on_and_nothing_is_lost_or_told_twice(engine, tmp_path, name):
    path = lost(engine, tmp_path, paradigm=name)
    lines = list(load(path).journal())
    cut = lines.index(of(load(path), Checkpointed)[2])
    said = []
    record = raysync.resume(path, notify=said.append)
    after = list(record.journal())
    [resumed] = of(record, Resumed)
    assert after[: cut + 1] == lines[: cut + 1]
    assert after[cut + 1] == resumed
    assert (resumed.at, resumed.number, resumed.lost_pushes) == (lines[cut].at, 3, 4)
    assert resumed.lost_s == lines[-2].event.at - resumed.at
    assert resumed.away_s >= 0
    assert engine.former == Checkpoint(
        3, resumed.at, engine.former.state, {"server": [b"of shard 0", b"shard 1"]}
    )
    result = replayed(record.path)
    assert result.difference is None
    assert result.ended
    roster = result.machine.roster
    assert roster.received == roster.applied + roster.dropped + len(roster.buffered)
    pushes = [
        line.event for line in after if isinstance(line, Entry) and type(line.event) is Pushed
    ]
    assert len({(push.worker, push.clock) for push in pushes}) == len(pushes) == len(record.pushes)
    assert record.summary["status"] == "finished"
    assert {key: record.summary[key] for key in ("resumptions", "lost_pushes", "checkpoints")} == {
        "resumptions": 1,
        "lost_pushes": 4,
        "checkpoints": len(of(record, Checkpointed)),
    }
    assert any("resumed from checkpoint 3 after" in text for text in said)
    shutil.copytree(record.path, tmp_path / "killed")
    (tmp_path / "killed" / "summary.json").unlink()  # all is read from the journal
    pd.testing.assert_frame_equal(load(tmp_path / "killed").pushes, record.pushes)


@pytest.mark.parametrize("name", ["ssp", "lagtuner"])
def test_rosters_of_records_go_on_as_those_of_the_machine(engine, tmp_path, name):
    record = raysync.resume(lost(engine, tmp_path, paradigm=name))
    resumed = of(record, Resumed)[0]
    head, *texts = (record.path / "journal.jsonl").read_text().splitlines(keepends=True)
    cut = [decode(text) for text in texts].index(resumed) + 1
    measures = Measures(32 * 60)
    for end, line in enumerate(list(record.journal())[: cut + 20], start=1):
        measures.feed([line])
        if end >= cut:
            machine = replay([head, *texts[:end]], rebuild).machine
            assert measures.rosters[0].dump() == machine.roster.dump()


def test_iterations_under_way_reopen_at_the_resumption(engine, tmp_path):
    path = lost(engine, tmp_path)
    record = raysync.resume(path)
    [resumed] = of(record, Resumed)
    redone = record.pushes[
        (record.pushes.pushed_at_s > resumed.at) & (record.pushes.released_at_s <= resumed.at)
    ]
    assert len(redone)
    assert set(redone.released_at_s) == {resumed.at}
    assert (redone.pushed_at_s - redone.released_at_s == redone.busy_s).all()


def test_a_record_that_is_being_written_can_go_back(tmp_path):
    lines = journal("asp", 9)
    cut = Checkpoint(1, lines[5].event.at, {}, {})
    with RecordWriter(
        tmp_path, "seed: 1", make("asp"), Measures(960), {}, datetime.now()
    ) as writer:
        writer.write([*lines[:6], Checkpointed(cut.at, 1)])
        writer.write_checkpoint(cut)
        writer.write([*lines[6:], Checkpointed(lines[-1].event.at, 2)])
        writer.write_checkpoint(Checkpoint(2, lines[-1].event.at, {}, {}))
        writer.resume(cut)
        pushes = sum(isinstance(line.event, Pushed) for line in lines[:6])
        assert writer.measures.summary()["lost_pushes"] == 9 - pushes
        assert writer.measures.checkpoints == 1
        writer.write([Ended("stopped", 20.0)])
    record = load(tmp_path)
    assert len(record.pushes) == record.summary["pushes"] == pushes
    assert of(record, Entry) == lines[:6]
    assert storage.listdir(tmp_path / "checkpoints") == ["000001"]


def test_what_was_lost_is_counted_up_to_a_damaged_line(tmp_path):
    *before, pushed = journal("asp", 3)
    after = [Checkpointed(2.0, 1), Resumed(2.0, 1, 5.0, 0.5, 3), pushed]
    left = Entry(Left(at=7.5, worker="slow-0#1"), ())
    lines = [
        header(make("asp"), 960),
        *map(encode, [*before, *after, left]),
        '{"type":"Entry","event":{"type":"Pus',
    ]
    file = tmp_path / "journal.jsonl"
    file.write_text("\n".join(lines))
    os.utime(file, (100, 100))
    resumed = truncate(file, Checkpoint(1, 2.0, {}, {}), exact=False)
    assert (resumed.at, resumed.lost_s, resumed.lost_pushes) == (2.0, 5.5, 1)
    assert resumed.away_s == pytest.approx(time.time() - 100, abs=60)
    kept = [*before, after[0], after[1], resumed]
    assert list(read(file.read_text().splitlines(keepends=True))[1]) == kept
    with pytest.raises(ConfigError, match=naming("checkpoint 2")):
        truncate(file, Checkpoint(2, 2.0, {}, {}), exact=False)
    assert list(read(file.read_text().splitlines(keepends=True))[1]) == kept


def test_iterations_that_go_on_exactly_keep_their_release():
    measures = Measures(32 * 60)
    for line in journal("asp", 5):
        measures.feed([line])
    before = [worker.released_at for worker in measures._workers.values()]
    measures.feed([Resumed(10.0, 1, exact=True)])
    assert [worker.released_at for worker in measures._workers.values()] == before
    measures.feed([Resumed(10.0, 1)])
    assert {worker.released_at for worker in measures._workers.values()} == {10.0}


def test_a_run_without_checkpoints_has_no_keys_of_them(engine, tmp_path):
    engine.every = 10**6
    record = raysync.run({**SETTINGS, "output": str(tmp_path), "checkpoint": None})
    assert not {"checkpoints", "resumptions", "away_s", "lost_s", "lost_pushes"} & set(
        record.summary
    )
    assert not (record.path / "checkpoints").exists()


def test_every_resumption_is_counted_and_of_a_damaged_checkpoint_the_one_before_is_taken(
    engine, tmp_path
):
    path = lost(engine, tmp_path)
    engine.lost_after = 47
    with pytest.raises(KeyboardInterrupt):
        raysync.resume(path)
    (path / "checkpoints" / "000004" / "server-1.safetensors").write_bytes(b"shard 2")
    said = []
    engine.lost_after = 36
    with pytest.raises(KeyboardInterrupt):
        raysync.resume(path, notify=said.append)
    assert tells(said[0], "4 skipped: server-1.safetensors")
    assert not (path / "checkpoints" / "000004").exists()
    record = raysync.resume(path)
    assert [(each.number, each.lost_pushes) for each in of(record, Resumed)] == [
        (3, 4),
        (3, 17),
        (3, 6),
    ]
    assert record.summary["lost_pushes"] == 27
    assert replayed(record.path).difference is None


def of_garbage(folder):
    (folder / "manifest.json").write_text("{")


def of_another_schema(folder):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | {"checkpoint": CHECKPOINT_SCHEMA + 98}
    path.write_text(json.dumps(manifest))


def with_a_path(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"state.json"', '"../../config.yaml"'))


def cut_short(folder):
    (folder / "state.json").write_bytes((folder / "state.json").read_bytes()[:-1])


def of_another_number(folder):
    shutil.copy(folder.parent / "000002" / "manifest.json", folder)


def without_a_shard(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["server-0.safetensors"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without_a_shard, "manifest.json"),
        (of_garbage, "manifest.json"),
        (of_another_schema, f"raysync: {CHECKPOINT_SCHEMA + 98}"),
        (with_a_path, "'../../config.yaml'"),
        (cut_short, "state.json bytes"),
        (of_another_number, "manifest.json 2"),
        (lambda folder: (folder / "state.json").unlink(), "state.json"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json"),
    ],
)
def test_a_damaged_checkpoint_is_left_out_with_a_word(engine, tmp_path, damage, says):
    path = lost(engine, tmp_path)
    damage(path / "checkpoints" / "000003")
    said = []
    assert newest_checkpoint(path, said.append).number == 2
    [text] = said
    assert re.search(naming(says), text)
    shutil.rmtree(path / "checkpoints" / "000002")
    with pytest.raises(ConfigError, match=naming("checkpoints")):
        newest_checkpoint(path)


def test_a_checkpoint_without_a_line_in_the_journal_is_none(engine, tmp_path):
    path = lost(engine, tmp_path)
    lines = (path / "journal.jsonl").read_text().splitlines(keepends=True)
    at = of(load(path), Checkpointed)[2].at
    for another in ("", encode(Checkpointed(at + 1, 3)) + "\n"):
        changed = [another if '"number":3' in line else line for line in lines]
        (path / "journal.jsonl").write_text("".join(changed))
        said = []
        assert newest_checkpoint(path, said.append).number == 2
        assert tells(said[0], "3 skipped:")


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(engine, tmp_path, monkeypatch):
    write = checkpoints._write

    def full(path, data):
        if "000003" in str(path) and path.name != "state.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    monkeypatch.setattr(checkpoints, "_write", full)
    said = []
    record = raysync.run({**SETTINGS, "output": str(tmp_path)}, notify=said.append)
    text = "Checkpoint 3 could not be written (No space left on device)"
    assert [line.text.startswith(text) for line in of(record, Remark)] == [True]
    assert any(text in each for each in said)
    assert record.summary["status"] == "finished"
    assert storage.listdir(record.path / "checkpoints") == ["000004", "000005"]


class Killed(BaseException):
    """The process is gone."""


def test_a_resumption_that_is_killed_at_any_moment_can_be_done_again(engine, tmp_path, monkeypatch):
    original = lost(engine, tmp_path / "runs")
    (original / "checkpoints" / "000003" / "state.json").write_bytes(b"{}")  # 2 is the newest
    (original / "model.safetensors").write_bytes(b"of an earlier end")
    (original / "checkpoints" / "000004.new").mkdir()  # it was killed while it wrote another
    checkpoint, config = newest_checkpoint(original), (original / "config.yaml").read_text()
    left = moments = 0

    def counted(function):
        def call(*arguments, **keywords):
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return function(*arguments, **keywords)

        return call

    def go_on(folder):
        measures, resumed = Measures(32 * 60), Resumption(checkpoint, {})
        began = datetime.now()
        return RecordWriter(folder, config, make("ssp"), measures, {}, began, resumption=resumed)

    for owner, names in ((Path, ("unlink", "replace", "open")), (os, ("fsync", "rmdir"))):
        for name in names:
            monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    whole = None
    while whole is None:
        moments += 1
        folder = tmp_path / str(moments)
        shutil.copytree(original, folder)
        left = moments
        with suppress(Killed):
            whole = go_on(folder)
        left = 0
        assert newest_checkpoint(folder).number == 2
        with go_on(folder) as writer:
            writer.write([Ended("stopped", 100.0)])
        summary = load(folder).summary
        assert (summary["checkpoints"], summary["status"]) == (2, "stopped")
        assert summary["resumptions"] in (1, 2)
        assert not (folder / "model.safetensors").exists()
        assert storage.listdir(folder / "checkpoints") == ["000002"]
        assert replayed(folder).difference is None
    assert moments > 15


def test_what_makes_a_checkpoint_one_is_uploaded_last(engine, tmp_path):
    path = lost(engine, tmp_path)
    (path / "checkpoints" / "000004.new").mkdir()
    (path / "checkpoints" / "000004.new" / "state.json").touch()
    names = [str(file.relative_to(path)) for file in Uploader(path, print)._states()]
    manifests = [f"checkpoints/00000{number}/manifest.json" for number in (2, 3)]
    assert names[-3:] == [*manifests, "summary.json"]
    assert names.index("journal.jsonl") < names.index("checkpoints/000002/state.json")
    assert not any(".new" in name for name in names)


@pytest.mark.parametrize("kind", ["file", "fsspec+memory"])
def test_checkpoints_behind_a_uri(engine, tmp_path, kind):
    output = f"file://{tmp_path}/o" if kind == "file" else f"fsspec+memory:///{uuid4().hex}"
    uri = lost(engine, output)
    storage.clean()
    assert numbers_in(storage.join(uri, "checkpoints")) == [2, 3]
    assert not (load(uri).path / "checkpoints").exists(), "readers do not need them"
    [of_several] = storage.local_copy(uri.rpartition("/")[0], without=["checkpoints"]).iterdir()
    assert (of_several / "journal.jsonl").is_file()
    assert not (of_several / "checkpoints").exists()
    storage.remove(storage.join(uri, "checkpoints", "000003", "state.json"))
    for lost_after, left in ((26, [2]), (36, [2, 3])):
        engine.lost_after = lost_after
        with pytest.raises(KeyboardInterrupt):
            raysync.resume(uri)
        storage.clean()
        assert engine.former.number == 2
        assert numbers_in(storage.join(uri, "checkpoints")) == left
    assert raysync.resume(uri).summary["status"] == "finished"
    storage.clean()
    assert engine.former.number == 3
    assert load(uri).summary["resumptions"] == 3
    assert numbers_in(storage.join(uri, "checkpoints")) == [4, 5]
    assert replayed(load(uri).path).difference is None


@pytest.mark.parametrize("kind", ["folder", "URI"])
def test_checkpoints_in_a_place_of_their_own(engine, tmp_path, kind):
    place = f"file://{tmp_path}/kept" if kind == "URI" else str(tmp_path / "kept")
    path = lost(engine, tmp_path / "runs", checkpoint={"every_s": 1, "output": place})
    storage.clean()
    assert storage.listdir(storage.join(place, path.name)) == ["000002", "000003"]
    assert not (path / "checkpoints").exists()
    raysync.resume(path)
    storage.clean()
    assert engine.former.number == 3
    assert storage.listdir(storage.join(place, path.name)) == ["000004", "000005"]


@pytest.mark.parametrize("place", ["output", "checkpoint.output"])
def test_a_checkpoint_that_is_not_uploaded_yet_can_be_gone_on_from(engine, tmp_path, place):
    class Resuming(raysync.Callback):
        def on_start(self, run):
            self.folder = run.folder

        def on_progress(self, measures):
            if measures.checkpoints == 4 and measures.ended is None:
                found.append(newest_checkpoint(self.folder).number)

    found = []
    settings = {"output": str(tmp_path / "runs"), "checkpoint.output": str(tmp_path / "kept")}
    settings[place] = f"file://{tmp_path}/behind"
    checkpoint = {"every_s": 1, "output": settings.pop("checkpoint.output")}
    if place == "output":
        checkpoint["output"] = None
    raysync.run({**SETTINGS, **settings, "checkpoint": checkpoint}, callbacks=[Resuming()])
    assert set(found) == {3, 4}, "it is read behind its line, and then behind its files"


def test_a_resumption_is_told_wherever_a_run_is_shown(engine, tmp_path):
    path = lost(engine, tmp_path)
    record = raysync.resume(path)
    [resumed] = of(record, Resumed)
    texts = [event.text for line in record.journal() for event in texts_of(line) if event.rare]
    assert f"resumed from checkpoint 3 after {seconds(resumed.away_s)}; 4 pushes were lost" in texts
    marks = [event["name"] for event in trace(record)["traceEvents"] if event["ph"] == "i"]
    assert [name for name in marks if "checkpoint" in name] == [
        "checkpoint 1",
        "checkpoint 2",
        "checkpoint 3",
        "resumed from checkpoint 3",
        "checkpoint 4",
        "checkpoint 5",
    ]
    [told] = run_events_of(record, 0.0).of("resumed")
    assert tells(told.text, "checkpoint 3 4")
    [sentence] = resumptions(collect([path]))
    assert tells(sentence, "4 pushes")
    assert sentence in markdown(collect([path]))
    write_html(collect([path]), tmp_path / "page.html")
    assert sentence in (tmp_path / "page.html").read_text()
    status = RunStatus(measures_of(header_of(path)))
    for line in record.journal():
        status.feed(line)
        if line == resumed:
            began = [state.since for state in status._states.values() if state.doing == "computing"]
            assert set(began) == {resumed.at}


def header_of(path):
    with (path / "journal.jsonl").open() as journal:
        return read(journal)[0]


def test_callbacks_receive_repeated_evaluations(tmp_path):
    class Told(raysync.Callback):
        def on_evaluation(self, evaluation, measures):
            marks.append(evaluation.mark)

    marks, measures = [], Measures(960)
    start = RunStart(tmp_path, "tiny", config.validate(SETTINGS), datetime.now())
    observers = Observers(start, [], [Told()], print)
    for evaluated in ((0.0, 0.5, 1.0), (0.0,), (0.0, 0.5)):  # it went back, and goes on
        measures.evaluations = [Evaluation(mark, mark, 1, 1.0, {"loss": 1}) for mark in evaluated]
        observers(measures)
    assert marks == [0.0, 0.5, 1.0, 0.5]


@pytest.mark.parametrize("name", ["ssp", "bsp", "lagtuner"])
def test_metrics_of_a_process_that_saw_only_the_rest(engine, tmp_path, name):
    """What it counts is what the journal tells behind the resumption."""
    path = lost(engine, tmp_path, paradigm=name)
    record = raysync.resume(path)
    lines = list(record.journal())
    cut = lines.index(of(record, Resumed)[0])
    measures = Measures(32 * 60)
    measures.begin_at(rosters_in(engine.former.state["machine"]), lines[cut].at)
    collector = Collector(RunLabels("experiment", "run", name), "", measures)
    totals = Counter()
    for line in lines[cut + 1 :]:
        for (metric, _), by in collector.collect([line]).counters.items():
            totals[metric] += by
    rest = [line for line in lines[cut:] if isinstance(line, Entry)]
    pushed = [line for line in rest if isinstance(line.event, Pushed)]
    assert totals["raysync_pushes"] == len(pushed)
    assert totals["raysync_busy_seconds"] == sum(line.event.busy_s for line in pushed)
    applied = [each for line in rest for each in line.decisions if isinstance(each, Apply)]
    assert totals["raysync_updates"] == len(applied)
    assert totals["raysync_samples_applied"] == 32 * sum(len(each.pushes) for each in applied)
    whole = Counter()
    collector = Collector(RunLabels("experiment", "run", name), "", Measures(32 * 60))
    for (metric, _), by in collector.collect(lines).counters.items():
        whole[metric] += by
    assert whole["raysync_pushes"] == len(record.pushes)
    assert whole["raysync_wait_seconds"] == pytest.approx(record.pushes.wait_s.sum())


def test_a_view_follows_a_journal_that_was_cut_off(engine, tmp_path):
    path = lost(engine, tmp_path)
    with JournalTail(path / "journal.jsonl") as tail:
        assert tail.read(10**6)
        assert not tail.is_replaced
        record = raysync.resume(path)
        assert tail.is_replaced
        tail.reopen()
        assert tail.read(10**6) == list(record.journal())
        assert not tail.is_replaced


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 30])
def test_files_are_hashed_in_chunks_by_a_thread_that_yields_the_cores(size, tmp_path, monkeypatch):
    """What is read has passed its checksums; the priority of the others is what it was."""
    monkeypatch.setattr(checkpoints, "CHUNK_BYTES", 8)
    write, seen = checkpoints._write, []

    def watched(path, data):
        seen.append(os.getpriority(os.PRIO_PROCESS, get_native_id()))
        return write(path, data)

    monkeypatch.setattr(checkpoints, "_write", watched)
    before = os.getpriority(os.PRIO_PROCESS, get_native_id())
    checkpoint = Checkpoint(1, 0.5, {"a": 1}, {"server": [bytes(range(size))]})
    CheckpointWriter(tmp_path).write(checkpoint)
    assert read_checkpoint(tmp_path / "000001") == checkpoint
    assert os.getpriority(os.PRIO_PROCESS, get_native_id()) == before
    assert set(seen) == ({LOWEST_PRIORITY} if sys.platform == "linux" else {before})


@pytest.mark.parametrize(
    ("name", "size"), [("a", 10**30), ("a", 2**62), ("a\0b", 1), ("\ud800", 1)]
)
def test_no_size_and_no_name_of_a_manifest_is_more_than_a_clause(tmp_path, name, size):
    folder = tmp_path / "000001"
    folder.mkdir()
    (folder / "a").write_bytes(b"x")
    files = {name: {"bytes": size, "sha256": ""}}
    manifest = {"checkpoint": checkpoints.CHECKPOINT_SCHEMA, "number": 1, "at": 0.0, "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError):
        checkpoints.read_checkpoint(folder)
