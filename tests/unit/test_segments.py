"""Slots, leases and handles: by random histories, and by processes that are killed."""

import multiprocessing
import signal
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from raysync.cluster.transports.shared.segments import Handle, Mappings, Slots, TornVector

SIZE, SEGMENT = 1000, 2500  # two slots a segment


def slots():
    return Slots(SIZE, SEGMENT)


def write(mappings, handle, byte):
    mappings.begin_write(handle)[:] = bytes([byte]) * (handle.end - handle.begin)
    mappings.finish_write(handle)


class Histories(RuleBasedStateMachine):
    """Whatever is taken, written, dropped and closed, what is held stays as it was written."""

    leases, stale = Bundle("leases"), Bundle("stale")

    def __init__(self):
        super().__init__()
        self.pools = [slots(), slots()]
        self.mappings = Mappings()
        self.held = {}

    @rule(target=leases, pool=st.integers(0, 1), byte=st.integers(0, 255))
    def take(self, pool, byte):
        lease = self.pools[pool].lease()
        with pytest.raises(TornVector):
            self.mappings.read(lease.handle)
        write(self.mappings, lease.handle, byte)
        self.held[lease.handle] = byte
        return [lease]

    @rule(target=stale, lease=consumes(leases))
    def drop(self, lease):
        handle = lease.pop().handle
        del self.held[handle]
        return handle

    @rule(pool=st.integers(0, 1))
    def lose_the_writer(self, pool):
        self.pools[pool].close()
        self.pools[pool] = slots()

    @rule(handle=stale)
    def read_what_is_free(self, handle):
        """It is what it was, or there is an error: never another vector."""
        try:
            found = self.mappings.read(handle)
        except (TornVector, FileNotFoundError):
            return
        assert len(set(found)) == 1

    @invariant()
    def whole(self):
        for handle, byte in self.held.items():
            seen = self.mappings.read(handle)
            assert len(seen) == SIZE
            assert seen[0] == seen[SIZE // 2] == seen[-1] == byte

    @invariant()
    def apart(self):
        assert len({(each.inode, each.slot) for each in self.held}) == len(self.held)


Histories.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
test_what_is_held_stays_as_it_was_written = Histories.TestCase


def test_two_slots_are_enough_for_a_writer_whose_vectors_are_taken_in_turn():
    """One is written while the other is read: a double buffer."""
    pool = slots()
    being_read, places = pool.lease(), set()
    for _ in range(50):
        being_written = pool.lease()
        places.add(being_written.handle.slot)
        being_read = being_written
    assert being_read.handle.stamp == 51
    assert len(places) == 2
    assert len(pool.segments) == 1


def test_a_run_has_the_slots_of_the_run_before_whatever_that_still_holds():
    pool, mappings = slots(), Mappings()
    held = [pool.lease() for _ in range(3)]
    for lease in held:
        write(mappings, lease.handle, 1)
    places = {(lease.handle.inode, lease.handle.slot) for lease in held}
    renewed = pool.renew()
    assert pool.is_closed
    again = [renewed.lease() for _ in range(4)]  # two segments of two slots
    assert places < {(lease.handle.inode, lease.handle.slot) for lease in again}
    assert len(renewed.segments) == 2
    assert {lease.handle.stamp for lease in again}.isdisjoint(each.handle.stamp for each in held)
    del held  # what gives back a slot that another has now
    assert renewed.lease().handle.inode not in {inode for inode, _ in places}


def test_a_vector_that_is_being_overwritten_cannot_be_read():
    pool, mappings = slots(), Mappings()
    old = pool.lease().handle  # dropped at once
    write(mappings, old, 1)
    new = pool.lease()
    assert new.handle.slot == old.slot
    assert set(mappings.read(old)) == {1}
    mappings.begin_write(new.handle)
    for handle in (old, new.handle):
        with pytest.raises(TornVector):
            mappings.read(handle)


def test_a_slot_of_a_writer_that_is_gone_is_given_to_nothing_again():
    """It may be frozen, and write on later."""
    pool, mappings = slots(), Mappings()
    pushed, being_written = pool.lease(), pool.lease()
    write(mappings, pushed.handle, 1)
    late = mappings.begin_write(being_written.handle)
    pool.close()
    del being_written
    fresh = slots()
    others = [fresh.lease() for _ in range(4)]
    for other in others:
        write(mappings, other.handle, 2)
    late[:] = bytes(len(late))
    assert set(mappings.read(pushed.handle)) == {1}
    assert all(set(mappings.read(other.handle)) == {2} for other in others)


@pytest.mark.parametrize("sizes", [[4, 3, 3], [1, 1, 0], [7]])
def test_parts_follow_one_another(sizes):
    torch = pytest.importorskip("torch")
    handle = Handle(1, 2, 3, 0, 1, 8, 8 + 4 * sum(sizes))
    parts = [range(part.begin // 4 - 2, part.end // 4 - 2) for part in handle.parts(sizes)]
    expected = [part.tolist() for part in torch.arange(sum(sizes)).split(sizes)]
    assert [list(part) for part in parts] == expected


def test_a_mapping_goes_with_its_segment():
    mappings = Mappings()
    for byte in range(5):
        pool = slots()
        lease = pool.lease()
        write(mappings, lease.handle, byte)
        del lease, pool  # in this order: the pool is what holds the segment then
    assert len(mappings) == 1, "those of closed segments are dropped when another is mapped"


def test_a_view_is_made_once_for_each_part_of_a_slot_and_shows_what_is_written_later():
    made = []
    pool, mappings = slots(), Mappings(lambda data: made.append(data) or data)
    for byte in range(3):
        handle = pool.lease().handle
        write(mappings, handle, byte)
        first, second = handle.parts([2, 3])
        assert [set(mappings.read(each)) for each in (handle, first, second)] == [{byte}] * 3
        assert mappings.read(second) is mappings.read(second)
        assert [len(mappings.read(each)) for each in (first, second)] == [8, 12]
    assert len(made) == 4, "the whole to be written, the whole to be read, and two parts of it"


# ---- processes ----


def serve(pipe):
    """Write the vectors that are asked for, and hang in the one after the last."""
    mappings = Mappings()
    while True:
        handle, byte = pipe.recv()
        if byte is None:
            mappings.begin_write(handle)[: SIZE // 2] = bytes(SIZE // 2)
            pipe.send("half")
            signal.pause()
        write(mappings, handle, byte)
        pipe.send(handle)


def own(pipe):
    """Lend a slot to the parent, and wait to be killed."""
    lease = slots().lease()
    pipe.send(lease.handle)
    signal.pause()


@pytest.fixture
def start():
    context, processes = multiprocessing.get_context("fork"), []

    def start(target):
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs,), daemon=True)
        process.start()
        processes.append(process)
        return process, ours

    yield start
    for process in processes:
        process.kill()
        process.join()


def is_used(handle):
    """Whether the segment of a handle is mapped by this process, or its owner still has it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = any("memfd:raysync" in line and f" {handle.inode} " in line for line in lines)
    return mapped or Path(f"/proc/{handle.process}/fd/{handle.file}").exists()


def test_a_writer_that_dies_while_it_writes_leaves_no_vector_and_spoils_none(start):
    process, pipe = start(serve)
    pool, mappings = slots(), Mappings()
    done, torn = pool.lease(), pool.lease()
    pipe.send((done.handle, 7))
    assert Handle(*pipe.recv()) == done.handle
    pipe.send((torn.handle, None))
    assert pipe.recv() == "half"
    process.kill()
    process.join()
    assert set(mappings.read(done.handle)) == {7}, "a vector survives its writer"
    with pytest.raises(TornVector):
        mappings.read(torn.handle)


def test_a_killed_owner_leaves_no_segment_and_what_is_mapped_stays_readable(start):
    process, pipe = start(own)
    handle, mappings = pipe.recv(), Mappings()
    write(mappings, handle, 9)
    view = mappings.read(handle)
    process.kill()
    process.join()
    assert view[-1] == 9
    assert is_used(handle)
    with pytest.raises(FileNotFoundError):
        Mappings().read(handle)
    del view
    mappings.drop_closed()
    assert not is_used(handle)
