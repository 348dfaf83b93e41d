"""Who writes into which buffer, when vectors are read from another process's memory."""

import gc
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st

from raysync import config
from raysync.cluster import direct_transport
from raysync.cluster.direct_transport import refuse_unavailable, start_here
from raysync.cluster.direct_vectors import TURNS, Buffer, Buffers, DirectVectors, Kept
from raysync.cluster.placement import plan
from raysync.cluster.registered_memory import RegisteredMemory
from raysync.decoupled.plan import check
from raysync.errors import ConfigError
from raysync.paradigms import make


@given(st.lists(st.integers(0, 4), max_size=60))
def test_no_buffer_is_lent_twice_at_once(moves):
    buffers, held = Buffers(7), []
    for move in moves:
        if move < 3 or not held:
            held.append(buffers.take())
        else:
            held.pop(move % len(held))
        numbers = [room.handle.number for room in held]
        assert len(set(numbers)) == len(numbers)
        assert buffers.count <= max(len(held), buffers.count)
    most = buffers.count
    held.clear()
    again = [buffers.take() for _ in range(most)]
    assert buffers.count == most, "those that were given back come first"
    assert {room.handle for room in again} == {Buffer(number, 7) for number in range(most)}


def test_a_worker_has_two_and_the_third_is_a_bug():
    vectors = DirectVectors(9, 7)
    held = [vectors.gradient("w#1") for _ in range(TURNS)]
    with pytest.raises(AssertionError, match="still being read"):
        vectors.gradient("w#1")
    assert vectors.gradient("v#1").handle == Buffer(0, 7), "another worker has its own"
    held.pop()
    assert vectors.gradient("w#1").handle == Buffer(1, 7)


def test_what_is_kept_is_freed_once_and_under_its_own_number():
    vectors = DirectVectors(9, 7)
    first, second = vectors.kept(), vectors.kept()
    assert (first.handle, second.handle) == (Kept(1), Kept(2))
    assert vectors.needless() == []
    del first
    gc.collect()
    assert vectors.needless() == [1]
    assert vectors.needless() == []
    assert vectors.kept().handle == Kept(3)


def test_a_life_has_buffers_of_its_own():
    vectors = DirectVectors(9, 7)
    room = vectors.gradient("w#1")
    vectors.forget("w#1")
    vectors.forget("w#1")
    assert vectors.gradient("w#1").handle.number == 0
    del room


def test_memory_is_registered_once_a_buffer_and_a_run():
    registered = []
    memory = RegisteredMemory(registered.append, registered.remove)
    memory.begin()
    first = memory.buffer(Buffer(0, 3))
    assert memory.buffer(Buffer(0, 3)) is first
    assert memory.buffer(Buffer(1, 3)) is not first
    assert len(registered) == 2
    memory.begin()
    assert registered == []
    assert len(memory.buffer(Buffer(0, 5))) == 5


def test_what_was_never_taken_or_has_been_freed_is_an_error_and_no_number():
    memory = RegisteredMemory(lambda vector: None, lambda vector: None)
    memory.keep(1, torch.ones(3))
    assert memory.read(Kept(1)).tolist() == [1, 1, 1]
    memory.free([1, 2])
    with pytest.raises(KeyError):
        memory.read(Kept(1))


def experiment(workers=({"name": "w", "count": 2},), **cluster):
    return config.validate(
        {
            "workload": {"samples": 100},
            "workers": list(workers),
            "cluster": {"transport": "nixl"} | cluster,
        }
    )


def test_shards_and_stages_are_refused_by_name():
    with pytest.raises(ConfigError, match="server_shards: 2: with transport: nixl"):
        experiment(server_shards=2)
    with pytest.raises(ConfigError, match=r"cluster\.transport: nixl: between stages"):
        check(experiment(), make("decoupled", modules=2))
    check(experiment(), make("bsp"))


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ({"step_deadline_s": 30}, "step_deadline_s: 30: with transport: nixl it is at least 70"),
        ({"server_gpus": 1, "transport": "object-ref"}, "server_gpus: 1: only transport: nixl"),
        ({"server_gpus": 1, "evaluator_gpus": 0}, "evaluator_gpus: 0: it reads the weights"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused_by_name(cluster, says):
    with pytest.raises(ConfigError, match=says):
        experiment(**cluster)


def test_a_model_on_a_gpu_is_refused_where_an_actor_has_none(monkeypatch):
    monkeypatch.setattr(direct_transport, "find_spec", lambda name: name)
    monkeypatch.setattr(
        direct_transport, "_manager", lambda: SimpleNamespace(get_nixl_agent=lambda: None)
    )
    start_here("worker w-0", "cpu", on_gpu=False)
    start_here("worker w-0", "cuda:0", on_gpu=True)
    with pytest.raises(ConfigError, match=r"server_gpus: worker w-0 computes on a CPU"):
        start_here("worker w-0", "cpu", on_gpu=True)


def test_a_nixl_that_does_not_start_is_a_mistake_and_names_the_actor(monkeypatch):
    def fails():
        raise RuntimeError("no backend UCX")

    monkeypatch.setattr(direct_transport, "find_spec", lambda name: name)
    monkeypatch.setattr(direct_transport, "_manager", lambda: SimpleNamespace(get_nixl_agent=fails))
    with pytest.raises(ConfigError, match=r"where server-0 runs \(RuntimeError: no backend UCX\)"):
        start_here("server-0", "cpu", on_gpu=False)


def test_the_server_asks_for_a_share_of_a_gpu_beside_a_worker_or_apart():
    workers = [{"name": "w", "count": 2, "gpus": 0.5}]
    apart = plan(experiment(server_gpus=0.5, workers=workers))
    assert apart.bundles[apart.servers[0]].resources["GPU"] == 0.5
    beside = plan(experiment(server_gpus=0.5, workers=workers, server_placement="with-workers"))
    assert [bundle.resources["GPU"] for bundle in beside.bundles] == [1, 0.5]


def test_what_a_gpu_may_still_read_is_not_freed_before_it_has(monkeypatch):
    order = []
    memory = RegisteredMemory(lambda vector: None, lambda vector: None)
    memory.begin("meta")
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda device: order.append((device, len(memory)))
    )
    memory.keep(1, memory.buffer(Buffer(0, 3)))
    memory.free([1])
    assert order == [("meta", 1)]
    assert len(memory) == 0


def test_what_is_missing_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(direct_transport, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"where worker w-0 runs.*pip install 'raysync\[nixl\]'"):
        refuse_unavailable("worker w-0")
    monkeypatch.setattr(direct_transport, "find_spec", lambda name: name)
    refuse_unavailable("worker w-0")


@pytest.mark.parametrize(
    ("version", "fits"), [("2.59.1", False), ("2.60.0", True), ("3.0.0rc1", True), ("2.9", False)]
)
def test_a_ray_that_is_too_old_is_named_with_the_first_that_will_do(monkeypatch, version, fits):
    monkeypatch.setattr(direct_transport, "find_spec", lambda name: name)
    monkeypatch.setattr(direct_transport.ray, "__version__", version)
    if fits:
        refuse_unavailable("this machine")
        return
    with pytest.raises(ConfigError, match=rf"this machine has Ray {version}; Ray 2\.60 is"):
        refuse_unavailable("this machine")
