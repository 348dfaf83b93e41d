"""An update of a large model makes no vector of its size, writes to none that arrived, and gives
the same bits with any number of threads."""

from functools import cache

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raysync.cluster.transport import incoming
from raysync.config import Update
from raysync.training.parameter_store import ParameterStore

SIZE = 100_003
"""Above what torch gives to one thread, and no multiple of what a processor computes at once."""
UPDATES = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "clipped": {"weight_decay": 0.01, "clip_norm": 0.5},
    "sum": {"combine": "sum", "lr_scaling": "none"},
    "projected": {"project_radius": 50.0},
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "clip_norm": 1e9},
    "rmsprop": {"optimizer": "RMSprop", "momentum": 0.9},
    "nadam": {"optimizer": "NAdam", "weight_decay": 0.01, "clip_norm": 0.5},
    "scaled": {"staleness_scaling": "inverse", "clip_norm": 0.5},
    "constant": {"delay_compensation": "constant", "momentum": 0.9},
    "adaptive": {"delay_compensation": "adaptive", "staleness_scaling": "inverse"},
}
every_update = pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)


@cache
def vector(seed):
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def apply(store, pushes, seed=0, received=lambda tensor: tensor):
    """An update of so many pushes, each of another staleness; `received` is how a vector lies in
    memory.
    """
    gradients = [received(vector(seed + push)) for push in range(pushes)]
    bases = [received(vector(seed + 100 + push)) for push in range(pushes)]
    compensates = store.update.delay_compensation is not None
    store.apply(
        gradients,
        [8, 3, 5, 4][:pushes],
        [f"w-{push}#1" for push in range(pushes)],
        0.5,
        staleness=[2, 0, 1, 7][:pushes],
        bases=bases if compensates else (),
    )


def store_of(update):
    return ParameterStore(vector(1000), SIZE, Update(lr=0.1, **update))


class FreshVectors(TorchDispatchMode):
    """Which operations of torch make a tensor of the model's size in memory that nothing had
    before.
    """

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves((args, kwargs))
            if torch.is_tensor(leaf)
        }
        result = func(*args, **kwargs or {})
        for leaf in tree_leaves(result):
            if (
                torch.is_tensor(leaf)
                and leaf.numel() >= SIZE
                and leaf.untyped_storage().data_ptr() not in given
            ):
                self.made.append(str(func))
        return result


@every_update
@pytest.mark.parametrize("pushes", [1, 4])
def test_no_vector_of_the_models_size_is_made(update, pushes):
    store = store_of(update)
    apply(store, pushes)  # the first step makes the optimizer's state
    gradients, bases = ([vector(seed + push) for push in range(pushes)] for seed in (0, 100))
    with FreshVectors() as fresh:
        store.apply(
            gradients,
            [8] * pushes,
            [None] * pushes,
            0.5,
            staleness=[2] * pushes,
            bases=bases if "delay_compensation" in update else (),
        )
        store.publish()
    assert fresh.made == []


@every_update
def test_the_number_of_threads_changes_no_bit(update):
    published = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            store = store_of(update)
            for pushes in (1, 3, 2):
                apply(store, pushes, seed=10 * pushes)
            published.append(store.publish().clone())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(other, published[0]) for other in published)
    assert published[0].isfinite().all()


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
