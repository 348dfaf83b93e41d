"""Deaths, errors and clusters that are too small, as Ray has them: one of a kind.

What then follows is the driver's doing, and told in the stories of tests/engine.
"""

import re
from types import SimpleNamespace

import psutil
import pytest
import torch
from ray.exceptions import RayTaskError

import raysync
from raysync import config
from raysync.cluster import session as session_module
from raysync.cluster.session import Session
from raysync.cluster.transports.payloads import outgoing
from raysync.core.journal import Remark
from raysync.engine.messages import ApplyCall, encode
from raysync.errors import ConfigError, RunFailed
from raysync.record.reader import load
from raysync.running.run import run_in
from raysync.training.preparation import prepare
from tests.builders.cluster import LONGER, TINY, left, lines_of, pid_of, replayed
from tests.builders.messages import naming
from tests.builders.updates import update_plan

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_workers_that_are_killed_or_frozen_come_back_and_the_run_waits_for_them(
    ray_cluster, session, run
):
    """Ray reports a death, and never the silence. All are gone at a time, so without those that
    come back the run could not finish.
    """
    run()  # so that its process is known: a worker that is called over pipes takes no other call
    kept = session._actor_group
    frozen = psutil.Process(pid_of(ray_cluster, kept.workers[2]))
    said = []

    def freeze(actor_group):
        assert actor_group is kept
        frozen.suspend()

    def kill(actor_group):
        for worker in actor_group.workers[:2]:
            ray_cluster.kill(worker)

    record = run(
        **LONGER,
        cluster={"step_deadline_s": 2.0, "restarts": {"backoff_s": 0.1}},
        notify=said.append,
        strikes={0.2: freeze, 0.3: kill},
    )
    assert record.summary["status"] == "finished"
    losses = [(entry.event.worker, entry.report.why) for entry in left(record)]
    assert sorted(loss for loss in losses if loss[0].endswith("#1")) == [
        ("fast-0#1", "its actor died"),
        ("fast-1#1", "its actor died"),
        ("slow-0#1", "no answer for 2 s"),
    ]
    assert record.summary["lost_workers"] == len(losses) >= 3
    assert record.summary["worker_away_s"] > 3 * 0.1, "each came back after the back-off"
    back = [one for one in record.summary["per_worker"] if one["id"].endswith("#2")]
    assert sum(one["pushes"] for one in back) > 0
    for worker in ("fast-0#1", "slow-0#1"):
        assert any(worker in text and "gone" in text for text in said), said
    assert any("in 100 ms" in text for text in said), said
    assert any(" after its slot lost its worker" in text for text in said), said
    assert not psutil.wait_procs([frozen], timeout=20)[1], "it must not keep its device"
    assert replayed(record)
    again = run()
    assert session._actor_group is not kept, "whose handles are those of the dead"
    assert len(again.summary["per_worker"]) == 3, "the next run has all its workers"
    assert all(one["pushes"] for one in again.summary["per_worker"])


@pytest.mark.slow
def test_waiting_costs_the_controller_nothing(ray_cluster, session, run):
    """No polling: its processor time is a small part of a run of long steps (a busy loop takes all
    of it).
    """
    steps = [group | {"step_s": 0.5} for group in TINY["workers"]]
    run(workload={"samples": 80})
    process = psutil.Process(pid_of(ray_cluster, session._actor_group.controller))
    before = process.cpu_times()
    record = run(workers=steps, workload={"samples": 120})
    after = process.cpu_times()
    assert process.pid == pid_of(ray_cluster, session._actor_group.controller)
    assert after.user + after.system - before.user - before.system < 0.3 * record.summary["seconds"]


