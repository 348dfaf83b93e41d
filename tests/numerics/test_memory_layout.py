"""How parameters lie in a worker's memory changes nothing but that: the same vectors, and the same
gradients but for the rounding of other kernels.
"""

import pytest
import torch
from torch import nn

from raysync import config
from raysync.config import ParadigmChoice
from raysync.decoupled.plan import check_training
from raysync.errors import ConfigError
from raysync.training.flat import FlatModel
from raysync.training.gradient import GradientComputation
from raysync.training.memory_layout import begin_aligned, laid_out
from raysync.training.preparation import prepare
from raysync.virtual.trainer import Trainer
from tests.fakes.cuda import FakeCuda

SETTINGS = {"data": {"name": "digits", "train_samples": 100}, "workers": [{"name": "w"}]}
LAST = torch.channels_last


def odd():
    """The second convolution begins at number 33 of the vector, and the layer behind it at 178."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 5, 3, padding=1),
        nn.Flatten(),
        nn.Linear(5 * 64, 10),
    )


def even():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3))


def flat():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def task(model=odd, **group):
    workers = [SETTINGS["workers"][0] | group]
    return prepare(config.validate(SETTINGS | {"workers": workers}), model=model)


def computed(memory_format, devices=("cpu",), micro_batch=None, into=None):
    training = task()
    computation = GradientComputation(
        training.build(),
        training.task,
        devices,
        "float32",
        micro_batch,
        memory_format=memory_format,
    )
    size = computation.model.size + computation.model.buffer_size
    weights = 0.2 * torch.randn(size, generator=torch.Generator().manual_seed(0))
    if into is not None:
        computation.write_into(into)
    reader = training.reader("w-0")
    for clock in range(2):
        computation.read_weights(weights.tensor_split(3))  # the cuts are within parameters
        loss = computation.compute(reader, clock, 12)
    return loss, computation.outgoing().clone(), computation


def convolutions(module):
    return [part for part in module.modules() if isinstance(part, nn.Conv2d)]


@pytest.mark.parametrize("micro_batch", [None, 5])
@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "cpu")])
def test_channels_last_gives_the_same_vector_in_the_same_order(devices, micro_batch):
    loss, vector, plain = computed("contiguous", devices, micro_batch)
    other_loss, other, computation = computed("channels_last", devices, micro_batch)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    assert torch.allclose(other, vector, rtol=1e-4, atol=1e-5)
    assert vector[: plain.model.size].abs().max() > 1e-2
    assert torch.equal(computation.model.initial()[: plain.model.size], plain.model.weights)
    for replica in computation._replicas:
        inner = convolutions(replica.model.module)[1].weight
        assert not inner.is_contiguous()
        assert inner.is_contiguous(memory_format=LAST)
        assert inner.grad.is_contiguous(memory_format=LAST)
        for parameter, weights in zip(
            replica.model.module.parameters(), plain.model.module.parameters(), strict=True
        ):
            assert torch.equal(parameter, weights)


def test_what_comes_out_of_convolutions_has_channels_last_too():
    _, _, computation = computed("channels_last")
    seen = []
    for part in convolutions(computation.model.module):
        part.register_forward_hook(lambda _, inputs, out: seen.append(out))
    training = task()
    computation.compute(training.reader("w-0"), 0, 12)
    assert len(seen) == 2
    assert all(out.is_contiguous(memory_format=LAST) for out in seen)
    assert not any(out.is_contiguous() for out in seen)


def test_a_gradient_is_written_into_the_vector_that_is_given():
    _, expected, _ = computed("channels_last")
    given = torch.full_like(expected, float("nan"))
    _, vector, _ = computed("channels_last", into=given)
    assert torch.equal(given, expected)
    assert torch.equal(vector, expected)


@pytest.mark.parametrize("keeps_memory", [False, True])
def test_weights_that_are_moved_stay_and_are_read_where_they_are_then(keeps_memory):
    model = FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), keeps_memory=keeps_memory)
    before, vector = model.initial(), torch.zeros(15)
    model.move_weights(vector)
    assert torch.equal(model.initial(), before)
    vector[: model.size] = torch.arange(10.0)
    model.read_weights()
    parameters = [parameter.detach().reshape(-1) for parameter in model.module.parameters()]
    assert torch.equal(torch.cat(parameters), torch.arange(10.0))
    assert not vector[model.size :].any()


@pytest.mark.parametrize("keeps_memory", [False, True])
def test_a_parameter_without_a_gradient_has_none_of_the_batch_before(keeps_memory):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model = FlatModel(module, keeps_memory=keeps_memory)
    module(torch.ones(3, 2)).sum().backward()
    model.write_gradient()
    assert model.gradient.all()
    model.clear_gradient()
    module[0](torch.ones(3, 2)).sum().backward()
    model.write_gradient()
    assert model.gradient[:6].all()
    assert not model.gradient[6:].any()


def test_a_format_that_a_model_brings_is_kept_unless_another_is_asked_for():
    formats = {}
    for memory_format in ("auto", "contiguous"):
        module = laid_out(odd().to(memory_format=LAST), "cpu", "float32", memory_format).module
        formats[memory_format] = convolutions(module)[1].weight.is_contiguous()
    assert formats == {"auto": False, "contiguous": True}


def is_packed(model):
    """Whether the parameters are views of the vector of weights."""
    vector = model.weights.untyped_storage()
    return all(
        parameter.untyped_storage()._cdata == vector._cdata
        for parameter in model.module.parameters()
    )


@pytest.mark.parametrize(
    ("model", "device", "precision", "memory_format", "packed", "last"),
    [
        (even, "cpu", "bf16", "auto", True, False),
        (odd, "cpu", "bf16", "auto", True, False),
        (even, "cuda:0", "float32", "auto", True, False),
        (odd, "cuda:0", "float32", "auto", False, False),
        (odd, "cuda:0", "bf16", "contiguous", False, False),
        (even, "cuda:0", "tf32", "auto", False, True),
        (even, "cuda:0", "bf16", "auto", False, True),
        (even, "cuda:0", "float32", "channels_last", False, True),
    ],
)
def test_a_gpu_has_aligned_parameters_and_convolutions_as_its_precision_wants_them(
    model, device, precision, memory_format, packed, last
):
    """Over meta tensors, which have strides and no numbers."""
    with FakeCuda():
        laid = laid_out(model().to(device), device, precision, memory_format)
        assert is_packed(laid) is packed
        weight = convolutions(laid.module)[1].weight
        assert weight.is_contiguous(memory_format=LAST) is last
        offsets = [parameter.storage_offset() for parameter in laid.module.parameters()]
        assert device == "cpu" or not any(offset % 4 for offset in offsets)


def test_parameters_are_aligned_where_they_begin_at_16_bytes():
    assert begin_aligned([4, 8, 10]), "behind the last there is none"
    assert not begin_aligned([4, 6, 4])


def test_a_step_with_memory_of_its_own_leaves_nothing_to_chance():
    """Copies between the vector and the parameters are on the stream that computes."""
    training = task()
    module, reader = training.build(), training.reader("w-0")
    with FakeCuda() as cuda:
        computation = GradientComputation(
            module, training.task, ["cuda:0"], memory_format="channels_last", draws_ahead=True
        )
        vector = torch.ones(computation.model.size + computation.model.buffer_size)
        for clock in range(2):
            cuda.trace.clear()
            computation.read_weights([vector])
            computation.compute(reader, clock, 8)
            assert computation.outgoing().add(1).shape == vector.shape
    copies = ["computing: _foreach_copy_", "computing: cat"]
    assert [line for line in cuda.trace if line.endswith(("_foreach_copy_", "cat"))] == copies, (
        "the weights in, the gradient out"
    )
    first = cuda.trace.index(copies[0])
    assert "computing waits for stream 1" in cuda.trace[:first], "for the weights"


def test_a_model_without_convolutions_refuses_channels_last_by_name():
    with pytest.raises(ConfigError, match=r"workers: w: memory_format: channels_last: .* has no"):
        task(flat, memory_format="channels_last")


def test_virtual_workers_have_the_formats_of_their_groups():
    groups = [{"name": name, "memory_format": name} for name in ("contiguous", "channels_last")]
    training = prepare(
        config.validate(SETTINGS | {"engine": "virtual", "workers": groups}), model=odd
    )
    trainer = Trainer(training)
    assert [
        convolutions(trainer._computation(group).model.module)[1].weight.is_contiguous()
        for group in training.groups.values()
    ] == [True, False]


def test_stages_refuse_channels_last_by_name():
    training = task(memory_format="channels_last")
    choice = ParadigmChoice(name="decoupled", modules=1)
    with pytest.raises(ConfigError, match=r"decoupled: workers: w: memory_format: channels_last"):
        check_training(training, training.experiment.make(choice))
