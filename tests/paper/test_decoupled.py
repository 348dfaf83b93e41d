"""Decoupled backpropagation without torch: the schedule, the machine that works by it, what a file
may ask for.
"""

import pytest
from hypothesis import given, strategies as st

from raysync import config
from raysync.core.decisions import Apply, Release, SetTimer
from raysync.core.events import Joined, Left, Pushed, TimerFired
from raysync.core.ids import stage_slot, worker_id
from raysync.core.machine import describe
from raysync.core.stages import StageMachines, machine_of
from raysync.decoupled.pipelines import Pass, Pipelines
from raysync.decoupled.schedule import PipelineSchedule
from raysync.errors import ConfigError, IllegalDecision, ProtocolViolation
from raysync.paradigms import make, rebuild
from raysync.paradigms.bsp import BSP
from tests.builders.messages import naming
from tests.builders.schedules import of


def forward_batch(stage, tick):
    """The batch that a stage runs forward at a tick; None while the pipeline fills."""
    batch = tick - stage + 1
    return batch if batch >= 1 else None


def backward_batch(schedule, stage, tick):
    """The batch that a stage runs backward at a tick; None while the pipeline fills."""
    batch = tick - 2 * schedule.stages + stage + 1
    return batch if batch >= 1 else None


def ticks(schedule, batches):
    """The ticks until every stage has run so many batches backward: the pipeline takes K - 1 of
    them to fill, and K - 1 to drain.
    """
    return batches + 2 * (schedule.stages - 1)


def stashed(pipelines, stage_id):
    """Batches that a stage has begun forward and not yet begun backward."""
    counts = pipelines.counts[stage_id]
    return counts.forwards - counts.backwards


def waiting(pipelines, stage_id):
    """Activations and gradients that have reached a stage before it has use for them."""
    group, stage = stage_id
    counts, before, behind = (pipelines.counts.get((group, stage + step)) for step in (0, -1, 1))
    return (
        before.forwards_done - counts.forwards if before else 0,
        behind.backwards_done - counts.backwards if behind else 0,
    )


def test_the_figure_of_fdg():
    """Three stages at tick 5: stage 1 forwards #5 and back-propagates #1, stage 2 #4 and #2,
    stage 3 #3 and #3.
    """
    schedule = PipelineSchedule(3)
    assert [(forward_batch(k, 5), backward_batch(schedule, k, 5)) for k in (1, 2, 3)] == [
        (5, 1),
        (4, 2),
        (3, 3),
    ]
    assert [forward_batch(k, 2) for k in (1, 2, 3)] == [2, 1, None]
    assert ticks(schedule, 10) == 14


def by_ticks(schedule, stage, batches):
    """A stage's work in the order of the ticks; within a tick backward first, but for the last
    stage.
    """
    order = []
    for tick in range(1, ticks(schedule, batches) + 1):
        forward, backward = (forward_batch(stage, tick), backward_batch(schedule, stage, tick))
        passes = [("backward", backward), ("forward", forward)]
        for direction, batch in passes if stage < schedule.stages else reversed(passes):
            if batch is not None and batch <= batches:
                order.append((direction, batch))
    return order


def is_drained(pipelines, stage):
    """Whether the stage has run backward all batches that its group will ever get."""
    done = pipelines.counts[stage].backwards_done
    return pipelines.is_empty and done == pipelines.taken[stage[0]]


def drive(pipelines, choose, order=None):
    """Work the pipelines off, each stage one pass after another, in any order that `choose` picks;
    returns their lists, and in `order` the stages as they worked.

    A stage that has ended an iteration is released when it is chosen: its paradigm may hold it for
    as long as it likes.
    """
    lists = {stage: [] for stage in pipelines.counts}
    queues = {stage: [] for stage in pipelines.counts}
    held = dict.fromkeys(pipelines.counts)

    def begin(passes):
        for one in passes:
            queues[one.stage_id].append(one)
            schedule, stage = pipelines.schedule, one.stage_id[1]
            assert stashed(pipelines, one.stage_id) <= max(1, schedule.delay(stage))
            assert max(waiting(pipelines, one.stage_id)) <= 2 * pipelines.stages

    while ready := [
        stage
        for stage in queues
        if queues[stage] or (stage in held and not is_drained(pipelines, stage))
    ]:
        stage = choose(ready)
        if not queues[stage]:
            del held[stage]
            begin(pipelines.released(stage))
            continue
        one = queues[stage].pop(0)
        lists[stage].append((one.direction, one.batch))
        if order is not None:
            order.append(stage)
        begin(pipelines.done(one))
        if one.direction == "backward":
            held[stage] = None
    return lists


