"""What troubles do to controller and worker, without a cluster."""

from math import inf
from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import ActorDiedError

from raysync import config
from raysync.cluster import worker as worker_module
from raysync.cluster.controller import RunPlan, _Run
from raysync.cluster.names import Role
from raysync.cluster.shards import Shards
from raysync.cluster.starting import START_DEADLINE_S
from raysync.cluster.worker import Worker, WorkerPlan
from raysync.core.decisions import Apply, Release
from raysync.core.events import Joined, Left, Pushed
from raysync.core.journal import Entry, Evaluation, Remark
from raysync.engine.faults import UNHARMED, Troubles
from raysync.errors import RunFailed
from raysync.training.task import prepare
from raysync.virtual.engine import VirtualEngine
from tests.cluster.fake_ray import FakeEvaluator, FakePost, FakeRay, FakeServer, FakeWorker
from tests.cluster.parts import TINY

COMES_BACK = {"kind": "crash", "worker": "w-0", "at_clock": 2, "rejoin_after_s": 1.0}
JITTER = {"distribution": "lognormal", "sigma": 0.3}


@pytest.fixture
def ray(monkeypatch):
    return FakeRay(monkeypatch)


def described(troubles, count=2, **settings):
    workers = [{"name": "w", "count": count, "step_s": 0.5, "jitter": JITTER}]
    return config.validate(TINY | {"workers": workers, "troubles": troubles} | settings)


class Run:
    """A run over fakes."""

    def __init__(self, ray, experiment, evaluation_s=0.0, **post):
        slots = list(experiment.slots())
        self.workers = {slot: FakeWorker(ray, slot, slot, experiment) for slot in slots}
        self.posts = {slot: FakePost(ray, slot, experiment, **post) for slot in slots}
        plan = RunPlan(experiment.paradigm.make(), 480, experiment, {slot: slot for slot in slots}, self.posts)
        self.server = FakeServer()
        self.evaluator = FakeEvaluator(ray, evaluation_s)
        self.run = _Run(plan, Shards([self.server], clips=False), self.evaluator, self.workers)

    def to_the_end(self):
        self.run.start()
        while self.run.goes_on:
            self.run.wait(inf)
        return self

    @property
    def entries(self):
        return [line for line in self.run.lines if isinstance(line, Entry)]

    def joined(self):
        return {entry.event.worker: entry.event.at for entry in self.entries if isinstance(entry.event, Joined)}

    def calls(self):
        """(slot, batch) of every step."""
        everybody = [*self.workers.values(), *(worker for post in self.posts.values() for worker in post.filled)]
        return [(worker.slot, batch) for worker in everybody for batch in worker.batches]


def told(entry):
    """An event without its time and version, and why somebody left."""
    event = entry.event
    clock = event.clock if isinstance(event, Pushed) else None
    return type(event).__name__, event.worker, clock, entry.report.get("why")


GLOBAL = {"name": "hybrid", "k": 2, "staleness_tolerance": 1, "pull_interval": 3, "snapshot": "global"}


@pytest.mark.parametrize("paradigm", ["bsp", "asp", {"name": "ssp", "staleness": 1}, GLOBAL, {"name": "k-sync", "k": 2},
                                      {"name": "k-batch-sync", "k": 4}, {"name": "ringmaster", "staleness": 1}])
def test_both_engines_tell_the_same_story(ray, paradigm):
    """With actors that answer at once, the Ray engine's events are the virtual engine's."""
    troubles = [
        {"kind": "slow-down", "workers": ["w-1"], "start_clock": 2, "lasts_clocks": 4, "factor": 3},
        {"kind": "slow-down", "workers": ["w-2"], "mean_gap_s": 1.5, "lasts_s": 0.7, "factor": 2},
        COMES_BACK,
        {"kind": "crash", "worker": "w-0", "at_clock": 9},
        {"kind": "crash", "worker": "w-1", "at_s": 2.25, "rejoin_after_s": 1.3},
        {"kind": "crash", "worker": "w-1", "at_s": 2.5, "rejoin_after_s": 9.0},
        {"kind": "crash", "worker": "w-2", "at_clock": 10_000},
    ]
    experiment = described(troubles, count=3, engine="virtual", timing="only", paradigm=paradigm)
    virtual = [line for lines in VirtualEngine().run(prepare(experiment), experiment.paradigm.make()) for line in lines]
    expected = [line for line in virtual if isinstance(line, Entry)]
    run = Run(ray, experiment).to_the_end()
    assert [told(entry) for entry in run.entries] == [told(entry) for entry in expected]
    times = [[entry.event.at for entry in entries] for entries in (run.entries, expected)]
    assert times[0] == pytest.approx(times[1])
    assert [entry.decisions for entry in run.entries] == [entry.decisions for entry in expected]
    assert run.run.troubles.without_effect() == virtual[-1].troubles_without_effect
    assert [trouble[:11] for trouble in run.run.troubles.without_effect()] == ["troubles[5]", "troubles[6]"]
    assert {"w-0#2", "w-1#2"} <= run.joined().keys()


