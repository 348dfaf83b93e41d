"""Checkpoints of records: what is read is what was written, and a run that was lost goes on with
nothing lost or told twice. An engine that trains nothing stands for the others.
"""

import errno
import json
import os
import shutil
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from threading import get_native_id
from uuid import uuid4

import pandas as pd
import pytest
from msgspec.structs import replace

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
    encode,
    header,
    read,
)
from raysync.core.replay import replay
from raysync.core.stages import rosters_in
from raysync.errors import ConfigError
from raysync.paradigms import make, rebuild
from raysync.record import checkpoints, storage, uploader
from raysync.record.checkpoints import (
    CHECKPOINT_SCHEMA,
    LOWEST_PRIORITY,
    CheckpointWriter,
    numbers_in,
    read_checkpoint,
)
from raysync.record.collector import Collector
from raysync.record.event_text import texts_of
from raysync.record.journal_file import JournalTail, Resumption, truncate
from raysync.record.measures import Measures
from raysync.record.metrics_registry import RunLabels
from raysync.record.reader import load, measures_of
from raysync.record.resumption import newest_checkpoint
from raysync.record.run_status import RunStatus
from raysync.record.writer import RecordWriter
from raysync.results.collection import collect
from raysync.results.figures.journal_events import run_events_of
from raysync.results.markdown import markdown
from raysync.results.sentences import resumptions
from raysync.results.trace import trace
from raysync.tracking.callback import RunStart
from raysync.tracking.observers import Observers
from tests.builders.journals import journal
from tests.builders.messages import naming, tells
from tests.fakes.engines import SETTINGS, lost

SAMPLES = SETTINGS["workload"]["samples"]


@pytest.fixture(autouse=True)
def no_copy_is_left():
    yield
    storage.clean()


@pytest.fixture
def path(engine, tmp_path):
    """The record of a run that was lost 4 pushes after its checkpoint 3."""
    return lost(engine, tmp_path / "runs")


def replayed(folder, lines=None):
    with (folder / "journal.jsonl").open(encoding="utf-8") as journal:
        return replay(islice(journal, lines), rebuild)


def of(record, kind):
    return [line for line in record.journal() if isinstance(line, kind)]


def pushes_in(lines):
    return [each.event for each in lines if isinstance(each, Entry) and type(each.event) is Pushed]


def resume_and_lose(engine, after, path, **options):
    engine.lost_after = after
    with pytest.raises(KeyboardInterrupt):
        raysync.resume(path, **options)


def test_what_is_read_is_what_was_written_and_the_latest_are_kept(tmp_path, monkeypatch):
    """Files are hashed in chunks: some are shorter, as long, and longer."""
    monkeypatch.setattr(checkpoints, "CHUNK_BYTES", 8)
    writer = CheckpointWriter(tmp_path / "all", keep=2)
    servers = {
        "server": [bytes(range(size)) for size in (0, 1, 7, 8, 9, 30)],
        "server of stage 1": [b"of another"],
    }
    workers = {"fast-0#1": b"moments", "slow-1#12": b""}
    (tmp_path / "all" / "000003.new").mkdir(parents=True)  # of one that was cut off
    for number in (1, 2, 3):
        state = {"number": number, "nan": None}
        written = Checkpoint(number, 1.5 * number, state, servers, workers)
        writer.write(written)
        assert read_checkpoint(tmp_path / "all" / f"00000{number}") == written
    assert storage.listdir(tmp_path / "all") == ["000002", "000003"]
    assert read_checkpoint(tmp_path / "all" / "000001") is None


def test_the_thread_that_writes_files_yields_the_cores(tmp_path, monkeypatch):
    def priority():
        return os.getpriority(os.PRIO_PROCESS, get_native_id())

    def watched(descriptor):
        seen[get_native_id()] = priority()

    before, seen = priority(), {}
    monkeypatch.setattr(os, "fsync", watched)
    CheckpointWriter(tmp_path).write(Checkpoint(1, 0.5, {}, {"server": [b"0"]}))
    assert seen.pop(get_native_id()) == priority() == before
    assert list(seen.values()) == [LOWEST_PRIORITY if sys.platform == "linux" else before]


