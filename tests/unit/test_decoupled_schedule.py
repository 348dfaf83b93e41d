"""The schedule of decoupled backpropagation: the formulas, and the machine that works by them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysync.decoupled.pipelines import Pass, Pipelines
from raysync.decoupled.schedule import Schedule
from raysync.errors import ProtocolViolation

sizes = st.integers(1, 6)


@given(sizes, st.data())
def test_a_gradient_comes_2_k_minus_k_ticks_after_its_batch(modules, data):
    schedule = Schedule(modules)
    module, batch = data.draw(st.integers(1, modules)), data.draw(st.integers(1, 50))
    assert schedule.backward_tick(module, batch) - schedule.forward_tick(module, batch) == 2 * (modules - module)
    assert schedule.forward_batch(module, schedule.forward_tick(module, batch)) == batch
    assert schedule.backward_batch(module, schedule.backward_tick(module, batch)) == batch
    if module < modules:  # what a neighbour makes at a tick is used at the next one
        assert schedule.forward_tick(module + 1, batch) == schedule.forward_tick(module, batch) + 1
        assert schedule.backward_tick(module, batch) == schedule.backward_tick(module + 1, batch) + 1


def test_the_figure_of_fdg():
    """Three modules at tick 5: module 1 forwards #5 and back-propagates #1, module 2 #4 and #2, module 3 #3 and #3."""
    schedule = Schedule(3)
    assert [(schedule.forward_batch(k, 5), schedule.backward_batch(k, 5)) for k in (1, 2, 3)] == [(5, 1), (4, 2), (3, 3)]
    assert [schedule.forward_batch(k, 2) for k in (1, 2, 3)] == [2, 1, None]
    assert schedule.ticks(10) == 14


def by_ticks(schedule, module, batches):
    """A module's work in the order of the ticks; within a tick backward first, but for the last module."""
    order = []
    for tick in range(1, schedule.ticks(batches) + 1):
        forward, backward = schedule.forward_batch(module, tick), schedule.backward_batch(module, tick)
        passes = [("backward", backward), ("forward", forward)]
        for direction, batch in passes if module < schedule.modules else reversed(passes):
            if batch is not None and batch <= batches:
                order.append((direction, batch))
    return order


def drive(pipelines, choose):
    """Work the pipelines off, each stage one pass after another, in any order that `choose` picks; returns their lists."""
    lists = {stage: [] for stage in pipelines.stages}
    queues = {stage: [] for stage in pipelines.stages}

    def begin(passes):
        for one in passes:
            queues[one.stage].append(one)
            schedule, module = pipelines.schedule, one.stage[1]
            assert pipelines.stashed(one.stage) <= max(1, schedule.delay(module))
            assert max(pipelines.waiting(one.stage)) <= 2 * pipelines.modules

    for stage in pipelines.stages:
        begin(pipelines.released(stage))
    while ready := [stage for stage, queue in queues.items() if queue]:
        stage = choose(ready)
        one = queues[stage].pop(0)
        lists[stage].append((one.direction, one.batch))
        begin(pipelines.done(one))
        if one.direction == "backward" and not pipelines.is_drained(stage):
            begin(pipelines.released(stage))
    return lists


@given(st.integers(1, 5), st.integers(1, 30), st.data())
def test_each_stage_works_in_the_order_of_the_ticks(modules, batches, data):
    pipelines = Pipelines(groups=1, modules=modules, batches=batches)
    lists = drive(pipelines, lambda ready: data.draw(st.sampled_from(ready)))
    assert lists == {(0, module): by_ticks(pipelines.schedule, module, batches) for module in range(1, modules + 1)}


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.data())
def test_groups_share_the_pool_and_every_batch_goes_all_the_way(modules, groups, batches, data):
    pipelines = Pipelines(groups, modules, batches)
    lists = drive(pipelines, lambda ready: data.draw(st.sampled_from(ready)))
    fed = 0
    for group in range(groups):
        backward = [[batch for kind, batch in lists[group, 1 + index] if kind == "backward"] for index in range(modules)]
        assert all(each == backward[0] == list(range(1, len(each) + 1)) for each in backward)
        fed += len(backward[0])
    assert fed == batches
    assert all(pipelines.is_drained(stage) for stage in pipelines.stages)


def test_what_cannot_have_happened_is_refused():
    pipelines = Pipelines(1, 2, 2)
    passes = pipelines.released((0, 1))
    assert passes == [Pass((0, 1), "forward", 1), Pass((0, 1), "forward", 2)]
    with pytest.raises(ProtocolViolation, match="before its iteration 1 has ended"):
        pipelines.released((0, 1))
    with pytest.raises(ProtocolViolation, match="0 done before"):
        pipelines.done(Pass((0, 1), "forward", 2))
    with pytest.raises(ProtocolViolation, match="0 were begun"):
        pipelines.done(Pass((0, 2), "forward", 1))
    assert pipelines.done(passes[0]) == []  # module 2 was not released
    assert pipelines.released((0, 2)) == [Pass((0, 2), "forward", 1)]
