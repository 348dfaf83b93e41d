"""`raysync sweep --resume`: which trials stay, which go on, which begin, and what is refused. The
trials run in this process, one after another, in place of Ray Tune's.
"""

import os
import shutil
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ray import tune
from ray.tune.search import SEARCH_ALG_IMPORT, Searcher

import raysync
from raysync.core.journal import Resumed
from raysync.errors import ConfigError
from raysync.record.reader import load
from raysync.record.storage import listdir
from raysync.record.sweeps import TrialNote, load_sweep, notes, write_note
from raysync.tuning import sweep_run
from tests.builders.files import edit, times_in, write
from tests.builders.messages import naming, tells
from tests.builders.reports import killed
from tests.fakes import engines
from tests.fakes.tuner import InThisProcess

SETTINGS = engines.SETTINGS | {
    "workers": [{"count": 3, "step_s": 0.1}],
    "sweep": {"grid": {"seed": [0, 1], "profile": ["demo-4-unequal", "demo-4-unsteady"]}},
}


@pytest.fixture
def begun(tmp_path, monkeypatch, call):
    """The folder of a sweep that was lost: its first trial has ended, its second was under way."""
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    monkeypatch.setattr(sweep_run.Connection, "open", lambda *_: None)
    monkeypatch.setattr(
        sweep_run, "_tuner", lambda plan, callback, verbose: InThisProcess(plan, callback, tmp_path)
    )
    file = write(tmp_path / "tiny.yaml", yaml.safe_dump(SETTINGS, sort_keys=False))
    ends = []

    def watch(measures):
        ends.extend([measures] if measures.ended else [])
        if ends and measures.progress > 0.55 and not measures.ended:
            raise KeyboardInterrupt

    monkeypatch.setattr(InThisProcess, "watch", staticmethod(watch))
    code, _, err = call("sweep", file, "--set", "output=runs")
    monkeypatch.setattr(InThisProcess, "watch", staticmethod(lambda measures: None))
    assert code == 130, err
    [folder] = (tmp_path / "runs" / "tiny").iterdir()
    assert [note.ended for note in notes(folder)] == [True, False]
    killed(paths(folder)["00001"][0])
    return folder


def paths(folder):
    """Return trial -> the folders of its records."""
    trials = folder / "records"
    return {
        name: [path for path in sorted((trials / name).iterdir()) if path.is_dir()]
        for name in listdir(trials)
    }


def resumed(path):
    return [line.number for line in load(path).journal() if isinstance(line, Resumed)]


def test_what_has_ended_stays_what_was_lost_goes_on_and_the_rest_begins(begun, call):
    before = paths(begun)
    written = times_in(before["00000"][0])
    code, out, err = call("sweep", "--resume", "runs/tiny", "--set", "checkpoint.keep=3")
    assert code == 0, err
    assert "4 trials: 4 done." in out
    after = paths(begun)
    assert {name: after[name] for name in before} == before, "no trial has a second record"
    assert times_in(before["00000"][0]) == written
    assert [len(resumed(path)) for [path] in after.values()] == [0, 1, 0, 0]
    keeps = [load(path).config.checkpoint.keep for [path] in after.values()]
    assert keeps == [2, 3, 3, 3]
    workers = [load(path).config.workers for [path] in after.values()]
    assert workers[0] == workers[2] != workers[1] == workers[3], "as the file says"

    again = call("sweep", "--resume", str(begun))  # nothing is left
    assert again[0] == 0, again[2]
    assert "4 trials: 4 done." in again[1]
    assert paths(begun) == after


def test_a_trial_without_a_checkpoint_restarts(begun, call, capsys):
    [path] = paths(begun)["00001"]
    shutil.rmtree(path / "checkpoints")
    path.rename(path.with_name(f"{path.name[:15]}-a"))  # the other is of the same second
    code, out, err = call("sweep", "--resume", str(begun))
    assert code == 0, err
    assert tells(out + err, "checkpoint")
    assert [len(each) for each in paths(begun).values()] == [1, 2, 1, 1]
    assert list(load_sweep(begun).table.status) == ["finished"] * 4


