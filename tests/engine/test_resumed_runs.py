"""Runs that are resumed from a checkpoint that was taken at any moment: what the journal then tells
is a possible history, and nothing is lost but what came after the cut.
"""

import re
from collections import Counter

import pytest
import torch
from hypothesis import assume, event, given, settings, strategies as st

from raysync.config import ParadigmChoice
from raysync.core.events import Pushed
from raysync.core.journal import Ended, Evaluation, Remark, Resumed
from raysync.engine.evaluations import EVALUATOR
from raysync.step_fault import NO_FAULT
from raysync.virtual.engine import driver_of
from raysync.virtual.virtual_processes import ProcessEnd, VirtualProcesses
from tests.builders.paradigms import LOCAL, VARIANTS, WRAPPERS, nested
from tests.builders.plans import plans
from tests.builders.virtual import (
    cut_task,
    entries,
    interrupted,
    learning,
    of,
    replayed,
    resumed,
    timed,
    weights_of,
)

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
    pushed = Counter((line.event.worker, line.event.clock) for line in entries(lines, Pushed))
    assert set(pushed.values()) <= {1}
    assert isinstance(lines[-1], Ended)
    event(lines[-1].status)
    if lines[-1].status == "finished":
        assert roster.samples_applied >= pushes


STAGES = {"decoupled": {"name": "decoupled", "modules": 2, "groups": 2}}
NESTED = {
    label: spec
    for label, spec in nested(WRAPPERS | LOCAL).items()
    if label.count("(") == 1 and ("bsp" in label or "lagtuner" in label)
}


@pytest.mark.parametrize("label", [*VARIANTS, *NESTED, *STAGES])
def test_a_run_that_goes_on_late_replays(label):
    """New processes need a moment to start, after the time that the journal says."""
    name, parameters = VARIANTS.get(label) or (None, None)
    spec = {"name": name, **parameters} if name else NESTED.get(label) or STAGES[label]
    choice = ParadigmChoice(**spec)
    more = {"local": {"lr": 0.1}} if "local" in label else {}
    if label in STAGES:
        task = cut_task(2, 2)
    else:
        workers = [
            {"name": "fast", "count": 3, "step_s": 0.1},
            {"name": "slow", "step_s": 0.37, "jitter": {"sigma": 0.5}},
        ]
        task = timed(workers=workers, workload={"samples": 2000 if more else 150}, **more)
    lines, checkpoint = interrupted(task, choice, 12)
    assert checkpoint is not None
    lines += [Resumed(checkpoint.at, checkpoint.number)]
    lines += resumed(task, choice, checkpoint, late_s=0.83)
    assert lines[-1].status == "finished"
    assert replayed(task, lines, choice).difference is None


@pytest.fixture(scope="module", autouse=True)
def _slow_evaluations():
    """Some are pending at any cut."""
    start = VirtualProcesses.start

    def started(processes, name):
        process = start(processes, name)
        if name == EVALUATOR:
            process.cost = lambda *_: (0.7, 0.0, NO_FAULT, NO_FAULT, None)
        return process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualProcesses, "start", started)
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
    task = learning(seed=seed, **more)
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
    evaluations, expected = of(lines, Evaluation), of(whole, Evaluation)
    assert [each.mark for each in evaluations] == [each.mark for each in expected]
    if paradigm == "bsp":
        assert torch.equal(weights_of(again), weights_of(driver))
        assert again.models == driver.models
        assert [each.metrics for each in evaluations] == [each.metrics for each in expected]
    else:
        assert weights_of(again).isfinite().all()


def test_a_checkpoint_has_the_former_state_of_a_worker_that_is_silent():
    """And does not wait for it for ever; the journal says so."""
    task = learning(
        checkpoint={"every_s": 1.0},
        cluster={"wire": "int8", "step_deadline_s": 3.0, "restarts": {"attempts": 0}},
        workers=[{"name": "gpu", "count": 3, "step_s": 0.1}],
        workload={"samples": 240},
        evaluation={"marks": 6},  # which take longer than the deadline
    )
    ends = {"gpu-1#1": [ProcessEnd(1.55, freezes=True)]}
    driver = driver_of(task, ParadigmChoice(name="asp").make(), ends=ends)
    driver.start()
    while driver.is_running and len(driver.checkpoints) < 2:
        driver.backend.wait()
    first, second = driver.checkpoints
    assert (first.at, second.at) == (1.0, 2.0)
    silent = "gpu-1#1"
    assert second.worker_files[silent] == first.worker_files[silent]
    assert second.worker_files["gpu-0#1"] != first.worker_files["gpu-0#1"]
    [remark] = of(driver.lines, Remark)
    assert re.search(rf"\b2\b.*{silent}.*\b3 s", remark.text)
    again = driver_of(task, ParadigmChoice(name="asp").make(), second)
    assert [line for lines in again.run() for line in lines][-1].status == "finished"
