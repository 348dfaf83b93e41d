"""Shared memory is registered with CUDA once a segment, and no longer than it is mapped."""

import gc

import pytest
import torch

from raysync.cluster.transports.shared import registered_map
from raysync.cluster.transports.shared.registered_map import READ_ONLY, SUCCESS, RegisteredMap
from raysync.cluster.transports.shared.segments import Mappings, Slots

REFUSED = 801


class FakeDriver:
    """Notes what is registered; like CUDA it takes nothing twice."""

    def __init__(self, answer=SUCCESS):
        self.answer, self.registered, self.sizes = answer, {}, []

    def cuMemHostRegister_v2(self, address, size, flags):  # noqa: N802
        assert address.value not in self.registered
        self.sizes.append(size.value)
        if self.answer == SUCCESS:
            self.registered[address.value] = bool(flags.value & READ_ONLY)
        return self.answer

    def cuMemHostUnregister(self, address):  # noqa: N802
        del self.registered[address.value]
        return SUCCESS


@pytest.fixture
def driver(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(registered_map, "cuda_driver", lambda: fake)
    return fake


def used(mappings, pool):
    """Write and read a vector, in two parts."""
    lease = pool.lease()
    mappings.begin_write(lease.handle)[:] = b"\7" * 100
    mappings.finish_write(lease.handle)
    return [bytes(mappings.read(part)) for part in lease.handle.parts([5, 20])]


def test_each_map_of_a_segment_is_registered_once_and_until_it_goes(driver):
    pool, mappings = Slots(100, 1000), Mappings(kind=RegisteredMap)
    for _ in range(3):
        assert used(mappings, pool) == [b"\7" * 20, b"\7" * 80]
    assert sorted(driver.registered.values()) == [False, True], "to write, and to read"
    assert driver.sizes == [pool.segments[0].size] * 2
    kept = mappings.read(pool.lease().handle._replace(stamp=3))
    pool.close()
    del pool
    mappings.drop_closed()
    gc.collect()
    assert list(driver.registered.values()) == [True], "what is still seen stays registered"
    assert bytes(kept[:3]) == b"\7" * 3
    del kept
    assert not driver.registered


def test_what_cuda_refuses_is_used_as_other_memory_is(driver):
    driver.answer = REFUSED
    pool, mappings = Slots(100, 1000), Mappings(kind=RegisteredMap)
    assert used(mappings, pool) == [b"\7" * 20, b"\7" * 80]
    assert len(driver.sizes) == 2, "it is asked once a map"
    pool.close()
    del pool
    mappings.drop_closed()


def test_without_a_gpu_nothing_is_registered():
    assert torch.cuda.is_initialized() or registered_map.cuda_driver() is None
    assert used(Mappings(kind=RegisteredMap), Slots(100, 1000)) == [b"\7" * 20, b"\7" * 80]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")
def test_a_gpu_takes_registered_memory_for_pinned():
    torch.ones(1, device="cuda:0")
    made = Mappings(lambda data: torch.frombuffer(data, dtype=torch.float32), RegisteredMap)
    pool = Slots(400, 4000)
    lease = pool.lease()
    vector = made.begin_write(lease.handle)
    assert vector.is_pinned()
    vector.copy_(torch.arange(100.0, device="cuda:0"), non_blocking=True)
    torch.cuda.synchronize()
    made.finish_write(lease.handle)
    assert torch.equal(made.read(lease.handle), torch.arange(100.0))
