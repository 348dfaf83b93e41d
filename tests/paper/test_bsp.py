"""BSP, as the papers here use it."""

from raysync.core.capability import Capability
from raysync.paradigms import make
from raysync.testing.drive import Drive
from tests.builders.messages import Telling
from tests.builders.schedules import applied, holds, released


def test_all_workers_synchronise_at_every_iteration():
    """ "BSP ensures strict consistency by requiring all workers to synchronize at every iteration"
    (LagTuner, 1).
    """
    drive = Drive(make("bsp"), "a#1", "b#1", "c#1")
    assert released(drive.push("b#1")) == []
    assert released(drive.push("a#1")) == []
    answer = drive.push("c#1")
    assert applied(answer) == [(("b#1", 0), ("a#1", 0), ("c#1", 0))]
    assert released(answer) == ["b#1", "a#1", "c#1"]
    assert {decision.version for decision in answer} == {1}


def test_gradients_are_exchanged_through_a_server_or_among_the_workers():
    assert (make("bsp").collective, [*make("bsp").demands()]) == ("", [])
    ring = make("bsp", exchange="ring")
    assert ring.collective == "ring"
    assert [*ring.demands()] == [(Capability.ALL_REDUCE, "exchange: ring")]
    for wrapper in ("balanced", "ringmaster"):
        assert make(wrapper, paradigm={"name": "bsp", "exchange": "ring"}).collective == "ring"


def test_fast_workers_wait_for_slow_ones_and_are_told_for_whom():
    """ "... slot_fault from straggler problems where fast workers wait for slow ones" (LagTuner,
    1).
    """
    drive = Drive(make("bsp"), *(f"w-{i}#1" for i in range(6)))
    assert holds(drive.push("w-0#1")) == {"w-0#1": Telling("w-1#1 w-2#1 w-3#1 2 pushed")}
    for i in range(1, 4):
        drive.push(f"w-{i}#1")
    assert holds(drive.push("w-4#1")) == {"w-4#1": Telling("w-5#1 pushed")}
