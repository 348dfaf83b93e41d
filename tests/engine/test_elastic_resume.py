"""Runs that go on from a checkpoint with other workers: what the journal tells is a possible
history, slots that are gone leave, new ones join, and nothing that had arrived is lost.
"""

import pytest
from hypothesis import assume, given, settings, strategies as st

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.events import Joined, Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry, Evaluation, Resumed
from raysync.core.machine import roster_in
from raysync.engine.checkpoint_state import OTHER_WORKERS, for_workers_of
from raysync.training.preparation import prepare
from tests.builders.paradigms import VARIANTS
from tests.builders.plans import workers
from tests.builders.virtual import DATA, entries, interrupted, replayed, resumed, timed

variants = st.sampled_from(list(VARIANTS))
clusters = st.lists(workers(), min_size=2, max_size=4)


def fits(choice, groups):
    return not choice.make().infeasible_reason(sum(group["count"] for group in groups))


@settings(max_examples=15)
@given(
    variants, clusters, st.lists(st.integers(0, 60), min_size=1, max_size=3), st.integers(8, 120)
)
def test_a_run_that_goes_on_with_other_workers_has_a_possible_history(
    paradigm, clusters, cuts, pushes
):
    name, parameters = VARIANTS[paradigm]
    choice = ParadigmChoice(name=name, **parameters)
    assume(all(fits(choice, groups) for groups in clusters))
    task, lines, checkpoint = None, [], None
    for after, groups in zip(cuts, clusters, strict=False):
        task = timed(workers=groups, workload={"samples": pushes})
        more, checkpoint = interrupted(task, choice, after, following(checkpoint, task))
        lines += more
        if checkpoint is None:
            break
        lines.append(Resumed(checkpoint.at, checkpoint.number))
    assume(checkpoint is not None)
    task = timed(
        workers=clusters[len(cuts)] if len(cuts) < len(clusters) else clusters[0],
        workload={"samples": pushes},
    )
    before = roster_in(checkpoint.state["topology"]["machine"])
    rest = resumed(task, choice, following(checkpoint, task))
    lines += rest

    again = replayed(task, lines, choice)
    assert again.difference is None
    roster = again.machine.roster
    assert roster.received == roster.applied + roster.dropped + len(roster.buffered)
    assert rest[-1].status == "finished"
    assert roster.samples_applied >= pushes

    slots = set(map(str, task.experiment.slots()))
    slots_before = {str(WorkerId(worker).slot) for worker in before.live}
    left = {line.event.worker for line in entries(rest, Left) if line.report.why == OTHER_WORKERS}
    assert left == {worker for worker in before.live if WorkerId(worker).slot not in slots}
    joined = {str(WorkerId(line.event.worker).slot) for line in entries(rest, Joined)}
    assert joined == slots - slots_before
    assert {str(WorkerId(line.event.worker).slot) for line in entries(rest, Pushed)} <= slots


def following(checkpoint, task):
    return None if checkpoint is None else for_workers_of(checkpoint, task.experiment)


def test_a_slot_that_is_gone_and_comes_again_is_another_life():
    def task(count):
        return timed(
            workers=[{"name": "gpu", "count": count, "step_s": 1.0}], workload={"samples": 300}
        )

    choice = ParadigmChoice(name="bsp")
    _, checkpoint = interrupted(task(3), choice, 12)
    smaller, checkpoint = interrupted(
        task(2), choice, 12, for_workers_of(checkpoint, task(2).experiment)
    )
    assert [line.event.worker for line in entries(smaller, Left)] == ["gpu-2#1"]
    assert set(checkpoint.workers) == {"gpu-0", "gpu-1"}
    again = for_workers_of(checkpoint, task(4).experiment)
    assert dict(again.workers) == {
        "gpu-0": "gpu-0#1",
        "gpu-1": "gpu-1#1",
        "gpu-2": "gpu-2#2",
        "gpu-3": "gpu-3#1",
    }
    assert for_workers_of(checkpoint, task(2).experiment) is checkpoint, "nothing has changed"
    lines = resumed(task(4), choice, again)
    newcomers = [(line.event.worker, line.event.at) for line in entries(lines, Joined)]
    assert newcomers == [("gpu-2#2", checkpoint.at), ("gpu-3#1", checkpoint.at)]


LEARNING = {
    "engine": "virtual",
    "batch_size": 4,
    "update": {"lr": 0.1, "momentum": 0.5, "lr_scaling": "none"},
    "data": {"partition": "shared"},
    "workload": {"samples": 480},
    "evaluation": {"marks": 6},
}


def test_all_marks_are_evaluated_and_what_had_arrived_is_learned_from():
    """Two of three workers of BSP go while their pushes of the round are buffered: the update of
    that round still has them.
    """

    def task(*groups):
        return prepare(config.validate({**LEARNING, "workers": list(groups)}), data=DATA)

    fast = {"name": "fast", "count": 2, "step_s": 0.1}
    slow = {"name": "slow", "count": 1, "step_s": 10.0}
    choice, both = ParadigmChoice(name="bsp"), task(fast, slow)
    lines, checkpoint = interrupted(both, choice, after=5)
    buffered = roster_in(checkpoint.state["topology"]["machine"]).buffered
    assert len(buffered) == 2
    alone = task(slow)
    rest = resumed(alone, choice, for_workers_of(checkpoint, alone.experiment))
    applied = [
        set(decision.pushes)
        for line in rest
        if isinstance(line, Entry)
        for decision in line.decisions
        if hasattr(decision, "pushes")
    ]
    assert buffered.keys() < applied[0], "with that of the slow worker"
    marks = [line.mark for line in [*lines, *rest] if isinstance(line, Evaluation)]
    assert marks == both.experiment.evaluation.progress_marks()
    last = next(line for line in reversed(rest) if isinstance(line, Evaluation))
    assert last.loss < 1.5


@pytest.mark.parametrize("wire", ["float32", "int8", {"name": "top-k", "fraction": 0.1}])
@pytest.mark.parametrize("local", [None, {"steps": 3, "optimizer": "adamw", "lr": 0.01}])
@pytest.mark.parametrize("count", [2, 4])
def test_whatever_a_worker_keeps_goes_with_it(wire, local, count):
    def task(count):
        workers = [{"name": "gpu", "count": count, "step_s": 0.1}]
        settings = {"local": local, "workers": workers, "cluster": {"wire": wire}}
        return prepare(config.validate(LEARNING | settings), data=DATA)

    choice = ParadigmChoice(name="asp")
    _, checkpoint = interrupted(task(3), choice, 9)
    has_state = local is not None or wire != "float32"
    assert len(checkpoint.worker_files) == 3 * has_state
    other = task(count)
    adapted = for_workers_of(checkpoint, other.experiment)
    assert len(adapted.worker_files) == min(3, count) * has_state
    assert resumed(other, choice, adapted)[-1].status == "finished"
