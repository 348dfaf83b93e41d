"""`raysync.resume` and `raysync run --resume`: what goes on, what may change, and what is refused.
An engine that trains nothing stands for the others.
"""

import os
import platform
import shutil
from pathlib import Path

import pytest
from torch import nn

import raysync
from raysync import config
from raysync.config.experiment import Experiment
from raysync.config.resume_changes import CHANGEABLE, check_changes
from raysync.core.journal import Remark, Resumed
from raysync.errors import ConfigError, RunFailed
from raysync.record import resumption
from raysync.record.reader import load
from raysync.running.resuming import prepare_to_resume
from tests.builders.files import edit, files_in, write
from tests.builders.messages import naming, tells
from tests.builders.reports import killed, newer
from tests.fakes.engines import SETTINGS, lost


@pytest.fixture
def path(engine, tmp_path):
    return killed(lost(engine, tmp_path / "runs"), '{"type":"Entry","event":{"type":"Push')


def wrote(folder, **values):
    edit(folder / "environment.json", **values)


def test_a_record_that_goes_on_says_how_it_began_and_how_it_goes_on(engine, path):
    began = {"command": ["raysync", "run", "mine.yaml"], "started": "2026-01-02T03:04:05+00:00"}
    wrote(path, **began)
    record = raysync.resume(path, overrides=["checkpoint.keep=3", "stop={after_s: 1000}"])
    assert record.path == path
    assert began.items() <= record.environment.items()
    assert record.environment["pid"] == os.getpid()
    assert record.config.checkpoint.keep == 3
    assert record.config.stop.after_s == 1000
    assert record.summary["wall_seconds"] > 24 * 3600
    assert len(list((path / "checkpoints").iterdir())) == 3


def test_a_run_that_goes_on_finds_its_bottleneck(call, tmp_path):
    text = """{name: v, engine: virtual, timing: only, workers: [{count: 2, step_s: 1}],
        batch_size: 1, workload: {samples: 80}, network: {update_s: 5}, paradigm: asp,
        checkpoint: {every_progress: 0.4}}"""
    _, out, _ = call("run", write(tmp_path / "x.yaml", text))
    [path] = (tmp_path / "runs/v").iterdir()
    found = load(path).summary["bottleneck"]
    assert found["kind"] == "server update"
    _, again, _ = call("run", "--resume", str(killed(path)))
    assert tells(out, "bottleneck without")
    assert tells(again, "bottleneck without")
    assert load(path).summary["bottleneck"] == found


def test_a_run_that_goes_on_with_other_code_has_a_remark(engine, path):
    code = {"task_sha256": None, "paradigm_sha256": None, "files": ["mine.py"]}
    wrote(path, user_code={"sha256": "1234abcd" * 8, **code})
    lines = (raysync.resume(path).path / "journal.jsonl").read_text()
    assert lines.count("1234abcd") == 1


def test_callbacks_and_watches_see_the_whole_run(engine, path):
    told, progress = [], []

    class Told(raysync.Callback):
        def on_start(self, run):
            told.append(run.folder)

        def on_evaluation(self, evaluation, measures):
            told.append(evaluation.mark)

        def on_end(self, record):
            told.append(record.path)

    record = raysync.resume(
        path, callbacks=[Told()], watch=lambda measures: progress.append(measures.progress)
    )
    assert told == [path, *record.evaluations.mark, path]
    assert progress == sorted(progress)
    assert 0.4 < progress[0] < 0.6, "what was done before the checkpoint counts"


def test_what_cannot_change_is_refused_by_name(engine, path):
    before = files_in(path)
    engine.former = "not begun"
    for change, says in (
        ("workload.samples=3840", "workload.samples: 3840 1920"),
        ("workers.0.count=4", "workers[0].count: 4 3:"),
        ("workers=[{count: 3}, {name: more}]", "workers: 2 1"),
        ("paradigm=bsp", "paradigm.name: 'bsp' 'ssp'"),
        ("seed=1", "seed: 1 0"),
        ("engine=ray", "timing:"),
        ("update.lr=0.5", "update.lr: 0.5"),
        ("cluster.server_shards=2", "cluster.server_shards: 2"),
        ("output=elsewhere", "output: 'elsewhere'"),
        ("faults=[{kind: crash, worker: worker-0, at_s: 1}]", "faults:"),
        ("checkpoint.every_s=0", "checkpoint.every_s: 0.001 0"),
    ):
        with pytest.raises(ConfigError, match=naming(says)):
            raysync.resume(path, overrides=[change])
    assert engine.former == "not begun"
    assert files_in(path) == before


