"""A task with metrics of its own: `rmse`, of which less is better, and `r2`; from the evaluator to
the report.
"""

import shutil
from math import nan
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
from raysync.training.loading import primary_metric
from raysync.training.task import Task
from raysync.tuning.tune_library import aimed
from tests.builders.messages import naming
from tests.builders.tasks import Sums

RMSE = PrimaryMetric("rmse", "min")
SETTINGS = {
    "engine": "virtual",
    "batch_size": 4,
    "workload": {"samples": 160},
    "workers": [{"count": 2, "step_s": 0.1}],
    "target": {"metric": "rmse", "at_most": 1.0},
    "evaluation": {"marks": 5},
}


class Rooted(Sums):
    primary = "rmse"
    asked = 0
    """How often it was asked for metrics."""

    def metrics(self, model, batch):
        mse = (model(batch["x"]) - batch["y"]).square().mean()
        self.asked += 1
        return {"rmse": mse.sqrt(), "r2": 1 - mse}


class Fickle(Rooted):
    """A trial before the run finds a metric that an evaluation lacks."""

    def metrics(self, model, batch):
        found = super().metrics(model, batch)
        return found | ({"f1": found["r2"]} if self.asked == 1 else {})


@pytest.fixture(scope="module")
def collection(tmp_path_factory, torch_of_one_thread):
    """Runs of two paradigms, each with two seeds."""
    output = tmp_path_factory.mktemp("metrics")
    for paradigm in ("bsp", "asp"):
        for seed in (0, 1):
            row = {"paradigm": paradigm, "seed": seed, "output": str(output)}
            raysync.run(SETTINGS | row, task=Rooted(noisy=False))
    return collect([output / "experiment"])


def test_a_record_has_them_by_name(collection):
    record = collection.runs[0].record
    summary, frame = record.summary, record.evaluations
    assert list(frame)[:4] == ["mark", "progress", "version", "at"]
    assert set(frame) - set(RESERVED) == {"rmse", "loss", "r2"}
    assert frame.rmse.to_list() == pytest.approx(frame.loss.pow(0.5).to_list())
    assert summary["final_rmse"] == frame.rmse.iloc[-1]
    assert summary["best_rmse"] == frame.rmse.min()
    assert summary["final_r2"] == frame.r2.iloc[-1]
    assert "best_r2" not in summary, "nobody said which direction is better"
    assert not {"final_accuracy", "final_perplexity", "converged_accuracy"} & set(summary)
    assert (summary["metric"], summary["metric_mode"]) == ("rmse", "min")
    met = frame[frame.rmse <= 1.0]
    began = record.pushes.released_at_s.min()
    assert summary["time_to_target_s"] == pytest.approx(met["at"].iloc[0] - began)


def test_a_report_shows_and_ranks_by_them(collection, tmp_path):
    ranking = rank(collection)
    final = {label: row["final_rmse"].mean for label, row in rows_of(collection).items()}
    assert ranking.final.first.paradigm == min(final, key=final.get)
    assert "to rmse 1" in markdown(collection)
    events = trace(collection.runs[0].record)["traceEvents"]
    assert any("rmse" in event["name"] for event in events)
    keys = [figure.key for figure in figures_in(collection, "")]
    assert keys[:3] == ["rmse-time", "rmse-samples", "time-to-rmse"]
    write_html(collection, tmp_path / "page.html")
    assert "final rmse" in (tmp_path / "page.html").read_text()


def test_the_journal_alone_says_the_same(collection, tmp_path):
    record = collection.runs[0].record
    copy = shutil.copytree(record.path, tmp_path / "copy")
    (copy / "summary.json").unlink()
    again = raysync.load(copy)
    assert again.summary | {"wall_seconds": 0} == record.summary | {"wall_seconds": 0}
    pd.testing.assert_frame_equal(again.evaluations, record.evaluations)


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


@pytest.mark.parametrize(
    ("task", "target", "error", "says"),
    [
        (
            Rooted,
            {"metric": "f1", "at_least": 0.5},
            ConfigError,
            "target.metric: 'f1' loss r2 rmse",
        ),
        (Rooted, {"metric": "rsme", "at_most": 0.5}, ConfigError, "'rmse'"),
        (Rooted, {"metric": "rmse", "at_least": 0.5}, ConfigError, "target: rmse better: at_most"),
        (Fickle, {"metric": "f1", "at_least": 0.5}, RunFailed, "target.metric: 'f1' task: rmse r2"),
    ],
)
def test_a_target_that_the_metrics_lack(task, target, error, says, tmp_path):
    with pytest.raises(error, match=naming(says)):
        raysync.run(SETTINGS | {"output": str(tmp_path), "target": target}, task=task())


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
