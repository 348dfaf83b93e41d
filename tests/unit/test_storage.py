"""Records behind URIs: what is there afterwards, also of a run that was stopped, and what happens
when it cannot be.
"""

import os
import shutil
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from uuid import uuid4

import pytest
from typer.testing import CliRunner

import raysync
from raysync.cli import app
from raysync.errors import ConfigError, RunFailed
from raysync.record import storage, uploader, writer
from tests.builders.messages import Telling, naming, tells
from tests.builders.virtual import QUICK

DATA = {"name": "digits", "train_samples": 80, "test_samples": 50}
TINY = QUICK | {"name": "tiny", "data": DATA, "workload": {"samples": 160}, "paradigm": "ssp"}
TABLES = {"evaluations.parquet", "pushes.parquet"}
WHOLE = {"config.yaml", "environment.json", "journal.jsonl", "model.safetensors", "summary.json"}
WHOLE |= TABLES


@pytest.fixture(params=["file", "fsspec+memory"])
def output(request, tmp_path):
    """A place without a network, in pyarrow's own file system and in one of fsspec's."""
    is_file = request.param == "file"
    return f"file://{tmp_path}/output" if is_file else f"fsspec+memory:///{uuid4().hex}"


@pytest.fixture(autouse=True)
def no_copy_is_left():
    yield
    copy = storage.new_copy("file:///x")
    storage.clean()
    assert not copy.parent.exists()


def the_record(output):
    [name] = storage.listdir(storage.join(output, "tiny"))
    return storage.join(output, "tiny", name)


@pytest.mark.parametrize("query", ["", "?scheme=http&endpoint_override=127.0.0.1:9000"])
@pytest.mark.parametrize("root", ["s3://bucket", "s3://bucket/a/", "file:///x"])
@pytest.mark.parametrize("names", [["a"], ["a_.=-0", "B"], ["0", "runs.x", "c=1"]])
def test_names_go_behind_the_path_and_before_the_query(root, query, names):
    place = storage.join(root + query, *names)
    assert place == f"{root.rstrip('/')}/{'/'.join(names)}{query}"
    copy = storage.new_copy(root + query)
    assert storage.display_name(copy.joinpath(*names)) == place
    assert storage.display_name(copy) == root.rstrip("/") + query
    assert storage.display_name(Path("runs/x")) == "runs/x"
    storage.drop_copy(copy)


def test_a_record_behind_a_uri_is_the_record_that_a_folder_has(output, tmp_path):
    there = raysync.run({**TINY, "output": output})
    here = raysync.run({**TINY, "output": str(tmp_path / "here")})
    uri = the_record(output)
    assert set(storage.listdir(uri)) == WHOLE
    storage.clean()  # what is read now is read from there
    again = raysync.load(uri)
    assert again.path != there.path
    assert again.config.output == output
    assert list(again.journal()) == list(here.journal())
    assert again.pushes.equals(here.pushes)
    assert again.evaluations.equals(here.evaluations)
    assert again.summary["status"] == "finished"


def test_commands_take_uris(output):
    raysync.run({**TINY, "output": output})
    uri = the_record(output)
    done = CliRunner().invoke(app, ["replay", uri])
    assert (done.exit_code, "identical" in done.stdout) == (0, True)
    done = CliRunner().invoke(app, ["report", storage.join(output, "tiny")])
    assert done.exit_code == 0, done.output
    assert f"Written: {storage.join(output, 'tiny', 'report.html')}" in done.stdout
    page = storage.local_copy(storage.join(output, "tiny")) / "report.html"
    assert str(storage.join(output, "tiny")) in page.read_text()


