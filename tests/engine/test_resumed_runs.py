"""Runs that are resumed from a checkpoint that was taken at any moment: what the journal then tells
is a possible history, and nothing is lost but what came after the cut.
"""

from collections import Counter

import pytest
import torch
from hypothesis import assume, event, given, settings, strategies as st
from torch import nn

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.events import Pushed
from raysync.core.journal import Ended, Entry, Evaluation, Resumed
from raysync.training.preparation import prepare
from raysync.virtual.actors import EvaluatorActor
from raysync.virtual.engine import driver_of
from tests.builders.paradigms import VARIANTS
from tests.builders.plans import plans
from tests.builders.virtual import DATA, interrupted, replayed, resumed, timed, weights_of

variants = st.sampled_from(list(VARIANTS))
cuts = st.lists(st.integers(0, 100), min_size=1, max_size=3)


@settings(max_examples=40)
@given(
    plans(), variants, st.integers(1, 150), st.lists(st.integers(0, 100), min_size=1, max_size=3)
)
def test_a_resumed_run_has_a_possible_history(plan, paradigm, pushes, cuts):
    """However often it is resumed: each event is legal, each decision that of a fresh machine."""
    name, parameters = VARIANTS[paradigm]
    task = timed(**plan, workload={"samples": pushes})
    choice = ParadigmChoice(name=name, **parameters)
    lines, checkpoint = [], None
    for after in cuts:
        more, following = interrupted(task, choice, after, checkpoint)
        if following is None:
            break
        checkpoint = following
        lines += [*more, Resumed(checkpoint.at, checkpoint.number)]
    assume(checkpoint is not None)
    lines += resumed(task, choice, checkpoint)
    again = replayed(task, lines, choice)
    assert again.difference is None
    roster = again.machine.roster
    assert roster.received == roster.applied + roster.dropped + len(roster.buffered)
    pushed = Counter(
        (line.event.worker, line.event.clock)
        for line in lines
        if isinstance(line, Entry) and isinstance(line.event, Pushed)
    )
    assert set(pushed.values()) <= {1}
    assert isinstance(lines[-1], Ended)
    event(lines[-1].status)
    if lines[-1].status == "finished":
        assert roster.samples_applied >= pushes


LEARNING = {
    "batch_size": 4,
    "update": {"lr": 0.1, "optimizer": {"name": "adam"}},
    "workload": {"samples": 240},
    "evaluation": {"marks": 6},
    "keep": "best",
    "workers": [{"name": "gpu", "count": 3, "step_s": 0.1, "jitter": {"sigma": 0.5}}],
}


def with_statistics():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))


@pytest.fixture(scope="module", autouse=True)
def _slow_evaluations():
    """Some are pending at any cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvaluatorActor, "cost", lambda *_: (0.7, 0.0, 0.0, 0.0, None))
        yield


@settings(max_examples=12)
@given(
    st.sampled_from(["bsp", "ssp", "asp", "hybrid"]),
    cuts,
    st.booleans(),
    st.sampled_from(["float32", "bf16"]),
    st.integers(0, 9),
)
def test_what_a_resumed_run_has_learned(paradigm, cuts, compensates, wire, seed):
    """Under BSP the very model, the best one, and all evaluations are those of a run that was never
    interrupted; under any paradigm the model has learned from all samples.
    """
    more = {"update": {"lr": 0.1, "delay_compensation": {}}} if compensates else {}
    more |= {"cluster": {"wire": wire}}
    task = prepare(
        config.validate({"engine": "virtual", "seed": seed} | LEARNING | more),
        with_statistics,
        DATA,
    )
    choice = ParadigmChoice(name=paradigm)
    driver = driver_of(task, choice.make())
    whole = [line for lines in driver.run() for line in lines]
    lines, checkpoint = [], None
    for after in cuts:
        more, following = interrupted(task, choice, after, checkpoint)
        if following is None:
            break
        checkpoint = following
        lines += [*more, Resumed(checkpoint.at, checkpoint.number)]
    assume(checkpoint is not None)
    again = driver_of(task, choice.make(), checkpoint)
    lines += [line for lines in again.run() for line in lines]
    assert lines[-1].status == "finished"
    assert replayed(task, lines, choice).difference is None
    evaluations = [line for line in lines if isinstance(line, Evaluation)]
    expected = [line for line in whole if isinstance(line, Evaluation)]
    assert [each.mark for each in evaluations] == [each.mark for each in expected]
    if paradigm == "bsp":
        assert torch.equal(weights_of(again), weights_of(driver))
        assert again.models == driver.models
        assert [each.metrics for each in evaluations] == [each.metrics for each in expected]
    else:
        assert weights_of(again).isfinite().all()
