"""The update against closed forms and single-process torch."""

from functools import partial
from itertools import permutations
from math import cos, nan, pi, sqrt

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from raysync.config import Schedule, Update
from raysync.training.formats.state_file import encode
from raysync.training.optim.lr_schedule import learning_rate
from raysync.training.server.parameter_store import ParameterStore
from raysync.training.vectors.flat import FlatModel
from tests.builders.updates import update_plan

SIZE = 5
vector = partial(torch.full, (SIZE,))


def store(initial=1.0, **update):
    return ParameterStore(vector(initial), SIZE, Update(**update))


def apply(it, gradients, samples=None, bases=(), **others):
    plan = update_plan(samples or [8] * len(gradients), **others)
    it.apply(plan, [vector(g) for g in (*gradients, *bases)])
    return it.publish()[0].item()


def test_constant_gradients_give_the_same_model_after_the_same_pushes():
    """lr_scaling: linear: n pushes of gradient g move the model by n * lr * g, in one update or in
    n.
    """
    together, alone = store(lr=0.1), store(lr=0.1)
    for _ in range(6):
        moved = apply(together, [0.5, 0.5, 0.5])
        for _ in range(3):
            moved_alone = apply(alone, [0.5])
    assert moved == pytest.approx(1 - 18 * 0.1 * 0.5, abs=1e-6)
    assert moved_alone == pytest.approx(moved, abs=1e-6)
    assert (together.version, alone.version) == (6, 18)


@pytest.mark.parametrize(
    ("update", "gradients", "samples", "moved"),
    [
        ({"lr": 1.0, "lr_scaling": "none"}, [1.0, 4.0], [1, 2], 3.0),
        ({"lr": 0.1, "lr_scaling": "none"}, [1.0, 3.0], [8, 8], 0.2),
        ({"lr": 0.1}, [1.0, 3.0], [8, 8], 0.4),
        ({"lr": 0.1, "lr_scaling": "none", "combine": "sum"}, [1.0, 3.0], [8, 8], 0.4),
        ({"lr": 1.0, "lr_scaling": "none", "clip_norm": 1.0}, [100.0], [8], 1 / sqrt(SIZE)),
        ({"lr": 1.0, "lr_scaling": "none", "clip_norm": 1e3}, [0.5], [8], 0.5),
    ],
)
def test_the_mean_by_samples_or_the_sum_is_scaled_and_clipped(update, gradients, samples, moved):
    assert apply(store(**update), gradients, samples) == pytest.approx(1 - moved, rel=1e-4)


weighted = st.lists(
    st.tuples(st.floats(-2, 2, width=32), st.floats(0.001, 1000) | st.just(0.0), st.integers(1, 9)),
    min_size=1,
    max_size=5,
).filter(lambda pushes: any(weight for _, weight, _ in pushes))
"""Of one update: gradient, weight, samples."""


