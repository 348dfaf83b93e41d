"""Models, data, partitions and batches."""

import warnings
from importlib import import_module
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from raysync import config, run
from raysync.config import Data
from raysync.emulation.step_time import StepTime
from raysync.errors import ConfigError
from raysync.training.data.augment import crop_and_flip
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batches import Batches, shards
from raysync.training.data.data_set import data_set
from raysync.training.data.datasets import load
from raysync.training.evaluation import evaluate
from raysync.training.models.builtin import ModelPlan
from raysync.training.preparation import prepare
from raysync.training.tasks.supervised import Classification
from raysync.training.trials.cost import on_random_samples, step_flops
from raysync.training.vectors.flat import FlatModel
from raysync.training.worker.gradient import GradientComputation
from tests.builders.messages import naming
from tests.builders.models import built, half

MNIST, CIFAR, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)


TEN = np.arange(2000) % 10
"""The labels of 2,000 samples."""


def build(source, shape=MNIST, seed=0, **parameters):
    return built(source, shape, 10, seed, **parameters)


def dealt_out(labels, slots, seed=1, **data):
    """Deal samples out to slots with batches of one size, or with those of a mapping."""
    sizes = slots if isinstance(slots, dict) else dict.fromkeys(slots, 8)
    return shards(Data(**data), len(labels), lambda: labels, sizes, seed)


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("convnet", MNIST, 1_960),
        ("lenet", CIFAR, 62_006),
        ("fashion-cnn", MNIST, 29_034),
        ("mlp", DIGITS, 4_810),
        ("logistic-regression", DIGITS, 650),
        ("alexnet-small", CIFAR, 2_235_978),
        ("resnet20", CIFAR, 269_722),
        ("resnet32", CIFAR, 464_154),
        ("resnet56", CIFAR, 853_018),
        ("resnet110", CIFAR, 1_727_962),
        ("resnet18", CIFAR, 11_173_962),
        ("resnet50", CIFAR, 23_520_842),
    ],
)
def test_sizes_of_the_models(name, shape, parameters):
    assert sum(parameter.numel() for parameter in build(name, shape).parameters()) == parameters


def test_fashion_cnn_computes_what_it_does_in_the_usual_order():
    """Convolution, batch-norm, ReLU, pooling, with the channels first in memory; outputs and
    gradients alike.
    """
    # In float32 rounding may decide which pixel of a pool is the largest.
    parts = build("fashion-cnn").double()
    usual = nn.Sequential(*(parts[index] for index in (0, 2, 4, 3, 5, 6, 8, 7, 9, 10)))
    x, y = torch.rand(8, *MNIST, dtype=torch.float64), torch.arange(8)
    results = []
    for model in (parts, usual):
        model.zero_grad()
        output = model(x)
        nn.functional.cross_entropy(output, y).backward()
        gradients = [parameter.grad.clone() for parameter in parts.parameters()]
        results.append([output.detach(), *gradients])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("momentum", "moves"), [(0, False), (0.1, True)])
def test_batch_norm_without_momentum_keeps_the_statistics_of_the_start(momentum, moves):
    model = build("fashion-cnn", momentum=momentum)
    statistics = [buffer for name, buffer in model.named_buffers() if "running" in name]
    before = [buffer.clone() for buffer in statistics]
    model.train()(torch.rand(8, *MNIST))
    assert list(map(torch.equal, before, statistics)) == [not moves] * 4


