"""A third shell, of threads, under the same driver and programs: real gradients in real time.

Where a paradigm fixes what is added to what, the weights are the virtual run's, bit for bit. What
threads do beside each other is otherwise different each time: there the invariants hold.
"""

import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import pytest
from torch import nn

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.checkpoint import Checkpoint
from raysync.core.decisions import Apply
from raysync.core.events import Joined, Left, Pushed
from raysync.core.journal import Checkpointed, Entry, Evaluation, Remark, Resumed
from raysync.engine.driver import Driver
from raysync.engine.messages import (
    ApplyCall,
    EvaluateCall,
    PublishCall,
    SavedCall,
    SnapshotCall,
    StateDictCall,
    StatisticsCall,
    StepCall,
)
from raysync.engine.server_log import FEWEST_GRADIENTS
from raysync.training.preparation import prepare
from raysync.virtual import engine as virtual
from tests.builders.virtual import cut_task, entries, interrupted, of, replayed
from tests.fakes import threads

pytestmark = pytest.mark.usefixtures("one_thread")

BSP = ParadigmChoice(name="bsp")
SETTINGS = {
    "engine": "virtual",
    "data": {"name": "digits", "train_samples": 240, "test_samples": 60},
    "model": {"name": "mlp", "hidden": [16]},
    "batch_size": 8,
    "workers": [{"name": "w", "count": 3, "step_s": 0.1}],
    "workload": {"samples": 240},
    "evaluation": {"marks": 4},
    "update": {"lr": 0.1, "momentum": 0.5},
    "cluster": {"restarts": {"backoff_s": 0.0, "attempts": 3}},
    "keep": "best",
}
UPDATES = 10
"""Under a barrier."""
PATIENCE_S = 20.0


def with_statistics(classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, classes)
    )


def task_of(model=None, **more):
    cluster = SETTINGS["cluster"] | more.pop("cluster", {})
    return prepare(config.validate(SETTINGS | {"cluster": cluster} | more), model)


def task_with_log_of(gradients, **more):
    log_bytes = gradients * task_of(**more).vector_bytes
    return task_of(cluster={"server_log_bytes": log_bytes}, **more)


@dataclass
class Run:
    """A run that is over, on any shell."""

    driver: Driver
    lines: list
    checkpoints: list[Checkpoint]

    def of(self, kind):
        return of(self.lines, kind)

    @property
    def evaluations(self):
        return [(each.mark, each.version, each.metrics) for each in self.of(Evaluation)]

    @property
    def updates(self):
        """What the updates add, whatever came first."""
        return [
            (decision.version, sorted(decision.pushes), sorted(decision.weights))
            for entry in self.of(Entry)
            for decision in entry.decisions
            if isinstance(decision, Apply)
        ]


def ended(driver):
    run = Run(driver, [], [])
    for lines in driver.run():
        run.lines += lines
        run.checkpoints += driver.checkpoints
        driver.checkpoints.clear()
    return run


def in_threads(task, choice=BSP, checkpoint=None, story=None):
    around = {} if story is None else {"around": story}
    driver = threads.driver_of(task, task.make(choice), checkpoint, **around)
    if story is not None:
        story.driver = driver
    with closing(driver.backend):
        return ended(driver)


def in_virtual_time(task, choice=BSP, checkpoint=None):
    return ended(virtual.driver_of(task, task.make(choice), checkpoint))


class Story:
    """What happens to an actor within its n-th messages of a type, counted over all its lives."""

    def __init__(self, actor, kind, *numbers):
        self._actor, self._kind, self._numbers, self._count = actor, kind, numbers, 0

    def __call__(self, name, program):
        """Put the story around the program of its actor."""
        if name != self._actor:
            return program

        def handle(message, inputs, into=None):
            handled = program.handle(message, inputs, into)
            if isinstance(message, self._kind):
                self._count += 1
                if self._count in self._numbers:
                    self.happens()
            return handled

        return SimpleNamespace(handle=handle)


class Dies(Story):
    """It did what the message says, and nobody learns of it."""

    def happens(self):
        self.driver.backend.processes.kill(self._actor)


class Unmade(Story):
    """An error of the user's code as the program is made."""

    def __call__(self, name, program):
        if name == self._actor:
            raise ValueError("the user's own")
        return program


class Stops(Story):
    """Somebody stops the run, from another thread than its own."""

    def happens(self):
        self.driver.stop()


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def check(task, choice, run, lines=None):
    """Check that a run is a possible history, and did all its work."""
    lines = lines or run.lines
    again = replayed(task, lines, choice)
    assert again.difference is None
    assert lines[-1].status == "finished", lines[-1].error
    roster = again.machine.roster
    pushed = entries(lines, Pushed)
    assert roster.received == len(pushed) > 0
    assert roster.received == roster.applied + roster.dropped + len(roster.buffered)
    assert max(Counter((each.event.worker, each.event.clock) for each in pushed).values()) == 1
    busy_s = [each.event.busy_s for each in pushed]
    assert 0 < min(busy_s) <= sum(busy_s) <= pushed[-1].event.at, "they compute in turns"
    assert roster.samples_applied >= task.workload_samples
    marks = [line.mark for line in lines if isinstance(line, Evaluation)]
    assert marks == task.experiment.evaluation.progress_marks()