@pytest.mark.parametrize("name", ["ssp", "bsp", "asp", "lagtuner"])
def test_a_lost_run_goes_on_and_nothing_is_lost_or_told_twice(engine, tmp_path, name):
    path = lost(engine, tmp_path / "runs", paradigm=name)
    lines = list(load(path).journal())
    cut = lines.index(of(load(path), Checkpointed)[2])
    said = []
    with JournalTail(path / "journal.jsonl") as tail:
        assert tail.read(10**6)
        assert not tail.is_replaced
        record = raysync.resume(path, notify=said.append)
        assert tail.is_replaced
        tail.reopen()
        assert tail.read(10**6) == list(record.journal())
        assert not tail.is_replaced
    after = list(record.journal())
    [resumed] = of(record, Resumed)
    assert after[: cut + 1] == lines[: cut + 1]
    assert after[cut + 1] == resumed
    assert (resumed.at, resumed.number, resumed.lost_pushes) == (lines[cut].at, 3, 4)
    assert resumed.lost_s == lines[-2].event.at - resumed.at
    assert resumed.away_s >= 0
    shards = {"server": [b"of shard 0", b"shard 1"]}
    assert engine.former == Checkpoint(3, resumed.at, engine.former.state, shards)
    result = replayed(record.path)
    assert result.difference is None
    assert result.ended
    roster = result.machine.roster
    assert roster.received == roster.applied + roster.dropped + len(roster.buffered)
    measures, some = Measures(SAMPLES), cut + 20
    measures.feed(after[:some])
    machine = replayed(record.path, some + 1).machine  # and the header
    assert measures.rosters[0].dump() == machine.roster.dump()
    pushes = pushes_in(after)
    assert len({(push.worker, push.clock) for push in pushes}) == len(pushes) == len(record.pushes)
    expected = {"status": "finished", "resumptions": 1, "lost_pushes": 4}
    expected["checkpoints"] = len(of(record, Checkpointed))
    assert record.summary.items() >= expected.items()
    assert any(tells(text, "checkpoint 3") for text in said)
    cut_s = resumed.at
    redone = record.pushes.query("released_at_s <= @cut_s < pushed_at_s")
    assert set(redone.released_at_s) == {cut_s}, "what was under way begins again"
    assert (redone.pushed_at_s - redone.released_at_s == redone.busy_s).all()
    shutil.copytree(record.path, tmp_path / "killed")
    (tmp_path / "killed" / "summary.json").unlink()  # all is read from the journal
    pd.testing.assert_frame_equal(load(tmp_path / "killed").pushes, record.pushes)


def test_a_record_that_is_being_written_can_go_back(tmp_path):
    lines = journal("asp", 9)
    cut = Checkpoint(1, lines[5].event.at, {}, {})
    end = lines[-1].event.at
    began = datetime.now()
    with RecordWriter(tmp_path, "seed: 1", make("asp"), Measures(960), {}, began) as writer:
        writer.write([*lines[:6], Checkpointed(cut.at, 1)])
        writer.write_checkpoint(cut)
        writer.write([*lines[6:], Checkpointed(end, 2)])
        writer.write_checkpoint(Checkpoint(2, end, {}, {}))
        writer.resume(cut)
        pushes = len(pushes_in(lines[:6]))
        assert writer.measures.summary()["lost_pushes"] == 9 - pushes
        assert writer.measures.checkpoints == 1
        writer.write([Ended("stopped", 20.0)])
    record = load(tmp_path)
    assert len(record.pushes) == record.summary["pushes"] == pushes
    assert of(record, Entry) == lines[:6]
    assert storage.listdir(tmp_path / "checkpoints") == ["000001"]


def test_what_was_lost_is_counted_up_to_a_damaged_line(tmp_path):
    *before, pushed = journal("asp", 3)
    cut, earlier = Checkpointed(2.0, 1), Resumed(3.0, 2, 5.0, 0.5, 3)
    after = [cut, Checkpointed(3.0, 2), earlier, pushed]
    left = Entry(Left(at=7.5, worker="slow-0#1"), ())
    damaged = '{"type":"Entry","event":{"type":"Pus'
    file = tmp_path / "journal.jsonl"
    file.write_text(
        "\n".join([header(make("asp"), 960), *map(encode, [*before, *after, left]), damaged])
    )
    os.utime(file, (100, 100))
    resumed = truncate(file, Checkpoint(1, 2.0, {}, {}), exact=False)
    assert (resumed.at, resumed.lost_s, resumed.lost_pushes) == (2.0, 5.5, 1)
    assert resumed.away_s == pytest.approx(time.time() - 100, abs=60)
    with pytest.raises(ConfigError, match=naming("checkpoint 3")):
        truncate(file, Checkpoint(3, 2.0, {}, {}), exact=False)
    lines = read(file.read_text().splitlines(keepends=True))[1]
    assert list(lines) == [*before, cut, replace(earlier, at=2.0, number=1), resumed]


