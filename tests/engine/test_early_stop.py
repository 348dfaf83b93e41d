"""A run that stops early: the beginning of the run that does not, and a last evaluation."""

from contextlib import nullcontext
from math import isnan, nan

import pytest
from hypothesis import given, strategies as st

import raysync
from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.journal import Evaluation, Remark
from raysync.core.metrics import PrimaryMetric
from raysync.engine.evaluations import TRIES
from raysync.engine.messages import EvaluateCall
from raysync.engine.stopping import Stopping
from raysync.errors import ConfigError, RunFailed
from raysync.paradigms import make
from raysync.running.run import check_metrics
from raysync.training.preparation import prepare
from tests.builders.messages import Telling, naming, tells
from tests.builders.reports import BASE
from tests.builders.virtual import DATA, TIMING, deep, learn, of, replayed, run
from tests.engine.world import run_in

JITTER = {"distribution": "lognormal", "sigma": 0.3}
LEARNS = {
    "engine": "virtual",
    "batch_size": 4,
    "workers": [{"name": "w", "count": 4, "step_s": 0.1, "jitter": JITTER}],
    "workload": {"samples": 600},
    "evaluation": {"marks": 30, "samples": 5},
    "update": {"lr": 0.4},
    "target": {"metric": "loss", "at_most": 1.26},
}
PARADIGMS = (
    {"name": "bsp"},
    {"name": "asp"},
    {"name": "ssp", "staleness": 2},
    {"name": "hybrid", "k": 2, "staleness_tolerance": 1, "pull_interval": 3, "snapshot": "global"},
    {"name": "sync-switch", "fraction": 0.2},
    {"name": "decoupled", "modules": 2, "groups": 2},
    {"name": "decoupled", "modules": 2, "groups": 2, "sync": "asp"},
)
STOPS = (
    {"patience": 2, "min_delta": 0.01},
    {"at_target": True},
    {"after_s": 1.55},
    {"when": {"loss": 1.26}},
    {"when": [{"metric": "progress", "value": 0.4}]},
)
BY = {
    "patience": ("stop.patience", "cut"),
    "at_target": ("stop.at_target", "reached"),
    "after_s": ("stop.after_s", "cut"),
}


@pytest.mark.parametrize(
    ("paradigm", "stop"),
    [
        *((paradigm, STOPS[0]) for paradigm in PARADIGMS),
        *((PARADIGMS[0], stop) for stop in STOPS[1:]),
        (PARADIGMS[-1], STOPS[2]),
    ],
    ids=str,
)
def test_its_journal_is_the_beginning_of_that_without(paradigm, stop, one_thread):
    """Up to a remark, the evaluation on all samples of the model that it then has, and the end."""
    choice = ParadigmChoice.model_validate(paradigm)
    whole, _ = learn(prepare(config.validate(LEARNS), deep, DATA), choice)
    training = prepare(config.validate(LEARNS | {"stop": stop}), deep, DATA)
    lines, driver = learn(training, choice)
    *same, remark, last, ended = lines
    assert same == whole[: len(same)]
    assert 10 < len(same) < len(whole) - 10
    assert remark.text.startswith("The run stops early: ")
    assert isinstance(last, Evaluation)
    assert last.mark == last.progress < 1
    assert (ended.status, ended.at) == ("finished", last.at)
    by, kind = BY.get(next(iter(stop)), (ended.by, "reached"))
    assert (ended.by, "reached" if ended.reached else "cut") == (by, kind)
    assert by != "stop.when.progress" or 0.4 <= last.progress < 0.45
    assert last.version == max(line.version for line in of(lines, Evaluation))
    assert driver.models, "the model of the last evaluation is kept"
    result = replayed(training, lines, choice)
    assert not result.difference
    assert result.ended


