import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """The models here are tiny: on a busy machine torch's threads would wait for each other a hundred times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
