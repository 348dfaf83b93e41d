"""Servers that are lost while a run trains, at any moments, and as often as it pleases: the run has
the very weights that it would have had.
"""

import gc
from collections import Counter
from itertools import count
from weakref import WeakSet

import pytest
import torch
from hypothesis import assume, event, example, given, settings, strategies as st

from raysync.config import ParadigmChoice
from raysync.core.events import Pushed
from raysync.core.journal import Entry, Evaluation, Remark
from raysync.engine.messages import ApplyCall, ForgetCall, SnapshotCall
from raysync.engine.server_log import FEWEST_GRADIENTS, MAX_UPDATES, ServerLog
from raysync.virtual.engine import driver_of
from raysync.virtual.virtual_backend import VirtualBackend
from raysync.virtual.virtual_processes import ProcessEnd
from tests.builders.paradigms import VARIANTS
from tests.builders.virtual import entries, interrupted, learning, of, replayed, weights_of

COMPENSATED = {"update": {"lr": 0.1, "delay_compensation": {}}}
CRASHES = [{"kind": "crash", "worker": "gpu-1", "at_clock": 4, "rejoin_after_s": 0.2}]
ALL = 2**30
TIMES = st.floats(0, 2.5)
DEATHS = st.lists(TIMES, min_size=1, max_size=4).map(sorted)


class Held:
    """Stands for a call."""


def task_of(log_bytes=ALL, backoff_s=0.0, **more):
    restarts = {"backoff_s": backoff_s, "attempts": 50}
    cluster = {"step_deadline_s": 3.0, "restarts": restarts, "server_log_bytes": log_bytes}
    return learning(cluster=cluster, **more)


SHORT = FEWEST_GRADIENTS * learning().vector_bytes


def trained(task, choice, ends=(), checkpoint=None):
    """The driver of a run that is over, its lines, and its checkpoints."""
    driver = driver_of(task, choice.make(), checkpoint, {"server": ends} if ends else {})
    lines, checkpoints = [], []
    for report in driver.run():
        lines += report
        checkpoints += driver.checkpoints
        driver.checkpoints.clear()
    return driver, lines, checkpoints


def history(lines):
    """What happened, what was decided, and the loss of each step."""
    return [(entry.event, entry.decisions, entry.report.loss) for entry in of(lines, Entry)]


def times_lost(lines):
    return sum(" and recovered after " in line.text for line in of(lines, Remark))


@settings(max_examples=20)
@given(
    st.sampled_from(list(VARIANTS)),
    DEATHS,
    st.sampled_from([SHORT, 2 * SHORT, ALL]),
    st.booleans(),
    st.integers(0, 9),
)
@example("bsp", [0.0], ALL, False, 0)
@example("asp", [0.8, 1.2], ALL, False, 0)
def test_a_run_that_loses_its_server_is_the_run_that_does_not(
    paradigm, deaths, log_bytes, compensates, seed
):
    """Where what is made again takes no time, every event, decision, evaluation and model is the
    same, under every paradigm, however much of it comes from a snapshot.
    """
    name, parameters = VARIANTS[paradigm]
    more = {"seed": seed, "faults": CRASHES} | (COMPENSATED if compensates else {})
    choice = ParadigmChoice(name=name, **parameters)
    driver, lines, _ = trained(task_of(log_bytes, **more), choice)
    other, others, _ = trained(
        task_of(log_bytes, **more), choice, [ProcessEnd(at) for at in deaths]
    )
    event(f"lost {times_lost(others)} times")
    assert others[-1] == lines[-1]
    assert history(others) == history(lines)
    assert of(others, Evaluation) == of(lines, Evaluation)
    assert torch.equal(weights_of(other), weights_of(driver))
    assert other.models == driver.models


@settings(max_examples=12)
@given(
    st.sampled_from(["bsp", "ssp", "asp", "hybrid", "k-sync"]),
    DEATHS,
    st.booleans(),
    st.sampled_from([0.0, 0.3, 5.0]),
    st.sampled_from([SHORT, ALL]),
)
@example("asp", [0.5, 0.6], True, 0.3, ALL)
def test_whatever_it_takes_no_push_is_lost_or_applied_twice(
    paradigm, deaths, freezes, backoff_s, log_bytes
):
    """Processes die or freeze, waits and updates take time: under BSP the model is the same."""
    choice = ParadigmChoice(name=paradigm)
    task = task_of(log_bytes, backoff_s, network={"update_s": 0.01})
    driver, lines, _ = trained(task, choice)
    ends = [ProcessEnd(at, freezes=freezes and index % 2 == 0) for index, at in enumerate(deaths)]
    other, others, _ = trained(task, choice, ends)
    event(f"lost {times_lost(others)} times")
    assert others[-1].status == "finished", others[-1].error
    again = replayed(task, others, choice)
    assert again.difference is None
    roster = again.machine.roster
    assert roster.received == roster.applied + roster.dropped + len(roster.buffered)
    pushed = Counter((line.event.worker, line.event.clock) for line in entries(others, Pushed))
    assert set(pushed.values()) == {1}
    assert all(worker.endswith("#1") for worker, _ in pushed), "no worker is blamed for it"
    assert other.backend.processes.of_actor["server"].actor.state()["version"] == roster.version
    marks = [[line.mark for line in of(each, Evaluation)] for each in (lines, others)]
    assert marks[0] == marks[1]
    if paradigm == "bsp":
        assert torch.equal(weights_of(other), weights_of(driver))
        assert other.models == driver.models