@given(weighted, st.sampled_from(["mean", "sum"]))
def test_weights_of_the_paradigm_take_the_place_of_samples(pushes, combine):
    gradients, weights, samples = (list(each) for each in zip(*pushes, strict=True))
    it = store(0.0, lr=1.0, lr_scaling="none", combine=combine)
    moved = apply(it, gradients, samples, weights=weights)
    total = 1 if combine == "sum" else sum(weights)
    expected = sum(w * g for g, w in zip(gradients, weights, strict=True)) / total
    assert moved == pytest.approx(-expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("correction", [{}, {"delay_compensation": "adaptive"}])
@pytest.mark.parametrize("where", range(3))
def test_a_push_of_weight_0_contributes_nothing(combine, correction, where):
    """Whatever is in it; neither to the mean square of gradients nor to the number of pushes."""
    scaling = {} if combine == "mean" else {"lr_scaling": "none"}
    gradients, weights = [0.5, 2.0], [3.0, 0.25]
    states = []
    for extra in (False, True):
        it, given, by = store(combine=combine, **scaling, **correction), [*gradients], [*weights]
        if extra:
            given.insert(where, nan)
            by.insert(where, 0.0)
        for _ in range(2):
            bases = [0.5 if g == g else nan for g in given] if correction else []
            apply(it, given, weights=by, bases=bases)
        states.append(encode(it.state()))
    assert states[0] == states[1]


def test_weights_of_the_paradigm_that_are_the_samples_change_no_bit():
    gradients, samples = [0.1, 0.7, 0.3], [3, 5, 9]
    plain = apply(store(), gradients, samples)
    assert apply(store(), gradients, samples, weights=[3.0, 5.0, 9.0]) == plain


@pytest.mark.parametrize(
    ("schedule", "progress", "version", "factor"),
    [
        ({}, 0.7, 9, 1.0),
        ({"name": "milestones", "milestones": [0.5, 0.75]}, 0.49, 0, 1.0),
        ({"name": "milestones", "milestones": [0.5, 0.75]}, 0.5, 0, 0.1),
        ({"name": "milestones", "milestones": [0.5, 0.75], "factor": 0.5}, 0.9, 0, 0.25),
        ({"name": "cosine"}, 0.0, 0, 1.0),
        ({"name": "cosine"}, 0.25, 0, (1 + cos(pi / 4)) / 2),
        ({"name": "cosine"}, 1.3, 0, 0.0),
        ({"name": "cosine", "warmup": 0.2}, 0.6, 0, 0.5),
        ({"warmup": 0.2}, 0.05, 0, 0.25),
        ({"warmup": 0.2}, 0.2, 0, 1.0),
        ({"name": "inverse-sqrt"}, 0.5, 0, 1.0),
        ({"name": "inverse-sqrt"}, 0.5, 15, 0.25),
    ],
)
def test_schedules(schedule, progress, version, factor):
    update = Update(lr=0.4, schedule=Schedule(**schedule))
    assert learning_rate(update, progress, version) == pytest.approx(0.4 * factor)


def test_buffers_are_the_mean_of_the_live_workers_latest():
    it = ParameterStore(torch.tensor([1.0, 7.0]), 1, Update(lr=0.1))
    assert it.publish().tolist() == [1.0, 7.0], "the initial ones, before anybody pushed"
    it.apply(update_plan([1, 1], ["a#1", "b#1"]), [*torch.tensor([[0.0, 2.0], [0.0, 4.0]])])
    it.apply(update_plan([1], ["a#1"]), [torch.tensor([0.0, 6.0])])
    assert it.publish().tolist() == [1.0, 5.0]
    it.forget("b#1")
    it.forget("nobody#1")
    assert it.publish().tolist() == [1.0, 6.0]
    it.apply(update_plan([1], [None]), [torch.tensor([0.0, 100.0])])
    assert it.publish().tolist() == [1.0, 6.0], (
        "a leaver's push that is applied late brings no buffers"
    )


WORKERS = ["a#1", "b#1"]
CHANGES = st.lists(
    st.tuples(st.sampled_from(["push", "forget"]), st.sampled_from(WORKERS), st.booleans())
)


@given(CHANGES)
def test_a_publication_changes_nothing_that_is_published_later(changes):
    """A server that is made again repeats updates, and no publication that was read already."""
    asked, silent = (ParameterStore(torch.tensor([1.0, 7.0]), 1, Update(lr=0.1)) for _ in range(2))
    for number, (change, worker, publishes) in enumerate(changes):
        for each in (asked, silent):
            if change == "push":
                each.apply(update_plan([1], [worker]), [torch.tensor([0.0, float(number)])])
            else:
                each.forget(worker)
        if publishes:
            asked.publish()
    assert torch.equal(asked.publish(), silent.publish())


def test_a_flat_model_is_the_module():
    """Parameters are views of the weights, and gradients are joined in the vector that travels."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    names = [tuple(parameter.shape) for parameter in module.parameters()]
    flat = FlatModel(module)
    assert flat.size == sum(torch.Size(shape).numel() for shape in names)
    assert flat.buffer_size == 4 + 4 + 2, "the count of batches takes two"
    for _ in range(2):
        flat.begin_gradient()
        module(torch.randn(5, 3)).sum().backward()
        flat.write_gradient()
    assert torch.equal(flat.gradient, torch.cat([p.grad.reshape(-1) for p in module.parameters()]))
    mean, variance, seen = module.buffers()
    assert torch.equal(
        flat.outgoing[flat.size :], torch.cat([mean, variance, seen.view(1).view(torch.float32)])
    )
    flat.read_weights(torch.zeros(flat.size + flat.buffer_size))
    assert not any(parameter.any() for parameter in module.parameters())
    assert module[1].num_batches_tracked == 2, "a worker keeps its own buffers"
    count = torch.tensor([2**40 + 1]).view(torch.float32)
    flat.read_buffers(torch.cat([torch.arange(flat.size + 8.0) - flat.size, count]))
    assert module[1].running_mean.tolist() == [0, 1, 2, 3]
    assert module[1].running_var.tolist() == [4, 5, 6, 7]
    assert module[1].num_batches_tracked == 2**40 + 1


def test_backward_passes_add_up_whatever_form_a_gradient_has():
    """That of a sparse embedding is a sparse tensor, and that of a sum is one number, expanded."""
    torch.manual_seed(0)
    module = nn.ModuleList([nn.Embedding(5, 2, sparse=True), nn.Linear(2, 3)])
    flat = FlatModel(module)
    batches = torch.tensor([[0, 3], [3, 4]])
    flat.begin_gradient()
    for batch in batches:
        (module[1](module[0](batch)).square().sum() + module[1].bias.sum()).backward()
    flat.write_gradient()
    dense = nn.functional.linear(
        nn.functional.embedding(batches, module[0].weight), *module[1].parameters()
    )
    loss = dense.square().sum() + 2 * module[1].bias.sum()
    expected = torch.autograd.grad(loss, list(module.parameters()))
    assert torch.allclose(flat.gradient, torch.cat([each.reshape(-1) for each in expected]))


def test_a_gradient_stays_when_the_next_one_is_written_elsewhere():
    module = nn.Linear(2, 1)
    flat = FlatModel(module)
    vectors = [torch.empty(flat.size) for _ in range(2)]
    for factor, vector in enumerate(vectors, 1):
        flat.write_into(vector)
        flat.begin_gradient()
        (factor * module(torch.ones(1, 2))).sum().backward()
        flat.write_gradient()
    assert [vector.tolist() for vector in vectors] == [[1.0] * 3, [2.0] * 3]


def test_the_mean_of_buffers_does_not_depend_on_who_pushed_first():
    """Although a sum of floats depends on its order."""
    buffers = {"a-0#1": 1e8, "b-0#1": 1.0, "c-0#1": -1e8}
    means = set()
    for order in permutations(buffers):
        it = ParameterStore(torch.zeros(2), 1, Update(lr=0.1))
        for worker in order:
            it.apply(update_plan([1], [worker]), [torch.tensor([0.0, buffers[worker]])])
        means.add(it.publish()[1].item())
    assert len(means) == 1
