"""The Ray backend, over a Ray whose clock only waiting moves."""

import weakref
from types import SimpleNamespace

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayTaskError,
)

from raysync.cluster import full_object_store, shards as shards_module
from raysync.cluster.actor_errors import ActorError
from raysync.cluster.node_watch import NodeView, WorkerNodes
from raysync.cluster.ray_backend import REPORT_EVERY_S, SIGN_OF_LIFE_S, RayBackend
from raysync.cluster.shards import Shards
from raysync.cluster.transports.object_store import ObjectStore
from raysync.engine.backend import Failure
from raysync.engine.messages import (
    ApplyCall,
    BackwardCall,
    ForgetCall,
    ForwardCall,
    RestoreCall,
    SavedCall,
    StepCall,
    WorkerStateCall,
    decode,
)
from raysync.step_fault import StepFault
from tests.builders.messages import tells
from tests.fakes.calls import FakeRay, Reference, Views, remote

LOST = ObjectLostError("0" * 40, None, "")
IDS = {"0a": "w-0#1", "0b": "server"}
REPORT = Reference([0.5, 1.0])


@pytest.fixture
def ray(monkeypatch):
    return FakeRay(monkeypatch)


def backend_of(
    worker=None,
    servers=1,
    server=None,
    respawns=None,
    views=None,
    site="here",
    receives=True,
    **more,
):
    receiver = SimpleNamespace(receive=remote(lambda part: Reference(at=5.0)))
    shards = Shards(
        [server] * servers,
        [f"server-{index}" for index in range(servers)],
        ["here", "there", "elsewhere"][:servers],
        [receiver if receives else None] * servers,
        clips=False,
        push_bytes=more.pop("push_bytes", 10**6),
    )
    transport = more.pop("transport", None) or ObjectStore()
    nodes = WorkerNodes(views or Views(NodeView({0: "here"}, {"here": 1})), {"w-0": 0})
    workers = {"w-0#1": worker}
    sites, ways_s = {"w-0#1": site}, more
    return RayBackend(
        {"server": shards},
        None,
        (),
        workers,
        respawns,
        nodes,
        IDS,
        sites=sites,
        upload_s=lambda slot, fault: ways_s.get(slot, 0.0) + fault.latency_s,
        transport=transport,
    )


def worker_of(*returned):
    """A worker whose calls all return the same: the parts of its gradient, and its report."""
    return SimpleNamespace(call=remote(lambda data, *parts: list(returned)))


def answer_of(*returned):
    """The answer of a worker's step."""
    return backend_of(worker_of(*returned)).call("w-0#1", StepCall(0, 8)).answer


def died(actor_id):
    error = ActorDiedError()
    error.actor_id = actor_id
    return error


def passed_on(cause):
    """The error as Ray raises it where another call depends on the one that failed."""
    return RayTaskError("step", "", cause, "", 1, "").as_instanceof_cause()


DEATH = ActorDiedErrorContext(
    actor_id=b"\x0a" * 16,
    class_name="Worker",
    node_ip_address="10.0.0.2",
    error_message="The actor died because its node has died. Node Id: 0f\n\tit was terminated",
    never_started=True,
)


def test_of_the_death_of_an_actor_one_line_is_told_and_whether_its_node_is_gone(ray):
    answer = answer_of(Reference(), Reference(ActorDiedError(DEATH)))
    assert answer.with_node
    assert "\n" not in answer.reason
    assert "0f" in answer.reason, "Ray's own words"
    assert not answer_of(Reference(), Reference(died("0a"))).with_node


