"""Trackers: each with its own library, offline, read back by what the library itself has for it."""

import json
import os
import shutil
import struct
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from threading import Event

import psutil
import pytest
import yaml

import raysync
from raysync import config
from raysync.cli.watch import newest
from raysync.config.experiment import TRACKERS
from raysync.core.journal import Ended, Evaluation, Remark, decode
from raysync.errors import ConfigError, RunFailed, RunLost
from raysync.running.engines import engine_for
from raysync.running.run import run_in
from raysync.tracking.library import PROGRAM, LibraryProcess, LoggedRows
from raysync.tracking.observers import is_installed
from raysync.tracking.tracker import Beginning, Ending, Row, Tracker
from raysync.training.preparation import prepare
from tests.builders.messages import naming, tells
from tests.builders.reports import BASE
from tests.fakes.engines import SETTINGS as LOSABLE, ScriptedEngine

SETTINGS = BASE | {
    "paradigm": {"name": "ssp", "staleness": 3},
    "evaluation": {"marks": 7},
    "workload": {"samples": 800},
}
OFFLINE = {"wandb": {"name": "wandb", "mode": "offline"}, "mlflow": {"name": "mlflow"}}
LIBRARIES = [pytest.param(name, marks=pytest.mark.slow) for name in OFFLINE]
STAND_INS = Path(__file__).parents[1] / "fakes" / "libraries"


@pytest.fixture
def settings(tmp_path, monkeypatch, one_thread):
    """Settings of a run, whose home and working directory are empty, and stay so."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield SETTINGS | {"output": str(tmp_path / "runs")}
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before, "a process is left over"
    assert not [*(tmp_path / "home").iterdir(), *(tmp_path / "here").iterdir()]


@pytest.fixture
def stand_in(monkeypatch):
    """In place of wandb, here and in the processes that are started."""
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(STAND_INS))
    monkeypatch.setitem(sys.modules, "wandb", None)  # what is there comes back afterwards
    del sys.modules["wandb"]


def tracked(settings, track, *callbacks):
    """A finished run, and what was said of its tracker: the first notice is the learning rate."""
    notes = []
    record = raysync.run(settings | {"track": track}, notify=notes.append, callbacks=callbacks)
    assert record.summary["status"] == "finished"
    return record, notes[1:]


def wandb(**arguments):
    return {"name": "wandb", **arguments}


@pytest.fixture(params=[*LIBRARIES, "stand-in"])
def library(request):
    """The name of a library that is there."""
    if request.param == "stand-in":
        request.getfixturevalue("stand_in")
        return "wandb"
    pytest.importorskip(request.param)
    return request.param


# ---- what is in a library's own files: its rows by metric, its settings, its status ----


def wandb_records(folder):
    """The messages in `.wandb` files: LevelDB's log format, behind a header of seven bytes."""
    for file in sorted(folder.glob("**/*.wandb")):
        yield from wandb_records_in(file.read_bytes())


def wandb_records_in(data):
    from wandb.proto.wandb_internal_pb2 import Record

    at, part = 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768  # no header fits into the rest of a block
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part, at = part + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(part)
            part = b""


def read_wandb(folder):
    rows, settings, status, about, ids = {}, {}, "", {}, set()
    for record in wandb_records(folder):
        match record.WhichOneof("record_type"):
            case "run":
                run = record.run
                settings |= {one.key: json.loads(one.value_json) for one in run.config.update}
                about = {"name": run.display_name, "group": run.run_group, "tags": list(run.tags)}
                ids.add(run.run_id)
            case "history":
                values = {
                    one.key or ".".join(one.nested_key): json.loads(one.value_json)
                    for one in record.history.item
                }
                for name, value in values.items():
                    if not name.startswith("_"):
                        rows.setdefault(name, []).append(
                            (values["samples"], values["seconds"], value)
                        )
            case "summary":
                for one in record.summary.update:
                    about[one.key or ".".join(one.nested_key)] = json.loads(one.value_json)
            case "exit":
                status = "FAILED" if record.exit.exit_code else "FINISHED"
            case "artifact":
                about["files"] = {entry.path for entry in record.artifact.manifest.contents}
    assert len(ids) == 1, "one run of theirs"
    return rows, settings, status, about


