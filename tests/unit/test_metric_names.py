"""The metrics of an evaluation, by their names."""

from math import e, inf, nan

import pytest

from raysync.core.journal import Evaluation, decode
from raysync.core.metrics import ACCURACY, PERPLEXITY, known, reaches, refusal, value_of
from raysync.errors import ConfigError
from tests.builders.messages import naming, tells


def test_a_better_value_is_larger_or_smaller_as_the_metric_says_and_a_number_in_any_case():
    assert ACCURACY.is_better(0.9, 0.8)
    assert not ACCURACY.is_better(0.8, 0.8)
    assert PERPLEXITY.is_better(3, 4)
    for metric in (ACCURACY, PERPLEXITY):
        assert metric.is_better(1, nan)
        assert not metric.is_better(nan, 1)
        assert not metric.is_better(nan, nan)


def test_the_best_of_several():
    assert ACCURACY.best([0.5, nan, 0.9, 0.7]) == 0.9
    assert PERPLEXITY.best([4, 2, 3]) == 2
    assert ACCURACY.best([]) is None
    assert ACCURACY.best([nan]) is not None


def test_a_perplexity_comes_of_the_loss_unless_the_evaluator_returned_one():
    assert value_of({"loss": 1.0}, "perplexity") == pytest.approx(e)
    assert value_of({"loss": 1.0, "perplexity": 5.0}, "perplexity") == 5
    assert value_of({"loss": 710.0}, "perplexity") == inf
    assert value_of({"f1": 1.0}, "perplexity") is None
    assert known(["loss", "f1"]) == ("loss", "f1", "perplexity")


def test_an_evaluation_knows_its_values():
    evaluation = Evaluation(0.5, 0.5, 3, 1.0, {"loss": 0.0, "f1": 0.25})
    assert evaluation.loss == 0
    assert [evaluation.value(name) for name in ("f1", "perplexity", "recall")] == [0.25, 1, None]


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ([1.0], "mapping numbers"),
        ({1: 1.0}, "printed 1"),
        ({"": 1.0}, "text"),
        ({"a\n": 1.0}, "text"),
        ({"at": 1.0}, "called 'at'"),
        ({"f1": True}, "'f1' True"),
        ({"f1": "x"}, "'f1' number 'x'"),
        ({"f1": 1.0}, "lack 'loss'"),
    ],
)
def test_what_is_no_metric_is_said(metrics, says):
    assert tells(refusal(metrics), says)
    assert not refusal({"loss": 1, "f1": nan})


@pytest.mark.parametrize(
    ("metrics", "says"), [('"f1": 1.0', "lack 'loss'"), ('"loss": true', "metrics")]
)
def test_a_line_with_other_metrics_is_no_line(metrics, says):
    text = '{"type": "Evaluation", "mark": 1, "progress": 1, "version": 1, "at": 1, "metrics": {'
    text += metrics + "}}"
    with pytest.raises(ConfigError, match=naming(says)):
        decode(text)


@pytest.mark.parametrize(
    ("value", "bound", "rises", "is_reached"),
    [
        (0.7699999809265137, 0.77, True, True),  # 77 of 100 as a mean of float32
        (0.76, 0.77, True, False),
        (0.4000000059604645, 0.4, False, True),
        (0.41, 0.4, False, False),
        (float("nan"), 0.4, True, False),
        (0.9, 0.9, True, True),
    ],
)
def test_a_bound_is_reached_to_the_digits_of_a_float32(value, bound, rises, is_reached):
    assert reaches(value, bound, rises=rises) == is_reached
