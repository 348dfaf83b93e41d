"""A stage's gradients against torch's of the whole network, at the weights that it promises; and
where networks are cut.
"""

from itertools import combinations, pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from raysync.cluster.transports.payloads import incoming, outgoing
from raysync.decoupled.cut import COSTS, cut, sequence_of
from raysync.decoupled.stage_computation import StageComputation
from raysync.errors import ConfigError
from raysync.training.models.builtin import ModelPlan, listed
from tests.builders.messages import naming

pytestmark = pytest.mark.usefixtures("one_thread")


def smooth():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 4))


def drawn(shape, classes=4):
    torch.manual_seed(2)
    return torch.randn(8, *shape), torch.randint(classes, (8,))


def flat(parameters):
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


def whole_gradient(module, x, y):
    loss = cross_entropy(module(x), y)
    return loss.item(), flat(torch.autograd.grad(loss, list(module.parameters())))


def through(stages, x, y, batch=1):
    """A batch through all stages; the loss and the concatenated gradients."""
    for stage in stages[:-1]:
        x = stage.forward(batch, x, 0)
    loss, outgoing, dy = stages[-1].learn(batch, x, lambda output: cross_entropy(output, y), 0)
    gradients = [outgoing[: stages[-1].size].clone()]
    for stage in reversed(stages[:-1]):
        outgoing, dy = stage.backward(batch, dy)
        gradients.insert(0, outgoing[: stage.size].clone())
    return loss, torch.cat(gradients)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("weights", ["stash", "latest"])
@pytest.mark.parametrize("modules", [1, 2, 3])
def test_at_the_same_weights_the_parts_have_the_gradient_of_the_whole(modules, weights, precision):
    """Under bf16 what goes from stage to stage is what goes from layer to layer there: nothing more
    is rounded.
    """
    x, y = drawn((5,))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss, expected = whole_gradient(smooth(), x, y)
    stages = [StageComputation(part, weights, 1.0, precision) for part in cut(smooth(), modules, x)]
    got_loss, got = through(stages, x, y)
    assert got_loss == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(got, whole_gradient(smooth(), x, y)[1]) == (precision == "float32")
    assert not any(stage.stashed for stage in stages)


def test_bfloat16_travels_in_its_own_bits():
    y = StageComputation(smooth(), precision="bf16").forward(1, drawn((5,))[0], 0)
    assert y.dtype == torch.bfloat16
    for tensor in (y, y.float(), y.T):
        [payload] = outgoing(tensor)
        assert payload.nbytes == tensor.nbytes
        [arrived] = incoming(payload)
        assert arrived.dtype == tensor.dtype
        assert torch.equal(arrived, tensor)


def vector(module):
    return flat(module.parameters()).detach().clone()


@pytest.mark.parametrize("weights", ["stash", "latest"])
def test_weights_that_change_in_between(weights):
    """`stash`: the gradient at the weights of the forward pass; `latest`: at the new ones."""
    x, dy = torch.randn(8, 5), torch.randn(8, 7)
    old = nn.Sequential(nn.Linear(5, 7), nn.Tanh())
    new = nn.Sequential(nn.Linear(5, 7), nn.Tanh())
    stage = StageComputation(nn.Sequential(nn.Linear(5, 7), nn.Tanh()), weights)
    stage.read_weights(vector(old))
    torch.testing.assert_close(stage.forward(1, x, 0), old(x).detach())
    stage.read_weights(vector(new))
    got = stage.backward(1, dy)[0].clone()
    at = old if weights == "stash" else new
    torch.testing.assert_close(got, flat(torch.autograd.grad(at(x), list(at.parameters()), dy)))


def test_several_batches_in_flight_each_at_its_own_weights():
    x = [torch.randn(3, 5) for _ in range(4)]
    stage = StageComputation(nn.Linear(5, 2))
    seen = []
    for batch in range(4):
        seen.append(torch.randn(12))
        stage.read_weights(seen[batch])
        stage.forward(batch, x[batch], 0)
    assert len(stage.stashed) == 4
    for batch in range(4):
        dx = stage.backward(batch, torch.ones(3, 2))[1]
        torch.testing.assert_close(dx, torch.ones(3, 2) @ seen[batch][:10].view(2, 5))


