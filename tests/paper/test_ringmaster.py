"""Ringmaster ASGD (2501.16168) around other rules."""

from dataclasses import dataclass

import pytest

from raysync.config import ParadigmChoice
from raysync.core.decisions import Drop, Release, SetTimer, Switch
from raysync.core.machine import Machine
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.paradigms.asp import ASP
from raysync.testing.drive import Drive
from tests.builders.messages import Telling, naming, tells
from tests.builders.paradigms import GLOBAL
from tests.builders.schedules import applied, released
from tests.builders.virtual import replayed, run, timed

R = 3


def after(updates, paradigm, staleness=R - 1):
    """Drive in which b's push arrives that many updates after its weights."""
    drive = Drive(make("ringmaster", paradigm=paradigm, staleness=staleness), "a#1", "b#1")
    for _ in range(updates):
        drive.push("a#1")
    assert drive.roster.version == updates
    return drive


def test_a_shorter_delay_than_r_is_applied_and_r_is_not():
    """tau < R: a step, else the gradient is ignored, and the worker restarts at the current model;
    R = staleness + 1.
    """
    assert applied(after(R - 1, "asp").push("b#1")) == [(("b#1", 0),)]
    assert after(R, "asp").push("b#1") == [
        Drop(("b#1", 0), Telling("stale: 3 2"), "stale"),
        Release("b#1", clock=1, version=R, lead=0),
    ]
    assert tells(after(1, "asp", staleness=0).push("b#1")[0].why, "stale: 1 0")


def test_what_restarts_is_no_longer_stale():
    drive = after(R, "asp")
    drive.push("b#1")
    assert applied(drive.push("b#1")) == [(("b#1", 1),)]


def test_the_inner_rule_keeps_the_rest():
    drive = after(1, {"name": "ssp", "staleness": 0}, staleness=0)
    assert drive.roster.held, "a waits for b, as under ssp"
    assert tells(drive.machine.paradigm.explain(drive.roster, "a#1"), "1 slowest (b#1) 0")


def test_a_dropped_push_is_no_step_to_the_inner_rule():
    """No lead counts it, so that the inner bounds hold, also for the worker that begins again."""
    drive = after(1, {"name": "ssp", "staleness": 0}, staleness=0)
    answer = drive.push("b#1")
    assert (released(answer), list(drive.roster.held)) == (["b#1"], ["a#1"])
    assert (drive.roster.lead("a#1"), drive.roster.lead("b#1")) == (1, 0)
    assert answer[-1].clock == 1, "its batches go on"
    answer = drive.push("b#1")
    assert applied(answer) == [(("b#1", 1),)]
    assert released(answer) == ["a#1", "b#1"], "the round is over"
    assert drive.roster.lead("b#1") == 0


def test_who_is_dropped_is_released_at_the_lead_of_its_release_before():
    paradigm = make("ringmaster", paradigm={"name": "ssp", "staleness": 1}, staleness=1)
    drive = Drive(paradigm, "a#1", "b#1", "c#1", "slow#1")
    for worker in ("a#1", "b#1", "b#1", "c#1", "c#1"):
        drive.push(worker)
    assert drive.roster.lead("a#1") == 1
    drop, release = drive.push("a#1")
    assert (type(drop), release.worker, release.lead) == (Drop, "a#1", 1)


def test_only_a_push_that_has_just_arrived_is_no_step():
    """Others have measured their leads by an older one."""
    drive = Drive(make("hybrid", k=3), "a#1", "b#1", "c#1")
    drive.push("a#1")
    drive.push("b#1")
    drive.roster.execute(Drop(("a#1", 0), "too late", "stale"))
    assert drive.roster.lead("a#1") == 1


def test_no_push_waits_for_ever_beyond_the_tolerance_of_hybrid():
    """A worker of 3.7 s leaves weights behind that are pulled every third time only."""
    inner = {"name": "hybrid", "k": 2, "staleness_tolerance": 0, "pull_interval": 3}
    training = timed(
        workers=[{"name": name, "step_s": s} for name, s in zip("abc", (1, 1, 3.7), strict=True)],
        workload={"iterations_per_worker": 30},
    )
    choice = ParadigmChoice(name="ringmaster", staleness=0, paradigm=inner)
    lines = run(training, choice)
    assert lines[-1].status == "finished"
    assert replayed(training, lines, choice).difference is None