@pytest.mark.slow
def test_an_evaluator_that_dies_or_freezes_ends_nothing(ray_cluster, run):
    """Killed on the way; frozen at the end, when nothing else is waited for; restarted by Ray
    while nothing was asked of it: no mark is missing.
    """
    struck = []

    def restart(actor_group):
        """Let it forget its run, as a new process does not know it."""
        with pytest.raises(RayTaskError):
            ray_cluster.get(actor_group.evaluator.reset.remote(None, None))

    def find(actor_group):
        struck.append(psutil.Process(pid_of(ray_cluster, actor_group.evaluator)))

    settings = {
        "paradigm": "asp",
        "workers": [group | {"step_s": 0.05} for group in TINY["workers"]],
        "workload": {"samples": 1600},
        "evaluation": {"marks": 4, "deadline_s": 2.0},
    }
    records = [
        run(**settings, strikes={0.0: find, 0.3: lambda actor_group: struck[-1].kill()}),
        run(**settings, strikes={0.0: find, 0.8: lambda actor_group: struck[-1].suspend()}),
        run(**settings, strikes={0.3: restart}),
    ]
    assert not psutil.wait_procs(struck, timeout=20)[1], "also the frozen one is gone"
    restarted = "its process died and was restarted"
    # Ray may be quick
    reasons = (f"ActorUnavailableError|{restarted}", "no answer for 2 s", restarted)
    for record, why in zip(records, reasons, strict=True):
        assert record.summary["status"] == "finished"
        assert record.evaluations.mark.tolist() == [0, 0.25, 0.5, 0.75, 1]
        [remark] = lines_of(record, Remark)
        assert re.search(why, remark.text)
        assert "Unserializable" not in remark.text


@pytest.mark.slow
def test_a_frozen_controller_fails_its_run_and_goes(run, monkeypatch):
    """Of whose silence Ray says nothing either."""

    def freeze(actor_group):
        [controller] = [
            one
            for one in psutil.Process().children(recursive=True)
            if one.cmdline()[:1] == ["ray::Controller.run"]
        ]
        controller.suspend()
        frozen.append(controller)

    frozen = []
    monkeypatch.setattr(session_module, "SILENCE_S", 3.0)
    with pytest.raises(RunFailed, match=naming("controller 3")) as failed:
        run(**LONGER, strikes={0.2: freeze})
    record = load(str(failed.value).rpartition(": ")[2])
    assert record.summary["status"] == "failed"
    assert record.summary["pushes"] > 0
    assert run(workload={"samples": 80}).summary["status"] == "finished", "with others"
    _, alive = psutil.wait_procs(frozen, timeout=30)
    assert not alive


@pytest.mark.slow
def test_a_broken_update_is_reported_as_the_servers_error(run):
    """Ray itself would show it as an error of the next worker's step."""

    def break_server(actor_group):
        message = ApplyCall(update_plan([8], version=10**6))
        actor_group.servers[0].call.remote(encode(message), outgoing(torch.zeros(3))[0])

    with pytest.raises(RunFailed, match=naming("server: MissedUpdate: 999999")) as raised:
        # over pipes the server would leave a call of another's to the end
        run(**LONGER, cluster={"transport": "object-ref"}, strikes={0.1: break_server})
    record = load(str(raised.value).rpartition("The record up to then: ")[2])
    assert record.summary["status"] == "failed"
    assert "MissedUpdate" in record.summary["error"]
    assert len(record.pushes) > 0


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([{"name": "fast", "count": 2}, {"name": "big", "cpus": 64}], "'big'"),
        ([{"name": "many", "count": 50}], "'many' 50 'many' 1 CPU"),
        ([{"name": "gpu", "gpus": 1}], "'gpu'"),
    ],
)
def test_a_cluster_that_is_too_small_says_so_at_once(ray_cluster, tmp_path, groups, says):
    with pytest.raises(ConfigError, match=naming(says)) as raised:
        raysync.run(TINY | {"output": str(tmp_path), "workers": groups})
    _, has = str(raised.value).splitlines()
    assert "12 CPU" in has
    assert ("emulate with speed or step_s" in has) == ("gpu" in says)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_resources_that_others_use_are_waited_for_up_to_a_deadline(
    ray_cluster, session, run, tmp_path
):
    """The session's actors have 5 of the 12 CPUs, and another has 4."""
    run(workload={"samples": 80})
    holder = ray_cluster.remote(num_cpus=4)(
        type("Holder", (), {"ready": lambda self: True})
    ).remote()
    ray_cluster.get(holder.ready.remote(), timeout=60)
    try:
        with pytest.raises(ConfigError, match=naming("resources 1")):
            raysync.run(TINY | {"output": str(tmp_path), "cluster": {"placement_deadline_s": 1}})
    finally:
        ray_cluster.kill(holder)
    kept = [
        group["name"]
        for group in ray_cluster.util.placement_group_table().values()
        if group["state"] != "REMOVED"
    ]
    assert kept == [session._actor_group.name], "it waits no longer"