def read_mlflow(folder):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    [experiment] = [each for each in client.search_experiments() if each.name != "Default"]
    [run] = client.search_runs([experiment.experiment_id])
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    rows = {
        name: sorted(
            (one.step, (one.timestamp - run.info.start_time) / 1000, one.value) for one in each
        )
        for name, each in history.items()
    }
    tags, artifacts = run.data.tags, client.list_artifacts(run.info.run_id, "record")
    about = {
        "name": run.info.run_name,
        "group": experiment.name,
        "tags": [tags["paradigm"], tags["engine"]],
        "status": tags["status"],
        "files": {Path(each.path).name for each in artifacts},
        **{name.removeprefix("summary/"): value for name, value in run.data.metrics.items()},
    }
    settings = {key: yaml.safe_load(value) for key, value in run.data.params.items()}
    return rows, settings, run.info.status, about


def lines_of(file):
    """What the stand-in was told: kind -> all of that kind, in their order."""
    told = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        for kind, what in json.loads(line).items():
            told.setdefault(kind, []).append(what)
    return told


def read_stand_in(folder):
    [file] = folder.glob("*.jsonl")
    told, rows = lines_of(file), {}
    for values in told["log"]:
        for name, value in values.items():
            rows.setdefault(name, []).append((values["samples"], values["seconds"], value))
    assert len({begin["id"] for begin in told["begin"]}) == 1, "one run of theirs"
    begin, end = told["begin"][-1], told["end"][-1]
    about = {"name": file.stem, "group": begin["group"], "tags": begin["tags"], **end["summary"]}
    about["files"] = {Path(path).name for files in told.get("artifact", ()) for path in files}
    return rows, begin["config"], "FAILED" if end["exit_code"] else "FINISHED", about


def read(library, folder):
    if library == "mlflow":
        return read_mlflow(folder)
    return (read_stand_in if [*folder.glob("*.jsonl")] else read_wandb)(folder)


@pytest.mark.filterwarnings("ignore")  # those of the libraries, when they read
def test_one_run_of_ours_is_one_run_of_theirs(library, settings):
    record, said = tracked(settings, [OFFLINE[library]])
    assert said == []
    rows, theirs, status, about = read(library, record.path / library)
    evaluations, summary = record.evaluations, record.summary
    samples = [round(each * 800) for each in evaluations.progress]
    for metric in ("accuracy", "loss"):
        steps, seconds, values = zip(*rows[f"evaluation/{metric}"], strict=True)
        assert (list(steps), list(values)) == (samples, list(evaluations[metric]))
        assert seconds == pytest.approx(tuple(evaluations["at"]), abs=2e-3)
    named = {"run/samples_per_s": "throughput_samples_per_s", "run/wait_share": "wait_fraction"}
    named |= {
        name: name.replace("/", "_") for name in ("staleness/mean", "staleness/max", "lead/max")
    }
    for name, key in named.items():
        step, _, value = rows[name][-1]
        assert (step, value) == (summary["samples"], summary[key])
    assert set(zip(samples, evaluations["at"], strict=True)) <= {
        (step, value) for step, _, value in rows["seconds"]
    }
    expected = {
        "paradigm_label": "ssp(staleness=3)",
        "paradigm.staleness": 3,
        "workers.0.jitter.sigma": 0.1,
        "data.name": "digits",
        "seed": 0,
    }
    assert theirs.items() >= expected.items()
    assert not [name for name in theirs if name.startswith(("paradigms", "track"))]
    assert (about["name"], about["group"]) == (record.path.name, "tiny")
    assert about["tags"] == ["ssp(staleness=3)", "virtual"]
    assert (status, about["status"]) == ("FINISHED", "finished")
    assert about["final_accuracy"] == summary["final_accuracy"]
    files = {"config.yaml", "journal.jsonl", "summary.json", "evaluations.parquet"}
    assert about.get("files", files) >= files
    assert not any("model" in name for name in about.get("files", ()))
    for copy in record.path.rglob("*/config.yaml"):
        os.utime(copy)
    assert newest(Path(settings["output"])).path == record.path, "not a copy within it"


