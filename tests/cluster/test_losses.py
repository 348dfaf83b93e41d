"""Gradients that are lost on their way, and evaluators that die or freeze: logic over fakes."""

from math import inf
from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import ActorUnavailableError, ObjectLostError, RayTaskError

from raysync.cluster.evaluations import TRIES, Evaluations
from raysync.cluster.messages import ApplyPlan
from raysync.cluster.names import Role
from raysync.cluster.pending import Update as Published
from raysync.cluster.running import SIGN_OF_LIFE_S, to_its_end
from raysync.cluster.server import MissedUpdate, Server
from raysync.cluster.shards import Shards
from raysync.config import Update
from raysync.core.decisions import Apply
from raysync.core.events import Left, Pushed
from raysync.core.journal import Ended, Evaluation, Remark
from raysync.errors import RunFailed
from raysync.training.store import ParameterStore
from tests.cluster.fake_ray import FakeEvaluator, FakeRay, FakeServer, Reference
from tests.cluster.test_hardship import GLOBAL, Run, described
from tests.virtual.checker import Checker

RULES = ["bsp", "asp", {"name": "ssp", "staleness": 1}, GLOBAL, {"name": "k-sync", "k": 2},
         {"name": "k-batch-sync", "k": 4}, {"name": "hybrid", "k": 2, "pull_interval": 2},
         {"name": "sync-switch", "fraction": 0.5}, {"name": "ringmaster", "staleness": 1}]


@pytest.fixture
def ray(monkeypatch):
    return FakeRay(monkeypatch)


def named(paradigm):
    return paradigm if isinstance(paradigm, str) else paradigm["name"]


def lost():
    return ObjectLostError("0" * 40, None, "")


def of(run, kind):
    return [line for line in run.run.lines if isinstance(line, kind)]


# ---- gradients ----


def test_a_push_is_the_arrival_of_its_gradient(ray):
    run = Run(ray, described([], workers=[{"name": "w", "count": 2, "step_s": 0.5}]))
    run.workers["w-1"].upload_s = 0.25
    run.to_the_end()
    first = {entry.event.worker: entry.event.at for entry in reversed(run.entries) if isinstance(entry.event, Pushed)}
    assert first == {"w-0#1": 0.5, "w-1#1": 0.75}
    assert not run.run._pushed, "what was fetched is let go"


@pytest.mark.parametrize("paradigm", RULES, ids=named)
def test_a_node_that_is_lost_takes_no_push_along_that_has_arrived(ray, paradigm):
    """One that is still on its way never arrives: its worker has left, and the run goes on. No update takes it
    (`FakeServer`), and every line is what it must be.
    """
    run = Run(ray, described([], count=3, paradigm=paradigm))
    worker = run.workers["w-1"]
    worker.upload_s, worker.lost_clock = 0.4, 5
    run.to_the_end()
    [left] = [entry for entry in run.entries if isinstance(entry.event, Left)]
    assert (left.event.worker, left.report["why"]) == ("w-1#1", "its gradient was lost with its node")
    pushed = [entry.event for entry in run.entries if isinstance(entry.event, Pushed)]
    assert [event.clock for event in pushed if event.worker == "w-1#1"] == list(range(5))
    assert run.run.status == "finished"
    assert not worker.alive
    checker = Checker(named(paradigm), None, 480)
    for entry in run.entries:
        checker.feed(entry)


@pytest.mark.parametrize("count", [1, 2])
def test_a_gradient_that_does_not_come_in_time_costs_its_worker(ray, count):
    run = Run(ray, described([], count=count, cluster={"step_deadline_s": 3.0}))
    run.workers["w-0"].upload_s = 100.0
    if count == 1:
        with pytest.raises(RunFailed, match="every worker is gone; the last was w-0#1: no answer for 3 s"):
            run.to_the_end()
    else:
        run.to_the_end()
        assert [entry.event.at for entry in run.entries if isinstance(entry.event, Left)] == [3.0]


