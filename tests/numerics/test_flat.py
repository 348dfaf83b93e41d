"""A module as two vectors: its weights and gradients, however they lie in its own memory."""

import pytest
import torch
from torch import nn

from raysync.training.vectors.flat import FlatModel


def test_weights_that_are_moved_stay_and_are_read_where_they_are_then():
    model = FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    before, vector = model.initial(), torch.zeros(15)
    model.move_weights(vector)
    assert torch.equal(model.initial(), before)
    vector[: model.size] = torch.arange(10.0)
    model.read_weights()
    parameters = [parameter.detach().reshape(-1) for parameter in model.module.parameters()]
    assert torch.equal(torch.cat(parameters), torch.arange(10.0))
    assert not vector[model.size :].any()


def test_a_parameter_without_a_gradient_has_none_of_the_batch_before():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model = FlatModel(module)
    module(torch.ones(3, 2)).sum().backward()
    model.write_gradient()
    assert model.gradient.all()
    model.begin_gradient()
    module[0](torch.ones(3, 2)).sum().backward()
    model.write_gradient()
    assert model.gradient[:6].all()
    assert not model.gradient[6:].any()


@pytest.mark.parametrize("strided", [torch.contiguous_format, torch.channels_last])
def test_a_vector_is_row_by_row_in_any_memory_format(strided):
    """That of the module, and that of the batch, which the gradients of convolutions take over."""
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 5, 3)).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 2, 6, 6, dtype=torch.double, generator=generator)
    plain(x).square().sum().backward()
    rows = torch.cat([parameter.reshape(-1) for parameter in plain.parameters()])
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters()])
    model = FlatModel(plain.float().to(memory_format=strided))
    assert torch.equal(model.initial(), rows.float())
    model.read_weights(rows.float().neg())
    model.read_weights(*rows.float().tensor_split(3))  # the cuts are within parameters
    model.begin_gradient()
    model.module(x.float().to(memory_format=torch.channels_last)).square().sum().backward()
    model.write_gradient()
    assert torch.allclose(model.gradient, gradient.float(), rtol=1e-3, atol=1e-3)
