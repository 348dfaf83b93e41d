"""What CUDA really does with the memory that one process lends to another."""

from multiprocessing import get_context

import pytest
import torch

from raysync.cluster.transports.shared.device_memory import offer
from raysync.cluster.transports.shared.device_vector import gpu_here, tried
from raysync.cluster.transports.shared.shared_vector import SharedVector

MIB = 2**20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")
def test_a_gpu_lends_its_memory():
    """With the driver, torch, and a process of its own."""
    context = get_context("spawn")
    pipe, end = context.Pipe()
    lender = context.Process(target=lend, args=(end,))
    lender.start()
    torch.ones(1, device="cuda:0")
    gpu = gpu_here()
    assert isinstance(gpu, bytes), gpu
    pipe.send(gpu)
    handle = SharedVector(*pipe.recv())
    assert tried(handle, writes=True) == ""
    assert tried(handle, writes=False) == ""
    pipe.send(None)
    lender.join()


def lend(pipe):
    offered = offer(pipe.recv(), MIB)
    pipe.send(tuple(offered))
    pipe.recv()