def test_seconds_alone_also_end_a_run_that_trains_nothing():
    settings = TIMING | {"workers": [{"name": "w", "step_s": 1}], "workload": {"samples": 50}}
    lines = run(prepare(config.validate(settings | {"stop": {"after_s": 7.5}}), deep, DATA))
    assert not of(lines, Evaluation)
    *_, remark, ended = lines
    assert remark == Remark(7.5, Telling("early: 7.5"))
    assert (ended.status, ended.at) == ("finished", 7)


def world(*incidents, **settings):
    """A run whose model is always as good as at its beginning."""
    workers = [{"name": "w", "count": 2, "step_s": 0.5}]
    settings = {"workers": workers, "workload": {"samples": 80}} | settings
    training = prepare(config.validate(TIMING | settings), deep, DATA)
    # the world evaluates what is not trained, which no experiment can ask for
    stop = config.Stop(patience=3)
    experiment = training.experiment.model_copy(update={"stop": stop})
    object.__setattr__(training, "experiment", experiment)
    return run_in(training, make("asp"), *incidents)


@pytest.mark.parametrize(
    "incidents",
    [
        [],
        ["evaluations take 1.2 s"],
        ["evaluations take 0.3 s", "evaluator dies at 2"],
        ["evaluations take 0.3 s", "evaluator freezes at 6"],
    ],
)
def test_patience_counts_evaluations_however_late_they_are(incidents):
    marks = {"marks": 20, "deadline_s": 5.0}
    driver, lines = world(*incidents, evaluation=marks)
    *_, last = of(lines, Evaluation)
    [stops] = [line for line in of(lines, Remark) if "stops early" in line.text]
    assert len(of(lines[: lines.index(stops)], Evaluation)) == 4
    assert tells(stops.text, "accuracy 0.5 3")
    evaluated = [each for _, _, each in driver.backend.calls if isinstance(each, EvaluateCall)]
    assert evaluated[-1].is_last, "on all samples"
    assert sum(each.is_last for each in evaluated) == 1
    assert last.progress < 1
    assert lines[-1].status == "finished"
    assert driver.models


def test_without_an_evaluator_nothing_stops_the_run():
    incidents = ["evaluations take 0.3 s", *["evaluator dies at 1"] * TRIES]
    _, lines = world(*incidents, evaluation={"marks": 20})
    assert lines[-1].status == "finished"
    assert not any("stops early" in line.text for line in of(lines, Remark))


GOALS = (
    ({"loss": 0.4}, lambda line, _: line.loss <= 0.4, True),
    ({"accuracy": 0.6}, lambda line, _: line.metrics["accuracy"] >= 0.6, True),
    ([{"metric": "loss", "value": 2, "mode": "max"}], lambda line, _: line.loss >= 2, False),
    ({"metric": "score", "value": 0.5}, lambda line, _: line.metrics["score"] >= 0.5, True),
    (
        [{"loss": 0.4}, {"accuracy": 0.6}],
        lambda line, _: line.loss <= 0.4 or line.metrics["accuracy"] >= 0.6,
        True,
    ),
    ({"progress": 0.5}, lambda line, _: line.progress >= 0.5, True),
    ({"samples": 30}, lambda line, _: line.progress * 60 >= 30, True),
    ({"seconds": 3}, lambda line, _: line.at >= 3, False),
    ({"training_iteration": 4}, lambda _, number: number >= 4, True),
)


