"""The controller's bookkeeping, without a cluster."""

from raysync.cluster.controller import RunPlan, Update, _Run
from raysync.cluster.shards import Shards
from raysync.paradigms import make


def test_publications_are_stamped_in_their_order_whatever_order_ray_tells_of_them_in():
    plan = RunPlan(paradigm=make("asp"), workload_samples=10, batch_size=1, marks=(0.0, 1.0), step_deadline_s=1.0,
                   evaluation_deadline_s=1.0, clips=False, actor_ids={})
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