def test_what_may_change_exists():
    for name in CHANGEABLE:
        first, *rest = name.replace("workers.*", "workers").split(".")
        model = Experiment.model_fields[first].annotation
        fields = (config.WorkerGroup if first == "workers" else model).model_fields if rest else ()
        assert set(rest) <= set(fields), name
    experiment = config.validate(SETTINGS)
    check_changes(experiment, config.validate({**SETTINGS, "workers": [{"count": 3, "cpus": 2}]}))
    check_changes(experiment, config.validate({**SETTINGS, "checkpoint": None}))


ON_RAY = {**SETTINGS, "engine": "ray", "timing": "with-gradients"}
OLD = {"name": "old", "count": 2, "step_s": 0.1}


def with_workers(*groups, **more):
    return config.validate({**ON_RAY, "workers": list(groups), **more})


@pytest.mark.parametrize(
    "groups",
    [
        [OLD | {"count": 6}],
        [OLD | {"count": 1}],
        [{"name": "new"}, OLD],
        [{"name": "new", "count": 3, "gpus": 1}],
        [OLD | {"cpus": 2, "count": 3}, {"name": "new"}],
    ],
)
def test_on_ray_the_number_of_workers_and_groups_may_change(groups):
    check_changes(with_workers(OLD), with_workers(*groups), elastic=True)
    with pytest.raises(ConfigError, match=naming("workers")):
        check_changes(with_workers(OLD), with_workers(*groups))  # of a comparison, or a sweep


def test_what_a_group_that_stays_is_may_not_change():
    changed = with_workers({"name": "new"}, OLD | {"step_s": 0.2})
    facts = "workers[1].step_s: 0.2 0.1 workers.*.count checkpoint"
    with pytest.raises(ConfigError, match=naming(facts)):
        check_changes(with_workers(OLD), changed, elastic=True)


def test_a_cut_network_keeps_its_workers():
    decoupled = {"paradigm": {"name": "decoupled", "modules": 2, "groups": 1}, "checkpoint": None}
    before = with_workers(OLD, **decoupled)
    after = with_workers({"name": "new", "count": 2}, **decoupled)
    with pytest.raises(ConfigError, match=naming("'new' 'old':")):
        check_changes(before, after, elastic=True)


def test_the_workload_stays_where_it_is_counted_in_iterations_of_each_worker(engine, path):
    record = load(path, trust=True)
    text = (path / "config.yaml").read_text()
    assert resumption.workload_of(record) == 32 * 60
    text = text.replace("iterations_per_worker: null", "iterations_per_worker: 9")
    (path / "config.yaml").write_text(text.replace("samples: 1920", "samples: null"))
    assert raysync.resume(path).summary["samples"] >= 32 * 60


def diverged(path):
    """Only the journal says so."""
    journal = path / "journal.jsonl"
    text = journal.read_text().rpartition("\n")[0]
    journal.write_text(text + '\n{"type":"Ended","status":"diverged","at":9.0}\n')


