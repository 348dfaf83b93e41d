"""LagTuner, section 6.3: models with large fully connected layers wait for the network,
convolutional ones for the GPU.
"""

from pathlib import Path

from raysync import config
from raysync.config import ParadigmChoice
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine

FILE = Path(__file__).parents[2] / "experiments/architectures/architectures.yaml"


def seconds(model, paradigm):
    training = prepare(config.load(FILE, [f"model={model}", "workload.samples=50000"]))
    *_, lines = VirtualEngine().run(training, ParadigmChoice(name=paradigm).make())
    return lines[-1].at


def test_a_barrier_costs_most_where_fully_connected_layers_dominate(one_thread):
    """The same cluster, the same work: BSP's time in ASP's."""
    ratio = {
        model: seconds(model, "bsp") / seconds(model, "asp")
        for model in ("alexnet-small", "resnet20")
    }
    assert ratio["alexnet-small"] > 2 > 1.5 > ratio["resnet20"] > 1