@pytest.mark.parametrize("paradigm", [
    GLOBAL, {"name": "hybrid", "k": 1, "staleness_tolerance": "inf", "pull_interval": 2, "snapshot": "global"}, "asp",
    {"name": "hybrid", "k": 2, "pull_interval": 2}, {"name": "k-batch-sync", "k": 4}, "tests.cluster.parts:Eager",
    "tests.virtual.test_learning:Twice"])
def test_every_step_gets_the_weights_of_the_version_that_was_decided(ray, paradigm):
    """Also those that stay published while updates go on; evaluated are the newest, whatever is published."""
    run = Run(ray, described([], count=3, paradigm=paradigm, evaluation={"marks": 20})).to_the_end()
    pulls = {(one.worker.rpartition("#")[0], one.clock): one.version for entry in run.entries for one in entry.decisions
             if isinstance(one, Release) and one.pull}
    sent = {(slot, clock): version for slot, worker in run.workers.items() for clock, version in worker.read}
    eager = str(paradigm).endswith("Eager")  # it releases before it applies
    assert {key: version for key, version in pulls.items() if key in sent} == sent
    assert len(sent) > 20
    assert eager or len(pulls) - len(sent) <= 3, "those of the last event"
    evaluations = [line for line in run.run.lines if isinstance(line, Evaluation)]
    assert sorted(set(run.evaluator.evaluated)) == sorted({line.version for line in evaluations})
    updates = [one for entry in run.entries for one in entry.decisions if isinstance(one, Apply)]
    samples, version = 0, 0
    for line in evaluations:
        while samples < line.progress * 480:
            samples += 8 * len(updates[version].pushes)
            version += 1
        assert line.version == version, "the newest at that progress"
    kept = {one.version for one in updates if not one.publish}
    assert bool(kept) == ("global" in str(paradigm) or "Twice" in str(paradigm))
    assert not kept & set(sent.values())
    assert not kept or kept & set(run.evaluator.evaluated)


def test_only_a_step_that_is_befallen_is_sent_its_hardship(ray):
    troubles = [{"kind": "latency", "workers": ["w-1"], "start_clock": 3, "lasts_clocks": 2, "added_s": 0.2},
                {"kind": "slow-down", "start_clock": 4, "lasts_clocks": 2, "factor": 3}]
    experiment = described(troubles)
    calls, asked = Run(ray, experiment).to_the_end().calls(), Troubles(experiment)
    for slot, (clock, size, *befallen) in calls:
        suffered = asked.befall(slot, clock, 0.0)
        assert befallen == ([] if suffered is UNHARMED else [suffered.factor, suffered.latency_s])
        assert size == 8
    assert ("w-1", [4, 8, 3.0, 0.2]) in calls
    assert len(calls) > 50


@pytest.mark.parametrize(("ready_after_s", "joins_after_s"), [(0.25, 1.0), (4.0, 4.0)])
def test_a_worker_is_back_when_it_is_ready_and_due(ray, ready_after_s, joins_after_s):
    run = Run(ray, described([COMES_BACK]), ready_after_s=ready_after_s).to_the_end()
    left = [entry.event.at for entry in run.entries if isinstance(entry.event, Left)]
    assert run.joined()["w-0#2"] == pytest.approx(left[0] + joins_after_s)
    assert not run.workers["w-0"].alive


def test_the_last_one_is_waited_for(ray):
    run = Run(ray, described([COMES_BACK | {"rejoin_after_s": 50.0}], count=1), ready_after_s=3.0).to_the_end()
    assert run.run.status == "finished"
    assert run.joined()["w-0#2"] > 50
    pushed = [entry.event.clock for entry in run.entries if isinstance(entry.event, Pushed)]
    assert pushed == list(range(60)), "it goes on at the clock where it died"


