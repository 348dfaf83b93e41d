"""Weights that are used where they were published: by what a copy of them would have given."""

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from raysync.cluster.actor_errors import ActorError
from raysync.cluster.actors import worker_actor as worker_module
from raysync.cluster.actors.worker_actor import Worker
from raysync.cluster.node_watch import NodeView, WorkerNodes
from raysync.cluster.ray_backend import RayBackend
from raysync.cluster.shards import Shards
from raysync.cluster.transports.payloads import outgoing
from raysync.cluster.transports.shared.in_place import LEAST_BYTES, WeightsInPlace
from raysync.cluster.transports.shared.segments import Mappings, Slots, TornVector
from raysync.cluster.transports.shared.shared_memory import SharedPlan, slots_of
from raysync.cluster.transports.shared.shared_vector import SharedVector
from raysync.cluster.transports.transport import Writers
from raysync.engine.messages import PublishCall, StepCall
from tests.builders.actors import begun
from tests.fakes.calls import FakeRay, Views

SIZE = 3000  # numbers, on several pages

MAPPINGS = Mappings()


def tensor(view):
    return torch.from_numpy(np.frombuffer(view, np.float32))


class Published:
    """Vectors in slots that are mapped by themselves, as those of large models are."""

    def __init__(self, size=SIZE):
        self.slots = Slots(4 * size, segment_bytes=1, kind=SharedVector)

    def publish(self, vector):
        lease = self.slots.lease()
        tensor(MAPPINGS.begin_write(lease.handle))[:] = vector
        MAPPINGS.finish_write(lease.handle)
        return lease


STEPS = st.lists(
    st.tuples(st.sampled_from(["publish", "pull", "write"]), st.integers(0, SIZE - 1)), max_size=30
)


