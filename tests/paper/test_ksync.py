"""K-sync and its siblings (Dutta et al. 2018), backup workers (Chen et al. 2016)."""

import pytest

from raysync.core.decisions import Drop, Release
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.testing.drive import Drive
from tests.builders.messages import Telling, tells
from tests.builders.schedules import applied, dropped, holds, joins, released, simulate

LATE = "late: 1 update since its weights"
TWO_OF_THREE = pytest.mark.parametrize(
    ("name", "parameters"), [("k-sync", {"k": 2}), ("backup-workers", {"backups": 1})]
)


@TWO_OF_THREE
def test_a_round_ends_with_the_first_pushes_and_those_workers_begin_the_next(name, parameters):
    """ "the PS waits for gradients from the first K workers" (Dutta et al., section 2); Chen et
    al.: n + b workers.
    """
    drive = Drive(make(name, **parameters), "a#1", "b#1", "c#1")
    assert holds(drive.push("c#1")) == {"c#1": Telling("2 1 computing: a#1 b#1")}
    answer = drive.push("a#1")
    assert applied(answer) == [(("c#1", 0), ("a#1", 0))]
    assert released(answer) == ["c#1", "a#1"], "b still computes"


@TWO_OF_THREE
def test_a_late_push_is_dropped_and_its_worker_joins_the_round_in_progress(name, parameters):
    drive = Drive(make(name, **parameters), "a#1", "b#1", "c#1")
    drive.push("a#1")
    drive.push("b#1")
    drive.push("b#1")
    assert drive.push("c#1") == [
        Drop(("c#1", 0), LATE, "late"),
        Release("c#1", clock=1, version=1, lead=0),
    ]
    assert applied(drive.push("c#1")) == [(("b#1", 1), ("c#1", 1))], "it counts in that round"


def test_how_late_it_is_is_said():
    drive = Drive(make("k-sync", k=1), "a#1", "b#1")
    for _ in range(3):
        drive.push("a#1")
    assert tells(drive.push("b#1")[0].why, "late: 3")


def test_backups_stay_as_they_are_when_members_come_and_go():
    drive = Drive(make("backup-workers", backups=2), "a#1", "b#1", "c#1")
    assert applied(drive.push("a#1")) == [(("a#1", 0),)], "one of three"
    drive.leave("b#1")
    drive.leave("c#1")
    assert applied(drive.push("a#1")) == [(("a#1", 1),)], "at least one"
    for worker in ("d#1", "e#1", "f#1"):
        drive.join(worker)
    assert applied(drive.push("a#1")) == []
    assert len(applied(drive.push("d#1"))[0]) == 2, "two of four"


def test_the_drops_of_backup_workers_are_those_of_the_slow():
    """The bias that the drops are counted for: with one worker a third as fast, its pushes are what
    is dropped.
    """
    machine, sent, lost = Machine(make("backup-workers", backups=1)), [], []
    step_s = {"a#1": 1.0, "b#1": 1.1, "slow#1": 3.0}
    for event, decisions in simulate(
        machine, joins(*step_s), lambda worker, _: step_s[worker], 100
    ):
        sent += [event.worker] if hasattr(event, "clock") else []
        lost += [worker for worker, _ in dropped(decisions)]
    assert set(lost) == {"slow#1"}
    assert lost.count("slow#1") == sent.count("slow#1") > 10, (
        "a round lasts 1.1 s: it never is among the first two"
    )


def test_k_batch_sync_takes_k_batches_of_whatever_workers():
    """Who pushes before the round's end computes another batch on the weights that it has."""
    drive = Drive(make("k-batch-sync", k=3), "a#1", "b#1")
    assert drive.push("a#1") == [Release("a#1", clock=1, version=0, pull=False, lead=1)]
    assert drive.push("a#1") == [Release("a#1", clock=2, version=0, pull=False, lead=2)]
    answer = drive.push("a#1")
    assert applied(answer) == [(("a#1", 0), ("a#1", 1), ("a#1", 2))]
    assert answer[1] == Release("a#1", clock=3, version=1, lead=3)
    assert drive.push("b#1") == [
        Drop(("b#1", 0), LATE, "late"),
        Release("b#1", clock=1, version=1, lead=0),
    ]


def test_k_batch_async_takes_the_first_k_however_old_and_nobody_waits():
    drive = Drive(make("k-batch-async", k=2), "a#1", "b#1")
    assert drive.push("a#1") == [Release("a#1", clock=1, version=0, lead=1)]
    assert applied(drive.push("a#1")) == [(("a#1", 0), ("a#1", 1))]
    assert drive.push("a#1") == [Release("a#1", clock=3, version=1, lead=3)]
    answer = drive.push("b#1")
    assert applied(answer) == [(("a#1", 2), ("b#1", 0))], "b's is of version 0"
    assert answer[1] == Release("b#1", clock=1, version=2, lead=0)


@pytest.mark.parametrize("name", ["k-batch-sync", "k-batch-async"])
def test_the_batches_of_who_has_left_count(name):
    drive = Drive(make(name, k=3), "a#1", "b#1")
    drive.push("a#1")
    assert drive.leave("a#1") == []
    drive.push("b#1")
    assert applied(drive.push("b#1")) == [(("a#1", 0), ("b#1", 0), ("b#1", 1))]
    assert make(name, k=9).infeasible_reason(2) == "", "k may be larger than the number of workers"


@pytest.mark.parametrize(
    ("name", "parameters", "workers", "says"),
    [
        ("k-sync", {"k": 3}, 3, ""),
        ("k-sync", {"k": 3}, 2, "k: 3 workers of 2; allowed: 1 to 2"),
        ("backup-workers", {"backups": 1}, 2, ""),
        ("backup-workers", {"backups": 1}, 1, "backups: 1 of 1 worker; allowed: 0 to 0"),
        ("backup-workers", {"backups": 3}, 2, "backups: 3 of 2 workers; allowed: 0 to 1"),
    ],
)
def test_more_than_there_are_is_refused(name, parameters, workers, says):
    assert make(name, **parameters).infeasible_reason(workers) == says