ANY_ORDER = st.randoms(use_true_random=True)


@given(st.integers(1, 5), st.integers(1, 30), ANY_ORDER)
def test_each_stage_works_in_the_order_of_the_ticks(stages, batches, random):
    pipelines = Pipelines(groups=1, stages=stages, batches=batches)
    lists = drive(pipelines, random.choice)
    assert lists == {
        (0, stage): by_ticks(pipelines.schedule, stage, batches) for stage in range(1, stages + 1)
    }


@given(st.integers(1, 5), st.integers(1, 20), ANY_ORDER)
def test_locked_modules_compute_one_after_another(stages, batches, random):
    order = []
    drive(Pipelines(1, stages, batches, locked=True), random.choice, order)
    there_and_back = [*range(1, stages), stages, stages, *range(stages - 1, 0, -1)]
    assert [stage for _, stage in order] == there_and_back * batches


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
    ANY_ORDER,
)
def test_groups_share_the_pool_and_every_batch_goes_all_the_way(
    stages, groups, batches, locked, firsts_wait, random
):
    """Also where the first stages are held for as long as others have something to do."""
    pipelines = Pipelines(groups, stages, batches, locked)

    def choose(ready):
        others = [stage for stage in ready if stage[1] != 1]
        return random.choice(others if firsts_wait and others else ready)

    lists = drive(pipelines, choose)
    fed = 0
    for group in range(groups):
        backward = [
            [batch for kind, batch in lists[group, 1 + index] if kind == "backward"]
            for index in range(stages)
        ]
        assert all(each == backward[0] == list(range(1, len(each) + 1)) for each in backward)
        fed += len(backward[0])
    assert fed == batches
    assert all(is_drained(pipelines, stage) for stage in pipelines.counts)


def test_what_cannot_have_happened_is_refused():
    pipelines = Pipelines(1, 2, 2)
    passes = pipelines.released((0, 1))
    assert passes == [Pass((0, 1), "forward", 1), Pass((0, 1), "forward", 2)]
    with pytest.raises(ProtocolViolation, match=naming("iteration 1")):
        pipelines.released((0, 1))
    with pytest.raises(ProtocolViolation, match="0 done before"):
        pipelines.done(Pass((0, 1), "forward", 2))
    with pytest.raises(ProtocolViolation, match="0 were begun"):
        pipelines.done(Pass((0, 2), "forward", 1))
    assert pipelines.done(passes[0]) == []  # stage 2 was not released
    assert pipelines.released((0, 2)) == [Pass((0, 2), "forward", 1)]


def pushed(worker, at):
    """The first push of a worker."""
    return Pushed(at=at, worker=worker, clock=0, base=0, samples=4, busy_s=1.0)


def test_each_module_has_a_machine_of_its_own():
    """Who waits, versions and progress are a stage's; the journal's rule makes them again, and a
    snapshot too.
    """
    paradigm = make("decoupled", modules=2, groups=2)
    described = describe(paradigm)
    machines = machine_of(rebuild(described.reference, described.parameters), 16)
    names = {
        (group, module): worker_id(stage_slot(f"w-{group}", module), 1)
        for group in (0, 1)
        for module in (1, 2)
    }
    for name in names.values():
        assert machines.handle(Joined(at=0.0, worker=name)) == [Release(name, 0, 0, lead=0)]
    for module in (2, 1):
        assert not of(Apply | Release, machines.handle(pushed(names[0, module], 1.0)))
    done = machines.handle(pushed(names[1, 2], 2.0))
    assert done[0] == Apply(((names[0, 2], 0), (names[1, 2], 0)), version=1, samples_before=0)
    assert machines.roster.progress == 0.5
    assert machines.machines[1].roster.progress == 0
    for worker in ("m3/w-0#1", "w-0#1", "mx/w-0#1"):
        with pytest.raises(ProtocolViolation, match=naming("stages 1 2")):
            machines.handle(Joined(at=2.0, worker=worker))
    for key in ("0/x", "3/x", "x", "\u00b2/x", "9" * 5000 + "/x"):
        with pytest.raises(ProtocolViolation, match=naming("stages 1 2")):
            machines.handle(TimerFired(at=2.0, key=key))
    again = paradigm.machine(None)
    again.restore(machines.snapshot())
    leave = Left(at=3.0, worker=names[1, 1])
    assert (
        again.handle(leave)
        == machines.handle(leave)
        == [Apply(((names[0, 1], 0),), 1, 0), Release(names[0, 1], 1, 1, lead=0)]
    )
    assert again.snapshot() == machines.snapshot()


