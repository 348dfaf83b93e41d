"""What the tests of the virtual engine share: tiny tasks, runs as lists of lines, and what they
trained.
"""

from contextlib import suppress
from functools import partial
from math import inf
from types import MappingProxyType

import numpy as np
from torch import nn

import raysync
from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Joined, Left, Pushed
from raysync.core.journal import Checkpointed, Entry, encode, header
from raysync.core.replay import replay
from raysync.engine.messages import PublishCall
from raysync.errors import RunFailed
from raysync.paradigms import rebuild
from raysync.training.preparation import prepare
from raysync.training.server.apply_plan import MEAN
from raysync.virtual.engine import VirtualEngine, driver_of

SMALL = nn.Linear(3, 4)
_X, _Y = np.random.default_rng(0).normal(size=(96, 3)), np.arange(96) % 4
DATA = raysync.data_set("points", (_X, _Y), (_X[:16], _Y[:16]))

QUICK = {
    "engine": "virtual",
    "workers": [{"count": 2, "step_s": 0.1}],
    "batch_size": 4,
    "workload": {"samples": 48},
    "evaluation": {"marks": 2},
    "update": {"lr": 0.01},
}
"""Settings of a run of 12 pushes that trains."""

NO_ENDS = MappingProxyType({})

TIMING = {"engine": "virtual", "timing": "only", "batch_size": 1}
"""Pushes are counted: a workload of n samples is n pushes."""


def timed(**settings):
    """A task that trains nothing, of vectors of `BYTES`."""
    return prepare(config.validate(TIMING | settings), SMALL, DATA)


def choice_of(paradigm, parameters):
    is_choice = isinstance(paradigm, ParadigmChoice)
    return paradigm if is_choice else ParadigmChoice(name=paradigm, **parameters)


def run(training, paradigm="bsp", **parameters):
    """All lines of a run."""
    made = training.experiment.make(choice_of(paradigm, parameters))
    return [line for lines in VirtualEngine().run(training, made) for line in lines]


def learn(training, paradigm="bsp", **parameters):
    """All lines of a run that trains, and its driver as the run left it: see `weights_of`."""
    made = training.experiment.make(choice_of(paradigm, parameters))
    driver = driver_of(training, made)
    return [line for lines in driver.run() for line in lines], driver


def weights_of(driver, server="server"):
    """The newest weights of a server, and behind them the buffers: (P + Q,)."""
    actor = driver.backend.processes.of_actor[server].actor
    [weights], _ = actor.compute(PublishCall(actor.state()["version"], MEAN), [], None)
    return weights


def of(lines, kind):
    return [line for line in lines if isinstance(line, kind)]


def entries(lines, kind):
    return [line for line in lines if isinstance(line, Entry) and isinstance(line.event, kind)]


def decided(lines, kind):
    """(when, decision) of all decisions of a kind."""
    return [
        (entry.event.at, decision)
        for entry in entries(lines, object)
        for decision in entry.decisions
        if isinstance(decision, kind)
    ]


def push_times(lines):
    """Slot -> when its lives pushed."""
    times = {}
    for entry in entries(lines, Pushed):
        times.setdefault(slot_of(entry.event.worker), []).append(entry.event.at)
    return times


def times_of(paradigm, /, samples, workers, **described):
    """When the workers of a timed run push."""
    training = timed(workers=workers, workload={"samples": samples}, **described)
    return push_times(run(training, paradigm))


def busy(lines):
    """(worker, clock) -> how long that step computed."""
    return {
        (entry.event.worker, entry.event.clock): entry.event.busy_s
        for entry in entries(lines, Pushed)
    }


def churn(lines):
    """Who left and joined, when, without the joins of the beginning."""
    return [
        (type(entry.event).__name__, entry.event.worker, entry.event.at)
        for entry in entries(lines, (Left, Joined))
        if isinstance(entry.event, Left) or not entry.event.worker.endswith("#1")
    ]


def slot_of(worker):
    return worker.rpartition("#")[0]


def replayed(training, lines, choice):
    """The journal of a run, fed to a fresh machine."""
    return replay(
        [
            header(training.experiment.make(choice), training.workload_samples) + "\n",
            *(encode(line) + "\n" for line in lines),
        ],
        partial(rebuild, trust=True),
    )


def deep():
    """Four items with parameters, each with 20 weights but the last with 16."""
    return nn.Sequential(
        nn.Linear(3, 4),
        nn.Tanh(),
        nn.Linear(4, 4),
        nn.Tanh(),
        nn.Linear(4, 4),
        nn.Tanh(),
        nn.Linear(4, 4),
    )


def learning(**more):
    """A task with states of its optimizer, statistics and best model; its workers' steps vary."""
    settings = {
        "engine": "virtual",
        "batch_size": 4,
        "update": {"lr": 0.1, "optimizer": {"name": "adam"}},
        "workload": {"samples": 160},
        "evaluation": {"marks": 4},
        "keep": "best",
        "workers": [{"name": "gpu", "count": 3, "step_s": 0.1, "jitter": {"sigma": 0.5}}],
    }
    return prepare(config.validate(settings | more), with_statistics, DATA)


def cut_task(modules, groups, **settings):
    workers = [{"name": "gpu", "count": modules * groups, "step_s": 0.12}]
    settings = {
        "engine": "virtual",
        "batch_size": 4,
        "workers": workers,
        "workload": {"samples": 4 * groups * 30},
        "update": {"lr": 0.05, "momentum": 0.5},
        "evaluation": {"marks": 6},
    } | settings
    return prepare(config.validate(settings), deep, DATA)


def decoupled(training, modules, groups, **settings):
    return run(training, "decoupled", modules=modules, groups=groups, **settings)


def interrupted(task, choice, after, checkpoint=None, ends=NO_ENDS):
    """The lines of a run up to the cut of a checkpoint that is asked for after so many events, and
    that checkpoint; None: the run was over before.
    """
    driver = driver_of(task, choice.make(), checkpoint, ends)
    with suppress(RunFailed):
        driver.start()
        # `wait` makes as many calls as are scheduled: one more, or it ended at rounds alone
        driver.backend.schedule(inf, lambda _: None, None)
        while driver.is_running and not driver.checkpoints:
            if not after:
                driver.checkpointer.request()
            after -= 1
            driver.backend.wait()
    lines = driver.lines
    if not driver.checkpoints:
        return lines, None
    [checkpoint] = driver.checkpoints
    cut = lines.index(Checkpointed(checkpoint.at, checkpoint.number))
    return lines[: cut + 1], checkpoint


def resumed(task, choice, checkpoint, late_s=0.0):
    """The lines of a run from a checkpoint to its end; it begins late, as processes do."""
    driver = driver_of(task, choice.make(), checkpoint)
    driver.backend.now += late_s
    reports = driver.run()
    return [line for lines in reports if not isinstance(lines, Checkpoint) for line in lines]


def with_statistics():
    """A model whose vectors have BatchNorm's buffers."""
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))