def test_the_end_of_a_trial_that_nobody_noted_is_seen_in_its_record(begun, call):
    [note, _] = notes(begun)
    write_note(begun, note.__class__(note.name, note.settings, ended=False))
    before = paths(begun)["00000"]
    assert call("sweep", "--resume", str(begun))[0] == 0
    assert paths(begun)["00000"] == before
    assert resumed(before[0]) == []


def test_it_goes_on_where_its_folder_is_now_and_under_a_uri(begun, call, tmp_path):
    (tmp_path / "runs").rename(tmp_path / "moved")
    code, out, err = call("sweep", "--resume", f"file://{tmp_path}/moved/tiny?token=secret")
    assert code == 0, err
    assert "secret" not in out + err
    moved = tmp_path / "moved" / "tiny" / begun.name
    assert [len(resumed(path)) for [path] in paths(moved).values()] == [0, 1, 0, 0]
    assert not (tmp_path / "runs").exists()


def test_what_cannot_change_is_refused_by_name(begun, call):
    before = paths(begun)
    for change, says in (
        ("sweep.grid.seed=[0, 2]", "sweep.grid.seed: 1"),
        ("sweep.samples=2", "sweep.samples: 2 1"),
        ("update.lr=0.5", "update.lr: 0.5 0.05"),
        ("output=elsewhere", "output: 'elsewhere' 'runs'"),
    ):
        for file in ([], ["tiny.yaml", "--set", "output=runs"]):
            code, _, err = call("sweep", *file, "--resume", "runs/tiny", "--set", change)
            assert (code, tells(err, says)) == (2, True), err
    assert paths(begun) == before


def test_it_goes_on_with_more_seeds_and_less_at_once(begun, call):
    before = paths(begun)
    more = ["sweep.concurrent=1", "sweep.time_budget_s=1000", "sweep.grid.seed=[0, 7, 1]"]
    more = [("--set", each) for each in [*more, "stop={after_s: 1000}"]]
    code, out, err = call("sweep", "--resume", "runs/tiny", *chain(*more))
    assert code == 0, err
    assert "6 trials: 6 done." in out
    after = paths(begun)
    assert [after[name][0].name for name in before] == [path.name for [path] in before.values()]
    assert [len(each) for each in after.values()] == [1] * 6
    table = load_sweep(begun).table
    seeds = [(row["config/seed"], row["config/profile"]) for row in table.to_dict("records")]
    assert len(set(seeds)) == 6
    assert {seed for seed, _ in seeds} == {0, 1, 7}
    assert [load(path).config.seed for [path] in after.values()] == [seed for seed, _ in seeds]
    assert tells(out, "stop 1 none 5 after_s 1000"), "the first had ended without it"


def test_a_killed_sweep_has_a_report_before_it_goes_on(begun, call):
    for name in ("sweep.parquet", "sweep.csv"):
        (begun / name).unlink()
    sweep = load_sweep(begun)
    assert not sweep.is_complete
    assert [end.kind for end in sweep.ends.values()] == ["done", "broken"]
    code, out, err = call("report", str(begun), "--format", "md")
    assert code == 0, err
    assert tells(out, "2 raysync sweep --resume")
    assert call("sweep", "--resume", str(begun))[0] == 0
    assert load_sweep(begun).is_complete
    assert not tells(call("report", str(begun), "--format", "md")[1], "--resume")


def test_what_cannot_go_on(begun, call):
    def refused(facts, *arguments):
        code, _, err = call("sweep", *arguments)
        assert (code, tells(err, facts)) == (2, True), err

    for folder in ("nowhere", ".", "runs"):
        refused("folder", "--resume", folder)
    refused("file")
    edit(paths(begun)["00001"][0] / "environment.json", pid=os.getpid())
    refused(f"process {os.getpid()}", "--resume", str(begun))
    origin = begun / "origin.yaml"  # secrets are not kept, and are asked for again
    text = origin.read_text().replace("output=runs", "checkpoint.output=s3://***@bucket/there")
    write(origin, text)
    refused("checkpoint", "--resume", str(begun))
    origin.unlink()
    refused("file", "--resume", str(begun))