def check_equal(run, expected):
    """Check that two runs made the same updates of the same gradients, bit for bit."""
    assert run.lines[-1].status == "finished", run.lines[-1].error
    assert run.updates == expected.updates
    assert run.evaluations == expected.evaluations
    assert run.driver.models == expected.driver.models
    assert {model.which for model in run.driver.models} == {"final", "best"}


LOCAL = {"steps": 4, "optimizer": "adam", "lr": 0.01}
BARRIERS = {
    "bsp": {},
    "local steps": {"local": LOCAL, "update": {"lr": 0.7, "momentum": 0.9}},
    "batch norm": {"model": with_statistics},
    "adam, clipped": {"update": {"optimizer": "adam", "lr": 0.01, "clip_norm": 0.5}},
    "int8": {"cluster": {"wire": "int8"}},
    "unequal": {
        "workers": [{"name": "w", "count": 2, "step_s": 0.1}, {"name": "big", "batch_size": 20}],
        "micro_batch": 4,
    },
}


@cache
def barrier(label):
    """The task, and the run in virtual time."""
    task = task_of(**BARRIERS[label])
    return task, in_virtual_time(task)


@pytest.mark.parametrize("label", BARRIERS)
def test_under_a_barrier_the_weights_are_those_of_the_virtual_run(label):
    task, expected = barrier(label)
    run = in_threads(task)
    check_equal(run, expected)
    check(task, BSP, run)


def test_a_pipeline_has_the_weights_of_the_virtual_run():
    """Its evaluations meet whatever versions its stages have just then."""
    choice, task = ParadigmChoice(name="decoupled", modules=2, groups=2), cut_task(2, 2)
    run, expected = in_threads(task, choice), in_virtual_time(task, choice)
    assert run.lines[-1].status == "finished"
    assert run.driver.models == expected.driver.models
    assert len(run.driver.models) == 1
    assert replayed(task, run.lines, choice).difference is None


UNEQUAL = {"workers": [{"name": "w", "count": 2}, {"name": "slow", "batch_size": 64}]}
FREE = {
    "asp": {"name": "asp"},
    "ssp": {"name": "ssp", "staleness": 1},
    "hybrid": {"name": "hybrid", "k": 2, "staleness_tolerance": 1, "pull_interval": 2},
    "lagtuner": {"name": "lagtuner", "s_lower": 1, "s_upper": 4},
    "quorum": {"name": "quorum", "k": 2, "grace_s": 0.002},
    "quorum, late ones dropped": {"name": "quorum", "k": 1, "grace_s": 0.002, "late": "drop"},
    "ringmaster": {"name": "ringmaster", "staleness": 1},
    "balanced": {"name": "balanced", "paradigm": "asp", "smoothing": 1.0},
    "switch": {"name": "sync-switch", "fraction": 0.4},
}


@pytest.mark.parametrize("label", FREE)
def test_whatever_comes_first_every_push_has_its_fate_and_the_journal_replays(label):
    choice, task = ParadigmChoice(**FREE[label]), task_of(**UNEQUAL, workload={"samples": 480})
    check(task, choice, in_threads(task, choice))


# ---- losses ----