def test_initial_weights_are_a_function_of_the_seed():
    states = [FlatModel(build("mlp", seed=seed)).initial() for seed in (0, 0, 1)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    build("mlp")
    assert torch.equal(torch.rand(1), expected), "building draws from a stream of its own"


@pytest.mark.parametrize(
    ("source", "shape", "parameters", "says"),
    [
        ("lenet5", MNIST, {}, "'lenet5' 'lenet'"),
        ("lenet", DIGITS, {}, "samples 1 8 8"),
        ("convnet", (64,), {}, "samples (64,)"),
        ("mlp", DIGITS, {"hiden": [3]}, "'hiden'"),
        ("mlp", DIGITS, {"hidden": ["many"]}, "built"),
        ("mlp", DIGITS, {"hidden": 128}, "hidden: [128] 128"),
        (half, DIGITS, {}, "10 2 10 samples 2 5"),
        (nn.Linear(8, 10), DIGITS, {}, "got (2, 1, 8, 10)"),
        ("tests.builders.models:half", DIGITS, {}, "got (2, 5)"),
        ("tests.builders.tasks:not_a_task", DIGITS, {}, "nn.Module"),
        (f"{__name__}:nothing", DIGITS, {}, "'nothing'"),
    ],
)
def test_models_that_do_not_fit(source, shape, parameters, says):
    with pytest.raises(ConfigError, match=naming(says)):
        build(source, shape, **parameters)


def test_parameters_must_be_float32_and_there():
    with pytest.raises(ConfigError, match=naming("float32 torch.float64")):
        FlatModel(nn.Linear(2, 2).double())
    with pytest.raises(ConfigError, match="no trainable parameter"):
        FlatModel(nn.Flatten())


def test_frozen_parameters_stay_out_of_the_vector():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    module[0].requires_grad_(requires_grad=False)
    assert FlatModel(module).size == 4


def test_digits_are_embedded():
    digits = load(Data(name="digits"))
    assert digits.train_x.dtype == np.uint8
    assert (len(digits.train_x), len(digits.test_x)) == (1437, 360)
    assert (digits.classes, digits.input_shape) == (10, DIGITS)
    batch = digits.samples(digits.train_x)
    assert (batch.mean().item(), batch.std().item()) == pytest.approx((0, 1), abs=1e-3)


def test_subsets_and_synthetic_sizes():
    made = {"shape": [3, 4, 4], "classes": 5, "train": 50, "test": 30}
    small = load(Data(name="synthetic", train_samples=20, test_samples=7, parameters=made))
    assert small.train_x.shape == (20, 3, 4, 4)
    assert (len(small.test_y), small.classes, small.mean.shape) == (7, 5, (3,))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"name": "mnits"}, "'mnits' 'mnist'"),
        ({"name": "mnist"}, "data.data_dir"),
        ({"name": "synthetic", "parameters": {"clases": 3}}, "'clases'"),
        ({"name": "synthetic", "parameters": {"classes": 0}}, "1"),
        ({"name": "tests.builders.tasks:not_a_task"}, "raysync.DataSet"),
    ],
)
def test_data_that_is_not_there(settings, says):
    with pytest.raises(ConfigError, match=naming(says)):
        load(Data(**settings))


def test_a_missing_download_says_where_to_put_which_files(tmp_path, monkeypatch):
    from urllib.error import URLError

    vision = import_module("torchvision.datasets")

    def offline(self):
        raise URLError("no network here")

    monkeypatch.setattr(vision.CIFAR10, "download", offline)
    facts = "no network here data_batch_5 test_batch"
    with pytest.raises(ConfigError, match=naming(facts)):
        load(Data(name="cifar10", data_dir=tmp_path / "new"))
    assert not (tmp_path / "new").exists(), "nothing is left behind"


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.zeros((4, 2)), np.zeros(3, int), "4 samples 3"),
        (np.zeros((4, 2)), np.zeros(4), "numbers 0"),
        (np.zeros((4, 2)), -np.ones(4, int), "numbers 0"),
        (np.zeros((4, 3)), np.zeros(4, int), "test samples (2,)"),
        (np.zeros((4, 2)), np.full(4, 9), "label 9 3"),
        (np.zeros(4), np.zeros(4, int), "dimension"),
    ],
)
def test_ones_own_arrays_are_checked(x, y, says):
    with pytest.raises(ConfigError, match=naming(says)):
        data_set("mine", (x, y), (np.zeros((4, 2)), np.zeros(4, int)), classes=3)


def test_ones_own_floats_are_used_as_they_are():
    x = torch.randn(6, 4)
    mine = data_set("mine", *[(x, torch.arange(6) % 3)] * 2)
    assert mine.classes == 3
    assert torch.equal(mine.samples(mine.train_x), x)


