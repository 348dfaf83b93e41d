"""Slow-downs, latency, crashes and rejoins in whole runs."""

import pytest

import raysync
from raysync.config import ParadigmChoice
from raysync.core.decisions import Apply, Release
from raysync.core.events import Joined, Left
from raysync.emulation.fault_plan import FaultPlan
from tests.builders.messages import Telling, tells
from tests.builders.paradigms import VARIANTS, lead_bound
from tests.builders.virtual import (
    DATA,
    SMALL,
    TIMING,
    busy,
    churn,
    decided,
    entries,
    push_times,
    replayed,
    run,
    timed,
)
from tests.virtual.checker import checked

PARADIGMS = ["bsp", "asp", "ssp", "lagtuner"]
LEADS = {"bsp": 0, "asp": None, "ssp": 3, "lagtuner": 15}
TWO = [{"name": "a", "step_s": 1}, {"name": "b", "step_s": 2}]


def crash(worker, **when):
    return {"kind": "crash", "worker": worker} | when


def test_a_slow_down_multiplies_computing_and_nothing_else():
    slow = {"kind": "slow-down", "factor": 3, "workers": ["a"], "clocks": [1, 2]}
    training = timed(
        workers=TWO, faults=[slow], network={"link": {"latency_s": 0.5}}, workload={"samples": 6}
    )
    lines = run(training, "bsp")
    assert [busy(lines)["a-0#1", clock] for clock in range(3)] == [1, 3, 1]
    assert push_times(lines)["a-0"] == [2, 2 + 0.5 + 3 + 0.5 + 1, 9]


def test_a_step_suffers_what_holds_at_its_release():
    """A spell from 1.5 s to 2.5 s: the step released at 2 s is slow to its end, the one released at
    1 s never.
    """
    slow = {"kind": "slow-down", "factor": 4, "start_s": 1.5, "lasts_s": 1}
    assert push_times(
        run(timed(workers=[{"step_s": 1}], faults=[slow], workload={"samples": 4}), "asp")
    ) == {"worker-0": [1, 2, 6, 7]}


def test_faults_by_clock_affect_the_same_steps_under_every_paradigm():
    slow = {"kind": "slow-down", "factor": 10}
    training = timed(
        workers=[{"name": "a", "count": 3, "step_s": 1}, {"name": "b", "step_s": 2}],
        faults=[
            slow | {"workers": ["a"], "clocks": [2, 8]},
            slow | {"workers": ["a-1", "b"], "clocks": [10, 12]},
        ],
        workload={"samples": 80},
    )
    met, *others = (busy(run(training, name)) for name in PARADIGMS)
    for other in others:
        common = met.keys() & other.keys()
        assert len(common) > 40
        assert {key: met[key] for key in common} == {key: other[key] for key in common}
    assert 10 < sum(seconds >= 10 for seconds in met.values()) < 60


def test_a_crash_at_a_time_and_a_rejoin():
    """b dies at 5 s in its third step (4 s to 6 s), comes back at 6.5 s at a's clock, the
    slowest's.
    """
    training = timed(
        workers=TWO, faults=[crash("b-0", at_s=5, rejoin_after_s=1.5)], workload={"samples": 14}
    )
    lines = run(training, "asp")
    assert churn(lines) == [("Left", "b-0#1", 5), ("Joined", "b-0#2", 6.5)]
    assert push_times(lines) == {"a-0": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "b-0": [2, 4, 8.5, 10.5]}
    assert [clock for worker, clock in busy(lines) if worker == "b-0#2"] == [6, 7]
    [left] = entries(lines, Left)
    assert tells(left.report.why, "faults[0] {kind: crash, worker: b-0, at_s: 5.0")
    assert lines[-1].faults_without_effect == ()


def test_a_crash_at_a_clock_comes_as_the_iteration_begins():
    """It comes at the Release, before the weights have come; the push of clock 1 was applied."""
    training = timed(
        workers=TWO,
        faults=[crash("a-0", at_clock=2)],
        network={"link": {"latency_s": 0.5}},
        workload={"samples": 5},
    )
    lines = run(training, "asp")
    assert push_times(lines) == {"a-0": [2, 4], "b-0": [3, 6, 9]}
    assert churn(lines) == [("Left", "a-0#1", 4)]


