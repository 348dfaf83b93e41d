"""Pipelines that lose stages, and runs in stages that go on from a checkpoint: each stage learns
once from every batch, nobody is stuck, and the journal tells a possible history.
"""

from collections import Counter

import pytest
import torch
from hypothesis import event, given, settings, strategies as st

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.events import Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Checkpointed, Ended, Entry, Resumed
from raysync.decoupled.plan import plan_of
from raysync.engine.elastic import for_workers_of
from raysync.errors import RunFailed
from raysync.record.reader import load
from raysync.resuming import prepare_to_resume
from raysync.runner import run_in
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine, driver_of
from tests.builders.virtual import DATA, TIMING, deep, replayed

MOST_EVENTS = 20_000
"""No run here has a tenth of that."""
SYNCS = {
    "bsp": {},
    "asp": {},
    "ssp": {"staleness": 1},
    "lagtuner": {},
    "k-async": {"k": 1},
    "hybrid": {"k": 2, "staleness_tolerance": 1, "pull_interval": 3},
    "sync-switch": {"fraction": 0.4},
}
DROPPING = {"backup-workers": {"backups": 1}, "k-sync": {"k": 1}}
LOCALLY = [{"mix": "weight"}, {"topology": "ring", "mix": "weight"}, {"mix_every": 2}]


@st.composite
def choices(draw, syncs=SYNCS):
    """A decoupled paradigm."""
    groups, locally = draw(st.integers(1, 3)), draw(st.sampled_from([None, *LOCALLY]))
    if locally is None:
        name = draw(st.sampled_from([*syncs])) if groups > 1 else "asp"
        how = {"sync": {"name": name, **syncs.get(name, {})}}
    else:
        how = locally
    return ParadigmChoice(
        name="decoupled",
        modules=draw(st.integers(1, 4)),
        groups=groups,
        locked=draw(st.booleans()),
        weights=draw(st.sampled_from(["stash", "latest"])),
        **how,
    )


def faults_of(workers):
    """Kills at random moments, and crashes that come back."""
    crash = st.fixed_dictionaries(
        {
            "kind": st.just("crash"),
            "worker": st.sampled_from([f"gpu-{number}" for number in range(workers)]),
            "rejoin_after_s": st.floats(0, 3),
        }
    )
    when = st.one_of(
        st.builds(lambda at: {"at_s": at}, st.floats(0.1, 8)),
        st.builds(lambda clock: {"at_clock": clock}, st.integers(0, 8)),
    )
    crashes = st.lists(st.builds(lambda a, b: a | b, crash, when), max_size=3)
    kills = st.lists(
        st.builds(
            lambda times, until: {"kind": "kill", "times": times, "start_s": 0.1, "end_s": until},
            st.integers(1, 2),
            st.floats(2, 9),
        ),
        max_size=1,
    )
    return st.builds(lambda a, b: a + b, crashes, kills)


def task_of(choice, faults, batches=8, **more):
    workers = choice.make().modules * choice.make().groups
    given = {
        "workers": [{"name": "gpu", "count": workers, "step_s": 0.9, "jitter": {"sigma": 0.3}}],
        "workload": {"samples": batches * choice.make().groups},
        "cluster": {"restarts": {"attempts": 50, "backoff_s": 0.3}, "step_deadline_s": 100},
        "faults": faults,
        "paradigm": choice.model_dump(),
    }
    return prepare(config.validate(TIMING | given | more), deep, DATA)


def ran(driver, until=lambda: False):
    """Let it run, and see that it ends."""
    left = MOST_EVENTS
    if not driver.has_begun:
        driver.start()
    while driver.goes_on and not until():
        left -= 1
        assert left, "it does not end"
        driver.backend.wait()
    return driver


def check(task, choice, lines, *, is_whole=True):
    """See that the history is possible, that nothing is lost or counted twice, and that each stage
    has pushed every batch once.
    """
    again = replayed(task, lines, choice)
    assert again.difference is None
    pushes = [entry.event for entry in lines if isinstance(getattr(entry, "event", None), Pushed)]
    assert set(Counter((push.worker, push.clock) for push in pushes).values()) <= {1}
    for machine in again.machine.machines.values():
        roster = machine.roster
        assert roster.received == roster.applied + roster.dropped + len(roster.buffered)
        assert not roster.live
    if is_whole:
        stages = Counter(WorkerId(push.worker).stage for push in pushes)
        paradigm = choice.make()
        expected = plan_of(task, paradigm).batches
        assert stages == dict.fromkeys(range(1, paradigm.modules + 1), expected)
        slots = Counter(WorkerId(push.worker).slot for push in pushes)
        groups = {
            tuple(slots[plan_of(task, paradigm).name((group, stage))] for stage in stages)
            for group in range(paradigm.groups)
        }
        assert all(len(set(group)) == 1 for group in groups), "a stage has missed a batch"


