"""A task with metrics of its own: `rmse`, of which less is better, and `r2`; from the evaluator to
the report.
"""

from math import nan, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import raysync
from raysync import config
from raysync.core.journal import Evaluation
from raysync.core.metrics import RESERVED, PrimaryMetric
from raysync.errors import ConfigError, RunFailed
from raysync.record.measures import Measures
from raysync.record.schemas import evaluations_in
from raysync.record.writer import evaluations_table
from raysync.results.collection import collect
from raysync.results.markdown import markdown
from raysync.results.page import figures_in, write_html
from raysync.results.ranking import rank
from raysync.results.tables import rows_of, tables_of
from raysync.results.trace import trace
from raysync.training import preparation
from raysync.training.evaluation import evaluate
from raysync.training.loading import primary_metric
from raysync.training.preparation import TrainingPlan
from raysync.training.task import Task
from raysync.training.vectors.module_state import ModuleState
from raysync.tuning.tune_library import aimed
from tests.builders.messages import naming, tells
from tests.builders.reports import BASE

RMSE = PrimaryMetric("rmse", "min")
PARADIGMS = ("bsp", "asp")


def own_metrics(*arguments, **options):
    loss = evaluate(*arguments, **options)["loss"]
    return {"rmse": sqrt(loss), "loss": loss, "r2": 1 - loss}


@pytest.fixture
def own_task(monkeypatch):
    """Makes every run on the virtual engine one of a task with metrics of its own."""
    monkeypatch.setattr("raysync.training.evaluation.evaluate", own_metrics)
    monkeypatch.setattr(TrainingPlan, "primary", RMSE)
    monkeypatch.setattr(preparation, "_tried", lambda *_: (None, ModuleState()))


@pytest.fixture
def collection(own_task, tmp_path, torch_of_one_thread):
    """Runs of two paradigms, each with two seeds."""
    settings = BASE | {
        "output": str(tmp_path / "runs"),
        "target": {"metric": "rmse", "at_most": 1.4},
        "evaluation": {"marks": 5},
    }
    for paradigm in PARADIGMS:
        for seed in (0, 1):
            raysync.run(settings | {"paradigm": paradigm, "seed": seed})
    return collect([tmp_path / "runs" / "tiny"])


def test_from_the_evaluator_to_the_report(collection, tmp_path):
    record = collection.runs[0].record
    summary, frame = record.summary, record.evaluations
    assert list(frame) == ["mark", "progress", "version", "at", "rmse", "loss", "r2"]
    assert frame.rmse.to_list() == pytest.approx(frame.loss.pow(0.5).to_list())
    assert summary["final_rmse"] == frame.rmse.iloc[-1]
    assert summary["best_rmse"] == frame.rmse.min()
    assert summary["final_r2"] == frame.r2.iloc[-1]
    assert "best_r2" not in summary, "nobody said which direction is better"
    assert not {"final_accuracy", "final_perplexity", "converged_accuracy"} & set(summary)
    assert (summary["metric"], summary["metric_mode"]) == ("rmse", "min")
    met = frame[frame.rmse <= 1.4]
    began = record.pushes.released_at_s.min()
    assert summary["time_to_target_s"] == pytest.approx(met["at"].iloc[0] - began)
    for run in collection.runs:  # the journal alone says the same
        whole, columns = run.record.summary, run.record.evaluations
        (run.record.path / "summary.json").unlink()
        again = raysync.load(run.record.path)
        assert again.summary | {"wall_seconds": 0} == whole | {"wall_seconds": 0}
        pd.testing.assert_frame_equal(again.evaluations, columns)
    rows = rows_of(collection)
    ranking = rank(collection)
    final = {label: row["final_rmse"].mean for label, row in rows.items()}
    assert ranking.final.first.paradigm == min(final, key=final.get)
    assert "to rmse 1.4" in markdown(collection)
    assert any("rmse" in event["name"] for event in trace(record)["traceEvents"])
    keys = [figure.key for figure in figures_in(collection, "")]
    assert keys[:3] == ["rmse-time", "rmse-samples", "time-to-rmse"]
    write_html(collection, tmp_path / "page.html")
    assert "final rmse" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("mode", "best", "other"), [("min", "asp", "bsp"), ("max", "bsp", "asp")])
def test_the_best_is_the_smallest_or_the_largest(made, mode, best, other):
    """Differences, as values of a metric can have any sign."""
    of = {"metric": "score", "metric_mode": mode, "seconds": 1.0}
    values = {"bsp": 0.25, "asp": -0.5}
    summaries = {label: [of | {"final_score": value}] * 2 for label, value in values.items()}
    collection = made(summaries, target=None)
    ranking = rank(collection)
    assert (ranking.final.leader.name, ranking.final.leader.sure) == (best, "clear")
    [table] = tables_of(collection, ranking)
    assert table.frame().loc[other, "behind the first"] == "0.75"