def test_dirichlet_deals_everything_out_once_and_unevenly():
    largest = []
    for alpha in (0.1, 1000.0):
        dealt = dealt_out(TEN, "abcd", partition="dirichlet", alpha=alpha)
        assert sorted(np.concatenate(list(dealt.values()))) == list(range(2000))
        largest.append(np.bincount(TEN[dealt["a"]]).max() / len(dealt["a"]))
    assert largest[0] > 2 * largest[1]


def test_samples_are_dealt_out_in_proportion_to_the_batch_sizes():
    sizes = {"a": 48, "b": 32, "c": 16, "d": 4}
    dealt = dealt_out(TEN, sizes)
    assert sorted(np.concatenate(list(dealt.values()))) == list(range(2000))
    for slot, shard in dealt.items():
        assert len(shard) == pytest.approx(20 * sizes[slot], abs=2)
    few = dealt_out(TEN[:4], {"a": 100, "b": 1, "c": 1})
    assert [len(shard) for shard in few.values()] == [2, 1, 1], "none is empty"
    even = dealt_out(TEN, sizes, partition="dirichlet", alpha=1000.0)
    assert len(even["a"]) == pytest.approx(960, rel=0.1), "alpha / 4 x 48 x 4 of its sum"
    assert len(even["d"]) == pytest.approx(80, rel=0.3)


def test_slots_of_one_size_take_turns():
    """Runs of the same seed meet the same samples as they did when only that was possible."""
    whole = dealt_out(TEN[:103], "a", seed=3)["a"]
    for index, shard in enumerate(dealt_out(TEN[:103], "abc", seed=3).values()):
        assert list(shard) == list(whole[index::3])
    assert list(whole) != list(dealt_out(TEN[:103], "a", seed=2)["a"])


def test_shared_gives_everything_to_everybody():
    dealt = dealt_out(np.arange(9), "ab", partition="shared")
    assert [list(shard) for shard in dealt.values()] == [list(range(9))] * 2


def test_partitions_that_cannot_be():
    with pytest.raises(ConfigError, match=naming("dealt")):
        dealt_out(np.arange(2), "abc")
    with pytest.raises(ConfigError, match=naming("data.alpha:")):
        dealt_out(np.zeros(50, int), "abc", partition="dirichlet", alpha=1e-6)


def test_each_pass_meets_every_sample_once():
    shard = np.arange(100, 137)
    row = np.concatenate([Batches(shard, 0, "a").indices(clock, 10) for clock in range(37)])
    for start in range(0, 370, 37):
        assert sorted(row[start : start + 37]) == list(shard)
    assert not np.array_equal(row[:37], row[37:74])


def test_a_batch_may_be_larger_than_the_shard():
    assert len(Batches(np.arange(3), 0, "a").indices(2, 10)) == 10


def test_evaluation_counts_the_whole_test_set():
    x = np.eye(3, dtype=np.float32)[[0, 1, 2, 2, 1]]
    mine = data_set("mine", *[(x, np.array([0, 1, 2, 2, 0]))] * 2)
    flat = FlatModel(nn.Linear(3, 3, bias=False))
    task = Classification(None, mine)
    got = evaluate(flat, torch.eye(3).reshape(-1) * 10, task, task.test_set(), batch_size=2)
    assert got["accuracy"] == 0.8
    assert got["loss"] == pytest.approx((4 * 9e-5 + 10) / 5, rel=1e-2)


def test_crop_and_flip_shifts_by_at_most_four_pixels_and_mirrors():
    """Every output is one of the 9 x 9 x 2 views of its input, and a batch shows several of
    them.
    """
    images = torch.arange(1, 1 + 40 * 2 * 6 * 5).reshape(40, 2, 6, 5)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    seen = set()
    for image, around in zip(crop_and_flip(images, seed=1), padded, strict=True):
        [view] = [
            (top, left, flip)
            for top, left, flip in product(range(9), range(9), (False, True))
            for crop in [around[:, top : top + 6, left : left + 5]]
            if torch.equal(crop.flip(-1) if flip else crop, image)
        ]
        seen.add(view)
    assert len(seen) > 20
    assert {flip for _, _, flip in seen} == {False, True}


