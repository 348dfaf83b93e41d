"""What modules, losses and data sets draw is a function of the batch, or it is said."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import raysync
from tests.builders.messages import tells
from tests.builders.plain_torch import Rows, net, plan, settings
from tests.builders.virtual import learn, weights_of

pytestmark = pytest.mark.usefixtures("one_thread")


def mixed(model, batch):
    x, y = batch
    share, order = float(np.random.beta(0.4, 0.4)), torch.randperm(len(x))
    if random.random() < 0.5:
        order = order.flip(0)
    output = model(share * x + (1 - share) * x[order])
    return share * cross_entropy(output, y) + (1 - share) * cross_entropy(output, y[order])


def test_draws_of_all_generators_are_of_the_batch_alone(tmp_path):
    task = Rows(net, mixed)

    def final(**more):
        return weights_of(learn(plan(task, 2, **more))[1])

    first = final()
    np.random.seed(5)
    random.seed(5)
    assert torch.equal(final(), first)
    jitter = {"distribution": "lognormal", "sigma": 0.3}
    workers = [{"name": f"w{n}", "step_s": 2 - n, "jitter": jitter} for n in range(2)]
    assert torch.equal(final(workers=workers), first), "only the clock differs"
    before = np.random.get_state()[1].copy(), random.getstate()
    raysync.run(settings(2, output=str(tmp_path)), task=task)
    assert (np.random.get_state()[1] == before[0]).all()
    assert random.getstate() == before[1]


class Noisy(nn.Sequential):
    """Draws in evaluation, too."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x) + float(np.random.normal()))


def test_an_evaluation_has_draws_of_its_own(tmp_path):
    task = Rows(lambda: Noisy(*net()))
    losses = {}
    for name in ("bsp", "asp"):
        more = {"output": str(tmp_path), "paradigm": name}
        record = raysync.run(settings(2, **more), task=task)
        losses[name] = record.evaluations.loss[0]
    assert losses["bsp"] == losses["asp"], "at progress 0 the weights are equal"
    state = torch.get_rng_state()
    raysync.run(settings(output=str(tmp_path)), task=task)
    assert torch.equal(torch.get_rng_state(), state)


class Drawing(torch.utils.data.Dataset):
    def __init__(self, generator):
        self.generator = generator

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((5,), float(index)) + self.generator.normal(), index % 2


@pytest.mark.parametrize("sampler", [None, range(0, 64, 2)], ids=["all", "chosen"])
@pytest.mark.parametrize(
    ("generator", "is_said"),
    [(np.random.default_rng(0), True), (np.random, False)],
    ids=["its own", "the global one"],
)
def test_a_data_set_with_a_generator_of_its_own_is_said(generator, is_said, sampler):
    task = Rows(net)
    task.sampler = lambda samples: sampler
    task.train_set = lambda: Drawing(generator)
    remarks = " ".join(plan(task).remarks)
    assert tells(remarks, "generator") == is_said
