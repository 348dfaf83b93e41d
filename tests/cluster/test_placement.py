"""What certainly cannot be placed; the rest is for Ray to find out."""

import pytest

from raysync import config
from raysync.cluster.placement import bundles, misfit

TWO_NODES = [{"CPU": 10.1, "GPU": 1}, {"CPU": 10.1}]


def asked(*groups, **cluster):
    return bundles(config.validate({"workers": list(groups), "cluster": {"server_cpus": 0, "evaluator_cpus": 0} | cluster}))


@pytest.mark.parametrize(("groups", "who"), [
    ([{"name": "a", "cpus": 10}, {"name": "b", "cpus": 9}], None),
    ([{"name": "a", "cpus": 11}], "worker group 'a'"),
    ([{"name": "a", "count": 2, "cpus": 8}, {"name": "b", "cpus": 5}], "worker group 'b'"),
    ([{"name": "a", "gpus": 1}, {"name": "b", "gpus": 1}], "worker group 'b'"),
    ([{"name": "a", "gpus": 2}], "worker group 'a'"),
    ([{"name": "a", "count": 2, "cpus": 4}, {"name": "b", "count": 4, "cpus": 3}], None),
])
def test_misfit(groups, who):
    """The last one fits as 4 + 3 + 3 twice, which laying out the largest first would not find."""
    assert misfit(asked(*groups), TWO_NODES) == who


def test_every_actor_has_a_bundle():
    everything = asked({"name": "a", "count": 2, "cpus": 0.5, "gpus": 0.25}, server_cpus=2)
    assert everything == [("the server", {"CPU": 2}), ("the evaluator", {"CPU": 0.001}),
                          *[("worker group 'a'", {"CPU": 0.5, "GPU": 0.25})] * 2]