def shards(ray, run, received):
    """Two, of which the second takes its parts as it is told."""
    first, second = FakeServer(), FakeServer()
    second.receive = SimpleNamespace(remote=received)
    run.run._server = Shards([first, second], clips=False)
    for worker in run.workers.values():
        whole = worker._step

        def step(batch, *weights, whole=whole):
            gradient, report = whole(batch, *weights[:1])
            return [gradient, Reference(gradient.at), report]

        worker._step = step
    return second


def test_parts_of_other_shards_are_waited_for_there(ray):
    run = Run(ray, described([], workers=[{"name": "w", "count": 2, "step_s": 0.5}]))
    shards(ray, run, lambda part: Reference(ray.now + 1.0))
    run.workers["w-1"].upload_s = 0.25
    run.to_the_end()
    first = {entry.event.worker: entry.event.at for entry in reversed(run.entries) if isinstance(entry.event, Pushed)}
    assert first == {"w-0#1": 0.5, "w-1#1": 1.5}, "a worker on this node needs no asking"


@pytest.mark.parametrize(("answer", "says"), [
    (Reference(inf), "server: no answer for 3 s"),
    (Reference(0.0, RayTaskError("receive", "", lost())), "the last was w-0#1: its gradient was lost with its node")])
def test_a_shard_that_does_not_get_its_part(ray, answer, says):
    run = Run(ray, described([], workers=[{"name": "w", "step_s": 0.5}], cluster={"step_deadline_s": 3.0}))
    shards(ray, run, lambda part: answer)
    run.workers["w-0"].upload_s = 0.25
    with pytest.raises(RunFailed, match=says):
        run.to_the_end()


@pytest.mark.parametrize("marks", [1, 60])
def test_an_update_that_is_lost_all_the_same_ends_the_run_in_plain_words(ray, marks):
    """Whether it is waited for, or noticed by the worker that pulls what it makes."""
    run = Run(ray, described([], workers=[{"name": "w", "step_s": 0.5}], paradigm="asp", evaluation={"marks": marks}))
    made = run.server._apply

    def apply(fields, *gradients):
        whole = made(fields, *gradients)
        return Reference(0.0, RayTaskError("apply", "", lost())) if run.server.version == 3 else whole

    run.server.apply.remote = run.server.apply_and_publish.remote = apply
    worker = run.workers["w-0"]
    whole = worker._step

    def step(batch, *weights):
        gradient, report = whole(batch, *weights)
        if run.server.version >= 3:
            report.value = RayTaskError("step", "", lost())
        return [gradient, report]

    worker._step = step
    publish = run.server.publish.remote
    run.server.publish.remote = lambda version: publish(version) if version < 3 else (
        Reference(0.0, version), Reference(0.0, RayTaskError("publish", "", MissedUpdate("2, not 3"))))
    with pytest.raises(RunFailed) as raised:
        run.to_the_end()
    assert str(raised.value) == ("server: update 3 of w-0#1 (clock 2): what it needs was lost with the node that held it")


def test_a_server_that_missed_an_update_refuses_what_comes_after():
    server = Server(torch.get_num_threads(), Role("server-0"))
    server._store = ParameterStore(torch.zeros(2), 2, Update(lr=1.0))
    plan = ApplyPlan(workers=["w"], samples=[1], progress=0.0, phase="", staleness=[0], version=1)
    gradient = torch.ones(2).numpy()
    assert server.apply(plan.fields(), gradient) == 1
    plan.fields()
    for call in (lambda: server.publish(2), lambda: server.publish(1)):
        with pytest.raises(MissedUpdate, match="the model is at version 1, not at 2"):
            call()  # the second because the first has shown that the model lacks an update
    server._broken = None
    for method in (server.apply, server.apply_and_publish, server.combine):
        later = ApplyPlan(**{name: getattr(plan, name) for name in plan.__slots__} | {"version": 3})
        with pytest.raises(MissedUpdate, match="the model is at version 1, not at 2"):
            method(later.fields(), gradient)
        server._broken = None
    assert server.publish(1)[1] == 1


# ---- the evaluator ----

DIED, FROZEN = ActorUnavailableError("it died", b"0" * 16), "frozen"


