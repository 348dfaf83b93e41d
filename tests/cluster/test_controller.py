"""The controller's bookkeeping, without a cluster."""

from raysync import config
from raysync.cluster.controller import RunPlan, Update, _Run
from raysync.cluster.shards import Shards
from raysync.paradigms import make


def test_publications_are_stamped_in_their_order_whatever_order_ray_tells_of_them_in():
    plan = RunPlan(make("asp"), workload_samples=10, experiment=config.validate({}), actor_ids={}, posts={})
    run = _Run(plan, Shards([], clips=False), None, {})
    first, second, third = (Update(version, 0.0, (), None, (), deadline_s=9.0) for version in (1, 2, 3))
    run.pending = {"first": first, "third": third}
    run._published(second)
    assert first.at == second.at is not None
    assert third.at is None
    stamped = first.at
    run.pending = {"third": third}
    run._published(first)
    assert first.at == stamped
    assert run.last_at >= stamped