def test_a_crash_at_the_very_start():
    training = timed(
        workers=TWO,
        faults=[crash("a-0", at_s=0, rejoin_after_s=3), crash("b-0", at_clock=0)],
        workload={"samples": 2},
    )
    lines = run(training, "asp")
    assert churn(lines) == [("Left", "a-0#1", 0), ("Left", "b-0#1", 0), ("Joined", "a-0#2", 3)]
    assert push_times(lines) == {"a-0": [4, 5]}


def test_a_worker_may_crash_again_and_again():
    """Each crash meets the life that is there; one that finds the slot empty is never met."""
    faults = [
        crash("b-0", at_clock=1, rejoin_after_s=1),
        crash("b-0", at_clock=4, rejoin_after_s=0),
        crash("b-0", at_s=2.5),
        crash("b-0", at_s=10.5, rejoin_after_s=2),
    ]
    lines = run(timed(workers=TWO, workload={"samples": 30}, faults=faults), "asp")
    assert churn(lines) == [
        ("Left", "b-0#1", 2),
        ("Joined", "b-0#2", 3),
        ("Left", "b-0#2", 5),
        ("Joined", "b-0#3", 5),
        ("Left", "b-0#3", 10.5),
        ("Joined", "b-0#4", 12.5),
    ]
    assert lines[-1].faults_without_effect == ("faults[2] {kind: crash, worker: b-0, at_s: 2.5}",)


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_all_may_go_if_one_comes_back(paradigm):
    faults = [crash("a-0", at_s=3.5), crash("b-0", at_s=3.75, rejoin_after_s=10)]
    training = timed(workers=TWO, workload={"samples": 12}, faults=faults)
    lines = run(training, paradigm)
    left = [("Left", "a-0#1", 3.5), ("Left", "b-0#1", 3.75)]
    assert churn(lines) == [*left, ("Joined", "b-0#2", 13.75)]
    assert lines[-1].status == "finished"
    checked(lines, paradigm, LEADS[paradigm], training.workload_samples)


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_nobody_left_fails_the_run_with_a_reason(paradigm, tmp_path):
    settings = TIMING | {
        "output": str(tmp_path),
        "workers": TWO,
        "paradigm": paradigm,
        "faults": [crash("a-0", at_s=3.5), crash("b-0", at_s=4.5)],
    }
    says = r"every worker is gone; the last was b-0#1: crashed: faults\[1\] {kind: crash"
    with pytest.raises(raysync.RunFailed, match=says) as failed:
        raysync.run(settings, model=SMALL, data=DATA)
    record = raysync.load(str(failed.value).rpartition(" ")[2])
    assert record.summary["status"] == "failed"
    assert tells(record.summary["error"], "every worker")
    assert record.summary["pushes"] == (4 if paradigm == "bsp" else 5)
    assert record.summary["seconds"] == 4, "to the last update"


def test_a_leavers_push_counts_under_bsp_and_its_successor_enters_the_round():
    """a pushes at 1 s and dies at 1.5 s: the round of 2 s has its push; its next life is in it,
    too, until 2.75 s.
    """
    faults = [crash("a-0", at_s=1.5, rejoin_after_s=0.25)]
    lines = run(timed(workers=TWO, workload={"samples": 5}, faults=faults), "bsp")
    (at, first), *_ = decided(lines, Apply)
    assert (at, first.pushes) == (2.75, (("a-0#1", 0), ("b-0#1", 0), ("a-0#2", 0)))
    assert entries(lines, Joined)[-1].decisions[0] == Release("a-0#2", clock=0, version=0, lead=0)


def test_what_nobody_met_is_told_and_recorded(tmp_path):
    said = []
    faults = [
        {"kind": "slow-down", "factor": 2, "start_s": 100},
        crash("a-0", at_clock=50),
        crash("b-0", at_s=3),
    ]
    settings = {"output": str(tmp_path), "workers": TWO, "workload": {"samples": 10}}
    record = raysync.run(
        TIMING | settings | {"faults": faults}, model=SMALL, data=DATA, notify=said.append
    )
    idle = [
        "faults[0] {start_s: 100.0, kind: slow-down, factor: 2.0}",
        "faults[1] {kind: crash, worker: a-0, at_clock: 50}",
    ]
    summary = record.summary
    assert summary["faults_without_effect"] == idle
    met = Telling("3.0 s: b-0#1 faults[2] {kind: crash, worker: b-0, at_s: 3.0}")
    assert said == [met, *map(Telling, idle)]
    assert (summary["samples"], summary["timing"], summary["final_accuracy"]) == (10, "only", None)
    assert len(record.pushes) == 10