@settings(max_examples=30, deadline=None)
@given(st.data(), choices(SYNCS | DROPPING))
def test_a_pipeline_goes_on_behind_the_last_batch_that_is_complete(data, choice):
    paradigm = choice.make()
    faults = data.draw(faults_of(paradigm.modules * paradigm.groups))
    task = task_of(choice, faults)
    driver = ran(driver_of(task, paradigm))
    lines = [line for lines in driver.run() for line in lines]
    assert lines[-1].status == "finished", lines[-1]
    lost = [
        line
        for line in lines
        if isinstance(line, Entry) and isinstance(line.event, Left) and not line.report.done
    ]
    event(f"{min(len(lost), 3)} lost")
    check(task, choice, lines)


@settings(max_examples=25, deadline=None)
@given(st.data(), choices(), st.lists(st.integers(0, 120), min_size=1, max_size=3))
def test_a_run_in_stages_goes_on_from_any_cut(data, choice, cuts):
    paradigm = choice.make()
    faults = data.draw(faults_of(paradigm.modules * paradigm.groups))
    task = task_of(choice, faults)
    lines, checkpoint = [], None
    for after in cuts:
        driver = driver_of(task, choice.make(), checkpoint)
        driver.start()
        ran(driver, iter([*[False] * after, True]).__next__)
        driver.checkpointer.request()
        ran(driver, lambda driver=driver: bool(driver.checkpoints))
        if not driver.checkpoints:
            break
        [checkpoint] = driver.checkpoints
        assert for_workers_of(checkpoint, task.experiment) is checkpoint
        upto = driver.lines.index(Checkpointed(checkpoint.at, checkpoint.number))
        lines += [*driver.lines[: upto + 1], Resumed(checkpoint.at, checkpoint.number)]
    driver = ran(driver_of(task, choice.make(), checkpoint))
    lines += [line for lines in driver.run() for line in lines]
    assert isinstance(lines[-1], Ended)
    assert lines[-1].status == "finished", lines[-1]
    check(task, choice, lines)


class Failing:
    """A callback that ends the run when most of it is done."""

    def on_progress(self, measures):
        if measures.progress > 0.8:
            raise ValueError("enough")


def test_a_record_in_stages_goes_on_as_if_it_had_never_ended(tmp_path):
    choice = ParadigmChoice(name="decoupled", modules=3, groups=2)
    kill = {"kind": "crash", "worker": "gpu-3", "at_s": 2, "rejoin_after_s": 1}
    more = {"timing": "with-gradients", "checkpoint": {"every_progress": 0.1}}
    task = task_of(choice, [kill], output=str(tmp_path / "a"), evaluation={"marks": 2}, **more)
    undisturbed = run_in(VirtualEngine(), task, choice)
    with pytest.raises(RunFailed, match="enough"):
        run_in(VirtualEngine(), task, choice, callbacks=[Failing()])
    [path] = (each for each in (tmp_path / "a").glob("*/*") if each != undisturbed.path)
    failed = load(path, trust=True)
    _, goes_on = prepare_to_resume(failed, failed.config, lambda text: None, deep, DATA)
    record = run_in(VirtualEngine(), task, choice, goes_on=goes_on)
    lines = list(record.journal())
    assert sum(isinstance(line, Resumed) for line in lines) == 1
    assert lines[-1].status == "finished"
    check(task, choice, lines)
    mine, others = record.state_dict(), undisturbed.state_dict()
    assert all(torch.equal(mine[name], others[name]) for name in others)


def test_a_group_that_cannot_come_back_leaves_its_batches_to_the_others():
    choice = ParadigmChoice(name="decoupled", modules=3, groups=2)
    task = task_of(choice, [{"kind": "crash", "worker": "gpu-1", "at_s": 1}])
    driver = ran(driver_of(task, choice.make()))
    lines = [line for lines in driver.run() for line in lines]
    assert lines[-1].status == "finished"
    check(task, choice, lines, is_whole=False)
    last = [
        line
        for line in lines
        if isinstance(getattr(line, "event", None), Pushed)
        and WorkerId(line.event.worker).stage == 3
    ]
    assert len(last) == 16, "each batch has been through the whole of one pipeline"
    gone = {
        line.event.worker: line.report.why
        for line in lines
        if isinstance(getattr(line, "event", None), Left) and not line.report.done
    }
    assert gone["m1/gpu-0#1"] == gone["m3/gpu-2#1"] == "it can do nothing without m2/gpu-1"


@pytest.mark.parametrize("at_s", [1, 1.9])
def test_without_a_pipeline_left_the_run_fails(at_s):
    choice = ParadigmChoice(name="decoupled", modules=2, groups=1)
    task = task_of(choice, [{"kind": "crash", "worker": "gpu-0", "at_s": at_s}])
    *_, ended = [line for lines in driver_of(task, choice.make()).run() for line in lines]
    assert ended.status == "failed"
    assert "m1/gpu-0#1" in ended.error
