"""Which transport a worker gets, by where it sits and by what its node offers."""

from functools import partial

import pytest

from raysync import config
from raysync.cluster.transports.choose import TRANSPORTS
from raysync.cluster.transports.object_store import ObjectStore, ObjectStorePlan, store_notice
from raysync.cluster.transports.shared import cuda_driver, device_memory, device_vector
from raysync.cluster.transports.shared.planning import Memory, memory_here
from raysync.cluster.transports.shared.segments import Handle
from raysync.cluster.transports.shared.shared_memory import SharedPlan
from raysync.cluster.transports.transport import (
    CallRequest,
    ServerNode,
    Sites,
    Writers,
    needed_bytes,
)
from raysync.config.resume_changes import check_changes
from raysync.decoupled.plan import check
from raysync.engine.messages import PublishCall, StepCall
from raysync.engine.server_log import log_notice
from raysync.errors import ConfigError
from raysync.paradigms import make
from tests.builders.messages import naming, tells
from tests.fakes import libcuda

MIB = 2**20
WORKERS = {"w-0": "here", "w-1": "here"}
SERVER = {"server-0": "here"}
ALL_HERE = Sites(SERVER, "here", WORKERS)
GPU_WORKERS = {"workers": [{"count": 2, "gpus": 0.4}]}
ENOUGH = Memory(is_shared=True, available_bytes=2**40)


def experiment(transport="auto", **cluster):
    return config.validate(
        {"workers": [{"count": 2}], "cluster": {"transport": transport} | cluster}
    )


def chosen(transport, vector_bytes, sites, memory, store_bytes=2**40, **cluster):
    node = ServerNode(lambda work, actor="server-0": memory, lambda: 0, lambda: store_bytes)
    return choice(experiment(transport, **cluster), vector_bytes, sites, node)


def choice(asked, vector_bytes, sites, node):
    """What is chosen, and what is said of it."""
    transport = TRANSPORTS[asked.cluster.transport]
    plan, notices = transport(asked, vector_bytes, sites, node)
    return plan, [notice for notice in notices if notice]


@pytest.mark.parametrize("transport", ["auto", "shared-memory"])
def test_on_one_node_everything_is_shared(transport):
    plan, notices = chosen(transport, 1000, ALL_HERE, ENOUGH)
    shown = dict.fromkeys([*WORKERS, "server-0", "evaluator"], "shared-memory")
    assert plan == SharedPlan("here", shares_weights=True, transports=shown)
    assert bool(notices) == (transport == "auto"), "what was chosen is said"


def test_the_object_store_asks_for_nothing_and_says_if_it_is_small():
    plan, notices = chosen("object-ref", 10 * MIB, ALL_HERE, None)
    assert (plan, notices) == (ObjectStorePlan(), [])
    assert plan.transports == {}
    assert isinstance(plan.begin(Writers(4, 4, {}, ["S"]), None), ObjectStore)
    for transport in ("object-ref", "auto"):
        *_, notice = chosen(transport, 10 * MIB, ALL_HERE, Memory(False, 0), MIB)[1]
        assert "1 MiB" in notice


LITTLE = Memory(is_shared=True, available_bytes=100 * MIB)


@pytest.mark.parametrize(
    ("sites", "memory", "shared", "why"),
    [
        (Sites(SERVER, "here", {"w-0": "here", "w-1": "far"}), ENOUGH, ["w-0"], "the server: w-1"),
        (Sites(SERVER, "far", WORKERS), ENOUGH, [*WORKERS], "evaluator"),
        (Sites(SERVER, "here", {"w-0": "far", "w-1": "far"}), ENOUGH, [], "w-0, w-1"),
        (Sites(SERVER | {"server-1": "far"}, "here", WORKERS), ENOUGH, [], "nodes"),
        (ALL_HERE, Memory(False, 2**40), [], "Linux"),
        (ALL_HERE, LITTLE, [], "1,314 MiB 100 MiB"),
    ],
)
def test_what_cannot_be_shared_is_an_object_reference_or_refused(sites, memory, shared, why):
    plan, [notice] = chosen("auto", 10 * MIB, sites, memory)
    assert list(plan.transports) == shared
    assert isinstance(plan, SharedPlan) == bool(shared)
    assert not shared or not plan.shares_weights
    assert tells(notice, why)
    with pytest.raises(ConfigError, match=naming(f"cluster.transport: shared-memory: {why}")):
        chosen("shared-memory", 10 * MIB, sites, memory)