def test_the_time_for_which_a_run_waits_for_workers_is_in_no_step(tmp_path):
    """Two workers of one second a step and one that is away for five: no push has transfer, and the
    waiting is between the pushes.
    """
    record = raysync.run(
        {
            **TIMING,
            "output": str(tmp_path),
            "workers": [{"name": "w", "count": 3, "step_s": 1}],
            "paradigm": "asp",
            "workload": {"samples": 15},
            "cluster": {"min_workers": 3},
            "faults": [crash("w-1", at_s=2.5, rejoin_after_s=5)],
        }
    )
    pushes = record.pushes
    assert (pushes.pushed_at_s - pushes.released_at_s == pushes.busy_s).all()
    assert pushes[pushes.released_at_s == 7.5].worker.tolist() == ["w-0#1", "w-2#1", "w-1#2"]
    assert not pushes.released_at_s.between(2.5, 7.5, inclusive="neither").any()


def lived_pushes(plan, slot, step_s, away_s, until):
    """When a worker pushes that computes without waiting, and dies when the plan says so."""
    pushes, began, failed = [], 0.0, 0
    while began < until:
        death, _ = plan.next_kill(slot, began or -1.0)
        done = [began + step_s * (n + 1) for n in range(int((death - began) / step_s))]
        pushes += done
        failed = failed + 1 if began and not done else 0
        began = death + away_s(failed)
    return [at for at in pushes if at <= until]


@pytest.mark.parametrize("start_s", [0, 2.5])
def test_under_asp_a_killed_worker_loses_its_step_and_the_time_until_it_is_back(start_s):
    """Back-off and start; the back-off doubles after each restart without a push."""
    training = timed(
        workers=[{"name": "w", "count": 5, "step_s": 1, "start_s": start_s}],
        faults=[{"kind": "kill", "mean_gap_s": 3}],
        cluster={"restarts": {"attempts": 99, "backoff_s": 0.5}},
        workload={"samples": 400},
    )
    lines = run(training, "asp")
    times, restarts = push_times(lines), training.experiment.cluster.restarts
    plan, last_at = FaultPlan(training.experiment), lines[-1].at
    for slot in training.experiment.slots():
        expected = lived_pushes(
            plan, slot, 1, lambda failed: restarts.wait_s(failed) + start_s, last_at
        )
        assert times[slot] == pytest.approx(expected)
    assert sum(map(len, times.values())) == 400
    assert len(churn(lines)) > 100
    assert lines[-1].faults_without_effect == ()


def test_a_kill_spares_the_run_that_is_over():
    training = timed(workers=TWO, faults=[{"kind": "kill", "at_s": 3.5}], workload={"samples": 3})
    lines = run(training, "asp")
    assert churn(lines) == []
    assert lines[-1].faults_without_effect == ("faults[0] {kind: kill, at_s: 3.5}",)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_paradigm_survives_kills_at_any_moment(variant):
    """Four schedules each, with a death in two to sixteen steps: each push is applied or dropped
    once, and the journal replays.
    """
    (name, parameters), pushes = VARIANTS[variant], 60
    choice = ParadigmChoice(name=name, **parameters)
    deaths = 0
    for seed in range(4):
        training = timed(
            seed=seed,
            workers=[
                {"name": "a", "count": 3, "step_s": 1, "jitter": {"sigma": 0.3}, "start_s": 0.7},
                {"name": "b", "count": 2, "step_s": 2},
            ],
            network={"link": {"latency_s": 0.05}, "update_s": 0.1},
            faults=[{"kind": "kill", "mean_gap_s": (2, 4, 8, 16)[seed]}],
            cluster={"restarts": {"attempts": 99, "backoff_s": 0.25}},
            workload={"samples": pushes},
        )
        lines = run(training, choice)
        checker = checked(lines, name, lead_bound(name, parameters), pushes)
        assert checker.ended.status == "finished"
        assert replayed(training, lines, choice).difference is None
        deaths += len(entries(lines, Left))
    assert deaths > 30