def test_shrinking_scales_what_comes_from_behind_and_compounds():
    x, y = drawn((5,))
    plain, shrunk = (
        [StageComputation(part, shrink=beta) for part in cut(smooth(), 3, x)] for beta in (1.0, 0.5)
    )
    _, expected = through(plain, x, y)
    _, got = through(shrunk, x, y)
    scales = torch.cat(
        [torch.full((stage.size,), 0.5 ** (2 - index)) for index, stage in enumerate(plain)]
    )
    torch.testing.assert_close(got, expected * scales)


def test_running_a_batch_again_draws_the_same_and_leaves_the_statistics_alone():
    x, dy = torch.randn(8, 5), torch.randn(8, 5)
    module = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
    stash, latest = (
        StageComputation(
            nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)), weights
        )
        for weights in ("stash", "latest")
    )
    for stage in (stash, latest):
        stage.read_weights(vector(module))
    torch.testing.assert_close(stash.forward(1, x, 7), latest.forward(1, x, 7))
    one, two = stash.backward(1, dy), latest.backward(1, dy)
    # Gradient, and behind it the statistics after one forward pass.
    torch.testing.assert_close(one, two)
    assert one[0].view(torch.int32)[-2] == 1  # num_batches_tracked


@pytest.mark.parametrize("name", ["alexnet-small", "resnet20", "resnet18", "lenet"])
@pytest.mark.parametrize("balance", COSTS)
def test_parts_are_the_network(name, balance):
    plan = listed(name)
    module, x = plan.build(), torch.randn(2, *plan.input_shape)
    parts = cut(module, 3, x, balance)
    assert torch.equal(
        flat(module.parameters()), flat(p for part in parts for p in part.parameters())
    )
    items = list(sequence_of(module).values())
    assert [item for part in parts for item in part][: len(items)] == items or name == "resnet18"


@pytest.mark.parametrize("modules", [1, 2, 3, 4])
def test_the_largest_part_is_as_small_as_can_be(modules):
    torch.manual_seed(0)
    widths = [4, 9, 3, 17, 5, 6]
    module = nn.Sequential(*(nn.Linear(wide, narrow) for wide, narrow in pairwise(widths)))
    sizes = [wide * narrow + narrow for wide, narrow in pairwise(widths)]

    def largest(starts):
        return max(
            sum(sizes[begin:end])
            for begin, end in zip(starts, [*starts[1:], len(sizes)], strict=True)
        )

    parts = cut(module, modules, torch.randn(2, 4), "parameters")
    got = max(sum(parameter.numel() for parameter in part.parameters()) for part in parts)
    assert got == min(
        largest([0, *starts]) for starts in combinations(range(1, len(sizes)), modules - 1)
    )


def test_cuts_at_named_places():
    parts = cut(smooth(), 3, torch.randn(2, 5), at=["2", "4"])
    assert [len(part) for part in parts] == [2, 2, 1]


class Own(nn.Module):
    """A user's network that says where it can be cut."""

    def __init__(self, *, wrong=False, tied=False):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        if tied:
            self.second.weight = self.first.weight
        self.sequence = [
            self.first,
            nn.ReLU(),
            *([nn.ReLU(), nn.Tanh()] if wrong else []),
            self.second,
        ]

    def forward(self, x):
        return self.second(self.first(x).relu())


def test_a_users_own_network():
    assert len(cut(Own(), 2, torch.randn(2, 5))) == 2


@pytest.mark.parametrize(
    ("module", "arguments", "says"),
    [
        (smooth(), {"stages": 4}, "3 parameters 4"),
        (smooth(), {"stages": 2, "at": ["9"]}, "unknown '9'"),
        (smooth(), {"stages": 3, "at": ["2"]}, "3 modules 2 1: 2"),
        (smooth(), {"stages": 3, "at": ["4", "2"]}, "order"),
        (smooth(), {"stages": 2, "at": ["0"]}, "first"),
        (nn.Linear(5, 4), {"stages": 2}, "nn.Sequential `sequence`"),
        (Own(wrong=True), {"stages": 2}, "model"),
        (Own(tied=True), {"stages": 2}, "share a parameter"),
    ],
)
def test_what_cannot_be_cut(module, arguments, says):
    with pytest.raises(ConfigError, match=naming(says)):
        cut(module, samples=torch.randn(2, 5), **arguments)


def test_a_registered_model_that_cannot_be_cut_says_so():
    plan = ModelPlan("char-lm", {}, (8,), 10, tokens=True)
    with pytest.raises(ConfigError, match="cannot be cut"):
        cut(plan.build(), 2, torch.zeros(2, 8, dtype=torch.int64), name="char-lm")
