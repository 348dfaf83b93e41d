"""An engine that trains nothing: a machine on a clock, which takes checkpoints and can be lost."""

import pytest

import raysync
from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Pushed
from raysync.core.journal import NO_REPORT, Checkpointed, Ended, Entry, Evaluation, Report
from raysync.core.machine import Machine
from raysync.record import storage
from raysync.testing.drive import SAMPLES
from tests.builders.schedules import joins, simulate


class ScriptedEngine:
    """Its workers take 1 s, 2 s, ... for an iteration.

    Attributes:
        every: a checkpoint after each so many pushes.
        lost_after: the run is lost after so many pushes; None: it is not.
        loss: what it raises then.
        former: the checkpoint that the latest run went on from.
    """

    resumes_exactly, rosters = False, {}

    def __init__(self, every=10, lost_after=None, loss=KeyboardInterrupt):
        self.every, self.lost_after, self.loss = every, lost_after, loss
        self.places, self.models, self.former = {}, [], None

    def run(self, training, paradigm, labels=None, checkpoint=None, history=tuple):
        self.former = checkpoint
        slots = list(training.experiment.slots())
        steps = {f"{slot}#1": 1.0 + place for place, slot in enumerate(slots)}
        if checkpoint is None:
            machine, pushes = Machine(paradigm, training.workload_samples), 0
            events = joins(*steps)
        else:
            machine = Machine.restore(checkpoint.state["machine"], paradigm)
            machine.resume(checkpoint.at)
            pushes = checkpoint.state["pushes"]
            events = [
                Pushed(
                    at=checkpoint.at + steps[worker],
                    worker=worker,
                    clock=machine.roster.clock(worker),
                    base=machine.roster.published,
                    samples=SAMPLES,
                    busy_s=steps[worker],
                )
                for worker in machine.roster.computing
            ]
        number = 0 if checkpoint is None else checkpoint.number
        yield []
        for event, decisions in simulate(machine, events, lambda worker, _: steps[worker], 10**6):
            yield [
                Entry(
                    event,
                    tuple(decisions),
                    Report(loss=1.0) if "Pushed" in str(event) else NO_REPORT,
                )
            ]
            pushes += isinstance(event, Pushed)
            if machine.roster.progress >= 1:
                break
            if isinstance(event, Pushed) and pushes % self.every == 0:
                number += 1
                yield [Checkpointed(event.at, number)]
                state = {"machine": machine.snapshot(), "pushes": pushes}
                yield Checkpoint(number, event.at, state, {"server": [b"of shard 0", b"shard 1"]})
            if isinstance(event, Pushed) and pushes == self.lost_after:
                self.lost_after = None
                raise self.loss
        metrics = {"accuracy": 0.5, "loss": 0.5}
        yield [Evaluation(1.0, 1.0, machine.roster.version, event.at, metrics)]
        yield [Ended("finished", event.at)]


SETTINGS = {
    "name": "tiny",
    "engine": "virtual",
    "timing": "only",
    "data": {"name": "digits", "train_samples": 160, "test_samples": 50},
    "workload": {"samples": 32 * 60},
    "workers": [{"count": 3}],
    "paradigm": {"name": "ssp", "staleness": 2},
    "checkpoint": {"every_progress": 0.1},
}


def lost(engine, output, after=34, **settings):
    """Return the location of the record of a run that was lost after some pushes."""
    engine.lost_after, engine.loss = after, KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        raysync.run({**SETTINGS, "output": str(output), **settings})
    [name] = storage.listdir(storage.join(str(output), "tiny"))
    return storage.join(str(output), "tiny", name)