@pytest.mark.filterwarnings("ignore")  # those of the libraries, when they read
def test_a_run_that_diverges_has_failed_there(library, settings):
    much = settings | {"update": {"lr": 1e30}, "track": OFFLINE[library] | {"log_record": True}}
    record = raysync.run(much)
    assert record.summary["status"] == "diverged"
    _, _, status, about = read(library, record.path / library)
    assert (status, about["status"]) == ("FAILED", "diverged")


class Lost(raysync.Callback):
    """A mistake of the user's, behind a checkpoint and an evaluation."""

    def on_evaluation(self, evaluation, measures):
        if evaluation.mark > 0.8:
            raise LookupError("lost")


@pytest.mark.filterwarnings("ignore")  # those of the libraries, when they read
def test_a_resumed_run_goes_on_in_its_run_of_theirs(library, settings):
    """In another process; what was logged already, and is computed again, is there once."""
    settings |= {"track": OFFLINE[library], "checkpoint": {"every_progress": 0.35}}
    with pytest.raises(RunFailed, match="lost"):
        raysync.run(settings, callbacks=[Lost()])
    [folder] = Path(settings["output"]).glob("tiny/*")
    before, _, status, _ = read(library, folder / library)
    assert status == "FAILED"
    record = raysync.resume(folder)
    rows, _, status, about = read(library, folder / library)
    assert (status, about["status"]) == ("FINISHED", "finished")
    assert record.summary["lost_pushes"] > 0
    evaluations = [round(each * 800) for each in record.evaluations.progress]
    assert [step for step, _, _ in rows["evaluation/loss"]] == evaluations
    assert len(before["evaluation/loss"]) < len(evaluations)
    steps = [step for step, _, _ in rows["run/samples_per_s"]]
    assert steps == sorted(set(steps))
    assert set(before["run/samples_per_s"]) < set(rows["run/samples_per_s"])


def test_what_the_user_and_the_environment_say_holds(stand_in, settings, tmp_path, monkeypatch):
    """The id of the library's run, and where its cache is if no folder is asked for."""
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "elsewhere"))
    record, _ = tracked(settings, wandb(id="mine", resume="never"))
    [file] = (record.path / "wandb").glob("*.jsonl")
    told = lines_of(file)
    assert {begin["id"] for begin in told["begin"]} == {"mine"}
    assert told["cache"] == [str(tmp_path / "elsewhere")]


def test_rows_of_another_run_of_theirs_do_not_count(tmp_path):
    file, evaluation = tmp_path / "library.json", {"evaluation/loss": 1.0}
    first = LoggedRows(file)
    first.begin("a run")
    for samples, metrics in ((8, {"lead/max": 1}), (16, {"lead/max": 1}), (8, evaluation)):
        assert not first.has(samples, metrics)
        first.add(samples, metrics)
    for run, has in (("a run", True), ("another", False)):
        following = LoggedRows(file)
        following.begin(run)
        assert following.has(16, {"lead/max": 1}) == following.has(8, evaluation) == has
        assert not following.has(16, evaluation)
        assert not following.has(24, {"lead/max": 1})


