"""Which transport a worker gets, by where it sits and by what its node offers."""

import pytest

from raysync import config
from raysync.cluster.transports.shared_memory import Handle
from raysync.cluster.transports.shared_vectors import KeptSlots, SharedPlan, SharedVectors
from raysync.cluster.transports.transport_choice import (
    Memory,
    Sites,
    choose,
    memory_here,
    needed_bytes,
    store_notice,
)
from raysync.decoupled.plan import check
from raysync.errors import ConfigError
from raysync.paradigms import make
from tests.builders.messages import naming, tells

MIB = 2**20
WORKERS = {"w-0": "here", "w-1": "here"}
ALL_HERE = Sites(["here"], "here", WORKERS)
ENOUGH = Memory(is_shared=True, available_bytes=2**40)


def experiment(transport="auto", **cluster):
    return config.validate(
        {"workers": [{"count": 2}], "cluster": {"transport": transport} | cluster}
    )


@pytest.mark.parametrize("transport", ["auto", "shared-memory"])
def test_on_one_node_everything_is_shared(transport):
    plan, why = choose(experiment(transport), 1000, ALL_HERE, ENOUGH)
    assert plan == SharedPlan("here", shares_weights=True)
    assert why == ""


LITTLE = Memory(is_shared=True, available_bytes=100 * MIB)


@pytest.mark.parametrize(
    ("sites", "memory", "shared", "why"),
    [
        (Sites(["here"], "here", {"w-0": "here", "w-1": "far"}), ENOUGH, True, "the server: w-1"),
        (Sites(["here"], "far", WORKERS), ENOUGH, True, "evaluator"),
        (Sites(["here"], "here", {"w-0": "far", "w-1": "far"}), ENOUGH, False, "w-0, w-1"),
        (Sites(["here", "far"], "here", WORKERS), ENOUGH, False, "nodes"),
        (ALL_HERE, Memory(False, 2**40), False, "Linux"),
        (ALL_HERE, LITTLE, False, "1,104 MiB 100 MiB"),
    ],
)
def test_what_cannot_be_shared_is_an_object_reference_or_refused(sites, memory, shared, why):
    plan, reason = choose(experiment(), 10 * MIB, sites, memory)
    assert plan == (SharedPlan("here", shares_weights=False) if shared else None)
    assert tells(reason, why)
    with pytest.raises(
        ConfigError, match=naming("cluster.transport: shared-memory: `auto`")
    ) as error:
        choose(experiment("shared-memory"), 10 * MIB, sites, memory)
    assert tells(str(error.value), why)


def test_the_memory_that_is_needed_is_that_of_the_vectors_and_of_the_log():
    vectors = (2 * 2 + 2 + 2) * MIB
    assert needed_bytes(experiment(server_log_bytes=0), MIB) == vectors
    assert needed_bytes(experiment(server_log_bytes=5), MIB) == vectors + 5
    assert needed_bytes(experiment(), 1000) == 8 * 1000 + 512 * 2 * 1000
    assert needed_bytes(experiment(restarts={"attempts": 0}), MIB) == vectors


@pytest.mark.parametrize(("limit", "available"), [("max", None), ("5000", 3000)])
def test_a_container_offers_what_it_may_still_take(tmp_path, limit, available):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("2000")
    found = memory_here(tmp_path)
    assert found.is_shared
    assert found.available_bytes == available if available else found.available_bytes > 5000


def test_stages_refuse_it_by_name_and_take_auto():
    paradigm = make("decoupled", modules=2)
    with pytest.raises(ConfigError, match=naming("cluster.transport: shared-memory:")):
        check(experiment("shared-memory"), paradigm)
    check(experiment("auto"), paradigm)


PLAN = SharedPlan("here", shares_weights=True)
SITES = {"a#1": "here", "b#1": "far"}


def vectors_of(kept, plan=PLAN, pull=4 * 7, push=4 * 5):
    return SharedVectors(plan, pull, push, {"a#1": "A", "b#1": "B"}, ["S", "T"], kept)


def inodes(leases):
    return {lease.handle.inode for lease in leases}


def test_workers_elsewhere_get_no_slot_and_those_that_are_gone_are_forgotten():
    vectors = vectors_of(KeptSlots())
    assert vectors.gradient("b#1", SITES) is None
    first = vectors.gradient("a#1", SITES)
    vectors.forget("a#1")
    vectors.forget("a#1")
    second = vectors.gradient("a#1", SITES)
    assert isinstance(first.handle, Handle)
    assert first.handle.inode != second.handle.inode, "a life has slots of its own"
    assert first.handle.end == 20, "gradients have a size of their own"
    assert [lease.handle.end for lease in vectors.weights()] == [16, 12]
    old = vectors.weights()
    vectors.restart()
    assert inodes(old).isdisjoint(inodes(vectors.weights()))
    alone = vectors_of(KeptSlots(), SharedPlan("here", shares_weights=False))
    assert alone.weights() == ()
    alone.restart()
    assert alone.weights() == ()


def test_actors_keep_their_slots_from_run_to_run_but_for_those_that_were_lost():
    kept = KeptSlots()
    vectors = vectors_of(kept)
    gradient, weights = vectors.gradient("a#1", SITES), vectors.weights()
    assert kept.held_bytes > 0
    again = vectors_of(kept)
    assert again.gradient("a#1", SITES).handle.inode == gradient.handle.inode
    assert inodes(again.weights()) == inodes(weights)
    again.forget("a#1")
    again.restart()
    third = vectors_of(kept)
    assert third.gradient("a#1", SITES).handle.inode != gradient.handle.inode
    assert inodes(third.weights()).isdisjoint(inodes(weights))
    assert kept.held_bytes > 0
    vectors_of(kept, pull=4 * 40, push=4 * 8)
    assert kept.held_bytes == 0, "slots of another size"


def test_a_store_that_a_run_may_fill_is_told_with_its_size():
    asked = experiment("object-ref", server_log_bytes=0)
    needed = needed_bytes(asked, 10 * MIB)
    assert store_notice(asked, 10 * MIB, needed) == ""
    notice = store_notice(asked, 10 * MIB, 20 * MIB)
    assert f"up to {needed // MIB} MiB" in notice
    assert "which has 20 MiB" in notice