def test_augmentation_is_a_function_of_seed_slot_and_clock():
    digits = load(Data(name="digits"))

    def draw(clock, augment="crop-flip"):
        samples = digits.part("train", augment)
        return BatchReader(samples, None, Batches(np.arange(100), 0, "a")).read(clock, [16])[0]

    (x, y), (again, _), (plain, labels) = draw(3), draw(3), draw(3, augment="none")
    assert torch.equal(x, again)
    assert not torch.equal(x, plain)
    assert torch.equal(y, labels), "labels stay with their images"


def test_only_images_are_augmented():
    rows = np.zeros((8, 4)), np.zeros(8, int)
    flat = data_set("flat", rows, rows)
    with pytest.raises(ConfigError, match=naming("crop-flip images")):
        prepare(config.validate({"data": {"augment": "crop-flip"}, "batch_size": 4}), data=flat)


def test_a_resnet_trains():
    """The shortcut without parameters carries gradients: the loss of a small batch falls."""
    images = {"shape": [3, 16, 16], "train": 64, "test": 16}
    data = {"name": "synthetic", "parameters": images}
    training = prepare(config.validate({"model": "resnet20", "data": data}))
    computation = GradientComputation(training.build(), training.task)
    losses = []
    for _ in range(8):
        losses.append(computation.compute(training.reader("worker-0"), 0, 32))
        computation.model.weights -= 0.1 * computation.model.gradient
    assert losses[-1] < losses[0] / 2


def test_more_server_shards_than_parameters():
    with pytest.raises(ConfigError, match=naming("server_shards: 9000 4810 mlp")):
        prepare(config.validate({"cluster": {"server_shards": 9000}}))


def flops(model, batch_size=6, shape=DIGITS, **parameters):
    return step_flops(on_random_samples(ModelPlan(model, parameters, shape, 10)), batch_size)


def test_floating_point_operations_of_a_step_against_the_closed_form():
    """A linear layer of m x n takes 2mn a sample forward, as many for its weights' gradient, as
    many for its inputs'.
    """
    linear = flops(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert linear == 6 * 4 * 64 * 10, "nobody asks for the gradient of the first one's inputs"
    assert flops("mlp", hidden=[64]) == 6 * (4 * 64 * 64 + 6 * 64 * 10)
    assert flops("mlp", batch_size=32) == 32 * flops("mlp", batch_size=1)
    convolution = 2 * 3 * 9 * 6 * 6  # of 3 filters of 3 x 3 at 6 x 6 places
    assert flops("convnet") == 6 * (2 * convolution + 6 * 12 * 10)


def test_a_step_of_unknown_length_is_that_of_a_cpu_core_on_the_virtual_engine_alone():
    """A rate given is the time of a step on both engines."""
    groups = [
        {"name": "silent", "count": 2, "speed": 0.5},
        {"name": "rated", "flops_per_s": 1e9},
        {"name": "timed", "step_s": 3},
        {"name": "traced", "trace": [1, 2]},
    ]
    data = {"name": "digits", "train_samples": 50}
    settings = {"workers": groups, "model": "mlp", "data": data, "batch_size": 8}
    expected = flops("mlp", batch_size=8)
    for engine in ("virtual", "ray"):
        training = prepare(config.validate(settings | {"engine": engine}))
        silent = expected / 1e11 if engine == "virtual" else None
        steps_s = [group.step_s for group in training.groups.values()]
        assert steps_s == [silent, silent, expected / 1e9, 3, None]
        assert training.estimated_s == ({"silent": silent} if silent else {})
        rated = StepTime(training.groups["rated-0"], 0, "rated-0", 8)
        assert rated.seconds(0, 8, computed_s=99) == expected / 1e9
        assert training.groups["silent-0"].speed == 0.5


def test_a_run_in_python_warns_of_estimated_step_times_unless_it_notifies(tmp_path):
    settings = {"engine": "virtual", "workload": {"samples": 320}, "output": str(tmp_path)}
    with pytest.warns(UserWarning, match=naming("worker s")) as warned:
        run(settings)
    [warning] = warned
    assert warning.filename == __file__
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(settings, notify=said.append)
        run(settings | {"workers": [{"count": 4, "step_s": 0.1}]})
    assert str(warning.message) in said
