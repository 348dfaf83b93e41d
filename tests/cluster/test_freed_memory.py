"""Memory that a process has freed, counted by the pages that the system clears for it."""

import multiprocessing
import resource

import pytest
import torch

from raysync.cluster.actors.freed_memory import give_back_freed_memory, keep_freed_memory

NUMBERS, VECTORS = 2**20, 16
"""Together more than glibc keeps by itself."""


def first_touches():
    """Return the first touches of pages while some vectors are made and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made = [torch.ones(NUMBERS) for _ in range(VECTORS)]
    del made
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def count(pipe):
    """Count them when freed memory is kept, and after it has been given back."""
    if not keep_freed_memory():
        pipe.send(None)
        return
    kept = [first_touches() for _ in range(12)][-3:]
    give_back_freed_memory()
    pipe.send((min(kept), first_touches()))


def test_what_is_freed_is_kept_until_it_is_given_back():
    context = multiprocessing.get_context("spawn")  # it holds for a whole process
    ours, theirs = context.Pipe()
    process = context.Process(target=count, args=(theirs,))
    process.start()
    theirs.close()
    counted = ours.recv()
    process.join()
    if counted is None:
        pytest.skip("the C library is not glibc")
    kept, given_back = counted
    assert given_back > 10 * (kept + 100)
