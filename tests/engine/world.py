"""Runs of the driver in a world where things go wrong: the virtual backend, and its incidents.

No test here trains: the weights that workers pull are the number of their version, and a gradient
is the number of the version that it was computed on. So every actor can be asked what it was given.
"""

import re
from collections import defaultdict
from math import inf
from weakref import WeakKeyDictionary

import torch

from raysync.emulation.fault_plan import FaultPlan
from raysync.engine.backend import Failure
from raysync.engine.driver import Driver
from raysync.engine.evaluations import EVALUATOR
from raysync.engine.messages import (
    ApplyCall,
    BackwardCall,
    EvaluateCall,
    ForwardCall,
    StateDictCall,
    StepCall,
    StepReport,
)
from raysync.engine.topology import SERVER
from raysync.programs.building import spec_of
from raysync.programs.server import ServerProgram
from raysync.step_fault import NO_FAULT
from raysync.virtual.actors import VirtualActor
from raysync.virtual.engine import run_of
from raysync.virtual.virtual_backend import VirtualBackend
from raysync.virtual.virtual_calls import VirtualCall
from raysync.virtual.virtual_processes import ProcessEnd

LOST = Failure("lost", "what it needs was lost with the node that held it")


def arriving(at, answer=None):
    """What brings a gradient, there at that time; infinity: never."""
    return VirtualCall(at, answer=answer)


def push_of(worker, message):
    """The push that a call of a worker ends with, as (worker, clock)."""
    return worker, message.batch - isinstance(message, BackwardCall)


class Versions:
    """A store whose weights are the number of their version."""

    def __init__(self):
        self.plans, self.vectors = [], []
        """What came with each update."""

    def apply(self, plan, vectors):
        self.plans.append(plan)
        self.vectors.append([int(vector) for vector in vectors])

    def publish(self, replica):
        return torch.tensor([float(len(self.plans))])

    def forget(self, worker):
        pass

    def state(self):
        return {"updates": len(self.plans)}


class Performer:
    """An actor that takes as long as the real one, and computes nothing."""

    def __init__(self, world, name, actor, raises_at):
        self.site, self.cost = actor.site, actor.cost
        self._world, self._name, self._actor, self._raises_at = world, name, actor, raises_at
        self._weights = None

    def compute(self, message, inputs, answer):
        self._world.log.append((self._name, message, [int(each) for each in inputs]))
        if self._raises_at is not None and self._world.now >= self._raises_at:
            raise ValueError("the user's own")
        match message:
            case EvaluateCall():
                return (), {"accuracy": 0.5, "loss": 0.7}
            case StateDictCall():
                return (), str([int(each) for each in inputs]).encode()
            case StepCall():
                [self._weights] = inputs or [self._weights]
                return (self._weights,), StepReport(0.5, answer.busy_s)
            case ForwardCall() | BackwardCall():
                return (torch.tensor(0.0),) * 2, answer
        return self._actor.compute(message, inputs, answer)


class Evaluator:
    """Takes its time."""

    site = "evaluator"

    def __init__(self, takes_s, saving_s):
        self._takes_s = {EvaluateCall: takes_s, StateDictCall: saving_s}

    def cost(self, message, inputs):
        return self._takes_s[type(message)], 0.0, NO_FAULT, NO_FAULT, None


class Incidents:
    """The incidents of a run, in lines: see `PHRASES`."""

    def __init__(self, lines=()):
        self.ends = defaultdict(list)
        self.raises_at, self.uploads_s, self.lost, self.starts = {}, {}, set(), {}
        self.shards, self.lost_updates, self.evaluation_s = {}, set(), 0.0
        self.saving_s = 0.0
        self.drained_at, self.no_resources, self.turn_at = {}, {}, {}
        for line in lines:
            self._read(line)

    def _read(self, line):
        for pattern, take in PHRASES.items():
            if found := re.fullmatch(pattern, line):
                take(self, *found.groups())
                return
        raise AssertionError(f"{line!r} is none of {list(PHRASES)}")

    @property
    def delivers(self):
        """Whether gradients travel, so that they may be late or lost."""
        return bool(self.uploads_s or self.lost or self.shards)


PHRASES = {
    r"(.+) dies at (\S+)": lambda it, who, at: it.ends[who].append(ProcessEnd(float(at))),
    r"(.+) freezes at (\S+)": lambda it, who, at: it.ends[who].append(
        ProcessEnd(float(at), freezes=True)
    ),
    r"(.+) raises an error from (\S+) on": lambda it, who, at: it.raises_at.update(
        {who: float(at)}
    ),
    r"gradient (\S+)@(\d+) takes (\S+) s": lambda it, who, clock, s: it.uploads_s.update(
        {(who, int(clock)): float(s)}
    ),
    r"gradient (\S+)@(\d+) is lost": lambda it, who, clock: it.lost.add((who, int(clock))),
    r"shard 2 (never gets|loses) (\S+)@(\d+)": lambda it, how, who, clock: it.shards.update(
        {(who, int(clock)): how}
    ),
    r"update (\d+) is lost": lambda it, version: it.lost_updates.add(int(version)),
    r"(\S+) takes (\S+) s to start": lambda it, who, s: it.starts.update({who: float(s)}),
    r"(\S+) does not start": lambda it, who: it.starts.update(
        {who: Failure("died", "its actor died", who)}
    ),
    r"(\S+) loses its node while it starts": lambda it, who: it.starts.update(
        {who: Failure("died", "its node is gone", who, with_node=True)}
    ),
    r"the node of (\S+) is drained at (\S+)": lambda it, who, at: it.drained_at.update(
        {who: float(at)}
    ),
    r"(\S+) has no resources until (\S+)": lambda it, who, at: it.no_resources.update(
        {who: (0.0, float(at))}
    ),
    r"(\S+) has no resources from (\S+) until (\S+)": lambda it, who, since, at: (
        it.no_resources.update({who: (float(since), float(at))})
    ),
    r"(\S+) has its turn at (\S+)": lambda it, who, at: it.turn_at.update({who: float(at)}),
    r"evaluations take (\S+) s": lambda it, s: setattr(it, "evaluation_s", float(s)),
    r"saving a model takes (\S+) s": lambda it, s: setattr(it, "saving_s", float(s)),
}


