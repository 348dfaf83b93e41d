"""An update of a large model makes no vector of its size, writes to none that arrived, and gives
the same bits with any number of threads; with every optimizer that torch has for a server."""

import gc
import weakref
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
import torch

from raysync.cluster.transports.payloads import incoming
from raysync.config import Update
from raysync.training.formats import state_file
from raysync.training.optim.clipping import NORM_BLOCK
from raysync.training.optim.flat_optimizer import PIECE
from raysync.training.server.parameter_store import ParameterStore
from raysync.training.vectors.wire import Wire
from tests.builders.updates import UPDATES, update_plan

SIZE = 100_003
"""Above what torch gives to one thread, and no multiple of what a processor computes at once."""
every_update = pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)


LARGE = 20 * PIECE + 3
"""Of so many pieces that a few of them are much less than the whole."""


@cache
def vector(seed):
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


@cache
def large(seed):
    return torch.randn(LARGE, generator=torch.Generator().manual_seed(seed))


def apply(store, pushes, seed=0, received=lambda tensor: tensor, wire="float32"):
    """An update of so many pushes, each of another staleness; `received` is how a vector lies in
    memory.
    """
    encode = Wire(wire, SIZE, 0).encode
    gradients = [received(encode(vector(seed + push)).clone()) for push in range(pushes)]
    bases = [received(vector(seed + 100 + push)) for push in range(pushes)]
    compensates = store.update.delay_compensation is not None
    plan = update_plan([8, 3, 5, 4][:pushes], progress=0.5, staleness=[2, 0, 1, 7][:pushes])
    store.apply(plan, [*gradients, *bases] if compensates else gradients)


def store_of(update, wire="float32"):
    return ParameterStore(vector(1000), SIZE, Update(lr=0.1, **update), wire=wire)


def peak_bytes(work):
    """The most memory that torch has allocated on the CPU at once during some work, beyond what
    it had before; also within its kernels.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        work()
    events = [
        event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    sizes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(accumulate(sizes), default=0)


def test_what_is_measured_is_seen():
    ones = torch.ones(SIZE)
    assert peak_bytes(lambda: ones + 1) == pytest.approx(4 * SIZE, abs=200)


@every_update
def test_an_update_takes_no_memory_of_the_models_size(update):
    """It takes less than half of that: what is left is that of the pieces that an optimizer without
    a fused kernel steps on, however large the model is.
    """
    store = ParameterStore(large(1000), LARGE, Update(lr=0.1, **update))
    compensates = "delay_compensation" in update
    vectors = [large(seed) for seed in range(8 if compensates else 4)]
    plan = update_plan([8] * 4, [None] * 4, 0.5, staleness=[2] * 4)

    def push():
        store.apply(plan, vectors)
        store.publish()

    push()  # the first step makes the optimizer's state
    assert peak_bytes(push) < 4 * LARGE / 2


@every_update
@pytest.mark.parametrize("wire", ["float32", "bf16"])
def test_the_number_of_threads_changes_no_bit(update, wire):
    """Of the weights, and of all that a checkpoint holds."""
    published = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            store = store_of(update, wire)
            for pushes in (1, 3, 2):
                apply(store, pushes, seed=10 * pushes, wire=wire)
            published.append(state_file.encode(store.state()))
    finally:
        torch.set_num_threads(before)
    assert all(other == published[0] for other in published)
    assert store.publish().isfinite().all()


def test_the_norm_of_a_long_gradient_is_that_of_its_blocks():
    """A sum of so many squares in float32 is further off."""
    size = 8 * NORM_BLOCK + 5
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(0))
    store = ParameterStore(torch.zeros(size), size, Update(clip_norm=1.0))
    exact = gradient.double().norm().item()
    assert store.combine(update_plan([1]), [gradient]) == pytest.approx(exact, rel=3e-5)


@pytest.mark.parametrize("update", [{}, {"optimizer": "rmsprop"}])
def test_vectors_that_arrived_are_free_once_they_are_applied(update):
    store, arrived = store_of(update), torch.ones(SIZE)
    is_there = weakref.ref(arrived)
    store.apply(update_plan([1]), [arrived])
    del arrived
    gc.collect()
    assert is_there() is None


@every_update
def test_what_arrived_may_lie_where_the_processor_refuses_to_write(update, tmp_path):
    """As in Ray's object store; a write, even of the same value, would end this process."""

    def mapped(tensor):
        file = tmp_path / str(len(list(tmp_path.iterdir())))
        tensor.numpy().tofile(file)
        return incoming(np.memmap(file, np.float32, mode="r"))[0]

    store, other = store_of(update), store_of(update)
    for pushes in (1, 3):
        apply(store, pushes, received=mapped)
        apply(other, pushes)
    assert torch.equal(store.publish(), other.publish())