def test_trials_are_grouped_under_the_name_of_their_sweep(
    stand_in, settings, tmp_path, monkeypatch
):
    """As `raysync sweep` runs them, into one folder, whatever the environment says; the model is in
    the artifact if wanted.
    """
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "elsewhere"))
    tracker = wandb(dir=str(tmp_path / "t"), project="p", log_model=True)
    for name in ("0001", "0002"):
        experiment = config.validate(settings | {"name": name, "track": [tracker]})
        with engine_for(experiment) as engine:
            run_in(engine, prepare(experiment), experiment.paradigm, sweep="lr")
    told = [lines_of(file) for file in sorted((tmp_path / "t" / "wandb").iterdir())]
    begun = [begin for each in told for begin in each["begin"]]
    about = [(each["project"], each["group"], each["tags"][-1]) for each in begun]
    assert sorted(about) == [("p", "lr", "0001"), ("p", "lr", "0002")]
    assert not [*(tmp_path / "runs").rglob("wandb")]
    assert {each["cache"][0] for each in told} == {str(tmp_path / "t" / "wandb" / "cache")}
    models = {str(file) for file in (tmp_path / "runs").rglob("model.safetensors")}
    assert len(models) == 2
    assert {path for each in told for path in each["artifact"][0]} >= models


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs_that_begin_together_share_a_new_database(settings, tmp_path):
    """Each would make its tables, and the experiment."""
    pytest.importorskip("mlflow")
    uri, notes = f"sqlite:///{tmp_path}/new/mlflow.db", []
    sinks = [LibraryProcess(TRACKERS["mlflow"], {"tracking_uri": uri}, notes.append) for _ in "abc"]
    for index, sink in enumerate(sinks):
        folder = str(tmp_path / str(index))
        sink.begin(Beginning(folder, f"run-{index}", "together", ("bsp", "virtual"), {}, 0.0))
    for sink in sinks:
        sink.end(Ending("finished", 1, {}, [], []))
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("together")
    names = {run.info.run_name for run in client.search_runs([experiment.experiment_id])}
    assert names == {"run-0", "run-1", "run-2"}


# ---- what is lost, and made again ----


class Rows:
    """A sink that keeps its rows in memory, and forgets some if it can."""

    def __init__(self, forgets):
        self.forgets, self.rows, self.returns = forgets, [], 0

    def begin(self, *_):
        pass

    flush = end = close = begin

    def rewind(self, samples):
        self.returns += 1
        if self.forgets:
            self.rows = [
                row
                for row in self.rows
                if row.samples < samples and "evaluation/loss" not in row.metrics
            ]
        return self.forgets

    def log(self, row):
        self.rows.append(row)


class Evaluating(ScriptedEngine):
    """Evaluates after every third push; the 36th is lost before its evaluation is there."""

    def run(self, training, paradigm, labels=None, checkpoint=None, history=tuple):
        pushes = 0 if checkpoint is None else checkpoint.state["pushes"]
        for report in super().run(training, paradigm, labels, checkpoint, history):
            yield report
            if isinstance(report, list) and report and "Pushed" in str(report[0]):
                pushes += 1
                if pushes % 3 == 0 and (checkpoint is not None or pushes != 36):
                    at = pushes / 60
                    yield [Evaluation(at, at, 1, report[0].event.at, {"loss": 1.0})]


@pytest.mark.parametrize("forgets", [True, False])
@pytest.mark.parametrize("loss", [RunLost("a server is gone"), KeyboardInterrupt()])
def test_nothing_is_logged_twice_when_a_run_goes_back(forgets, loss, tmp_path, monkeypatch):
    """Neither where the same command goes on, nor where another one does: to a library, that is
    another run.
    """
    engine, sinks = Evaluating(lost_after=38, loss=loss), []

    def trackers_of(*_):
        sinks.append(Rows(forgets) if not (forgets and sinks) else sinks[0])
        return [Tracker("rows", sinks[-1])]

    monkeypatch.setattr("raysync.running.recorded_run.trackers_of", trackers_of)
    for module in ("run", "resuming"):
        monkeypatch.setattr(f"raysync.running.{module}.engine_for", lambda *_: nullcontext(engine))
    settings = LOSABLE | {"output": str(tmp_path), "cluster": {"restarts": {"backoff_s": 0}}}
    if isinstance(loss, RunLost):
        record = raysync.run(settings)
    else:
        with pytest.raises(KeyboardInterrupt):
            raysync.run(settings)
        [folder] = (tmp_path / "tiny").iterdir()
        record = raysync.resume(folder)
    assert sinks[-1].returns == record.summary["resumptions"] == 1
    for kind in ("evaluation/loss", "run/samples_per_s"):
        steps = [row.samples for row in sinks[-1].rows if kind in row.metrics]
        assert steps == sorted(steps)
        if kind == "evaluation/loss":
            assert steps == [round(each * 1920) for each in record.evaluations.progress]
        elif forgets:
            assert len(set(steps)) == 61


# ---- what goes wrong ----


