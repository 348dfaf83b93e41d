"""Vectors on a GPU that the controller lends; the driver has files in the place of its memory."""

import os
import signal
from functools import partial
from multiprocessing import get_context

import pytest

from raysync.cluster.transports.payloads import forget_run
from raysync.cluster.transports.shared import cuda_driver, device_vector
from raysync.cluster.transports.shared.device_memory import device_slots, offer
from raysync.cluster.transports.shared.device_vector import device_mappings, tried
from raysync.cluster.transports.shared.segments import TornVector
from raysync.cluster.transports.shared.shared_memory import SharedPlan
from raysync.cluster.transports.shared.shared_vector import SharedVector
from raysync.cluster.transports.transport import Writers
from raysync.engine.messages import PublishCall, StepCall
from tests.builders.messages import tells
from tests.fakes import libcuda

MIB = 2**20
NUMBERS = 2**20


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    yield libcuda.install(monkeypatch.setattr)
    device_mappings().clear()


def written(handle, value):
    with handle.writing() as vector:
        vector.fill_(value)


def test_a_vector_is_on_the_gpu_and_the_file_has_its_stamp_alone(driver):
    lease = device_slots(4 * NUMBERS, libcuda.GPU).lease()
    handle = lease.handle
    assert driver.used == 6 * MIB, "4 MiB and a stamp, in pieces of 2 MiB"
    written(handle, 3.0)
    assert handle.read().tolist() == [3.0] * NUMBERS
    first, second = handle.parts([1, NUMBERS - 1])
    assert first.read().tolist() == [3.0]
    assert len(second.read()) == NUMBERS - 1
    assert os.fstat(handle.file).st_blocks * 512 <= 4 * os.sysconf("SC_PAGE_SIZE")
    assert handle.in_place(4 * NUMBERS) is None, "its process does not map it"


def write_and_read(pipe, killed_handle, handle):
    device_mappings().clear()  # those of the parent
    libcuda.install()
    read = handle.read().tolist()
    with killed_handle.writing() as vector:
        vector.fill_(7.0)
        pipe.send(read)
        signal.pause()


def test_other_processes_open_it_and_one_that_is_killed_in_the_midst_leaves_no_vector():
    slots, context = device_slots(400, libcuda.GPU), get_context("fork")
    mine, theirs = slots.lease(), slots.lease()
    written(mine.handle, 5.0)
    written(theirs.handle, 1.0)
    pipe, end = context.Pipe()
    other = context.Process(target=write_and_read, args=(end, theirs.handle, mine.handle))
    other.start()
    assert pipe.recv() == [5.0] * 100
    other.kill()
    other.join()
    with pytest.raises(TornVector):
        theirs.handle.read()
    assert mine.handle.read().tolist() == [5.0] * 100


def test_a_vector_is_valid_only_once_the_gpu_has_written_it(monkeypatch):
    lease, awaited = device_slots(400, libcuda.GPU).lease(), []
    handle = lease.handle

    def await_gpu(vector):
        with pytest.raises(TornVector):
            handle.read()
        awaited.append(len(vector))

    monkeypatch.setattr(device_vector, "await_gpu", await_gpu)
    written(handle, 2.0)
    assert set(handle.read().tolist()) == {2.0}
    assert awaited == [100]


def test_a_handle_is_opened_once_a_process_and_closed_before_the_next_run(driver):
    slots = device_slots(400, libcuda.GPU)
    for value in (1.0, 2.0):
        lease = slots.lease()
        written(lease.handle, value)
        assert set(lease.handle.read().tolist()) == {value}
    assert driver.calls.count("cuIpcOpenMemHandle_v2") == 1, "to write, and to read"
    kept = lease.handle.read()
    device_mappings().clear()
    assert len(driver.opened) == 1, "somebody looks at it"
    del kept
    assert not driver.opened


def begun(before=None, push=400, gpu=libcuda.GPU):
    device_mappings().clear()  # as each actor does before
    plan = SharedPlan("here", shares_weights=True, gpu=gpu)
    run = plan.begin(Writers(800, push, {"a#1": "A", "b#1": "B"}, ["S"]), before)
    forget_run()  # as the controller does
    return run


