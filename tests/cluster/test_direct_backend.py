"""Whole runs over Direct Transport, with the real workers, server, driver and backend, over a fake
Ray whose transport reads as late as it may, and in two halves.
"""

from random import Random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from raysync import config
from raysync.cluster import direct_transport, server as server_module, worker as worker_module
from raysync.cluster.actor_spec import Role
from raysync.cluster.backend import RayBackend
from raysync.cluster.direct_backend import DirectBackend
from raysync.cluster.direct_vectors import TURNS, DirectVectors
from raysync.cluster.layout import layout_of
from raysync.cluster.node_watch import NodeView, WorkerNodes
from raysync.cluster.server import Server
from raysync.cluster.shards import Shards
from raysync.cluster.threads import Threads
from raysync.cluster.transport import incoming
from raysync.cluster.worker import Worker
from raysync.core.decisions import Apply, Drop
from raysync.core.events import Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Ended, Entry
from raysync.engine.driver import Driver
from raysync.engine.faults import FaultPlan
from raysync.training.preparation import prepare
from tests.fakes.calls import Views
from tests.fakes.direct import DirectWorld, place

SMALL = {
    "name": "direct",
    "model": "mlp",
    "data": {"name": "digits", "train_samples": 64, "test_samples": 10},
    "batch_size": 8,
    "workload": {"samples": 160},
    "workers": [{"name": "w", "count": 3}],
    "evaluation": {"marks": 2},
    "cluster": {"transport": "nixl"},
}


class Evaluator:
    """Keeps what it is to evaluate."""

    def __init__(self):
        self.vectors = []

    def reset(self):
        pass

    def evaluate(self, fields, *weights):
        self.vectors.append(torch.cat(incoming(*weights)).clone())
        return {"accuracy": 0.5, "loss": 0.7}

    def state_dict(self, fields, *weights):
        return b""