def test_a_step_that_is_made_again_has_the_size_that_the_inner_rule_gave_it():
    sized = {"name": "balanced", "paradigm": "asp"}
    drive = Drive(make("ringmaster", paradigm=sized, staleness=0), "a#1", "b#1")
    drive.push("a#1", samples=5)
    [_, release] = drive.push("b#1", samples=7)
    assert release.batch_size == 7


def test_a_push_on_the_published_weights_is_never_dropped():
    """Else nobody would get through: workers pull version 1, which stays published for ten
    updates.
    """
    inner = GLOBAL | {"k": 1, "pull_interval": 10}
    drive = Drive(make("ringmaster", paradigm=inner, staleness=2), "a#1", "b#1")
    answers = [drive.push("a#1") for _ in range(11)]
    assert all(len(applied(answer)) == 1 for answer in answers)
    assert drive.roster.published == drive.roster.version == 11
    answer = drive.push("b#1")
    assert answer == [
        Drop(("b#1", 0), Telling("stale: 11 2"), "stale"),
        Release("b#1", clock=1, version=11, lead=0),
    ]


def test_a_snapshot_holds_the_inner_state():
    inner = {"name": "hybrid", "k": 2, "pull_interval": 3}
    drive = Drive(make("ringmaster", paradigm=inner), "a#1", "b#1")
    drive.push("a#1")
    drive.leave("a#1")
    machine, paradigm = drive.machine, drive.machine.paradigm
    state = {"inner": {"left_behind": [["a#1", 0]], "releases": {"b#1": 1}, "updates": 0}}
    assert paradigm.state() == state
    assert paradigm.parameters() == {"paradigm": inner, "staleness": 8}
    fresh = make("ringmaster", **paradigm.parameters())
    assert Machine.restore(machine.snapshot(), fresh).paradigm.state() == state


@dataclass
class Timed(ASP):
    """Switches when its timer fires."""

    name = "timed"

    def on_join(self, roster, worker):
        return [Release(worker), SetTimer("now", roster.now)]

    def on_timer(self, roster, key):
        return [Switch(key, "it is time")]

    def on_switch(self, roster):
        return [SetTimer("again", roster.now + 1)]

    def infeasible_reason(self, workers):
        return f"{workers} are odd" if workers % 2 else ""

    def phases(self):
        return ("early", "late")


@dataclass
class Switching(ASP):
    name = "sync-switch"


def test_timers_switches_and_settings_are_the_inner_rules():
    paradigm = make("ringmaster", paradigm=f"{__name__}:Timed")
    assert paradigm.phases() == ("early", "late")
    reasons = [paradigm.infeasible_reason(workers) for workers in (2, 3)]
    assert reasons == ["", "timed: 3 are odd"]
    drive = Drive(paradigm, "a#1")
    assert drive.tick("now") == [Switch("now", "it is time"), SetTimer("again", 1.0)]
    assert drive.leave("a#1") == []


@pytest.mark.parametrize(
    ("paradigm", "says"),
    [
        ("spp", "ringmaster: paradigm: 'spp' 'ssp'"),
        ({"name": "ssp", "staleness": -1}, "ringmaster: paradigm: ssp: staleness: -1"),
        ({"staleness": 1}, ("ringmaster: paradigm: {'staleness': 1} {name: staleness: 3}")),
        (
            {"name": "balanced", "paradigm": "sync-switch"},
            "paradigm ringmaster: paradigm: sync-switch",
        ),
        (f"{__name__}:Switching", ("ringmaster: paradigm: inside: first:")),
    ],
)
def test_an_inner_rule_that_cannot_be_says_why(paradigm, says):
    with pytest.raises(ConfigError, match=naming(says)):
        make("ringmaster", paradigm=paradigm)