@pytest.mark.parametrize(("post", "why"), [
    ({"error": ActorDiedError()}, "did not start: ActorDiedError"),
    ({"ready_after_s": START_DEADLINE_S + 1}, f"did not start: not ready after {START_DEADLINE_S:g} s"),
])
def test_who_does_not_start_is_done_without_unless_nobody_is_left(ray, post, why):
    work = {"step_s": 8.0, "name": "w"}
    run = Run(ray, described([COMES_BACK], workers=[work | {"count": 2}]), **post).to_the_end()
    assert run.run.status == "finished"
    remarks = [line.text for line in run.run.lines if isinstance(line, Remark)]
    assert len(remarks) == 1
    assert f"w-0#2 {why}" in remarks[0]
    assert not run.posts["w-0"].filled[0].alive, "it must not come late"
    alone = Run(ray, described([COMES_BACK], workers=[work]), **post)
    with pytest.raises(RunFailed, match=f"every worker is gone; w-0#2 {why}"):
        alone.to_the_end()


def test_who_was_crashed_can_be_crashed_again_but_not_while_it_is_gone(ray):
    again = {"kind": "crash", "worker": "w-0", "at_s": 20.0, "rejoin_after_s": 1.0}
    meanwhile = {"kind": "crash", "worker": "w-0", "at_s": 10.0}
    run = Run(ray, described([COMES_BACK | {"rejoin_after_s": 12.0}, again, meanwhile])).to_the_end()
    assert list(run.joined()) == ["w-0#1", "w-1#1", "w-0#2", "w-0#3"]
    assert [trouble[:11] for trouble in run.run.troubles.without_effect()] == ["troubles[2]"]


def test_the_last_one_may_come_back_once_and_no_more(ray):
    for_good = {"kind": "crash", "worker": "w-0", "at_clock": 5}
    with pytest.raises(RunFailed, match=r"every worker is gone; the last was w-0#2: crashed: troubles\[1\]"):
        Run(ray, described([COMES_BACK, for_good], count=1)).to_the_end()


def test_who_came_back_may_die_like_anybody(ray):
    run = Run(ray, described([COMES_BACK]))
    run.run.start()
    while "w-0#2" not in run.run.machine.roster.members:
        run.run.wait(inf)
    ray.kill(run.posts["w-0"].filled[0])
    while run.run.goes_on:
        run.run.wait(inf)
    assert [told(entry)[1::2] for entry in run.entries if isinstance(entry.event, Left)][1:] == [("w-0#2", "its actor died")]
    assert run.run.status == "finished"


def test_nobody_crashes_while_the_last_evaluation_is_waited_for(ray):
    late = {"kind": "crash", "worker": "w-0", "at_s": 100.0}
    run = Run(ray, described([late]), evaluation_s=90.0).to_the_end()
    assert ray.now > 100 > max(entry.event.at for entry in run.entries)
    assert len(run.run.troubles.without_effect()) == 1


def test_a_run_that_ends_waits_for_nobody(ray):
    late = {"kind": "crash", "worker": "w-0", "at_s": 500.0}
    run = Run(ray, described([COMES_BACK | {"rejoin_after_s": 400.0}, late]), ready_after_s=100.0).to_the_end()
    assert run.run.status == "finished"
    assert ray.now < 100
    assert [trouble[:11] for trouble in run.run.troubles.without_effect()] == ["troubles[1]"]


@pytest.mark.parametrize(("batch", "pulls", "delay_s", "busy_s"), [
    ((7, 8), True, 2 * (0.1 + 400 / 2000), 0.5),
    ((7, 8, 3.0, 0.25), True, 2 * (0.1 + 400 / 2000 + 0.25), 1.5),
    ((7, 8, 3.0, 0.25), False, 0.1 + 400 / 2000 + 0.25, 1.5),
    ((7, 2), True, 2 * (0.1 + 400 / 2000), 0.125),
])
def test_a_worker_waits_for_its_link_before_it_computes_and_is_not_busy_then(monkeypatch, batch, pulls, delay_s, busy_s):
    slept = []
    monkeypatch.setattr(worker_module, "now_s", lambda: sum(slept))
    monkeypatch.setattr(worker_module, "sleep_s", lambda seconds: slept.append(max(0.0, seconds)))
    group = config.WorkerGroup(step_s=0.5, link=config.Link(latency_s=0.1, bandwidth_bytes_per_s=2000))
    worker = Worker(threads=torch.get_num_threads(), role=Role("worker-0"))
    worker._plan = WorkerPlan("w-0", group, None, None, batch_size=8, seed=0, vector_bytes=400, shards=1)
    read = []

    def compute(batches, clock, size):
        assert (clock, size) == batch[:2]
        assert slept == [pytest.approx(delay_s)], "both ways, before it begins"
        return 0.5

    worker._gradient = SimpleNamespace(read_weights=read.append, compute=compute, outgoing=lambda: torch.zeros(4))
    *_, (loss, busy) = worker.step(batch, *([bytes(16)] if pulls else []))
    assert (loss, busy) == (0.5, pytest.approx(busy_s))
    assert len(read) == pulls