LR = "update.lr"


class Untold(Searcher):
    """Cannot be told what was found."""

    def __init__(self, points_to_evaluate=(), seed=None):
        super().__init__()
        self.points = points_to_evaluate

    def set_search_properties(self, metric, mode, config, **spec):
        return True


def searcher_of(plan):
    """The searcher that a sweep gives to Tune, in whose place nothing is trained."""
    given = []

    def tuner(function, tune_config, **_):
        given.append(tune_config.search_alg)
        return SimpleNamespace(fit=lambda: None)

    with pytest.MonkeyPatch.context() as patch, suppress(ConfigError):  # no trial has begun
        patch.setattr(tune, "Tuner", tuner)
        sweep_run.run(plan, notify=print, show=print)
    return given.pop()


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Returns the folder and the searcher of a sweep that was lost: of its trials one has ended,
    one has failed, and one was under way.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_run.Connection, "open", lambda *_: None)

    def searched(name, metric="loss"):
        block = {
            "sample": {LR: {"loguniform": [0.001, 0.5]}},
            "samples": 6,
            "metric": metric,
            "mode": "min",
            "search": {"name": name, "seed": 0, "points_to_evaluate": [{LR: 0.01}, {LR: 0.4}]},
        }
        settings = SETTINGS | {"timing": "with-gradients", "workload": {"samples": 96}}
        Path("tiny.yaml").write_text(yaml.safe_dump(settings | {"sweep": block}))
        plan = sweep_run.plan(Path("tiny.yaml"))
        fresh, folder = searcher_of(plan), plan.trials.folder
        begun = ("a", 0.01, True, ""), ("b", 0.02, True, "broke"), ("c", 0.03, False, "")
        for trial, rate, ended, error in begun:
            write_note(folder, TrialNote(trial, {LR: rate}, ended, error))
            raysync.run(plan.trials.experiment({LR: rate}, trial))
        killed(paths(folder)["c"][0])
        return folder, fresh

    return searched


@pytest.mark.parametrize(("metric", "prefix"), [("loss", ""), ("seconds", "file://")])
def test_a_searcher_receives_earlier_results_and_repeats_lost_trials(searched, metric, prefix):
    pytest.importorskip("optuna")
    folder, fresh = searched("optuna", metric)
    plan = sweep_run.plan(None, resume=f"{prefix}{folder}")
    assert (plan.count, plan.done) == (5, 1), "another one in place of that which failed"
    fresh.set_search_properties(metric, "min", sweep_run.space(plan.sweep, "file"))
    search = searcher_of(plan)
    told, failed = [trial for trial in search._ot_study.trials if trial.state.is_finished()]
    summary = load(paths(folder)["a"][0]).summary
    assert (told.params, failed.params) == ({LR: 0.01}, {LR: 0.02})
    assert failed.value is None
    assert told.value == summary["seconds" if metric == "seconds" else "final_loss"]
    first = [search.suggest(str(number))[LR] for number in range(4)]
    assert first[:2] == [0.03, 0.4], "what was under way, and then what is given and has not begun"
    assert not set(first[2:]) & {fresh.suggest(str(number))[LR] for number in range(6)}
    assert [note.name for note in notes(folder)] == ["a", "b"], "c begins under another name"
    assert len(paths(folder)["c"]) == 1, "its record stays"


def test_a_searcher_that_cannot_be_told_does_not_go_on(searched, monkeypatch):
    monkeypatch.setitem(SEARCH_ALG_IMPORT, "hyperopt", lambda: Untold)
    folder, _ = searched("hyperopt")
    with pytest.raises(ConfigError, match=naming("sweep.search: hyperopt: optuna")):
        sweep_run.plan(None, resume=folder)
    for trial in "ab":  # nothing has been found yet
        shutil.rmtree(folder / "records" / trial)
    again = searcher_of(sweep_run.plan(None, resume=folder))
    assert again.points == [{LR: 0.03}, {LR: 0.01}, {LR: 0.4}]