def test_an_error_of_its_own_that_kept_an_actor_from_starting_is_told_whole(ray):
    text = "my line 1\n\tindented\nmy line 3"
    mine = RayTaskError("__init__", text, ValueError("mine"), "", 1, "", "", "0a")
    assert text in answer_of(Reference(), Reference(ActorDiedError(mine))).reason


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (died("0a"), ("died", "w-0#1")),
        (passed_on(died("0b")), ("died", "server")),
        (died("ff"), ("died", "")),
        (ActorUnavailableError("gone", None), ("died", "")),
        (passed_on(LOST), ("lost", "")),
        (passed_on(ActorError("0a", "ValueError: mine")), ("raised", "w-0#1")),
        (passed_on(ValueError("of Ray's own")), ("raised", "")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_names_the_actor_that_it_came_from(ray, error, failure):
    backend = backend_of(worker_of(Reference(), Reference(error)))
    call = backend.call("w-0#1", StepCall(0, 8))
    assert isinstance(call.answer, Failure)
    assert (call.answer.kind, call.answer.actor) == failure
    assert backend.failure(call, 0.0) == call.answer
    says = {"died": "Actor", "lost": "what it needs was lost", "raised": "ValueError: "}
    assert call.answer.reason.startswith(says[failure[0]])


@pytest.mark.parametrize("error", [OutOfDiskError(), ObjectStoreFullError()])
@pytest.mark.parametrize(
    ("sizes", "says"),
    [([84e6, 84e6, None], "full 84 MB"), ([84e6, 2e9], "full 84 2000 MB"), ([], "full disk")],
)
def test_a_full_object_store_is_nobodys_code_and_is_named_with_its_size(
    ray, monkeypatch, error, sizes, says
):
    nodes = [
        {"Alive": size is not None, "Resources": {"object_store_memory": size or 1e6}}
        for size in sizes
    ]
    monkeypatch.setattr(full_object_store, "ray", SimpleNamespace(nodes=lambda: nodes))
    answer = answer_of(Reference(), Reference(passed_on(error)))
    assert answer.kind == "other", "the run goes on from its checkpoint"
    assert tells(answer.reason, says)


def test_an_actor_that_came_back_is_known_by_its_new_id(ray):
    post = SimpleNamespace(
        spawn=lambda slot, life: (
            worker_of(Reference(), Reference(died("0c"))),
            Reference(SimpleNamespace(actor_id="0c", node_id="here")),
        )
    )
    backend = backend_of(respawns=post)
    assert not isinstance(backend.processes.spawn("w-0#2").answer, Failure)
    assert backend.call("w-0#2", StepCall(0, 8)).answer.actor == "w-0#2"


def test_a_worker_takes_its_turn_until_it_is_ready_and_is_asked_to_leave_with_its_node(
    ray, monkeypatch
):
    views = Views(NodeView({0: "here"}, {"here": 1}))
    ready = Reference(SimpleNamespace(actor_id="0c", node_id="here"))
    backend = backend_of(respawns=SimpleNamespace(spawn=lambda *_: ("w", ready)), views=views)
    told = []
    backend.processes.watch_nodes(told.append, lambda *lost: told.append(lost))
    call = backend.processes.spawn("w-0#2")
    assert backend.processes.availability("w-0#3") == "busy"
    assert not isinstance(call.answer, Failure)
    assert backend.processes.availability("w-0#3") == "free"
    backend.wait()
    assert told == []
    views.view = NodeView({0: "here"}, {"here": 1}, {"here"})
    backend.wait()
    assert told == ["w-0#1", "w-0#2"]
    monkeypatch.setattr(ray, "kill", lambda actor: None, raising=False)
    backend.processes.kill("w-0#2")
    assert views.refreshed == 1


def test_a_gradient_has_arrived_once_its_parts_are_on_the_nodes_of_their_shards(ray):
    parts = Reference(b"1"), Reference(b"2"), Reference(b"3")
    backend = backend_of(worker_of(*parts, REPORT), servers=3, site="elsewhere")
    call = backend.call("w-0#1", StepCall(0, 8))
    assert call.answer == [0.5, 1.0]
    first, other = backend.transit.deliver(call, "server")  # the third part is where its shard is
    assert not backend.is_done(first), "it is computed, and not there"
    assert not backend.is_done(other)
    ray.now = 5.0
    assert backend.is_done(first)
    assert backend.is_done(other)


class Counting:
    """An actor whose calls return as many references as they are asked for."""

    def __init__(self):
        self.call = self

    def options(self, num_returns, name):
        def call(data, *parts):
            returned = [Reference((decode(data), index)) for index in range(num_returns)]
            return returned if num_returns > 1 else returned[0]

        return SimpleNamespace(remote=call)


CALLS = {
    "w-0#1": [StepCall(0, 8), WorkerStateCall(0), RestoreCall(), BackwardCall(1), ForwardCall(1)],
    "server": [ApplyCall(None), ApplyCall(None, publishes=True), ForgetCall("w"), SavedCall("x")],
}


@pytest.mark.parametrize(("actor", "messages"), CALLS.items(), ids=CALLS)
def test_a_call_leaves_the_values_of_its_message_and_a_report(ray, actor, messages):
    """A gradient has a part for each shard, and what a server leaves has one of each; Ray's method
    of one message is not that of another.
    """
    backend = backend_of(Counting(), servers=3, server=Counting())
    for message in 2 * messages:
        call, indices = backend.call(actor, message), iter(range(10))
        for number in range(message.value_count):
            values = [reference.value for reference in call.value(number)]
            if actor == "server":
                assert values == [(message, next(indices))] * 3
            else:
                parts = 3 if message.row.is_push and number == 0 else 1
                assert values == [(message, next(indices)) for _ in range(parts)]
        last = message, next(indices)
        assert {reference.value for reference in call.report} == {last}


@pytest.mark.parametrize(
    "where",
    [
        {"site": "here"},
        {"site": "elsewhere", "push_bytes": 1000},
        {"site": "new", "receives": False},
    ],
)
def test_nothing_is_brought_within_a_node_or_if_ray_sends_it_along(ray, where):
    backend = backend_of(worker_of(Reference(), REPORT), **where)
    assert backend.transit.deliver(backend.call("w-0#1", StepCall(0, 8)), "server") == ()


def test_an_emulated_link_delays_the_arrival_and_a_fault_delays_it_more(ray):
    backend = backend_of(worker_of(Reference(), REPORT), **{"w-0": 3.0})
    arrived = []
    for number, message in enumerate((StepCall(0, 8), StepCall(1, 8, StepFault(latency_s=2.0))), 1):
        [arrival] = backend.transit.deliver(backend.call("w-0#1", message), "server")
        backend.watch(arrival, lambda began: arrived.append((began, backend.now)), backend.now)
        while len(arrived) < number:
            assert not backend.is_done(arrival)
            backend.is_report_due(0)
            backend.wait()
        assert backend.is_done(arrival)
        assert arrival.answer is None
    assert arrived == [(0.0, 3.0), (3.0, 8.0)]


@pytest.mark.parametrize("watches", [False, True])
def test_a_report_is_due_every_second_while_nothing_happens_and_sooner_when_something_does(
    ray, watches
):
    backend = backend_of(worker_of(Reference(), Reference(at=100.0)))
    reports, happened = [], []
    if watches:
        backend.watch(backend.call("w-0#1", StepCall(0, 8)), happened.append, "answered")
    backend.schedule(4.1, happened.append, "scheduled")
    while ray.now < 8.0:
        backend.wait()
        if backend.is_report_due(len(happened)):
            reports.append(backend.now)
            happened.clear()
    assert (
        max(later - earlier for earlier, later in zip([0.0, *reports], reports, strict=False))
        <= SIGN_OF_LIFE_S
    )
    assert len(reports) in (8, 9)
    assert any(4.1 <= at <= 4.1 + REPORT_EVERY_S for at in reports)


class Lent:
    """A lease."""

    handle = None


class Lending(ObjectStore):
    """Lends memory for gradients."""

    def reserve(self, actor, message, node):
        return (Lent(),) if isinstance(message, StepCall) else ()


def test_what_a_repeated_call_reads_is_held_until_it_is_done(ray, monkeypatch):
    """Also if nothing else holds the call, since another shard was lost meanwhile."""
    monkeypatch.setattr(shards_module, "ray", SimpleNamespace(kill=lambda actor: None))
    monkeypatch.setattr(shards_module, "actor_id", id)

    def spawn(name, life):
        apply = remote(lambda data, *parts: Reference(at=3.0))
        return SimpleNamespace(call=apply), Reference()

    step = remote(lambda data, into: [Reference(), Reference()])
    backend = backend_of(
        SimpleNamespace(call=step), respawns=SimpleNamespace(spawn=spawn), transport=Lending()
    )
    backend.processes.restart("server", freezes=True)
    gradient = backend.call("w-0#1", StepCall(0, 8))
    held = weakref.ref(gradient.leases[0])
    backend.repeat(None, "server", ApplyCall(None), [gradient])
    del gradient
    ray.now = 2.0
    backend.wait()
    assert held() is not None
    ray.now = 3.0
    backend.wait()
    assert held() is None