def test_the_memory_that_is_needed_is_that_of_the_vectors_and_of_the_log():
    marks = len(experiment().evaluation.progress_marks())
    vectors = (2 * 2 + 2 + 2 + marks) * MIB
    for cluster, log, is_told in (
        ({"server_log_bytes": 0}, 0, False),
        ({"server_log_bytes": 8 * MIB}, 8 * MIB, False),
        ({"server_log_bytes": 8 * MIB - 1}, 0, True),
        ({"server_log_bytes": 9, "restarts": {"attempts": 0}}, 0, False),
    ):
        asked = experiment(**cluster)
        assert needed_bytes(asked, MIB) == vectors + log
        notice = log_notice(asked, MIB)
        assert tells(notice, "cluster.server_log_bytes `checkpoint`") if is_told else not notice
    assert needed_bytes(experiment(), 1000) == (8 + marks) * 1000 + 512 * 2 * 1000
    few = needed_bytes(experiment(server_log_bytes=0), 100 * MIB)
    assert few == (2 * 2 + 2 + 2 + 2) * 100 * MIB, "more wait in the object store"


@pytest.mark.parametrize(("limit", "available"), [("max", None), ("5000", 3000)])
def test_a_container_offers_what_it_may_still_take(tmp_path, limit, available):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("2000")
    found = memory_here(tmp_path)
    assert found.is_shared
    assert found.available_bytes == available if available else found.available_bytes > 5000


def test_stages_refuse_it_by_name_and_take_auto():
    paradigm = make("decoupled", modules=2)
    on_gpu = config.validate(GPU_WORKERS | {"cluster": {"server_gpus": 0.1}})
    for asked, facts in (
        (experiment("shared-memory"), "cluster.transport: shared-memory:"),
        (on_gpu, "cluster.server_gpus: 0.1"),
    ):
        with pytest.raises(ConfigError, match=naming(facts)):
            check(asked, paradigm)
    check(experiment("auto"), paradigm)


def chosen_with_gpu(transport, sites, blind="", memory=ENOUGH):
    """All actors are this process, of which one does not see the GPU."""

    def run(work, actor="server-0"):
        if work is memory_here:
            return memory
        if actor == blind:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(cuda_driver, "library", partial(libcuda.FakeLibcuda, gpus=()))
                patch.setattr(device_memory, "LENT", {})
                return work()
        return work()

    settings = {"cluster": {"transport": transport, "server_gpus": 0.1}}
    node = ServerNode(run, lambda: 0, lambda: 2**40)
    return choice(config.validate(GPU_WORKERS | settings), 10 * MIB, sites, node)


@pytest.fixture
def gpu(monkeypatch):
    yield libcuda.install(monkeypatch.setattr)
    device_vector.device_mappings().clear()


@pytest.mark.parametrize("transport", ["auto", "shared-memory"])
@pytest.mark.parametrize("memory", [ENOUGH, LITTLE], ids=["enough", "little"])
def test_vectors_stay_on_the_servers_gpu_if_all_can_open_its_memory(gpu, transport, memory):
    plan, [notice] = chosen_with_gpu(transport, ALL_HERE, memory=memory)
    shown = dict.fromkeys([*WORKERS, "server-0", "evaluator"], "device-memory")
    assert plan == SharedPlan("here", shares_weights=True, transports=shown, gpu=libcuda.GPU)
    assert tells(notice, "GPU")
    assert not gpu.opened


@pytest.mark.parametrize("blind", ["w-1", "evaluator", "controller"])
def test_who_cannot_open_it_is_named_and_vectors_travel_in_shared_memory(gpu, blind):
    plan, [why, how] = chosen_with_gpu("auto", ALL_HERE, blind)
    assert plan == chosen("auto", 10 * MIB, ALL_HERE, ENOUGH)[0]
    assert tells(why, f"{blind} GPU")
    assert tells(how, "shared memory")
    with pytest.raises(ConfigError, match=naming(f"cluster.transport: shared-memory: {blind}")):
        chosen_with_gpu("shared-memory", ALL_HERE, blind)


def test_a_server_whose_gpu_torch_does_not_see_is_told(gpu, monkeypatch):
    monkeypatch.setattr(device_vector, "gpu_here", lambda: "torch sees no GPU")
    plan, [why, _] = chosen_with_gpu("auto", ALL_HERE)
    assert plan.gpu == b""
    assert tells(why, "server GPU")