@pytest.mark.parametrize("why", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_the_record_of_a_run_that_ended_early_is_complete(output, why):
    def watch(measures):
        if measures.updates >= 10:
            raise why

    said = []
    with pytest.raises(why):
        raysync.run({**TINY, "output": output}, watch=watch, notify=said.append)
    uri = the_record(output)
    _, last = said  # the first is the learning rate
    assert tells(last, f"{'Failed' if why is ZeroDivisionError else 'Stopped'} {uri}")
    record = raysync.load(uri)
    assert record.complete
    assert record.summary["status"] == ("failed" if why is ZeroDivisionError else "stopped")
    assert 10 <= record.summary["updates"] < 40
    assert len(record.pushes) == record.summary["pushes"]


def test_while_a_run_goes_on_its_record_follows(output, monkeypatch):
    monkeypatch.setattr(uploader, "COPY_EVERY_S", 0.0)
    monkeypatch.setattr(uploader, "COPY_SHARE", float("inf"))
    monkeypatch.setattr(writer, "DELAY", timedelta(0))
    seen = []

    def watch(measures):
        if measures.updates >= 5 and measures.ended is None:
            record = raysync.load(the_record(output))
            assert not record.complete
            seen.append((measures.updates, record.summary["updates"]))
            storage.drop_copy(record.path)

    raysync.run({**TINY, "output": output}, watch=watch)
    assert len(seen) > 1
    assert all(here == there for here, there in seen)


def test_a_place_that_is_lost_stops_no_run_and_the_record_stays_here(output, monkeypatch):
    def lost(*files):
        raise ConfigError("s3://gone: cannot be reached (somebody pulled the plug).")

    monkeypatch.setattr(uploader, "upload", lost)
    said = []
    with pytest.raises(RunFailed, match=naming("somebody pulled")) as failure:
        raysync.run({**TINY, "output": output}, notify=said.append)
    assert [tells(text, "somebody pulled") for text in said] == [False, True]
    folder = Path(str(failure.value).splitlines()[0].rpartition(" stays in ")[2])
    storage.clean()
    assert raysync.load(folder).summary["status"] == "finished"
    shutil.rmtree(folder.parent)


def test_a_place_that_comes_back_gets_everything_and_the_summary_last(output, monkeypatch):
    sent, push = [], uploader.upload

    def shaky(*files):
        sent.append([file.name for file in files])
        if len(sent) == 1:
            raise ConfigError("s3://shaky: not now.")
        push(*files)

    monkeypatch.setattr(uploader, "upload", shaky)
    said = []
    record = raysync.run({**TINY, "output": output}, notify=said.append)
    assert said[1:] == [Telling("s3://shaky: now")]
    assert set(storage.listdir(the_record(output))) == WHOLE
    assert sent[-1][-1] == "summary.json"
    assert record.summary == raysync.load(the_record(output)).summary


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("s4://bucket/runs", "URI 's4'"),
        ("fsspec+nonsense://x", "nonsense"),
        ("file://relative/runs", "written"),
        ("", "URI"),
        ("s3:/bucket/runs", "URI s3://bucket/runs"),
        (Path("s3://bucket/runs"), "'s3:/bucket/runs'"),
        (5, "URI s3://bucket/runs 5"),
    ],
)
def test_an_output_that_cannot_be(place, why, tmp_path):
    with pytest.raises(ConfigError, match=naming(f"output: {why}")) as failure:
        raysync.run({**TINY, "output": place})
    assert len(str(failure.value).splitlines()) <= 2


def test_a_place_that_does_not_answer(monkeypatch):
    answer = Event()
    silent = SimpleNamespace(from_uri=lambda uri: answer.wait(60))
    monkeypatch.setattr(storage, "ANSWER_S", 0.01)
    monkeypatch.setattr(storage.fs, "FileSystem", silent)
    with pytest.raises(ConfigError, match=naming("s3://bucket/runs: 0 s")):
        storage.check("s3://bucket/runs")
    answer.set()


def test_where_nothing_is(output, tmp_path):
    for load in (raysync.load, raysync.load_sweep):
        with pytest.raises(ConfigError, match="none"):
            load(storage.join(output, "none"))
    done = CliRunner().invoke(app, ["replay", storage.join(output, "none")])
    assert isinstance(done.exception, ConfigError)


@pytest.mark.parametrize("without", [(), ("checkpoints",)])
def test_a_copy_has_the_times_of_all_files(without, tmp_path):
    for number, name in enumerate(("top", "a/inner", "a/b/deep", "checkpoints/left"), 1):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (number, number))
    copy = storage.local_copy(tmp_path.as_uri(), without=without)
    times = {str(f.relative_to(copy)): f.stat().st_mtime for f in copy.rglob("*") if f.is_file()}
    expected = {"top": 1.0, "a/inner": 2.0, "a/b/deep": 3.0}
    assert times == expected | ({} if without else {"checkpoints/left": 4.0})
    storage.clean()


@pytest.mark.parametrize("letter", ["a", "é", "漢"])
def test_long_names_of_folders_stay_unique_and_within_a_file_systems_bytes(tmp_path, letter):
    folders = [writer.folder_name(tmp_path, letter * 300 + end, "a" * 400 + end) for end in "12"]
    for folder in folders:
        folder.mkdir(parents=True)
    assert folders[0].parent != folders[1].parent
    assert folders[0].parent == Path(storage.experiment_folder(tmp_path, letter * 300 + "1"))
    assert folders[0].name[16:-5] != folders[1].name[16:-5]