DAMAGES = {
    "finished": (raysync.resume, "finished"),
    "diverged": (diverged, "diverged"),
    "of a newer raysync": (lambda path: newer(path.parent), "raysync:"),
    "still written": (lambda path: wrote(path, pid=os.getpid()), "process"),
    "still written elsewhere": (lambda path: wrote(path, host="elsewhere"), "elsewhere"),
    "no checkpoint": (lambda path: shutil.rmtree(path / "checkpoints"), "checkpoint"),
    "none that is whole": (
        lambda path: [file.write_text("{}") for file in path.rglob("state.json")],
        "checkpoints",
    ),
    "no journal": (lambda path: (path / "journal.jsonl").unlink(), "journal.jsonl"),
    "header": (lambda path: (path / "journal.jsonl").write_text("{}\n"), "header"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_cannot_go_on(engine, path, name):
    damage, says = DAMAGES[name]
    damage(path)
    with pytest.raises(ConfigError, match=naming(says)):
        raysync.resume(path)
    with pytest.raises(ConfigError, match=naming("run folder")):
        raysync.resume(path.parent)


def test_a_run_without_the_setting_says_so(engine, tmp_path):
    engine.every = 10**6
    path = lost(engine, tmp_path, checkpoint=None)
    with pytest.raises(ConfigError, match=naming("set checkpoint: {every_s: 60}")):
        raysync.resume(path)


def test_a_process_number_can_be_of_another_process(path):
    """The writer is gone, and a process that began later has its number."""
    wrote(path, pid=os.getpid(), host=platform.node())
    os.utime(path / "journal.jsonl", (0, 0))
    assert resumption.is_writer_gone(load(path))


def test_a_run_that_fails_again_can_be_resumed_again(engine, path):
    engine.lost_after, engine.loss = 45, RunFailed("server-0 died")
    with pytest.raises(RunFailed, match="server-0 died"):
        raysync.resume(path)
    assert load(path).summary["status"] == "failed"
    record = raysync.resume(path)
    assert record.summary["status"] == "finished"
    assert [each.number for each in record.journal() if isinstance(each, Resumed)] == [3, 4]
    assert not [each for each in record.journal() if isinstance(each, Remark)]


def test_what_was_given_as_an_object_is_given_again(engine, tmp_path):
    class Mine(nn.Sequential):
        def __init__(self, width=8):
            super().__init__(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))

    engine.lost_after = 34
    with pytest.raises(KeyboardInterrupt):
        raysync.run({**SETTINGS, "output": str(tmp_path)}, model=Mine())
    [path] = (tmp_path / "tiny").iterdir()
    with pytest.raises(ConfigError, match=naming("again: raysync.resume(path model=...")):
        raysync.resume(path)
    with pytest.raises(ConfigError, match=naming("610 parameters 685")):
        raysync.resume(path, model=Mine(9))
    assert raysync.resume(path, model=Mine()).summary["status"] == "finished"


def test_the_command(engine, path, call, tmp_path):
    file = write(tmp_path / "mine.yaml", (path / "config.yaml").read_text())

    def refused(facts, *arguments):
        code, _, err = call("run", *arguments)
        assert (code, tells(err, facts)) == (2, True), err

    refused("seed: 1 0", "--resume", str(path), "--set", "seed=1")
    refused("update.lr: 0.1", file, "--resume", str(path), "--set", "update.lr=0.1")
    code, out, err = call("run", file, "--resume", str(path.parents[1]))
    assert code == 0, err
    assert tells(err, "checkpoint 3")
    assert f"Record: {path}" in out
    refused("finished", "--resume", str(path.parents[1]))
    refused("nowhere", "--resume", str(tmp_path / "nowhere"))
    refused("")


# ---- records that were copied ----


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The author's folder, and that of a reviewer, who has started a command there."""
    (tmp_path / "reviewer").mkdir()
    monkeypatch.chdir(tmp_path / "reviewer")
    return tmp_path / "author", tmp_path / "reviewer"


def test_a_rerun_of_a_copied_record_belongs_to_its_new_user(engine, places):
    """Its checkpoints, too, and also from a copy of the file alone."""
    author, reviewer = places
    checkpoint = {"every_progress": 0.1, "output": str(author)}
    own = {"output": str(author / "runs"), "checkpoint": checkpoint}
    record = raysync.run({**SETTINGS, **own})
    before = files_in(author)
    shutil.copytree(record.path, reviewer / "copy")
    again = raysync.run(reviewer / "copy" / "config.yaml")
    assert again.path.resolve().is_relative_to(reviewer / "runs" / "tiny")
    assert (again.path / "checkpoints").is_dir()
    shutil.copy(reviewer / "copy" / "config.yaml", "alone.yaml")
    experiment = config.load(Path("alone.yaml"), ["checkpoint={every_progress: 0.1}"])
    assert raysync.run(experiment).path.resolve().is_relative_to(reviewer)
    assert files_in(author) == before


def test_a_copied_record_goes_on_where_it_is(engine, places):
    author, reviewer = places
    path = lost(engine, author / "runs")
    before = files_in(author)
    shutil.copytree(path, reviewer / "copy" / path.name)
    record = raysync.resume(reviewer / "copy" / path.name)
    assert record.summary["status"] == "finished"
    assert record.path.is_relative_to(reviewer)
    assert files_in(author) == before
    # the author goes on, with the file or without
    again = config.validate({**SETTINGS, "output": str(author / "runs")})
    assert prepare_to_resume(load(path, trust=True), again, lambda _: None)


def test_an_absolute_output_moves_no_record(engine, path, tmp_path):
    with pytest.raises(ConfigError, match=naming("output: elsewhere")):
        raysync.resume(path, overrides=[f"output={tmp_path}/elsewhere"])
    assert raysync.resume(path, overrides=[f"output={path.parents[1]}"]).path == path


@pytest.mark.parametrize("place", ["runs", "~/runs", "file:///runs", "../runs"])
def test_what_is_no_place_of_one_machine_is_recorded(place):
    experiment = config.validate({"output": place})
    assert experiment.recorded == experiment
