"""Threads that share an update make the bits that one makes, and no thread outlives its work."""

import gc
import threading
import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from raysync.config import Update
from raysync.training import parameter_store
from raysync.training.flat_optimizer import PIECE
from raysync.training.parameter_groups import ParameterGroup, whole
from raysync.training.parameter_store import ParameterStore
from raysync.training.state_file import decode, encode
from raysync.training.vector_parts import BLOCK
from raysync.training.vector_threads import VectorThreads
from raysync.training.wire import Wire
from tests.builders.updates import UPDATES

LEAST, PATIENCE_S = 32, 30
BUFFERS = 3


def threads(count):
    return VectorThreads(count, count, LEAST)


def randoms(seed, size, count):
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, size, generator=generator))


def groups_of(cuts, size):
    """Three groups whose slices alternate, cut at these positions."""
    edges = sorted({0, size, *(cut % size for cut in cuts)})
    slices = [slice(*edge) for edge in pairwise(edges)]
    return [
        ParameterGroup(tuple(slices[number::3]), decay, factor)
        for number, (decay, factor) in enumerate([(None, 1.0), (0.0, 0.5), (0.3, 2.0)])
        if slices[number::3]
    ]


def store_of(update, size, count, groups=(), wire="float32"):
    [initial] = randoms(0, size + BUFFERS, 1)
    return ParameterStore(initial, size, Update(lr=0.05, **update), groups, wire, threads(count))


def advance(store, size, begin, end, wire="float32"):
    """Make the updates of a run from one number to the other, of 1 to 3 pushes."""
    encode_ = Wire(wire, size, BUFFERS).encode
    for number in range(begin, end):
        pushes = 1 + number % 3
        vectors = randoms(number + 1, size + BUFFERS, 2 * pushes)
        store.apply(
            [encode_(each).clone() for each in vectors[:pushes]],
            [8, 3, 5][:pushes],
            ["a#1", "b#1", None][:pushes],
            number / 9,
            staleness=[2, 0, 7][:pushes],
            bases=vectors[pushes:] if store.update.delay_compensation is not None else (),
        )


updates = st.sampled_from([*UPDATES.values(), {"optimizer": "tests.builders.optimizers:Counting"}])
sizes = st.integers(1, 5000)
counts = st.integers(2, 5)
groups = st.lists(st.integers(0, 10**6), max_size=6)


@settings(max_examples=60)
@given(updates, sizes, counts, groups, st.sampled_from(["float32", "bf16"]))
@example(UPDATES["adam"], 4 * LEAST, 4, [1], "float32")
@example(UPDATES["rmsprop"], PIECE + 3 * BLOCK + 1, 3, [5, 40], "float32")
@example(UPDATES["adaptive"], 1001, 3, [], "bf16")
def test_threads_make_the_bits_that_one_makes(update, size, count, cuts, wire):
    """Of the weights, and of all that a checkpoint holds."""
    its = groups_of(cuts, size)
    alone, shared = (store_of(update, size, number, its, wire) for number in (1, count))
    for number in range(4):
        for store in (alone, shared):
            advance(store, size, number, number + 1, wire)
        assert torch.equal(alone.publish(), shared.publish())
    assert alone.publish().isfinite().all()
    assert encode(alone.state()) == encode(shared.state())


@settings(max_examples=40)
@given(updates, sizes, counts, st.integers(1, 5), groups, st.integers(0, 4))
@example(UPDATES["momentum"], 1000, 4, 3, [], 2)
@example(UPDATES["nadam"], PIECE + 3 * BLOCK + 1, 3, 2, [5, 40], 2)
def test_a_checkpoint_does_not_depend_on_the_threads(update, size, one, other, cuts, cut):
    """A run that goes on with other threads than it had is as if it had not been interrupted."""
    its = groups_of(cuts, size)
    undisturbed = store_of(update, size, 1, its)
    advance(undisturbed, size, 0, 6)
    before, after = store_of(update, size, one, its), store_of(update, size, other, its)
    advance(before, size, 0, cut)
    after.restore(decode(encode(before.state())))
    advance(after, size, cut, 6)
    assert torch.equal(after.publish(), undisturbed.publish())
    assert encode(after.state()) == encode(undisturbed.state())


def test_a_state_is_that_of_torchs_optimizer_on_the_whole_vector():
    """So checkpoints that one thread has written go on to load."""
    store = store_of({"optimizer": "adamw"}, 1000, 4, whole(1000))
    advance(store, 1000, 0, 2)
    reference = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1000))], fused=True)
    reference.param_groups[0]["params"][0].grad = torch.ones(1000)
    reference.step()
    own, expected = store.state()["optimizer"], reference.state_dict()
    assert own["state"].keys() == {"0"}
    assert {name: value.shape for name, value in own["state"]["0"].items()} == {
        name: value.shape for name, value in expected["state"][0].items()
    }
    assert own["state"]["0"]["step"] == 2
    assert [group["params"] for group in own["param_groups"]] == [[0]]


@pytest.mark.parametrize("update", [UPDATES["clipped"], UPDATES["nadam"]])
def test_a_norm_does_not_depend_on_the_threads(monkeypatch, update):
    """It is that of blocks, whatever the spans are."""
    size = 5000
    told = []
    for count in (1, 2, 5):
        store = store_of(update, size, count)
        norms = []
        for block in (10**6, 999):
            monkeypatch.setattr(store, "_norm_block", block)
            norms.append(store.combine(randoms(1, size + BUFFERS, 1), [1], [None]))
        told.append(norms)
    assert told[0] == told[1] == told[2]
    expected = torch.linalg.vector_norm(randoms(1, size + BUFFERS, 1)[0][:size].double()).item()
    assert told[0] == [pytest.approx(expected, rel=1e-6)] * 2
    assert parameter_store.NORM_BLOCK % BLOCK == 0


