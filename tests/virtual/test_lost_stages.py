"""Runs in stages that go on from a checkpoint, as they do where a stage is lost: each stage learns
once from every batch, and in virtual time all is as if nothing had happened.
"""

from collections import Counter
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import event, given, settings, strategies as st
from torch import nn

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.events import Pushed
from raysync.core.ids import WorkerId, stage_slot
from raysync.core.journal import Checkpointed, Ended, Resumed
from raysync.decoupled.plan import plan_of
from raysync.engine.checkpoint_state import OUTLIVED_S, for_workers_of
from raysync.engine.messages import BackwardCall, ForwardCall
from raysync.errors import RunFailed, RunLost
from raysync.record.reader import load
from raysync.running.resuming import prepare_to_resume
from raysync.running.run import run_in
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine, driver_of
from tests.builders.virtual import DATA, TIMING, cut_task, deep, interrupted, replayed, resumed

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


def task_of(choice, batches=8, **more):
    workers = choice.make().modules * choice.make().groups
    given = {
        "workers": [{"name": "gpu", "count": workers, "step_s": 0.9, "jitter": {"sigma": 0.3}}],
        "workload": {"samples": batches * choice.make().groups},
        "paradigm": choice.model_dump(),
    }
    return prepare(config.validate(TIMING | given | more), deep, DATA)


def ran(driver, until=lambda: False):
    """Let it run, and see that it ends."""
    left = MOST_EVENTS
    if not driver.has_begun:
        driver.start()
    while driver.is_running and not until():
        left -= 1
        assert left, "it does not end"
        driver.backend.wait()
    return driver


def first_passes(driver):
    """Stage -> whether its first pass gets weights, beside what comes from its neighbour."""
    firsts, send, last = {}, driver.backend.call, len(driver.topology.servers)

    def call(actor, message, inputs=()):
        if isinstance(message, ForwardCall | BackwardCall):
            is_first = WorkerId(actor).stage == 1
            is_alone = is_first and (isinstance(message, ForwardCall) or last == 1)
            firsts.setdefault(actor, len(inputs) == (1 if is_alone else 2))
        return send(actor, message, inputs)

    driver.backend.call = call
    return firsts


def check(task, choice, lines):
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
    stages = Counter(WorkerId(push.worker).stage for push in pushes)
    paradigm = choice.make()
    expected = plan_of(task, paradigm).batches
    assert stages == dict.fromkeys(range(1, paradigm.modules + 1), expected)
    counts = Counter(WorkerId(push.worker).slot for push in pushes)
    slots = [*task.experiment.slots()]
    groups = {
        tuple(
            counts[stage_slot(slots[group * paradigm.modules + stage - 1], stage)]
            for stage in stages
        )
        for group in range(paradigm.groups)
    }
    assert all(len(set(group)) == 1 for group in groups), "a stage has missed a batch"


@settings(max_examples=25, deadline=None)
@given(choices(SYNCS | DROPPING), st.lists(st.integers(0, 120), min_size=1, max_size=3))
def test_a_run_in_stages_goes_on_from_any_cut(choice, cuts):
    task = task_of(choice)
    lines, checkpoint = [], None
    for after in cuts:
        driver = driver_of(task, choice.make(), checkpoint)
        firsts = first_passes(driver)
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
        assert all(firsts.values())
    driver = driver_of(task, choice.make(), checkpoint)
    firsts = first_passes(driver)
    ran(driver)
    assert all(firsts.values()), "a new process that has been sent no weights"
    lines += [line for lines in driver.run() for line in lines]
    assert isinstance(lines[-1], Ended)
    assert lines[-1].status == "finished", lines[-1]
    check(task, choice, lines)


def normed():
    layers = [[nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU()], [nn.Linear(6, 6), nn.BatchNorm1d(6)]]
    return nn.Sequential(*layers[0], *layers[1], nn.ReLU(), nn.Linear(6, 4))


def test_the_processes_of_a_run_that_goes_on_have_the_buffers_of_the_stages():
    choice = ParadigmChoice(name="decoupled", modules=2, groups=2)
    task = prepare(cut_task(2, 2).experiment, normed, DATA)
    _, checkpoint = interrupted(task, choice, 150)
    driver = ran(driver_of(task, choice.make(), checkpoint))
    for stage in driver.topology.workers:
        buffers = driver.backend.processes.of_actor[stage].actor.state()["buffers"]
        [tracked] = buffers[-2:].clone().view(torch.int64)  # its bits come last
        assert tracked >= 30, "as many as the stage has pushed in both lives"