@pytest.mark.parametrize(
    ("when", "is_met", "reached"), GOALS, ids=[str(when) for when, *_ in GOALS]
)
@given(st.lists(st.tuples(*[st.sampled_from([0.1, 0.4, 0.5, 0.6, 2.5, nan])] * 3), max_size=8))
def test_a_goal_ends_the_run_at_the_first_evaluation_that_meets_it(when, is_met, reached, values):
    experiment = config.validate({"stop": {"when": when}})
    early = Stopping(experiment, PrimaryMetric("score", "max"), workload_samples=60)
    lines = [
        Evaluation(
            mark=0.0,
            progress=number / 8,
            version=number,
            at=float(number),
            metrics={"loss": loss, "accuracy": accuracy, "score": score},
        )
        for number, (loss, accuracy, score) in enumerate(values)
    ]
    found = [early.reason_to_stop(line) for line in lines]
    expected = [is_met(line, number) for number, line in enumerate(lines, start=1)]
    assert [end is not None for end in found] == expected
    for end in filter(None, found):
        assert end.by.startswith("stop.when.")
        assert end.reached == reached


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.4, nan]), max_size=12),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.15]),
    st.booleans(),
)
def test_patience_as_others_have_it(values, patience, min_delta, rises):
    """Against a dumb oracle: the last `patience` values are all not better than the best before."""
    stop = {"patience": patience, "min_delta": min_delta}
    experiment = config.validate({"stop": stop})
    early = Stopping(experiment, PrimaryMetric("score", "max" if rises else "min"))
    sign, stopped = (1 if rises else -1), None
    for version, value in enumerate(values):
        metrics = {"score": value, "loss": 1.0}
        for _ in range(2):  # two marks that were passed at once are one evaluation
            line = Evaluation(mark=0.0, progress=0.0, version=version, at=0.0, metrics=metrics)
            if early.reason_to_stop(line) and stopped is None:
                stopped = version
    best, since, expected = None, 0, None
    for version, value in enumerate(values):
        first_number = best is None or (isnan(best) and not isnan(value))
        if first_number or sign * value > sign * best + min_delta:
            best, since = value, 0
        else:
            since += 1
        if since == patience and expected is None:
            expected = version
    assert stopped == expected


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stop": {}}, "at_target: after_s"),
        ({"stop": {"metric": "loss", "after_s": 1}}, "metric"),
        ({"stop": {"patience": 0}}, "stop.patience"),
        ({"stop": {"after_s": 0}}, "stop.after_s"),
        ({"stop": {"patient": 3}}, "'patience'"),
        ({"stop": {"at_target": True}}, "stop.at_target:"),
        ({"stop": {"patience": 1}, "engine": "virtual", "timing": "only"}, "evaluated"),
        ({"stop": {"when": {"loss": 1}}, "engine": "virtual", "timing": "only"}, "evaluated"),
        ({"stop": {"when": {}}}, "at_target: after_s"),
        ({"stop": {"when": {"loss": "low"}}}, "stop.when"),
    ],
)
def test_what_cannot_stop_a_run_is_refused(settings, said):
    with pytest.raises(ConfigError, match=naming(said)):
        config.validate(settings)


F1_AND_RECALL = ("f1", "recall", "loss")


@pytest.mark.parametrize(
    ("stop", "known", "says"),
    [
        ({"patience": 1, "metric": "recal"}, F1_AND_RECALL, "stop.metric: 'recal' 'recall'"),
        ({"when": {"recal": 0.5}}, F1_AND_RECALL, "stop.when[0].metric: 'recal' 'recall'"),
        ({"when": {"recall": 0.5}}, F1_AND_RECALL, "stop.when[0]: 'recall' max min"),
        ({"patience": 1, "metric": "recall"}, None, "stop.mode: 'recall'"),
        ({"when": {"f1": 0.5}}, F1_AND_RECALL, ""),
        ({"patience": 1, "metric": "loss"}, F1_AND_RECALL, ""),
    ],
)
def test_metrics_are_refused_by_name_where_they_are_known(stop, known, says):
    experiment = config.validate({"stop": stop})
    with pytest.raises(ConfigError, match=naming(says)) if says else nullcontext():
        check_metrics(experiment, known, PrimaryMetric("f1", "max"))


def test_a_metric_that_is_not_returned_ends_the_run(tmp_path, monkeypatch, one_thread):
    """Where it could not be known before."""
    monkeypatch.setattr("raysync.running.run.check_metrics", lambda *_: None)
    stop = {"patience": 1, "metric": "f1", "mode": "max"}
    with pytest.raises(RunFailed, match=naming("stop.metric: 'f1'")):
        raysync.run(BASE | {"output": str(tmp_path), "stop": stop})
    [record] = (tmp_path / "tiny").iterdir()
    assert raysync.load(record).summary["status"] == "failed"