class World:
    """The virtual backend, with incidents."""

    def __init__(self, run, incidents):
        self.calls, self.log, self.killed, self.servers = [], [], [], {}
        """Calls as they were issued, as they were performed, and who was killed."""
        self._run, self._incidents = run, incidents
        self._backend = VirtualBackend(
            run.networks(), self._make, computes=True, ends=incidents.ends
        )
        self.restarts, self.spawned = 0, []
        self.live = WeakKeyDictionary()
        """Call -> its actor and message, while anything refers to the call."""
        self._dead = set()

    def __getattr__(self, name):
        backend = self._backend
        parts = (backend, backend.processes, backend.transit)
        return getattr(next((part for part in parts if hasattr(part, name)), backend), name)

    @property
    def transit(self):
        """This world is its own transit, and its own processes: incidents may be in either."""
        return self

    processes = transit

    @property
    def now(self):
        return self._backend.now

    def schedule_deadline(self, at, happens, argument):
        """Here actors may be silent, as on Ray."""
        self._backend.schedule(at, happens, argument)

    @property
    def delivers(self):
        return self._incidents.delivers

    def call(self, actor, message, inputs=()):
        assert actor not in self._dead, f"{message} for {actor}, which was killed"
        self.calls.append((self.now, actor, message))
        call = self._backend.call(actor, message, inputs)
        self.live[call] = actor, message
        if isinstance(message, ApplyCall) and message.plan.version in self._incidents.lost_updates:
            call.answer = LOST
        return call

    @property
    def held(self):
        """The pushes whose gradients anything refers to, as (worker, clock)."""
        return {push_of(*called) for called in self.live.values() if called[1].row.is_push}

    def deliver(self, value, actor):
        whose, its = push_of(*self.live[value]), self._incidents
        upload_s = its.uploads_s.get(whose, 0.0)
        first = arriving(self.now + upload_s, LOST if whose in its.lost else None)
        if whose not in its.shards:
            return (first,) if upload_s or whose in its.lost else ()
        if its.shards[whose] == "loses":
            return first, arriving(first.at, LOST)
        return first, arriving(inf)

    def availability(self, worker):
        since, until = self._incidents.no_resources.get(worker, (0.0, 0.0))
        if since <= self.now < until:
            return "none"
        return "busy" if self.now < self._incidents.turn_at.get(worker, 0.0) else "free"

    def watch_nodes(self, drained, lost):
        for worker, at in self._incidents.drained_at.items():
            self._backend.schedule(at, drained, worker)

    def spawn(self, worker):
        self.spawned.append((self.now, worker))
        return self._started(worker, self._backend.processes.spawn(worker))

    def restart(self, actor, *base, freezes=False):
        processes = self._backend.processes
        self._dead.discard(actor)
        if actor != EVALUATOR:
            return self._restarted(actor, processes.restart(actor, *base, freezes=freezes))
        self.restarts += 1
        return self._started(actor, processes.restart(actor))

    def _restarted(self, server, call):
        """A server is sent calls before it is ready."""
        seconds = self._incidents.starts.get(server, 0.0)
        processes = self._backend.processes
        process = processes.of_actor.get(server) or processes.start(server)
        process.free_at = call.at = self.now + seconds
        return call

    def _started(self, actor, call):
        match self._incidents.starts.get(actor):
            case Failure() as failure:
                call.answer = failure
            case float(seconds):
                call.at += seconds
        return call

    def kill(self, actor):
        self.killed.append(actor)
        self._dead.add(actor)
        self._backend.processes.kill(actor)

    def _make(self, name):
        actor = (
            Evaluator(self._incidents.evaluation_s, self._incidents.saving_s)
            if name == EVALUATOR
            else self._run.actor(name)
        )
        if name.startswith(SERVER):
            store = self.servers[name] = Versions()
            actor = VirtualActor(actor.site, actor.cost, ServerProgram(store))
        return Performer(self, name, actor, self._incidents.raises_at.get(name))


def driver_in(training, paradigm, incidents):
    """A driver that has not begun, and its world as `driver.backend`."""
    experiment, spec = training.experiment, spec_of(training, paradigm)
    assert not spec.trains, "nothing is trained here"
    faults = FaultPlan(experiment)
    world = World(run_of(spec, training.model), incidents)
    return Driver(
        spec.topology.topology(world, experiment, faults),
        world,
        experiment,
        faults,
        experiment.evaluation.progress_marks(),
    )


def run_in(training, paradigm, *incidents):
    """The driver of a run that has ended, and its lines."""
    driver = driver_in(training, paradigm, Incidents(incidents))
    return driver, [line for lines in driver.run() for line in lines]