FAULTS = [
    {"kind": "slow-down", "workers": ["w-0"], "clocks": [2, 4], "factor": 4},
    {"kind": "latency", "workers": ["w-1"], "clocks": [1, 3], "added_s": 0.05},
    {"kind": "crash", "worker": "w-0", "at_clock": 5, "rejoin_after_s": 0.1},
    {"kind": "kill", "workers": ["w-1"], "at_s": 1.0},
    {"kind": "crash", "worker": "w-1", "at_clock": 10_000},
]


@pytest.fixture(scope="module")
def faulted(ray_cluster, tmp_path_factory):
    """A run of two workers with faults, in a session of its own that is over."""
    link = {"latency_s": 0.01, "bandwidth_bytes_per_s": 1e7}
    settings = TINY | {
        "output": str(tmp_path_factory.mktemp("faulted")),
        "faults": FAULTS,
        "workload": {"samples": 560},
        "workers": [{"name": "w", "count": 2, "step_s": 0.05, "link": link}],
        "cluster": {"restarts": {"attempts": 0}},
    }
    training, said = prepare(config.validate(settings)), []
    with Session() as session:
        record = run_in(session, training, config.ParadigmChoice(name="asp"), notify=said.append)
        group = session._actor_group
        names = [name for name in ray_cluster.util.list_named_actors() if group.name in name]
        processes = {
            name.split(":")[2]: psutil.Process(pid_of(ray_cluster, ray_cluster.get_actor(name)))
            for name in names
            if "worker" not in name
        }
    return SimpleNamespace(
        training=training, said=said, record=record, group=group, processes=processes
    )


def test_faults_affect_real_workers_and_a_crashed_one_rejoins(faulted):
    """One worker dies as it begins its sixth iteration, and comes back; the other is killed after a
    second, and stays gone: the run waits for the first.
    """
    record, training = faulted.record, faulted.training
    pushes, summary = record.pushes.set_index(["worker", "clock"]).sort_index(), record.summary
    assert summary["status"] == "finished"
    crash, kill = left(record)
    assert (crash.event.worker, kill.event.worker) == ("w-0#1", "w-1#1")
    assert "crashed: faults[2]" in crash.report.why
    assert kill.report.why == "its actor died", "nobody told the run of the kill"
    assert (crash.report.planned, kill.report.planned) == (None, True)
    assert summary["lost_workers"] == 0
    assert pushes.loc["w-0#1"].index.max() == 4, "it died as it began iteration 5"
    assert len(pushes.loc["w-0#2"]) > 10, "who came back did the rest"
    assert not pushes.index.duplicated().any()
    assert replayed(record)
    slowed = pushes.loc["w-0#1"].busy_s
    assert slowed.loc[[2, 3]].min() >= 4 * 0.05 > slowed.drop([2, 3]).min()
    way_s = 0.01 + training.vector_bytes / 1e7
    between = pushes.pushed_at_s - pushes.released_at_s - pushes.busy_s
    assert between.min() >= 2 * way_s
    assert (
        between.loc["w-1#1"].loc[[1, 2]].min()
        >= 2 * (way_s + 0.05)
        > between.loc["w-1#1"].loc[3:].min()
    )
    assert ["faults[4]" in fault for fault in summary["faults_without_effect"]] == [True]
    assert any("Fault never triggered: faults[4]" in text for text in faulted.said)


def test_a_session_leaves_nothing_behind(ray_cluster, faulted):
    """Not even the worker that came back, which is not among the actors that it started: it ends
    with its run.
    """
    assert set(faulted.processes) == {"controller", "server-0", "evaluator"}
    _, alive = psutil.wait_procs(faulted.processes.values(), timeout=20)
    assert not alive
    names = ray_cluster.util.list_named_actors()
    assert not [name for name in names if faulted.group.name in name]
    table = ray_cluster.util.placement_group_table(faulted.group.group)
    assert table["state"] == "REMOVED"
    assert ray_cluster.is_initialized(), "a cluster that was joined is left as it was"