def test_timers_are_a_stages_own():
    paradigm = make(
        "decoupled", modules=2, groups=2, sync={"name": "sync-switch", "online": "elastic"}
    )
    assert paradigm.phases() == ("bsp", "asp")
    assert paradigm.phase == "bsp"
    assert make("decoupled", sync="ssp").phase == "ssp"
    machines = paradigm.machine(1000)
    workers = [worker_id(stage_slot(f"w-{group}", 2), 1) for group in (0, 1)]
    for worker in workers:
        machines.handle(Joined(at=0.0, worker=worker))
    decisions = machines.handle(pushed(workers[0], 1.0))
    [timer] = of(SetTimer, decisions)
    assert timer.key.startswith("2/")
    assert machines.timers == {timer.key: timer.at}
    assert machines.handle(TimerFired(at=timer.at, key=timer.key))[0].key == timer.key


@pytest.mark.parametrize(
    ("groups", "topology", "row"),
    [
        (1, "full", [1.0]),
        (2, "ring", [0.5, 0.5]),
        (4, "full", [0.25] * 4),
        (4, "ring", [1 / 3, 1 / 3, 0, 1 / 3]),
        (2, [[0.9, 0.1], [0.1, 0.9]], [0.9, 0.1]),
    ],
)
def test_matrices(groups, topology, row):
    matrix = make("decoupled", groups=groups, topology=topology).matrix
    assert matrix[0] == pytest.approx(row)
    assert all(sum(line) == pytest.approx(1) for line in [*matrix, *zip(*matrix, strict=True)])


@pytest.mark.parametrize(("workers", "fits"), [(5, False), (6, True), (7, False)])
def test_every_stage_of_every_pipeline_has_one_worker(workers, fits):
    assert (make("decoupled", modules=2, groups=3).infeasible_reason(workers) == "") == fits


@pytest.mark.parametrize("setting", ["batch_size", "steps"])
def test_what_a_users_paradigm_decides_and_nothing_heeds_is_refused(setting):
    class Deciding(BSP):
        def on_push(self, roster, push):
            return [Apply((push,)), Release(push[0], **{setting: 5})]

    machines = StageMachines(Deciding, 1)
    machines.handle(Joined(at=0.0, worker="m1/a-0#1"))
    with pytest.raises(IllegalDecision, match=naming(f"sync: {setting}=5")):
        machines.handle(pushed("m1/a-0#1", 1.0))


def test_only_full_averaging_of_gradients_each_round_has_one_server():
    assert not make("decoupled", groups=2).mixes_locally
    for settings in ({"mix": "weight"}, {"topology": "ring"}, {"mix_every": 2}):
        assert make("decoupled", groups=2, **settings).mixes_locally


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"modules": 0}, "modules: 1"),
        ({"groups": 0}, "groups: 1"),
        ({"modules": 2, "groups": 3}, "modules: 2 groups: 3 6 4"),
        ({"modules": 2, "groups": 2, "topology": [[1.0, 0.0]]}, "a matrix of 2 x 2"),
        ({"modules": 2, "groups": 2, "topology": [[0.5, 0.5], [0.4, 0.6]]}, "column 0 0.9"),
        ({"modules": 2, "groups": 2, "topology": [[1.5, -0.5], [-0.5, 1.5]]}, "below 0"),
        ({"modules": 2, "groups": 2, "mix": "weight", "sync": "asp"}, "it must be bsp"),
        ({"modules": 2, "groups": 2, "sync": "spp"}, "'ssp'"),
        ({"modules": 2, "groups": 2, "sync": {"name": "k-sync", "k": 3}}, "k: 3 workers of 2"),
        ({"modules": 2, "groups": 2, "sync": "decoupled"}, "kind"),
        ({"modules": 2, "groups": 2, "at": ["1", "2"]}, "2 2 modules"),
    ],
)
def test_what_cannot_be_is_refused_with_the_file(settings, says):
    with pytest.raises(ConfigError, match=naming(says)):
        config.validate({"workers": [{"count": 4}], "paradigm": {"name": "decoupled", **settings}})
