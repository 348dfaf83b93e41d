"""The controller's bookkeeping, without a cluster."""

import pytest

from raysync import config
from raysync.cluster.controller import RunPlan, Update, _Run
from raysync.cluster.shards import Shards
from raysync.core.decisions import Apply
from raysync.core.events import Pushed
from raysync.paradigms import make
from tests.cluster.fake_ray import FakeRay
from tests.cluster.test_hardship import COMES_BACK, Run, described


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


@pytest.mark.parametrize("update", [{}, {"delay_compensation": "constant"}])
@pytest.mark.parametrize("paradigm", [
    {"name": "hybrid", "k": 2, "staleness_tolerance": "inf", "pull_interval": 3}, {"name": "k-batch-async", "k": 3},
    {"name": "sync-switch", "fraction": 0.5}], ids=lambda paradigm: paradigm["name"])
def test_an_update_knows_what_each_gradient_was_computed_on(monkeypatch, paradigm, update):
    """Staleness, phase and, if delays are compensated, the very weights; also without a pull, and after a crash."""
    run = Run(FakeRay(monkeypatch), described([COMES_BACK], count=3, paradigm=paradigm, update=update)).to_the_end()
    base = {(e.event.worker, e.event.clock): e.event.base for e in run.entries if isinstance(e.event, Pushed)}
    applies = [decision for entry in run.entries for decision in entry.decisions if isinstance(decision, Apply)]
    computed_on = {}
    for worker in [*run.workers.values(), *(worker for post in run.posts.values() for worker in post.filled)]:
        latest = ()
        for weights, gradient in worker.steps:
            computed_on[gradient] = latest = weights or latest
    assert len(run.server.updates) == len(applies) > 10
    for ((_, samples, _, phase, staleness, *_), vectors), apply in zip(run.server.updates, applies, strict=True):
        gradients, weights = vectors[: len(samples)], vectors[len(samples) :]
        assert phase == apply.phase
        assert staleness == [apply.version - 1 - base[push] for push in apply.pushes]
        assert weights == (tuple(computed_on[gradient][0] for gradient in gradients) if update else ())
    assert any(staleness != [0] * len(staleness) for (_, _, _, _, staleness, *_), _ in run.server.updates)
    if paradigm["name"] == "sync-switch":
        assert {fields[3] for fields, _ in run.server.updates} == {"bsp", "asp"}
