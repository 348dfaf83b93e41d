"""Models of timm and torchvision, by their names in an experiment file."""

import pytest
import torch

from raysync import config
from raysync.decoupled.plan import parts_of
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.training.models.builtin import ModelPlan
from raysync.training.models.initial_model import InitialModel
from raysync.training.preparation import prepare
from raysync.training.tasks.supervised import Classification
from tests.builders.messages import tells
from tests.builders.models import built
from tests.builders.virtual import run

RGB = (3, 32, 32)


@pytest.fixture
def _libraries(timm):
    pass


pytestmark = pytest.mark.usefixtures("one_thread", "_libraries")


def test_classes_and_channels_are_those_of_the_data():
    model = built("timm:test_resnet", (1, 28, 28), 7)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 7)
    model = built("torchvision:squeezenet1_1", RGB, 7)
    assert model(torch.zeros(2, *RGB)).shape == (2, 7)


@pytest.mark.parametrize("name", ["timm:test_resnet", "torchvision:shufflenet_v2_x0_5"])
def test_weights_are_not_pretrained_but_drawn_from_the_seed(name):
    first, same, other = (
        torch.nn.utils.parameters_to_vector(built(name, RGB, 3, seed=seed).parameters())
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_parameters_are_those_of_the_library():
    wide = built("torchvision:mobilenet_v3_small", RGB, 3, width_mult=2.0)
    narrow = built("torchvision:mobilenet_v3_small", RGB, 3)
    assert wide.classifier[0].in_features == 2 * narrow.classifier[0].in_features
    assert built("timm:test_vit", RGB, 3, img_size=32)(torch.zeros(2, *RGB)).shape == (2, 3)


def test_a_model_with_auxiliary_outputs_has_one():
    output = built("torchvision:googlenet", (3, 64, 64), 3).train()(torch.zeros(2, 3, 64, 64))
    assert output.shape == (2, 3)


def test_a_resnet_of_torchvision_can_be_cut():
    """Its stages compute together what it computes; a ResNet of timm says that it cannot."""
    paradigm = make("decoupled", modules=2)

    def parts(name):
        plan = ModelPlan(name, {}, RGB, 3)
        return parts_of(InitialModel(Classification(plan, None)), 0, paradigm)

    x = torch.zeros(2, *RGB)
    whole = built("torchvision:resnet18", RGB, 3).eval()
    first, second = (part.eval() for part in parts("torchvision:resnet18"))
    assert torch.allclose(second(first(x)), whole(x))
    with pytest.raises(ConfigError, match="cannot be cut"):
        parts("timm:test_resnet")


def test_a_run_trains_one():
    settings = {
        "engine": "virtual",
        "model": "timm:test_resnet",
        "data": {"name": "digits", "train_samples": 32, "test_samples": 16},
        "batch_size": 4,
        "workload": {"iterations_per_worker": 1},
        "workers": [{"count": 2, "step_s": 1}],
        "evaluation": {"marks": 1},
    }
    assert run(prepare(config.validate(settings)))[-1].status == "finished"


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("timm:resnet81", {}, "'resnet18'"),
        ("torchvision:resnet81", {}, "'resnet18'"),
        ("timm:test_resnet", {"drop_rat": 0.1}, "drop_rat"),
        ("torchvision:resnet18", {"nonesuch": 1}, "nonesuch"),
        ("torchvision:resnet18", {"weights": "NONESUCH"}, "NONESUCH"),
        ("torchvision:googlenet", {"aux_logits": True}, "false"),
        ("timm:", {}, "timm"),
        ("timm:vit_tiny_patch16_224", {}, "samples 3 32 32"),
    ],
)
def test_mistakes_are_answered_in_a_line_or_two(name, parameters, message):
    with pytest.raises(ConfigError) as caught:
        built(name, RGB, 3, **parameters)
    assert tells(str(caught.value), message)
    assert len(str(caught.value).splitlines()) <= 2
    assert len(str(caught.value)) < 400
