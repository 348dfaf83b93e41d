"""A sweep on real Ray: both engines side by side, what fails, what diverges, and going on."""

import json
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from raysync import config
from raysync.config import ParadigmChoice
from raysync.config.yaml_reading import write_yaml
from raysync.core.journal import Resumed
from raysync.predict.advise import advise
from raysync.record.sweeps import TrialNote, load_sweep, notes, write_note
from raysync.results.collection import collect
from raysync.tuning.sweep_run import plan, run
from raysync.tuning.trial_reports import REPORTED
from tests.builders.cluster import TINY

pytestmark = pytest.mark.ray

SWEEP = {
    "grid": {
        "engine": ["virtual", "ray"],
        "workers.0.gpus": [0, 1],
        "update.lr": [0.1, 1e30],
        "seed": [0, 1],
    },
    "exclude": [
        {"engine": "virtual", "workers.0.gpus": 1},
        {"update.lr": 1e30, "seed": 1},
        {"engine": "ray", "update.lr": 1e30},
        {"engine": "ray", "seed": 1},
    ],
}
EXPECTED = [
    ("virtual", 0, 0.1, 0, "finished"),
    ("virtual", 0, 0.1, 1, "finished"),
    ("virtual", 0, 1e30, 0, "diverged"),
    ("ray", 0, 0.1, 0, "finished"),
    ("ray", 1, 0.1, 0, "failed"),
]


def lost(path):
    """Leave a record as a process that is killed does."""
    (path / "summary.json").unlink()
    journal = path / "journal.jsonl"
    journal.write_text(journal.read_text().rpartition('{"type":"Ended"')[0])
    file = path / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pid": 2**30}))


@pytest.fixture
def sweep(ray_cluster, tmp_path, monkeypatch):
    """Runs the sweep of some settings, or resumes one; returns what came of it."""
    monkeypatch.chdir(tmp_path)

    def run_sweep(settings=None, resume=None):
        if settings is not None:
            Path("sweep.yaml").write_text(write_yaml(settings), encoding="utf-8")
        said, stood = [], []
        made = plan(None if resume else Path("sweep.yaml"), resume=resume)
        record, ended = run(made, notify=said.append, show=stood.append)
        assert ended == "done"
        return record, said, stood

    return run_sweep


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_sweep(sweep, tmp_path):
    settings = {**TINY, "checkpoint": {"every_progress": 0.2}, "sweep": SWEEP}
    record, said, stood = sweep(settings)
    varied = ["config/engine", "config/workers.0.gpus", "config/update.lr", "config/seed"]
    assert list(record.table[[*varied, "status"]].itertuples(index=False, name=None)) == EXPECTED
    assert "There is no GPU" in record.table.error.iloc[-1]
    begins, at_once, failed = said
    assert "sweep.concurrent" in at_once, "trials on a real clock do not share cores"
    assert begins.startswith("test begins; its records: ")
    assert begins.endswith(record.path.name)
    assert "failed: cluster: worker group 'fast' does not fit" in failed
    assert (stood[-1].done, stood[-1].failed, stood[-1].running) == (5, 1, 0)
    assert all(one.progress <= other.progress + 1e-9 for one, other in pairwise(stood))

    for trial, one in record.records.items():  # the table is what the records say
        row = record.table.loc[trial]
        assert row.final_loss == pytest.approx(one.summary["final_loss"], nan_ok=True) or pd.isna(
            row.final_loss
        )
        assert one.config.sweep is None
    assert record.table.final_accuracy[0] != record.table.final_accuracy[2]
    assert sorted(record.varied) == sorted(SWEEP["grid"])
    reported = {
        file.parent.name: pd.read_csv(file) for file in record.path.glob("tune/*/progress.csv")
    }
    first = next(frame for name, frame in reported.items() if name.startswith("00000_"))
    assert set(REPORTED) <= set(first.columns)
    evaluations = record.records[0].evaluations
    assert list(first.accuracy) == list(evaluations.accuracy)
    assert list(first.seconds) == pytest.approx(list(evaluations["at"]))
    assert list(first.samples) == [0, *first.samples[1:-1], record.records[0].summary["samples"]]
    assert len(list(record.path.glob("tune/*/events.out.tfevents*"))) >= 4

    # it goes on with what was interrupted or failed, and with nothing else
    write_note(record.path, TrialNote("00001", notes(record.path)[1].settings, ended=False))
    before = {trial: one.path for trial, one in record.records.items()}
    lost(before[1])
    again, said, stood = sweep(resume=record.path)
    assert again.path == record.path
    assert stood[-1].done == 2
    after = {trial: one.path for trial, one in again.records.items()}
    assert after == before
    lines = {trial: list(one.journal()) for trial, one in again.records.items()}
    assert [trial for trial in lines if any(isinstance(x, Resumed) for x in lines[trial])] == [1]
    for column in ("status", "final_accuracy"):
        assert again.table[column].equals(record.table[column])
    assert load_sweep(record.path).experiment == again.experiment


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_best_settings_of_a_search_run_with_all_seeds(sweep, tmp_path):
    """With records behind a URI, which the process of the sweep reads from there."""
    pytest.importorskip("optuna")
    grid = {
        "grid": {"paradigm": ["bsp", "asp"], "seed": [0, 1, 2]},
        "sample": {"update.lr": {"loguniform": [0.001, 0.3]}},
        "samples": 4,
        "search": {"name": "optuna", "seed": 1},
    }
    output = {"output": f"file://{tmp_path}/runs"}
    settings = {**TINY, **output, "engine": "virtual", "sweep": grid}
    record, _, stood = sweep(settings)
    collection = collect([record.path])
    tried = collection.search.best_of_paradigms
    assert len(record.table) == stood[-1].done == 4 + 2 * len(tried)
    of_best = {best.settings["update.lr"] for best in tried.values()}
    assert {run.record.config.update.lr for run in collection.runs} == of_best
    assert sorted(run.seed for run in collection.runs) == sorted([0, 1, 2] * len(tried))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_sweep_that_is_advised_trains(sweep, tmp_path):
    """With local steps, whose optimizer it brings, beside gradients."""
    settings = TINY | {"engine": "virtual", "workload": {"samples": 400}}
    local = {"name": "local", "paradigm": "bsp", "steps": 4}
    choices = [ParadigmChoice.model_validate(spec) for spec in ({"name": "bsp"}, local)]
    advice = advise(config.validate(settings), choices=choices, seeds=1)
    record, _, _ = sweep(dict(advice.sweep))
    assert list(record.table.status) == ["finished"] * advice.trials
    assert {one.config.update.lr for one in record.records.values()} >= {1.0}
    assert all(one.summary["samples"] >= 400 for one in record.records.values())
