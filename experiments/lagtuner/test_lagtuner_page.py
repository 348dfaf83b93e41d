"""The pages on LagTuner: their clocks are what they claim, and name every file."""

import re
from pathlib import Path

import pytest

from raysync import config
from raysync.training.models.builtin import ModelPlan
from raysync.training.trials.cost import on_random_samples, step_flops

FOLDER = Path(__file__).parent


@pytest.mark.parametrize(
    ("name", "model", "profile"),
    [
        ("drops", "resnet110", "gtx1060+gtx1080ti"),
        ("figure-2-pace", "alexnet-small", "soscip-4x4-p100"),
    ],
)
def test_the_clock_is_that_of_the_papers_model_on_the_profile(name, model, profile, one_thread):
    """A step, and the way of a vector, take as long as the profile says they do for that model."""
    ours = config.load(FOLDER / f"{name}.yaml")
    theirs = config.validate({"profile": profile, "engine": "virtual"})
    plans = [ModelPlan(name, {}, (3, 32, 32), 10) for name in ("lenet", model)]
    states = [plan.build().state_dict() for plan in plans]
    sizes = [sum(tensor.numel() for tensor in state.values()) for state in states]
    for mine, its in zip(ours.workers, theirs.workers, strict=True):
        step_s = step_flops(on_random_samples(plans[1]), 128) / its.flops_per_s / its.speed
        assert mine.step_s / mine.speed == pytest.approx(step_s, rel=0.005)

    def rates(network):
        yield from (network.update_bytes_per_s, network.server_bandwidth_bytes_per_s)
        yield network.link.bandwidth_bytes_per_s

    for mine, its in zip(rates(ours.network), rates(theirs.network), strict=True):
        assert (mine is None) == (its is None)
        assert mine is None or sizes[0] / mine == pytest.approx(sizes[1] / its, rel=0.01)
    assert ours.network.link.latency_s == theirs.network.link.latency_s
    assert ours.network.update_s == theirs.network.update_s
    assert ours.cluster == theirs.cluster


def test_the_two_gpus_are_the_same_in_all_files():
    first, *others = (
        config.load(FOLDER / f"{name}.yaml") for name in ("drops", "lead", "stragglers-two-gpus")
    )
    for other in others:
        assert (other.workers, other.network) == (first.workers, first.network)
        assert other.batch_size == first.batch_size


def test_the_pages_name_every_file_in_the_folder():
    text = "".join(page.read_text() for page in FOLDER.glob("*.md"))
    assert all(file.name in text for file in FOLDER.glob("*.yaml"))
    assert all(re.search(rf"\({file.name}\)", text) for file in FOLDER.glob("*.svg"))