def children_since(before):
    """Return the processes that have come since; of earlier tests the tracker of resources, with
    which Python's multiprocessing never parts, may be there.
    """
    return [child for child in psutil.Process().children() if child not in before]


def remarks(record):
    return [line.text for line in record.journal() if isinstance(line, Remark)]


def test_a_tracker_that_fails_is_turned_off(stand_in, settings):
    """Its reason is told once, and the run is what it would have been."""
    alone = raysync.run(settings)
    before = psutil.Process().children()

    class Waits(raysync.Callback):
        def on_evaluation(self, evaluation, measures):
            if evaluation.mark == 0:  # until the reason has arrived
                psutil.wait_procs(children_since(before), timeout=60)

    record, [said] = tracked(settings, [wandb(mode="nowhere")], Waits())
    assert tells(said, "wandb ValueError:"), "its first line"
    assert len(remarks(record)) <= 1, "or it is only known when the journal is closed"
    assert record.evaluations.equals(alone.evaluations)


def test_those_behind_a_tracker_that_fails_are_still_told(settings, monkeypatch):
    started = []

    def fails(self, run):
        raise OSError("no\nfile")

    class Started(raysync.Callback):
        def on_start(self, run):
            started.append(run.name)

    monkeypatch.setattr("raysync.tracking.tensorboard.EventFile.begin", fails)
    record, [said] = tracked(settings, "tensorboard", Started())
    [remark] = remarks(record)
    assert tells(remark, "tensorboard (no file)")
    assert said.endswith(remark)
    assert started == [record.path.name]


def test_nothing_is_written_behind_the_end_of_a_journal(settings, monkeypatch):
    few = {"evaluation": {"marks": 1}, "workload": {"samples": 64}}
    monkeypatch.setattr("raysync.tracking.tensorboard.EventFile.flush", lambda self: 1 / 0)
    record, said = tracked(settings | few, "tensorboard")
    *_, last = (record.path / "journal.jsonl").read_text().splitlines()
    assert isinstance(decode(last), Ended)
    assert any("division by zero" in note for note in said)


def test_a_library_that_hangs_delays_no_run_and_is_ended(stand_in, settings, monkeypatch):
    """Its pipe is full long before the end."""
    monkeypatch.setattr(
        "raysync.tracking.library.PROGRAM", "import signal; signal.pause()  # {path}"
    )
    monkeypatch.setattr("raysync.tracking.library.IMPORT_LIMIT_S", 0.1)
    log, much = LibraryProcess.log, Row(0, 0.0, {"x" * 99_999: 0.0})
    monkeypatch.setattr(LibraryProcess, "log", lambda self, row: log(self, much))
    _, [said] = tracked(settings, "wandb")
    assert tells(said, "wandb 0.1 s")


@pytest.mark.parametrize(
    ("mode", "name", "value", "facts"),
    [
        ("away", "BEGIN_LIMIT_S", 0.1, "wandb 0.1 s"),
        ("endless", "END_LIMIT_S", 0.1, "wandb 0.1 s"),
        ("offline", "PROGRAM", "import os; os._exit(7)  # {path}", "wandb process 7"),
    ],
)
def test_a_library_that_waits_for_its_server_or_dies_holds_nothing_up(
    stand_in, settings, monkeypatch, mode, name, value, facts
):
    """What has not begun is waited for less than what sends the rest."""
    monkeypatch.setattr(f"raysync.tracking.library.{name}", value)
    _, [said] = tracked(settings, wandb(mode=mode))
    assert tells(said, facts)


def test_a_library_that_begins_late_is_complete(stand_in, settings, monkeypatch):
    """If the run is longer than that."""
    monkeypatch.setattr("raysync.tracking.library.IMPORT_LIMIT_S", 0.0)

    class Begins(raysync.Callback):
        def on_start(self, run):
            self.folder = run.folder

        def on_evaluation(self, evaluation, measures):
            while not (self.folder / "wandb.json").exists():
                Event().wait(0.01)

    record, said = tracked(settings, "wandb", Begins())
    assert said == []
    _, _, status, _ = read_stand_in(record.path / "wandb")
    assert status == "FINISHED"