def test_a_metric_that_is_not_returned(own_task, tmp_path, monkeypatch):
    settings = BASE | {"output": str(tmp_path), "target": {"metric": "f1", "at_least": 0.5}}
    with pytest.raises(RunFailed) as failure:
        raysync.run(settings)
    first, *_ = str(failure.value).splitlines()
    assert tells(first, "target.metric: 'f1' task: rmse loss r2")
    monkeypatch.setattr(preparation, "_tried", lambda *_: (("accuracy", "loss"), ModuleState()))
    with pytest.raises(ConfigError, match=naming("target.metric: 'f1' accuracy loss")):
        raysync.run(settings)
    monkeypatch.setattr(preparation, "_tried", lambda *_: (None, ModuleState()))
    with pytest.raises(ConfigError, match=naming("target: rmse better: at_most")):
        raysync.run(settings | {"target": {"metric": "rmse", "at_least": 0.5}})
    monkeypatch.setattr(preparation, "_tried", lambda *_: (("accuracy", "loss"), ModuleState()))
    with pytest.raises(ConfigError, match=naming("'accuracy'")):
        raysync.run(settings | {"target": {"metric": "acuracy", "at_least": 0.5}})


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"loss": 1.0, "at": 2.0}, "a metric cannot be called 'at': mark, progress, version, at"),
        ({"rmse": 1.0}, "the metrics lack 'loss'"),
        ({"loss": 1.0, "rmse": "low"}, "metric 'rmse' must be a number, got 'low'"),
        ({"loss": 1.0, 3: 1.0}, "the name of a metric must be a text that can be printed, got 3"),
        ({"loss": 1.0, "a\nb": 1.0}, r"the name of a metric must be a text .* got 'a\\nb'"),
        ((0.5, 1.0), "the metrics must be a mapping of names to numbers, got tuple"),
    ],
)
def test_what_is_no_mapping_of_metrics(metrics, says, own_task, tmp_path, monkeypatch):
    monkeypatch.setattr("raysync.training.evaluation.evaluate", lambda *_, **__: metrics)
    with pytest.raises(RunFailed, match=f"^evaluator: {says}"):
        raysync.run(BASE | {"output": str(tmp_path), "target": None})


def test_a_sweep_goes_by_the_primary_metric():
    def goals(**settings):
        sweep = config.validate({"sweep": {"grid": {"seed": [0]}, **settings}}).sweep
        found = aimed(sweep, RMSE, "x.yaml")
        return found.metric, found.mode

    assert goals() == ("rmse", "min")
    assert goals(metric="accuracy") == ("accuracy", "max")
    assert goals(metric="rmse", mode="max") == ("rmse", "max")
    with pytest.raises(ConfigError, match=naming("x.yaml: sweep.mode: 'r2'")):
        goals(metric="r2", scheduler="asha")


NAMES = st.text(min_size=1).filter(lambda name: name.isprintable() and name not in RESERVED)
METRICS = st.dictionaries(NAMES, st.floats(), max_size=4)


@given(st.lists(METRICS, max_size=3), st.lists(st.floats(), min_size=3, max_size=3))
def test_any_metrics_go_to_parquet_and_back(evaluations, losses):
    """A column a metric, whatever it is called; what an evaluation lacks is NaN."""
    measures = Measures(100)
    for number, (metrics, loss) in enumerate(zip(evaluations, losses, strict=False)):
        line = Evaluation(0.5, 0.5, number, 1.0, metrics | {"loss": loss})
        assert measures.feed([line]) == []
    with TemporaryDirectory() as folder:
        file = Path(folder) / "evaluations.parquet"
        pq.write_table(evaluations_table(measures), file)
        frame = evaluations_in(file)
    assert list(frame) == [*RESERVED, *measures.metrics]
    for line, row in zip(measures.evaluations, frame.to_dict("records"), strict=True):
        expected = dict.fromkeys(measures.metrics, nan) | dict(line.metrics)
        assert {name: row[name] for name in measures.metrics} == pytest.approx(
            expected, rel=0, abs=0, nan_ok=True
        )


@pytest.mark.parametrize(
    ("named", "declared", "mode"),
    [
        ("accuracy", {}, "max"),
        ("loss", {}, "min"),
        ("mae", {}, "min"),
        ("iou", {"higher_is_better": True}, "max"),
        ("accuracy", {"higher_is_better": False}, "min"),
    ],
)
def test_a_task_need_not_say_that_more_accuracy_is_better(named, declared, mode):
    task = type("Own", (Task,), {"primary": named} | declared)
    assert primary_metric(task) == PrimaryMetric(named, mode)
