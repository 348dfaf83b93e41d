"""A run goes on from a cut: what a machine, its roster and its journal then say."""

import pytest

from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Joined, Pushed
from raysync.core.journal import Checkpointed, Entry, Resumed, decode, encode, header
from raysync.core.machine import Machine, roster_in
from raysync.core.replay import replay
from raysync.core.stages import StageMachines, machine_of, rosters_in
from raysync.errors import ProtocolViolation
from raysync.paradigms import make, rebuild
from raysync.testing.drive import SAMPLES
from tests.builders.messages import naming, tells


def pushed(worker, at, clock, base):
    return Pushed(at=at, worker=worker, clock=clock, base=base, samples=SAMPLES, busy_s=0.5)


def begun(name="asp"):
    """A machine with two workers, of which the first has pushed, and its history."""
    machine, entries = Machine(make(name), 1000), []
    events = [Joined(at=0.0, worker=worker) for worker in ("a-0#1", "a-1#1")]
    for event in [*events, pushed("a-0#1", 1.0, 0, 0)]:
        entries.append(Entry(event, tuple(machine.handle(event))))
    return machine, entries


def journal(machine, lines):
    return [header(machine.paradigm, 1000) + "\n", *(encode(line) + "\n" for line in lines)]


def test_the_rosters_of_a_cut():
    machine, _ = begun()
    rosters = rosters_in(machine.snapshot())
    assert {stage: roster.dump() for stage, roster in rosters.items()} == {0: machine.roster.dump()}
    stages = StageMachines(lambda: make("asp"), 2)
    for stage, worker in ((1, "m1/a-0#1"), (2, "m2/a-1#1")):
        stages.handle(Joined(at=0.0, worker=worker))
        assert list(rosters_in(stages.snapshot())[stage].live) == [worker]


def test_after_a_resumption_all_have_the_published_weights():
    """The second worker computed on version 0 and may now push on version 1 alone."""
    machine, _ = begun()
    machine.resume(5.0)
    assert machine.roster.now == 5
    assert machine.roster.telemetry("a-1#1").released_at == 5
    for base in (0, 2):
        with pytest.raises(ProtocolViolation, match=naming("versions 1 1")):
            machine.handle(pushed("a-1#1", 6.0, 0, base))
    machine.handle(pushed("a-1#1", 6.0, 0, 1))


def test_who_waits_is_not_released_by_a_resumption():
    machine, _ = begun("bsp")
    before = machine.roster.telemetry("a-0#1").released_at
    machine.resume(5.0)
    assert list(machine.roster.held) == ["a-0#1"]
    assert machine.roster.telemetry("a-0#1").released_at == before
    assert machine.roster.live["a-0#1"].base == machine.roster.published


@pytest.mark.parametrize("at", [0.5, float("inf")])
def test_a_cut_does_not_lie_before_the_latest_event(at):
    machine, _ = begun()
    with pytest.raises(ProtocolViolation, match="it resumes"):
        machine.resume(at)


def test_the_machines_of_all_stages_resume():
    stages = machine_of(make("decoupled", modules=2, groups=1, sync="bsp"), 1000)
    stages.handle(Joined(at=0.0, worker="m1/a-0#1"))
    stages.resume(3.0)
    assert {machine.roster.now for machine in stages.machines.values()} == {3.0}


@pytest.mark.parametrize("exact", [False, True])
def test_a_replay_resumes_where_the_run_did(exact):
    """A step that went on in virtual time has the weights that it had."""
    machine, lines = begun()
    lines += [Checkpointed(5.0, 1), Resumed(5.0, 1, 30.0, 2.0, 4, exact)]
    assert [decode(encode(line)) for line in lines[-2:]] == lines[-2:]
    if not exact:
        machine.resume(5.0)
    event = pushed("a-1#1", 6.0, 0, 0 if exact else 1)
    lines.append(Entry(event, tuple(machine.handle(event))))
    assert replay(journal(machine, lines), rebuild).difference is None
    if not exact:
        stale = Entry(pushed("a-1#1", 6.0, 0, 0), lines[-1].decisions)
        difference = replay(journal(machine, [*lines[:-1], stale]), rebuild).difference
        assert tells(difference, "versions 1 1")


def test_a_snapshot_shows_its_roster_and_a_checkpoint_its_workers():
    machine, _ = begun()
    assert roster_in(machine.snapshot()).dump() == machine.roster.dump()
    checkpoint = Checkpoint(1, 5.0, {"workers": {"a-0": "a-0#2"}}, {})
    assert checkpoint.workers == {"a-0": "a-0#2"}