@given(st.integers(0, 10**6), counts)
def test_a_thread_has_at_least_what_is_worth_it(size, count):
    spans = threads(count).spans(size)
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == size
    assert len(spans) == max(1, min(count, size // LEAST))
    assert VectorThreads(1).spans(size) == [slice(0, size)]


def test_several_threads_work_at_once_each_with_one_of_torch():
    """And the caller has as many of torch's afterwards as it had before."""
    before, count = torch.get_num_threads(), 3
    meet = threading.Barrier(count)
    try:
        torch.set_num_threads(2)

        def work(number):
            meet.wait(PATIENCE_S)
            return number, threading.get_ident(), torch.get_num_threads()

        told = threads(count).map(work, range(count))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [number for number, *_ in told] == [0, 1, 2]
    assert len({thread for _, thread, _ in told}) == count
    assert threading.get_ident() in {thread for _, thread, _ in told}
    assert {torchs for *_, torchs in told} == {1}


def test_the_caller_does_what_no_other_begins():
    """So a thread that gets no core holds nothing up."""
    shared, end = threads(2), threading.Event()
    here = threading.get_ident()
    holding = shared._pool.submit(end.wait, PATIENCE_S)
    assert shared.map(lambda number: (number, threading.get_ident()), range(4)) == [
        (number, here) for number in range(4)
    ]
    end.set()
    assert holding.result(), "it was held until the caller had done all"


@pytest.mark.parametrize("fails", [0, 1])
def test_an_error_surfaces_once_no_thread_works(fails):
    """Of the caller's thread, and of another one."""
    meet, other_ends, ended = threading.Barrier(2), threading.Event(), []

    def work(number):
        meet.wait(PATIENCE_S)
        mine = threading.current_thread() is threading.main_thread()
        if mine == (fails == 0):
            other_ends.set()
            raise ArithmeticError(f"of {number}")
        other_ends.wait(PATIENCE_S)
        ended.append(number)

    with pytest.raises(ArithmeticError, match="of "):
        threads(2).map(work, range(2))
    assert len(ended) == 1


def test_no_thread_outlives_its_object():
    def alive():
        return {each for each in threading.enumerate() if each.name.startswith("vector")}

    gc.collect()
    before = alive()
    shared = threads(4)
    store = ParameterStore(torch.zeros(10 * LEAST), 10 * LEAST, Update(), threads=shared)
    assert alive() <= before, "none is started before it is needed"
    store.apply([torch.ones(10 * LEAST)], [1], [None], 0.0)
    new = alive() - before
    assert 1 <= len(new) <= 3
    del shared, store
    gc.collect()
    for each in new:
        each.join(PATIENCE_S)
    assert not alive() & new


class Counting(VectorThreads):
    """Counts the other threads that are asked for at a time."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.asked, pool = [], self._pool.submit
        self._pool.submit = lambda work: (self.asked.append(work), pool(work))[1]

    def most(self):
        return max(map(self.asked.count, self.asked), default=0)


def updated(size, gradients, *settings):
    """What an update of so many gradients asks for, and the copy that publishes it."""
    shared = Counting(*settings)
    store = ParameterStore(torch.zeros(size), size, Update(clip_norm=1.0), threads=shared)
    store.apply([torch.ones(size)] * gradients, [1] * gradients, [None] * gradients, 0.0)
    shared.copy(store.publish(), torch.zeros(size))
    return shared.most()


def test_short_vectors_start_no_thread():
    assert updated(2**18, 2, 4) == 0


@pytest.mark.parametrize(
    ("gradients", "count", "fair", "asked"),
    [(1, 4, 1, 0), (1, 4, 2, 1), (1, 4, 9, 3), (2, 4, 1, 3), (5, 3, 2, 2)],
)
def test_other_workers_compute_while_a_single_gradient_is_applied(gradients, count, fair, asked):
    assert updated(10 * LEAST, gradients, count, fair, LEAST) == asked


@given(st.integers(0, 3000), counts)
def test_a_copy_is_whole(size, count):
    [source] = randoms(0, size, 1)
    target = torch.zeros(size)
    threads(count).copy(source, target)
    assert torch.equal(target, source)


def test_a_store_on_another_device_has_no_threads():
    """torch's meta device computes nothing, and refuses to mix its tensors with a CPU's."""
    store = ParameterStore(
        torch.empty(1000, device="meta"),
        1000,
        Update(optimizer={"name": "sgd", "foreach": False}),
        threads=threads(4),
    )
    assert store._threads.spans(1000) == [slice(0, 1000)]
    shared = Counting(4, 4, LEAST)
    shared.copy(store.publish(), torch.empty(1000, device="meta"))
    assert not shared.most()


@pytest.mark.parametrize("update", [{}, {"optimizer": "rmsprop"}])
def test_vectors_that_arrived_are_free_once_they_are_applied(update):
    store = store_of(update, 1000, 3)
    arrived = torch.ones(1000 + BUFFERS)
    is_there = weakref.ref(arrived)
    store.apply([arrived], [1], [None], 0.0)
    store._threads._pool.shutdown()  # a thread that is done lets its work go a moment later
    del arrived
    gc.collect()
    assert is_there() is None