@pytest.mark.parametrize("fates", [
    [DIED], [FROZEN], [None, DIED, FROZEN], [None, None, None, None, FROZEN], [DIED, DIED, None, FROZEN, FROZEN]])
def test_an_evaluator_that_fails_is_started_anew_and_its_evaluation_repeated(monkeypatch, fates):
    whole = Run(FakeRay(monkeypatch), described([]), evaluation_s=0.1).to_the_end()
    run = Run(FakeRay(monkeypatch), described([], evaluation={"marks": 4, "deadline_s": 30.0}), evaluation_s=0.1)
    run.evaluator.fates = list(fates)
    run.to_the_end()
    assert run.run.status == "finished"
    assert of(run, Evaluation) == of(whole, Evaluation), "none is missing, none is made twice, and they tell the same"
    failures = len([fate for fate in fates if fate])
    assert run.evaluator.restarts == failures
    assert len(run.evaluator.evaluated) == 5 + failures
    remarks = [line.text for line in of(run, Remark)]
    assert len(remarks) == failures
    assert all("is started anew, and its evaluation is repeated" in text for text in remarks)
    assert any("no answer for 30 s" in text for text in remarks) == (FROZEN in fates)


@pytest.mark.parametrize("fate", [DIED, FROZEN])
def test_an_evaluator_that_fails_again_and_again_is_given_up_and_the_training_is_not(ray, fate):
    run = Run(ray, described([], evaluation={"marks": 4, "deadline_s": 5.0}), evaluation_s=0.1)
    run.evaluator.fates = [None, None, *[fate] * TRIES]
    run.to_the_end()
    assert run.run.status == "finished"
    assert [line.mark for line in of(run, Evaluation)] == [0, 0.25]
    assert len(of(run, Remark)) == TRIES
    assert of(run, Remark)[-1].text.endswith("the run goes on without the evaluations at progress 0.5, 0.75, 1.")
    assert sum(len(one.pushes) for entry in run.entries for one in entry.decisions if isinstance(one, Apply)) >= 60


def test_nothing_is_published_for_an_evaluator_that_was_given_up(ray):
    evaluations = Evaluations(FakeEvaluator(ray, 0.1), (), [0.0, 0.5, 1.0], deadline_s=5.0, start_deadline_s=9.0)
    evaluations.add(Published(0, 0.0, evaluations.take_marks(0.0), (Reference(),), [], 9.0, at=0.0))
    for _ in range(TRIES):
        [pending] = evaluations.next().values()
        [remark] = evaluations.late(pending, at=1.0)
    assert "progress 0, 0.5, 1" in remark.text
    assert evaluations.take_marks(1.0) == ()
    evaluations.add(Published(3, 0.7, (0.7,), (Reference(),), [], 9.0, at=1.0))
    assert not evaluations.next()


def test_an_evaluator_that_does_not_start_anew_is_given_up(ray):
    run = Run(ray, described([]), evaluation_s=0.1)
    run.evaluator.fates = [DIED]
    run.evaluator.reset.remote = lambda *setup: Reference(inf)
    run.to_the_end()
    assert run.run.status == "finished"
    assert not of(run, Evaluation)
    assert "it was not ready after 120 s" in of(run, Remark)[-1].text


def test_an_error_of_the_users_in_an_evaluation_still_ends_the_run(ray):
    run = Run(ray, described([]))
    run.evaluator.fates = [None, RayTaskError("evaluate", "", ValueError("my metric"))]
    with pytest.raises(RunFailed, match="evaluator: ValueError: my metric"):
        run.to_the_end()


# ---- signs of life ----


def test_the_driver_hears_of_a_controller_to_which_nothing_happens(ray):
    """Also while the last evaluation is all that is waited for."""
    run = Run(ray, described([], workers=[{"name": "w", "step_s": 20.0}], batch_size=240), evaluation_s=60.0)
    heard = []
    for lines in to_its_end(run.run, None):
        heard.append(ray.now)
        last = lines
    assert isinstance(last[-1], Ended)
    assert ray.now > 100
    gaps = [later - earlier for earlier, later in zip([0.0, *heard], heard, strict=False)]
    assert max(gaps) <= SIGN_OF_LIFE_S + 1e-9