@settings(max_examples=8)
@given(st.integers(1, 60), st.floats(0, 0.6), st.sampled_from(["bsp", "asp"]))
def test_a_resumed_run_restarts_from_its_checkpoint(after, lost_after_s, paradigm):
    """What the server kept for the driver, and the statistics of workers, may be lost again before
    anybody had them.
    """
    choice, task = ParadigmChoice(name=paradigm), task_of()
    whole, _, _ = trained(task, choice)
    _, checkpoint = interrupted(task, choice, after)
    assume(checkpoint)
    undisturbed, lines, _ = trained(task, choice, (), checkpoint)
    other, others, _ = trained(task, choice, [ProcessEnd(checkpoint.at + lost_after_s)], checkpoint)
    event(f"lost {times_lost(others)} times")
    assert history(others) == history(lines)
    assert torch.equal(weights_of(other), weights_of(undisturbed))
    if paradigm == "bsp":
        assert torch.equal(weights_of(other), weights_of(whole))


def test_a_checkpoint_that_was_under_way_is_complete_all_the_same():
    """And the server comes back from one, too."""
    choice, task = ParadigmChoice(name="asp"), task_of(checkpoint={"every_s": 0.25})
    driver, _, expected = trained(task, choice)
    other, others, checkpoints = trained(task, choice, [ProcessEnd(0.25), ProcessEnd(0.9)])
    assert times_lost(others) == 2
    assert [each.number for each in checkpoints] == [each.number for each in expected]
    assert torch.equal(weights_of(other), weights_of(driver))
    resumed, _, _ = trained(task, choice, (), checkpoints[1])
    assert resumed.status == "finished"


def test_the_log_begins_with_the_latest_snapshot_and_is_bounded():
    log, snapshots = ServerLog(vector_bytes=10.0, limit_bytes=35.0), []
    for _ in range(3):
        log.add(ApplyCall(), ("a gradient",), Held())
        log.add(ForgetCall("w-0#1"), (), Held())
    assert not log.is_snapshot_due
    log.add(ApplyCall(publishes=True), ("a gradient",), Held())
    assert log.is_snapshot_due
    for _ in range(2):
        snapshots.append((Held(), len(log.entries) + 1))
        log.add(SnapshotCall([], 1), (), snapshots[-1][0])
        log.add(ApplyCall(), ("a gradient",), Held())
    assert not log.is_snapshot_due, "it has asked"
    log.cut(*snapshots[1])
    assert log.base is snapshots[1][0]
    assert [entry.message for entry in log.entries] == [ApplyCall()]
    log.cut(*snapshots[0])
    assert log.base is snapshots[1][0], "an older one that was late"
    assert len(log.entries) == 1
    for _ in range(MAX_UPDATES - 1):
        assert not log.is_snapshot_due
        log.add(ApplyCall(), (), Held())
    log = ServerLog(vector_bytes=0.0, limit_bytes=1.0)
    for _ in range(MAX_UPDATES):
        assert not log.is_snapshot_due
        log.add(ApplyCall(), ("a gradient",), Held())
    assert log.is_snapshot_due, "however small they are"
    assert {entry.call() for entry in log.entries} == {None}, "it holds no weights"


def test_a_server_that_cannot_be_snapshot_has_no_log():
    log = ServerLog(vector_bytes=1.0, limit_bytes=1.0)
    log.add(ApplyCall(), ("a gradient",), Held())
    log.add(SnapshotCall([], 1), (), Held())
    log.snapshot_failed(is_last=False)
    assert log.is_snapshot_due, "it asks again"
    log.add(SnapshotCall([], 1), (), Held())
    log.snapshot_failed(is_last=True)
    assert not log.is_whole
    log.add(ApplyCall(), ("a gradient",), Held())
    assert not log.entries
    assert not log.is_snapshot_due


@pytest.mark.parametrize(
    "setting",
    [{"server_log_bytes": 0}, {"server_log_bytes": SHORT - 1}, {"restarts": {"attempts": 0}}],
)
def test_without_a_log_or_attempts_the_loss_of_a_server_ends_the_run(setting):
    task = learning(cluster=setting)
    driver, lines, _ = trained(task, ParadigmChoice(name="asp"), [ProcessEnd(0.5)])
    assert driver.topology.server.log is None
    assert (lines[-1].status, lines[-1].error) == ("failed", "server: its actor died")


def test_deadlines_keep_no_vectors(monkeypatch):
    """Of evaluations, models and checkpoints; each has a deadline that is far away."""
    made, number = WeakSet(), count()

    def call(backend, actor, message, inputs=()):
        issued = original(backend, actor, message, inputs)
        if actor in {"server", "evaluator"}:
            next(number)
            made.add(issued)
        return issued

    original = VirtualBackend.call
    monkeypatch.setattr(VirtualBackend, "call", call)
    task = learning(
        evaluation={"marks": 30},
        checkpoint={"every_progress": 0.05},
        cluster={"step_deadline_s": 1e6, "server_log_bytes": SHORT},
    )
    driver, lines, checkpoints = trained(task, ParadigmChoice(name="asp"), [ProcessEnd(1e6)])
    assert lines[-1].status == "finished"
    assert len(checkpoints) > 10
    driver.topology.server.log.entries.clear()
    gc.collect()
    assert next(number) > 100
    assert len(made) < 10


def test_nothing_is_logged_where_no_server_can_be_lost():
    for more in ({}, {"timing": "only", "batch_size": 1}):
        driver = driver_of(task_of(**more), ParadigmChoice(name="asp").make())
        assert driver.topology.server.log is None