def test_a_run_that_is_interrupted_says_so(stand_in, settings):
    before = psutil.Process().children()

    class Interrupts(raysync.Callback):
        def on_evaluation(self, evaluation, measures):
            if evaluation.mark >= 0.4:
                [child] = children_since(before)
                assert os.getpgid(child.pid) == child.pid, "Ctrl-C would end it, too"
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        raysync.run(settings | {"track": "wandb"}, callbacks=[Interrupts()])
    [folder] = Path(settings["output"]).glob("tiny/*")
    _, _, _, about = read_stand_in(folder / "wandb")
    assert about["status"] == "stopped"


def test_a_library_whose_run_was_killed_is_told_that_it_failed(stand_in, tmp_path):
    """Its messages end without an end."""
    run = Beginning(str(tmp_path), "run", "group", ("bsp", "virtual"), {}, 0.0)
    messages = [
        {"begin": asdict(run), "arguments": {}},
        {"log": asdict(Row(8, 1.0, {"lead/max": 1.0}))},
    ]
    program = PROGRAM.format(path=str(Path(raysync.__file__).parents[1]))
    subprocess.run(
        [sys.executable, "-c", program, TRACKERS["wandb"]],
        input="".join(json.dumps(message) + "\n" for message in messages),
        text=True,
        check=True,
        timeout=60,
    )
    rows, _, status, about = read_stand_in(tmp_path / "wandb")
    assert rows["lead/max"] == [(8, 1.0, 1.0)]
    assert (status, about["status"]) == ("FAILED", "killed")


@pytest.mark.parametrize(
    ("track", "said"),
    [
        ("wandv", "track[0]: 'wandv' 'wandb'"),
        (["tensorboard", "tensorboard"], "tensorboard"),
        ({"name": "tensorboard", "dir": "x"}, "track[0] tensorboard:"),
        ({"name": "mlflow", "tracking_url": "x"}, "'tracking_uri'"),
        ({"name": "wandb", "projekt": "x"}, "'project'"),
        ({"name": "wandb", "config": {}}, "'config'"),
        ({"name": "wandb", "log_model": "yes"}, "log_model"),
    ],
)
def test_a_tracker_that_cannot_work_is_refused_before_the_run(
    stand_in, track, said, tmp_path, monkeypatch
):
    monkeypatch.setattr("raysync.tracking.observers.is_installed", lambda package: True)
    with pytest.raises(ConfigError, match=naming(said)):
        raysync.run(SETTINGS | {"track": track, "output": str(tmp_path / "runs")})
    assert not (tmp_path / "runs").exists()


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    """A folder of that name, as wandb leaves one, is no package."""
    (tmp_path / "comet").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_installed("comet")
    assert not is_installed("no_such_package")
    monkeypatch.setattr("raysync.tracking.observers.is_installed", lambda package: False)
    with pytest.raises(ConfigError, match=naming("installed: 'raysync[mlflow]'")):
        raysync.run(SETTINGS | {"track": "mlflow", "output": str(tmp_path / "runs")})
    assert not (tmp_path / "runs").exists()


def test_secrets_in_arguments_are_in_no_record():
    track = {"name": "mlflow", "tracking_uri": "https://me:secret@host/path"}
    text = config.validate({"track": track}).to_yaml()
    assert "secret" not in text
    assert "https://***@host/path" in text


def test_a_missing_record_still_closes_the_trackers(stand_in, settings, tmp_path):
    """Someone removes the folder of the record while the run goes on."""

    class Removes(raysync.Callback):
        def on_evaluation(self, evaluation, measures):
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)

    with pytest.raises(RunFailed, match="cannot be written"):
        raysync.run(settings | {"track": "wandb"}, callbacks=[Removes()])


def test_the_files_of_a_tracker_are_uploaded_with_the_record(stand_in, settings, tmp_path):
    """Also what is only written when the run has ended."""
    tracked(settings | {"output": f"file://{tmp_path}/bucket"}, "wandb")
    [folder] = (tmp_path / "bucket" / "tiny").iterdir()
    _, _, status, _ = read_stand_in(folder / "wandb")
    assert status == "FINISHED"