@given(STEPS)
def test_they_are_what_a_copy_would_be_whatever_is_published_and_written(steps):
    """A model writes to its own, in slots that are used again, and keeps a view of them."""
    published, in_place = Published(), WeightsInPlace(MAPPINGS, 4 * SIZE)
    kept, copy = in_place.vector[SIZE // 2 :], torch.zeros(SIZE)
    held, pulled = deque([published.publish(1.0)]), None
    values = {held[0].handle: 1.0}
    for number, (what, index) in enumerate(steps, 2):
        if what == "publish":
            if len(held) == 3:
                held.popleft()
            held.append(published.publish(float(number)))
            values[held[-1].handle] = float(number)
        elif what == "pull":
            pulled = held[index % len(held)]
            assert in_place.show([pulled.handle])
            copy.fill_(values[pulled.handle])
        else:
            in_place.vector[index] = copy[index] = -number
        in_place.check()
        assert torch.equal(in_place.vector, copy)
        assert torch.equal(kept, copy[SIZE // 2 :])
        for lease in held:
            assert set(tensor(MAPPINGS.read(lease.handle)).tolist()) == {values[lease.handle]}
    assert len(published.slots.segments) <= 4


def test_weights_that_are_overwritten_are_an_error():
    published, in_place = Published(), WeightsInPlace(MAPPINGS, 4 * SIZE)
    handle = published.publish(1.0).handle  # the lease is dropped
    assert in_place.show([handle])
    in_place.vector[0] = 5.0  # this process has a copy of the page with the stamp
    in_place.check()
    latest = published.publish(2.0)
    assert latest.handle.slot == handle.slot
    with pytest.raises(TornVector):
        in_place.check()
    with pytest.raises(TornVector):
        in_place.show([handle])
    in_place.check()  # no vector is shown


def test_what_cannot_be_used_in_place_is_copied():
    published, in_place = Published(), WeightsInPlace(MAPPINGS, 4 * SIZE)
    whole = published.publish(1.0)
    assert in_place.show([whole.handle])
    shared = Slots(4 * SIZE)
    leases = [shared.lease() for _ in range(2)]
    MAPPINGS.finish_write(leases[1].handle)
    for parts in (
        whole.handle.parts([SIZE - 1, 1]),
        whole.handle.parts([SIZE - 1]),
        [leases[1].handle],  # it begins within a page
        outgoing(torch.ones(SIZE)),
    ):
        assert not in_place.show(parts)
    in_place.vector.fill_(2.0)
    assert set(tensor(MAPPINGS.read(whole.handle)).tolist()) == {1.0}
    assert published.publish(3.0)
    in_place.check()


# ---- the worker ----


class Writing(nn.Module):
    """It keeps a view of its weights, and writes to all of them in one of its passes."""

    def __init__(self, access):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 1000), nn.Tanh(), nn.Linear(1000, 1000))
        self.last = nn.Linear(1000, 10)
        self.norm = nn.BatchNorm1d(1000)
        self.access, self.begun, self.then = access, [], lambda: None
        self.passes, self.view = 0, None

    def forward(self, x):
        if not self.begun:  # it is only tried
            return self.last(self.norm(self.layers(x.flatten(1))))
        self.passes += 1
        if self.view is None:
            self.view = self.layers[2].weight.data
        if self.passes == 3:
            self.write()
        output = self.last(self.norm(self.layers(x.flatten(1)))) * (1 + self.view[:2].mean())
        self.then()
        return output

    def write(self):
        for parameter in self.parameters():
            match self.access:
                case "data":
                    parameter.data.clamp_(-0.01, 0.01)
                case "no_grad":
                    with torch.no_grad():
                        parameter.mul_(0.5)


@pytest.fixture
def worker_over(monkeypatch):
    """Returns a worker that is ready for a run over a transport, its module, and the size of its
    vectors, which are as large as its pushes.
    """
    monkeypatch.setattr(worker_module, "warm_up", lambda key, make: None)

    def worker_over(transport, access="", **group):
        modules = []

        def model():
            modules.append(Writing(access))
            return modules[-1]

        settings = {
            "data": {"name": "digits", "train_samples": 100},
            "batch_size": 8,
            "workers": [{"name": "w", "count": 1, **group}],
            "cluster": {"transport": transport},
        }
        worker, training = begun(monkeypatch, Worker, settings, model=model)
        modules[-1].begun.append(True)
        return worker, modules[-1], training.push_bytes // 4

    return worker_over


def vectors(size, count=6):
    generator = torch.Generator().manual_seed(0)
    return [0.05 * torch.randn(size, generator=generator) for _ in range(count)]


def weights_of(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def gradients(worker, module, size, payloads):
    """The gradients of steps, and the weights that each left; no payload: it pulls nothing."""
    slots = slots_of(4 * size)
    for clock, payload in enumerate(payloads):
        lease = slots.lease()
        [part], _ = worker.execute(StepCall(clock, 8), payload, lease.handle)
        yield bytes(MAPPINGS.read(part)), weights_of(module)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("access", ["", "data"])
def test_gradients_are_those_of_copied_weights_also_of_a_model_that_writes_to_them(
    worker_over, access, devices
):
    """It writes in a step without a pull, after which two slots are used again. Further devices
    copy the weights from where they are.
    """
    *copying, size = worker_over("object-ref", access, devices_per_worker=devices)
    *in_place, _ = worker_over("shared-memory", access, devices_per_worker=devices)
    assert 4 * size >= LEAST_BYTES
    made, pulls = vectors(size), [True, True, False, False, True, True, True, False]
    published, left = Published(size), deque(maxlen=2)

    def over(payload_of):
        following = iter(made)
        for pulls_now in pulls:
            yield [payload_of(next(following))] if pulls_now else []

    def handle_of(vector):
        left.append(published.publish(vector))
        return left[-1].handle

    expected = gradients(*copying, size, over(lambda vector: outgoing(vector)[0]))
    found = gradients(*in_place, size, over(handle_of))
    writes = []
    for (gradient, weights), (other, others_weights) in zip(found, expected, strict=True):
        assert gradient == other
        assert torch.equal(weights, others_weights)
        writes.append(weights.abs().max() <= 0.01)
    assert writes[2] == (access == "data")
    assert len(published.slots.segments) <= 3
    for lease, vector in zip(left, made[3:5], strict=True):
        assert torch.equal(tensor(MAPPINGS.read(lease.handle)), vector)
    tensor(MAPPINGS.begin_write(left[-1].handle))[7] = 123.0
    assert weights_of(in_place[1])[7] == 123.0, "they are in place again"


def test_a_model_that_begins_to_write_to_its_weights_ends_the_run(worker_over):
    worker, module, size = worker_over("object-ref", "no_grad")
    payloads = [outgoing(vector) for vector in vectors(size, 3)]
    with pytest.raises(ActorError, match="layers.0.weight"):
        list(gradients(worker, module, size, payloads))


def test_a_step_whose_weights_are_overwritten_fails_and_leaves_no_gradient(worker_over):
    worker, module, size = worker_over("auto")
    published = Published(size)
    [first, second, *_] = vectors(size)
    lease, into = published.publish(first), slots_of(4 * size).lease()

    def overwrite():
        tensor(MAPPINGS.begin_write(lease.handle))[:] = second

    module.then = overwrite
    with pytest.raises(ActorError, match="TornVector"):
        worker.execute(StepCall(0, 8), [lease.handle], into.handle)
    with pytest.raises(TornVector):
        MAPPINGS.read(into.handle)


# ---- the driver ----

WORKERS = ["w-0#1", "w-1#1", "w-2#1"]


class Serving:
    """A reference of Ray's: to the end of a `serve`."""

    def future(self):
        return Future()


class Actor:
    """A thread that answers what it is asked over a pipe."""

    def __init__(self):
        self.serve = self

    def remote(self, service):
        threading.Thread(target=service.run, args=(self,), daemon=True).start()
        return Serving()

    def execute(self, message, inputs, into):
        return [into], None


class Driving:
    """The backend of a run, and where the weights are that each worker has."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(FakeRay(monkeypatch), "kill", lambda actor: None, raising=False)
        plan = SharedPlan("here", shares_weights=True)
        shards = Shards([Actor()], ["server-0"], ["here"], [None], clips=False, push_bytes=400)
        self.backend = RayBackend(
            {"server": shards},
            None,
            (),
            {worker: Actor() for worker in WORKERS},
            None,
            WorkerNodes(Views(NodeView({}, {})), {}),
            {},
            sites=dict.fromkeys(WORKERS, "here"),
            upload_s=lambda slot, fault: 0.0,
            transport=plan.begin(
                Writers(400, 400, {name: name for name in WORKERS}, ["server-0"]), None
            ),
        )
        self.used, self.places = {}, []

    def done(self, call):
        assert self.backend.failure(call, 5) is None
        return call

    def publish(self):
        self.published = self.done(self.backend.call("server", PublishCall(0, 0)))
        [handle] = self.published.parts
        place = handle.inode, handle.slot
        assert place not in self.used.values(), "a worker has its weights there"
        self.places.append(place)

    def pull(self, worker):
        self.done(self.backend.call(worker, StepCall(0, 8), (self.published,)))
        self.used[worker] = self.places[-1]

    def go_on(self, worker):
        self.done(self.backend.call(worker, StepCall(0, 8)))

    def lose(self, worker):
        self.backend.processes.kill(worker)
        self.used.pop(worker, None)


@settings(max_examples=20)
@given(st.lists(st.sampled_from(["publish", "publish", "pull", "go_on", "lose"]), max_size=30))
def test_weights_stay_where_they_are_until_their_worker_has_others_or_is_gone(steps):
    """However many are published meanwhile; and no memory is taken beyond that."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run, workers = Driving(monkeypatch), deque(WORKERS)
        with closing(run.backend):
            run.publish()
            for step in steps:
                if step == "publish":
                    run.publish()
                elif workers:
                    workers.rotate()
                    getattr(run, step)(workers[0])
                    if step == "lose":
                        workers.popleft()
            assert len(set(run.places)) <= len(WORKERS) + 2
            for worker in workers:
                run.lose(worker)
            del run.places[:-1]
            for _ in range(4):
                run.publish()
            assert len(set(run.places)) == 2