def test_a_worker_on_another_node_has_its_vectors_in_the_object_store(gpu):
    far = Sites(SERVER, "here", {"w-0": "here", "w-1": "far"})
    plan, [why, how] = chosen_with_gpu("auto", far)
    assert plan == chosen("auto", 10 * MIB, far, ENOUGH)[0]
    assert tells(why, "GPU w-1")
    assert tells(how, "object references w-1")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": [{"count": 2}]}, "cluster.server_gpus worker gpus: 0"),
        ({"workers": [{"gpus": 0.2}]}, "cluster.server_gpus worker gpus: 0.2"),
        ({"workers": [{"gpus": 2}]}, "cluster.server_gpus worker gpus: 2"),
        ({"cluster": {"server_shards": 2}}, "server_gpus server_shards: 2"),
        ({"cluster": {"server_gpus": 0.5}}, "server_gpus 0.5"),
        ({"cluster": {"transport": "object-ref"}}, "server_gpus object-ref"),
        ({"cluster": {"server_gpus": -0.1}}, "server_gpus -0.1"),
        ({"cluster": {"server_label_selector": {"gpu": "none"}}}, "server_label_selector"),
    ],
)
def test_a_share_that_no_worker_can_give_is_refused(settings, words):
    cluster = {"server_gpus": 0.1} | settings.get("cluster", {})
    whole = {"workers": [{"gpus": 1}]} | settings | {"cluster": cluster}
    with pytest.raises(ConfigError, match=naming(words)):
        config.validate(whole)


def test_a_resumed_run_keeps_its_server_where_it_was():
    """Another device would change its bits."""
    before = config.validate(GPU_WORKERS | {"cluster": {"server_gpus": 0.1}})
    check_changes(before, before)
    with pytest.raises(ConfigError, match=naming("cluster.server_gpus")):
        check_changes(before, config.validate(GPU_WORKERS))


PLAN = SharedPlan("here", shares_weights=True)
STEP, PUBLISH = StepCall(0, 8), PublishCall(0, 0)


def shared(before=None, plan=PLAN, pull=4 * 7, push=4 * 5):
    return plan.begin(Writers(pull, push, {"a#1": "A", "b#1": "B"}, ["S", "T"]), before)


def weights(run):
    return run.reserve("server", PUBLISH, None)


def gradient(run):
    [lease] = run.reserve("a#1", STEP, "here")
    return lease


def inodes(leases):
    return {lease.handle.inode for lease in leases}


def test_workers_elsewhere_get_no_slot_and_those_that_are_gone_are_forgotten():
    run = shared()
    assert run.reserve("b#1", STEP, "far") == ()
    first = gradient(run)
    run.forget("a#1", "it was ended")
    run.forget("a#1", "it was ended")
    second = gradient(run)
    assert isinstance(first.handle, Handle)
    assert first.handle.inode != second.handle.inode, "a life has slots of its own"
    assert first.handle.end == 20, "gradients have a size of their own"
    assert [lease.handle.end for lease in weights(run)] == [16, 12]
    old = weights(run)
    run.restart("server", "it is restarted")
    assert inodes(old).isdisjoint(inodes(weights(run)))
    alone = shared(plan=SharedPlan("here", shares_weights=False))
    assert weights(alone) == ()
    alone.restart("server", "it is restarted")
    assert weights(alone) == ()


def test_actors_keep_their_slots_from_run_to_run_but_for_those_that_were_lost():
    first = shared()
    place, places = gradient(first).handle.inode, inodes(weights(first))
    assert first.held_bytes > 0
    again = shared(first)
    assert gradient(again).handle.inode == place
    assert inodes(weights(again)) == places
    again.forget("a#1", "it was ended")
    again.restart("server", "it is restarted")
    third = shared(again)
    assert gradient(third).handle.inode != place
    assert inodes(weights(third)).isdisjoint(places)
    assert third.held_bytes > 0
    assert shared(third, pull=4 * 40, push=4 * 8).held_bytes == 0, "slots of another size"


def test_weights_that_wait_for_a_slow_evaluator_do_not_fill_the_memory():
    """They come as object references from then on, until some are evaluated."""
    run, waiting = shared(pull=200 * MIB), []
    while leases := weights(run):
        waiting.append(leases)
    assert len(waiting) == 2 + 2 + 2, "of two workers, of the server and an evaluation, waiting"
    assert run.call(CallRequest("server", None, PUBLISH, (), (), None)) is None
    held = run.held_bytes
    for _ in range(3):
        waiting.pop()
        waiting.append(weights(run))
        assert waiting[-1]
        assert weights(run) == ()
    assert run.held_bytes == held
    small, waiting = shared(), []
    for _ in range(1000):
        waiting.append(weights(small))
        assert waiting[-1]


def test_a_store_that_a_run_may_fill_is_told_with_its_size():
    asked = experiment("object-ref", server_log_bytes=0)
    needed = needed_bytes(asked, 10 * MIB)
    assert store_notice(asked, 10 * MIB, needed) == ""
    assert tells(store_notice(asked, 10 * MIB, 20 * MIB), f"{needed // MIB} MiB 20 MiB")