@pytest.mark.parametrize("paradigm", ["bsp", "ssp"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_worker_that_dies_comes_back(paradigm, number):
    """The run waits for it, so it comes back before the end, and its gradient is nowhere."""
    choice, task = ParadigmChoice(name=paradigm), task_of(cluster={"min_workers": 3})
    run = in_threads(task, choice, story=Dies("w-1#1", StepCall, number))
    check(task, choice, run)
    [left] = entries(run.lines, Left)
    assert left.event.worker == "w-1#1"
    assert left.report.is_loss
    assert [each.event.worker for each in entries(run.lines, Joined)][3:] == ["w-1#2"]
    clocks = Counter(entry.event.worker for entry in entries(run.lines, Pushed))
    assert clocks["w-1#1"] == number - 1
    assert clocks["w-1#2"] > 0


SHORT, WHOLE = FEWEST_GRADIENTS, 10**6
"""Gradients in the log of a server: it is made again from snapshots and the log, or from the log
alone."""


@pytest.mark.parametrize(
    ("label", "gradients", "actor", "kind", "numbers"),
    [
        ("bsp", WHOLE, "server", ApplyCall, [1]),
        ("bsp", SHORT, "server", ApplyCall, [UPDATES]),
        ("bsp", SHORT, "server", ApplyCall, [4, 6]),  # again while it repeats
        ("bsp", WHOLE, "server", ApplyCall, [4, 6]),
        ("bsp", SHORT, "server", PublishCall, [2, 3]),
        ("batch norm", WHOLE, "server", ApplyCall, [4]),
        ("bsp", WHOLE, "evaluator", EvaluateCall, [3]),
        ("bsp", WHOLE, "evaluator", StateDictCall, [1]),
    ],
)
def test_who_dies_is_made_again_bit_for_bit(label, gradients, actor, kind, numbers):
    _, expected = barrier(label)
    task = task_with_log_of(gradients, **BARRIERS[label])
    run = in_threads(task, story=Dies(actor, kind, *numbers))
    check_equal(run, expected)
    assert {remark.lost for remark in run.of(Remark)} == {actor}
    assert not entries(run.lines, Left), "no worker is blamed for it"


@pytest.mark.parametrize("actor", ["w-1#1", "server", "evaluator"])
def test_an_actor_that_cannot_begin_ends_the_run(actor):
    run = in_threads(task_of(), story=Unmade(actor, StepCall))
    assert run.lines[-1].status == "failed"
    assert "ValueError: the user's own" in run.lines[-1].error


# ---- checkpoints ----


def until(lines, checkpoint):
    return lines[: lines.index(Checkpointed(checkpoint.at, checkpoint.number)) + 1]


@pytest.mark.parametrize("label", ["local steps", "batch norm", "int8"])
def test_a_resumed_run_has_the_weights_of_one_that_was_never_interrupted(label):
    """Also if its server dies, also on the other clock, and from there back again."""
    _, expected = barrier(label)
    task = task_of(**BARRIERS[label], checkpoint={"every_progress": 0.3})
    whole, virtually = in_threads(task), in_virtual_time(task)
    check_equal(whole, expected)
    first, last = whole.checkpoints[0], whole.checkpoints[-1]
    for checkpoint, again in (
        (first, in_threads(task, BSP, first)),
        (last, in_threads(task, BSP, last, Dies("server", ApplyCall, 1))),
        (first, in_virtual_time(task, BSP, first)),
    ):
        resumed = Resumed(checkpoint.at, checkpoint.number)
        lines = [*until(whole.lines, checkpoint), resumed, *again.lines]
        check_equal(Run(again.driver, lines, []), expected)
        assert replayed(task, lines, BSP).difference is None
    back = in_threads(task, BSP, virtually.checkpoints[0])
    assert back.driver.models == expected.driver.models


IN_TURN = [{"name": f"w{index}", "step_s": 0.1 + 0.02 * index} for index in range(3)]


@pytest.mark.parametrize("label", ["local steps", "batch norm"])
@pytest.mark.parametrize("kind", [SavedCall, StatisticsCall, PublishCall])
def test_a_run_whose_server_dies_as_it_resumes_loses_nothing(label, kind):
    """Neither what has been pushed nor the statistics of workers, whether they compute or wait."""
    task = task_of(**BARRIERS[label], workers=IN_TURN, checkpoint={"every_s": 1000.0})
    expected, pushed = in_virtual_time(task), set()
    for after in range(17, 22):
        _, checkpoint = interrupted(task, BSP, after)
        pushed.add(len(checkpoint.state["pushed"]))
        again = in_threads(task, BSP, checkpoint, Dies("server", kind, 1))
        assert again.driver.models == expected.driver.models
    assert pushed == {0, 1, 2}, "so many workers wait"


def test_a_server_that_dies_over_a_checkpoint_takes_it_again():
    expected = barrier("bsp")[-1]
    task = task_of(checkpoint={"every_progress": 0.3})
    run = in_threads(task, story=Dies("server", SnapshotCall, 1))
    check_equal(run, expected)
    assert run.checkpoints[0].number == 1
    assert in_threads(task, BSP, run.checkpoints[0]).driver.models == expected.driver.models


def test_a_run_that_is_stopped_goes_on_from_there():
    expected, task = barrier("bsp")[-1], task_of(checkpoint={"every_progress": 1.0})
    run = in_threads(task, story=Stops("w-1#1", StepCall, 4))
    assert run.lines[-1].status == "stopped"
    [checkpoint] = run.checkpoints
    again = in_threads(task, BSP, checkpoint)
    lines = [*until(run.lines, checkpoint), Resumed(checkpoint.at, 1), *again.lines]
    check_equal(Run(again.driver, lines, []), expected)


@pytest.mark.parametrize("label", ["hybrid", "quorum"])
def test_without_a_barrier_a_resumed_run_is_a_possible_history(label):
    choice = ParadigmChoice(**FREE[label])
    task = task_of(**UNEQUAL, workload={"samples": 480}, checkpoint={"every_progress": 0.3})
    whole = in_threads(task, choice)
    checkpoint = whole.checkpoints[0]
    again = in_threads(task, choice, checkpoint)
    resumed = Resumed(checkpoint.at, checkpoint.number)
    check(task, choice, again, [*until(whole.lines, checkpoint), resumed, *again.lines])