@pytest.mark.parametrize("exact", [False, True])
def test_only_iterations_that_go_on_exactly_keep_their_release(exact):
    measures, lines = Measures(960), journal("asp", 5)
    cut = lines[-2].event.at
    rows = measures.feed([*lines[:-1], Resumed(cut, 1, exact=exact), lines[-1]])
    [row] = [row for row in [*rows, *measures.close()] if row.pushed_at_s > cut]
    assert row.released_at_s == (lines[-1].event.at - lines[-1].event.busy_s if exact else cut)


def test_a_run_without_checkpoints_has_no_keys_of_them(engine, tmp_path):
    engine.every = 10**6
    record = raysync.run({**SETTINGS, "output": str(tmp_path), "checkpoint": None})
    assert not {"checkpoints", "resumptions", "away_s", "lost_s", "lost_pushes"} & set(
        record.summary
    )
    assert not (record.path / "checkpoints").exists()


def test_every_resumption_is_counted_and_of_a_damaged_checkpoint_the_one_before_is_taken(
    engine, path
):
    resume_and_lose(engine, 47, path)
    (path / "checkpoints" / "000004" / "server-1.safetensors").write_bytes(b"shard 2")
    said = []
    resume_and_lose(engine, 36, path, notify=said.append)
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


def manifest_with(change):
    def damage(folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        change(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return damage


def state_under(name):
    return manifest_with(
        lambda manifest: manifest["files"].update({name: manifest["files"].pop("state.json")})
    )


def state_of(size):
    return manifest_with(lambda manifest: manifest["files"]["state.json"].update(bytes=size))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (manifest_with(lambda it: it["files"].pop("server-0.safetensors")), "manifest.json"),
        (manifest_with(lambda it: it.update(checkpoint=101)), f"101 {CHECKPOINT_SCHEMA}"),
        (manifest_with(lambda it: it.update(number=2)), "manifest.json 2"),
        (state_under("../../config.yaml"), "'../../config.yaml'"),
        (state_under("a\0b"), ""),
        (state_under("\ud800"), ""),
        (state_of(10**30), "manifest.json"),
        (state_of(2**62), "state.json bytes"),
        (lambda folder: (folder / "state.json").write_bytes(b"{"), "state.json bytes"),
        (lambda folder: (folder / "state.json").unlink(), "state.json"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json"),
    ],
)
def test_a_damaged_checkpoint_is_left_out_with_a_word(path, damage, says):
    damage(path / "checkpoints" / "000003")
    said = []
    assert newest_checkpoint(path, said.append).number == 2
    [text] = said
    assert tells(text, says)
    shutil.rmtree(path / "checkpoints" / "000002")
    with pytest.raises(ConfigError, match=naming("checkpoints")):
        newest_checkpoint(path)


def test_a_checkpoint_without_a_line_in_the_journal_is_none(path):
    lines = (path / "journal.jsonl").read_text().splitlines(keepends=True)
    at = of(load(path), Checkpointed)[2].at
    for another in ("", encode(Checkpointed(at + 1, 3)) + "\n"):
        changed = [another if '"number":3' in line else line for line in lines]
        (path / "journal.jsonl").write_text("".join(changed))
        said = []
        assert newest_checkpoint(path, said.append).number == 2
        assert tells(said[0], "3 skipped:")


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(engine, tmp_path, monkeypatch):
    def full(path, mode="r", *arguments, **keywords):
        if mode == "wb" and "000003" in str(path) and path.name != "state.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return before(path, mode, *arguments, **keywords)

    before, said = Path.open, []
    monkeypatch.setattr(Path, "open", full)
    record = raysync.run({**SETTINGS, "output": str(tmp_path)}, notify=said.append)
    [remark] = of(record, Remark)
    assert tells(remark.text, "3 (No space left on device)")
    assert any(tells(text, "3 (No space left on device)") for text in said)
    assert record.summary["status"] == "finished"
    assert storage.listdir(record.path / "checkpoints") == ["000004", "000005"]


class Killed(BaseException):
    """The process is gone."""


def test_a_resumption_that_is_killed_at_any_moment_can_be_done_again(path, tmp_path, monkeypatch):
    (path / "checkpoints" / "000003" / "state.json").write_bytes(b"{}")  # 2 is the newest
    (path / "model.safetensors").write_bytes(b"of an earlier end")
    (path / "checkpoints" / "000004.new").mkdir()  # it was killed while it wrote another
    checkpoint, config = newest_checkpoint(path), (path / "config.yaml").read_text()
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
        measures, resumed = Measures(SAMPLES), Resumption(checkpoint, {})
        began = datetime.now()
        return RecordWriter(folder, config, make("ssp"), measures, {}, began, resumption=resumed)

    for owner, names in ((Path, ("unlink", "replace", "open")), (os, ("fsync", "rmdir"))):
        for name in names:
            monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    whole = None
    while whole is None:
        moments += 1
        folder = tmp_path / str(moments)
        shutil.copytree(path, folder)
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


def test_what_makes_a_checkpoint_one_is_uploaded_last(engine, tmp_path, monkeypatch):
    folder = storage.folder_of(lost(engine, f"file://{tmp_path}/o"))
    (folder / "checkpoints" / "000004.new").mkdir()
    (folder / "checkpoints" / "000004.new" / "state.json").touch()
    uploaded = []
    monkeypatch.setattr(uploader, "upload", lambda *files: uploaded.extend(files))
    with uploader.Uploader(folder, print):
        pass
    names = [file.relative_to(folder).as_posix() for file in uploaded]
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
        resume_and_lose(engine, lost_after, uri)
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


def test_a_resumption_is_told_wherever_a_run_is_shown(path):
    record = raysync.resume(path)
    [resumed] = of(record, Resumed)
    texts = [event.text for line in record.journal() for event in texts_of(line) if event.rare]
    assert any(tells(text, "resumed checkpoint 3 4 pushes") for text in texts)
    marks = [event["name"] for event in trace(record)["traceEvents"] if event["ph"] == "i"]
    assert any(tells(mark, "resumed checkpoint 3") for mark in marks)
    [told] = run_events_of(record, 0.0).of("resumed")
    assert tells(told.text, "checkpoint 3 4")
    [sentence] = resumptions(collect([path]))
    assert tells(sentence, "4 pushes")
    assert sentence in markdown(collect([path]))
    with (path / "journal.jsonl").open() as lines:
        status = RunStatus(measures_of(read(lines)[0]))
    for line in record.journal():
        status.feed(line)
        if line == resumed:
            computing = [row.state for row in status.rows() if row.state.startswith("computing")]
            assert all(tells(state, " 0 ms") for state in computing)
            assert computing, "they begin at the resumption"


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


def totals_of(lines, measures, name):
    collector, totals = Collector(RunLabels("experiment", "run", name), "", measures), Counter()
    for line in lines:
        for (metric, _), by in collector.collect([line]).counters.items():
            totals[metric.removeprefix("raysync_")] += by
    return totals


@pytest.mark.parametrize("name", ["ssp", "bsp", "lagtuner"])
def test_metrics_of_a_process_that_saw_only_the_rest(engine, tmp_path, name):
    """What it counts is what the journal tells behind the resumption."""
    record = raysync.resume(lost(engine, tmp_path, paradigm=name))
    lines = list(record.journal())
    cut = lines.index(of(record, Resumed)[0])
    measures = Measures(SAMPLES)
    measures.begin_at(rosters_in(engine.former.state["machine"]), lines[cut].at)
    rest = lines[cut + 1 :]
    pushed = pushes_in(rest)
    entries = [line for line in rest if isinstance(line, Entry)]
    applied = [each for line in entries for each in line.decisions if isinstance(each, Apply)]
    expected = {
        "pushes": len(pushed),
        "busy_seconds": sum(push.busy_s for push in pushed),
        "updates": len(applied),
        "samples_applied": 32 * sum(len(each.pushes) for each in applied),
    }
    assert totals_of(rest, measures, name).items() >= expected.items()
    whole = totals_of(lines, Measures(SAMPLES), name)
    assert whole["pushes"] == len(record.pushes)
    assert whole["wait_seconds"] == pytest.approx(record.pushes.wait_s.sum())