class Run:
    """One run over the fake, from the start of its actors to its end."""

    def __init__(self, monkeypatch, choose, **changes):
        for module in (worker_module, server_module):
            monkeypatch.setattr(module, "here", lambda devices: SimpleNamespace(devices=devices))
            monkeypatch.setattr(module, "devices_of_actor", lambda count=1: ["cpu"] * count)
        monkeypatch.setattr(worker_module, "log_ready", lambda *_: None)
        monkeypatch.setattr(worker_module, "warm_up", lambda key, make: None)
        monkeypatch.setattr(direct_transport, "start_here", lambda *_, **__: None)
        self.world = world = DirectWorld(monkeypatch, choose)
        training = prepare(config.validate(SMALL | changes))
        self.experiment = experiment = training.experiment
        paradigm = experiment.make(experiment.paradigm)
        layout = layout_of(training, paradigm)
        self._model = training.model
        self._plans = dict(zip(layout.slots, layout.worker_plans(), strict=True))
        [server_plan] = layout.server_plans()
        self.server = Server(Threads(1), Role("server-0"))
        server = world.actor("server", self.server)
        world.inside(
            world.actors["server"], lambda: self.server.reset(server_plan, training.model, None)
        )
        self.evaluator = Evaluator()
        evaluator = world.actor("evaluator", self.evaluator)
        workers = {f"{slot}#1": self._worker(f"{slot}#1") for slot in layout.slots}
        shards = Shards([server], ["server-0"], ["here"], [None], clips=False, push_bytes=10**6)
        is_direct = experiment.cluster.transport == "nixl"
        vectors = (
            {"vectors": DirectVectors(training.vector_bytes // 4, training.push_bytes // 4)}
            if is_direct
            else {}
        )
        nodes = WorkerNodes(
            Views(NodeView(dict.fromkeys(range(3), "here"), {"here": 9})),
            {slot: index for index, slot in enumerate(layout.slots)},
        )
        self.backend = (DirectBackend if is_direct else RayBackend)(
            {"server": shards},
            evaluator,
            (),
            workers,
            SimpleNamespace(spawn=self._spawn),
            nodes,
            {name: name for name in (*workers, "server")},
            sites=dict.fromkeys(workers, "here"),
            ways_s={},
            **vectors,
        )
        faults = FaultPlan(experiment)
        self.driver = Driver(
            layout.topology.topology(self.backend, experiment, faults),
            self.backend,
            experiment,
            faults,
            experiment.evaluation.progress_marks(),
        )

    def _worker(self, name):
        itself = Worker(Threads(1), Role("worker", WorkerId(name).slot))
        handle = self.world.actor(name, itself)
        self.world.inside(
            self.world.actors[name],
            lambda: itself.reset(self._plans[WorkerId(name).slot], self._model),
        )
        return handle

    def _spawn(self, slot, life):
        name = f"{slot}#{life}"
        ready = self.world.actor(f"start of {name}", Ready(place(name)))
        return self._worker(name), ready.begin.remote()

    def lines(self):
        return [line for report in self.driver.run() for line in report]

    @property
    def weights(self):
        return self.server._model.exchange.weights(0).clone()


class Ready:
    def __init__(self, where):
        self._where = where

    def begin(self):
        return self._where


def in_order(possible):
    return possible[0]


def drawn(seed):
    """Anything, but one actor reads nothing as long as something else can happen."""
    random = Random(seed)
    lazy = random.choice(["w-0#1", "w-1#1", "w-2#1", "server"])

    def choose(possible):
        others = [each for each in possible if each[0].__name__ != "_read" or each[2].name != lazy]
        return random.choice(others or possible)

    return choose


def events(lines, kind):
    return [
        line.event for line in lines if isinstance(line, Entry) and isinstance(line.event, kind)
    ]


def applied(lines):
    decisions = [each for line in lines if isinstance(line, Entry) for each in line.decisions]
    return (
        [push for each in decisions if isinstance(each, Apply) for push in each.pushes],
        [each.push for each in decisions if isinstance(each, Drop)],
    )


PARADIGMS = [
    "bsp",
    "asp",
    {"name": "ssp", "staleness": 1},
    {"name": "hybrid", "k": 2, "staleness_tolerance": 2, "pull_interval": 2},
]


@pytest.mark.parametrize("wire", ["float32", "bf16"])
def test_a_run_is_bit_by_bit_that_over_the_object_store(wire):
    """The evaluated weights, too; under BSP, where the order of the sums is the same."""
    runs = {}
    for transport in ("object-ref", "nixl"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            cluster = {"transport": transport, "wire": wire}
            run = Run(monkeypatch, in_order, cluster=cluster)
            lines = run.lines()
            assert lines[-1].status == "finished"
            runs[transport] = (run.weights, run.evaluator.vectors, applied(lines))
    plain, direct = runs.values()
    assert torch.equal(plain[0], direct[0])
    assert plain[2] == direct[2]
    for one, other in zip(plain[1], direct[1], strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(direct[1][0], direct[1][-1])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), paradigm=st.sampled_from(PARADIGMS))
def test_nothing_is_overwritten_while_it_is_read(seed, paradigm):
    """Whatever goes on when: each push is applied or dropped once, and in the end nothing is kept
    that is needless.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = Run(monkeypatch, drawn(seed), paradigm=paradigm)
        lines = run.lines()
    assert isinstance(lines[-1], Ended)
    assert lines[-1].status == "finished"
    assert run.world.torn == []
    taken, dropped = applied(lines)
    pushes = [(event.worker, event.clock) for event in events(lines, Pushed)]
    assert len(set(pushes)) == len(pushes)
    assert sorted(taken + dropped) == sorted(set(taken + dropped))
    assert set(taken + dropped) <= set(pushes)
    for name, actor in run.world.actors.items():
        if name.startswith("w-"):
            assert len(actor.memory._buffers) <= TURNS
    held = len(pushes) - len(taken) - len(dropped) + len(run.experiment.slots())
    assert run.world.kept_most <= 3 * len(run.experiment.slots())
    assert len(run.world.actors["server"].memory) <= held + len(run.experiment.slots())


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    strikes_at=st.integers(5, 80),
    paradigm=st.sampled_from(PARADIGMS),
    restarts=st.booleans(),
)
def test_a_worker_that_dies_takes_nothing_with_it_that_has_been_pushed(
    seed, strikes_at, paradigm, restarts
):
    """At any moment, also between the end of its step and the transfer of its gradient."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = Run(
            monkeypatch,
            drawn(seed),
            paradigm=paradigm,
            cluster={"transport": "nixl", "restarts": {"attempts": int(restarts)}},
        )
        run.world.dies_at = {strikes_at: "w-1#1"}
        lines = run.lines()
    assert lines[-1].status == "finished", lines[-1].error
    assert run.world.torn == []
    left = [event.worker for event in events(lines, Left)]
    assert left in ([], ["w-1#1"])
    assert set(run.backend._vectors._gradients).isdisjoint(left)
    taken, dropped = applied(lines)
    pushes = {(event.worker, event.clock) for event in events(lines, Pushed)}
    assert len(set(taken + dropped)) == len(taken + dropped)
    assert set(taken) | set(dropped) <= pushes
    if not left:
        return
    since = next(index for index, line in enumerate(lines) if events([line], Left))
    assert "w-1#1" not in {event.worker for event in events(lines[since:], Pushed)}


def test_a_gradient_that_died_with_its_worker_before_it_was_read_was_never_pushed(monkeypatch):
    def choose(possible):
        for happens, transfer, actor in possible:
            source = getattr(getattr(transfer, "reference", None), "source", None)
            if actor.name == "server" and source is not None and source.name == "w-1#1":
                run.world.kill(SimpleNamespace(_actor=source))
                return happens, transfer, actor
        return possible[0]

    run = Run(monkeypatch, choose, cluster={"transport": "nixl", "restarts": {"attempts": 0}})
    lines = run.lines()
    assert lines[-1].status == "finished"
    [left] = [line for line in lines if events([line], Left)]
    assert left.event.worker == "w-1#1"
    assert left.report["why"] == "its gradient was lost on its way"
    assert "w-1#1" not in {event.worker for event in events(lines, Pushed)}


def test_a_server_that_freezes_is_the_one_to_blame(monkeypatch):
    """A gradient that it does not take is no fault of the worker's."""

    def choose(possible):
        if run.world.calls.count(("server", "take")) == 5:
            run.world.freeze("server")
        return possible[-1]

    run = Run(monkeypatch, choose)
    lines = run.lines()
    assert lines[-1].status == "failed"
    assert lines[-1].error.startswith("server: ")
    assert not events(lines, Left)
    assert run.world.now < 2 * 120


def test_a_worker_that_freezes_is_the_one_to_blame(monkeypatch):
    """Once Ray has given the transfer up; the server, which waits for it meanwhile, goes on."""

    def choose(possible):
        for _, transfer, actor in possible:
            source = getattr(getattr(transfer, "reference", None), "source", None)
            if actor.name == "server" and source is not None and source.name == "w-1#1":
                source.is_frozen = True
        return possible[0]

    run = Run(
        monkeypatch,
        choose,
        cluster={"transport": "nixl", "step_deadline_s": 70, "restarts": {"attempts": 0}},
    )
    lines = run.lines()
    assert lines[-1].status == "finished"
    [left] = [line for line in lines if events([line], Left)]
    assert (left.event.worker, left.report["why"]) == ("w-1#1", "its gradient was lost on its way")
    assert left.event.at < 70


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), strikes_at=st.integers(5, 80))
def test_a_server_that_dies_is_the_one_to_blame(seed, strikes_at):
    """Also where it shows in a worker, which cannot read the weights any more."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = Run(monkeypatch, drawn(seed), paradigm="asp")
        run.world.dies_at = {strikes_at: "server"}
        lines = run.lines()
    assert lines[-1].status == "failed"
    assert lines[-1].error.startswith("server: ")
    assert not events(lines, Left)


def test_a_server_reads_what_it_keeps_itself(monkeypatch):
    """Compensation of delays takes weights that it published, a checkpoint gradients, too."""
    run = Run(
        monkeypatch,
        in_order,
        paradigm="asp",
        update={"delay_compensation": "constant"},
        checkpoint={"every_s": 0.05},
    )
    assert run.lines()[-1].status == "finished"
    assert run.world.torn == []
    assert run.driver.checkpoints


def test_a_buffer_is_lent_again_only_when_the_server_has_its_copy(monkeypatch):
    run = Run(monkeypatch, in_order)
    backend, world = run.backend, run.world
    weights = backend.call("server", "publish", [0, 0])

    def step(clock):
        call = backend.call("w-0#1", "step", [clock, 8], [] if clock else [weights])
        assert len(world.wait(call.report, 2)[0]) == 2
        return call

    first = step(0)
    world.freeze("server")
    _, taken = backend.deliver(first, "server")
    del first
    held = [step(1)]
    with pytest.raises(AssertionError, match="still being read"):
        step(2)
    world.actors["server"].is_frozen = False
    done = []
    backend.watch(taken, done.append, "taken")
    while not done:
        backend.wait()
    held.append(step(2))
    with pytest.raises(AssertionError, match="still being read"):
        step(3)
    assert world.torn == []


def test_a_gradient_is_asked_for_only_when_it_is_there(monkeypatch):
    """A call that waits for it would hold up every other call of the server."""
    run = Run(monkeypatch, in_order)
    issue, late = run.world.issue, []

    def checked(actor, task):
        if task.method == "take":
            late.extend(each for each in task.transfers if not hasattr(each.value, "shape"))
        issue(actor, task)

    run.world.issue = checked
    run.lines()
    assert ("server", "take") in run.world.calls
    assert not late
