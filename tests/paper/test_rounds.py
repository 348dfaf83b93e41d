"""What all paradigms whose updates wait for everybody do when workers come and go."""

import pytest

from raysync.paradigms import make
from raysync.testing.drive import Drive
from tests.builders.schedules import applied, released

ROUNDS = {
    "bsp": ("bsp", {}),
    "k-sync": ("k-sync", {"k": 3}),
    "backup-workers": ("backup-workers", {"backups": 0}),
    "hybrid": ("hybrid", {}),
    "quorum": ("quorum", {"k": 3}),
    "quorum with a grace period": ("quorum", {"k": 3, "grace_s": 5.0}),
}
A, B, C = "a#1", "b#1", "c#1"


@pytest.fixture(params=ROUNDS)
def drive(request):
    name, parameters = ROUNDS[request.param]
    return Drive(make(name, **parameters), A, B, C)


def test_an_update_takes_the_pushes_of_all_in_the_order_of_arrival(drive):
    assert applied(drive.push(B)) == applied(drive.push(A)) == []
    answer = drive.push(C)
    assert applied(answer) == [((B, 0), (A, 0), (C, 0))]
    assert released(answer) == [B, A, C]


def test_a_newcomer_enters_the_round_in_progress(drive):
    drive.leave(C)
    drive.push(A)
    assert released(drive.join("d#1")) == ["d#1"]
    assert applied(drive.push(B)) == []
    assert applied(drive.push("d#1")) == [((A, 0), (B, 0), ("d#1", 0))]


def test_the_push_of_a_leaver_that_has_arrived_counts(drive):
    drive.push(A)
    assert drive.leave(A) == []
    assert applied(drive.push(B)) == []
    answer = drive.push(C)
    assert applied(answer) == [((A, 0), (B, 0), (C, 0))]
    assert released(answer) == [B, C]


def test_the_round_ends_when_the_one_that_all_waited_for_leaves(drive):
    drive.push(A)
    drive.push(B)
    answer = drive.leave(C)
    assert applied(answer) == [((A, 0), (B, 0))]
    assert released(answer) == [A, B]


def test_what_the_last_ones_left_behind_makes_an_update_and_nothing_makes_none(drive):
    drive.push(A)
    assert drive.leave(A) == drive.leave(B) == []
    assert applied(drive.leave(C)) == [((A, 0),)]
    drive.join("d#1")
    assert drive.leave("d#1") == []