def kill(worker, at_s):
    return {"kind": "kill", "workers": [worker], "at_s": at_s}


def told(record):
    """What the journal tells, beside where the run went back and its end; and how often it did."""
    lines = list(record.journal())
    assert lines[-1].status == "finished"
    went_back = sum(isinstance(line, Resumed) for line in lines)
    return [line for line in lines if not isinstance(line, Resumed | Ended)], went_back


DEATHS = st.lists(st.tuples(st.integers(0, 11), st.floats(1.5, 6)), min_size=1, max_size=3)


@settings(max_examples=8, deadline=None)
@given(choices(), DEATHS)
def test_a_run_that_loses_stages_goes_as_if_it_had_not(choice, deaths):
    slots = [f"gpu-{number}" for number in range(choice.make().modules * choice.make().groups)]
    faults = [kill(slots[victim % len(slots)], at_s) for victim, at_s in deaths]
    histories = []
    for more in ({}, {"faults": faults}):
        with TemporaryDirectory() as folder:
            task = task_of(choice, output=folder, checkpoint={"every_s": 0.5}, **more)
            histories.append(told(run_in(VirtualEngine(), task, choice)))
    (expected, never), (got, went_back) = histories
    assert never == 0
    event(f"{went_back} times back")
    assert got == expected


class Failing:
    """A callback that ends a run soon after it went back."""

    def on_progress(self, measures):
        if measures.resumptions and measures.progress > 0.4:
            raise ValueError("enough")


def test_its_weights_are_those_of_an_undisturbed_run_also_where_the_command_ends_behind_a_loss(
    tmp_path,
):
    """The run goes back to its first checkpoint, the command ends before the moment of that loss,
    and what resumes it goes back once more: no loss happens again.
    """
    choice = ParadigmChoice(name="decoupled", modules=3, groups=2, sync="bsp")
    more = {"timing": "with-gradients", "evaluation": {"marks": 2}, "batches": 40}
    more |= {"output": str(tmp_path), "checkpoint": {"every_progress": 0.35}}
    undisturbed = run_in(VirtualEngine(), task_of(choice, **more), choice)
    seconds = undisturbed.summary["seconds"]
    faults = [kill("gpu-3", 0.5 * seconds), kill("gpu-1", 0.55 * seconds)]
    task, heard = task_of(choice, faults=faults, **more), []
    with pytest.raises(RunFailed, match="enough"):
        run_in(VirtualEngine(), task, choice, callbacks=[Failing()], notify=heard.append)
    assert [word[:10] for word in heard if word.startswith("m")] == ["m1/gpu-3#1"]
    [path] = (each for each in tmp_path.glob("*/*") if each != undisturbed.path)
    failed = load(path, trust=True)
    _, resume_from = prepare_to_resume(failed, failed.config, lambda text: None, deep, DATA)
    record = run_in(VirtualEngine(), task, choice, resume_from=resume_from, notify=heard.append)
    assert [word[:10] for word in heard if word.startswith("m")] == ["m1/gpu-3#1", "m2/gpu-1#1"]
    lines = list(record.journal())
    check(task, choice, lines)
    assert told(record) == (told(undisturbed)[0], 3)
    assert {line.number for line in lines if isinstance(line, Resumed)} == {1}
    assert lines[-1].faults_without_effect == ()
    assert record.summary["lost_s"] > 0
    mine, others = record.state_dict(), undisturbed.state_dict()
    assert all(torch.equal(mine[name], others[name]) for name in others)


def test_a_loss_before_the_checkpoint_is_no_loss_behind_it():
    """Where the driver goes on from its own state, as on Ray."""
    choice = ParadigmChoice(name="decoupled", modules=2, groups=1)
    task = task_of(choice, batches=40, faults=[kill("gpu-0", 9)])
    _, checkpoint = interrupted(task, choice, 2)
    assert checkpoint.at < 9
    with pytest.raises(RunLost, match="gpu-0"):
        resumed(task, choice, checkpoint)
    outlived = replace(checkpoint, state=checkpoint.state | {OUTLIVED_S: 9.0})
    ended = resumed(task, choice, outlived)[-1]
    assert (ended.status, ended.faults_without_effect) == ("finished", ())