def reserved(run, actor):
    return run.reserve(actor, StepCall(0, 8), "here")


def vectors(run):
    leases = [*reserved(run, "a#1"), *reserved(run, "b#1")]
    leases += run.reserve("server", PublishCall(0, 0), None)
    for lease in leases:
        written(lease.handle, 1.0)
    return leases


def test_memory_is_freed_only_when_all_have_closed_it_and_used_again_by_the_next_run(driver):
    """The driver refuses to free what is open."""
    run = begun()
    held = vectors(run)
    allocated = driver.used
    run.forget("a#1", "it was ended")
    run.restart("server", "it is restarted")
    del held
    assert driver.used == allocated, "others may still read it"
    vectors(run)
    assert driver.used == allocated + 2 * 4 * MIB
    del run
    again = begun()
    assert driver.used == 0
    vectors(again)
    before, calls = driver.used, len(driver.files)
    again = begun(again)
    vectors(again)
    assert (driver.used, len(driver.files)) == (before, calls)
    begun(again, push=600)
    assert driver.used == before // 3, "gradients have another size"


def test_what_is_on_a_gpu_is_not_used_again_where_vectors_are_on_none():
    run, kinds = None, []
    for gpu in (libcuda.GPU, None, libcuda.GPU):
        run = begun(run, gpu=gpu)
        kinds.append({lease.handle.on_gpu for lease in vectors(run)})
    assert kinds == [{True}, {False}, {True}]


def test_a_vector_that_is_offered_is_tried_and_leaves_nothing_open(driver, monkeypatch):
    vector = offer(libcuda.GPU, MIB)
    assert tried(vector, writes=False) != "", "nobody has written it"
    assert tried(vector, writes=True) == ""
    assert tried(vector, writes=False) == ""
    assert not driver.opened
    for given, words in (
        ({"gpus": (b"another of 16 by",)}, "see GPU"),
        ({"refusals": {"cuIpcOpenMemHandle_v2": 801}}, "NOT_SUPPORTED"),
    ):
        monkeypatch.setattr(cuda_driver, "library", partial(libcuda.FakeLibcuda, **given))
        assert tells(tried(vector, writes=False), words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"gpus": (b"another of 16 by",)}, "controller see GPU"),
        ({"refusals": {"cuDevicePrimaryCtxRetain": 46}}, "controller DEVICE_UNAVAILABLE"),
        ({"refusals": {"cuIpcGetMemHandle": 801}}, "controller NOT_SUPPORTED"),
        ({"total": MIB}, "controller OUT_OF_MEMORY"),
        ({"missing": ["cuDeviceGetUuid_v2"]}, "controller cuDeviceGetUuid_v2"),
        ({"total": 50 * MIB}, "100 50 MiB server_log_bytes"),
    ],
)
def test_what_cannot_be_lent_is_refused_by_name(monkeypatch, given, words):
    libcuda.install(monkeypatch.setattr, libcuda.FakeLibcuda(**given))
    assert tells(offer(libcuda.GPU, 100 * MIB), words)


def test_memory_of_the_run_before_counts_as_free_and_that_of_the_host_does_not(monkeypatch):
    libcuda.install(monkeypatch.setattr, libcuda.FakeLibcuda(total=100 * MIB))
    run = begun(push=30 * MIB)
    vectors(run)
    assert isinstance(offer(libcuda.GPU, 90 * MIB), SharedVector)
    host = begun(run, push=30 * MIB, gpu=None)
    del run
    forget_run()
    vectors(host)
    assert host.held_bytes > 60 * MIB
    assert tells(offer(libcuda.GPU, 110 * MIB), "110 100")
    assert isinstance(offer(libcuda.GPU, 90 * MIB), SharedVector)


def test_where_the_gpu_is_full_vectors_are_object_references(monkeypatch):
    libcuda.install(monkeypatch.setattr, libcuda.FakeLibcuda(total=70 * MIB))
    run = begun(push=30 * MIB)
    held = [reserved(run, actor) for actor in ("a#1", "b#1", "a#1")]
    assert [len(leases) for leases in held] == [1, 1, 0]
    del held[0]
    assert len(reserved(run, "a#1")) == 1
