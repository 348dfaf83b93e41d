"""Local steps around other paradigms: local SGD, DiLoCo, and DyLU (arXiv 2401.09135)."""

from dataclasses import dataclass

import pytest

from raysync.core.capability import Capability
from raysync.core.decisions import Apply, Release
from raysync.core.events import Pushed
from raysync.core.machine import Machine
from raysync.errors import ConfigError, IllegalDecision
from raysync.paradigms import make
from raysync.paradigms.asp import ASP
from raysync.paradigms.local import steps_per_push
from raysync.testing.drive import SAMPLES, Drive
from tests.builders.messages import naming
from tests.builders.schedules import applied, batch_sizes, joins, of, released, simulate

FAST, HALF, FIFTH = "w-0#1", "w-1#1", "w-2#1"


def by_speed(*workers, steps=8):
    return Drive(make("local", paradigm="asp", steps=steps, by="speed"), *workers)


def steps_in(decisions):
    """Worker -> the steps of its release."""
    return {release.worker: release.steps for release in of(Release, decisions)}


def steps_by_speed(step_s, pushes=60, **parameters):
    """Worker -> the steps of its iterations under `by: speed`, in order."""
    steps = {worker: [] for worker in step_s}
    machine = Machine(make("local", by="speed", **parameters))
    for _, decisions in simulate(machine, joins(*step_s), lambda worker, _: step_s[worker], pushes):
        for worker, count in steps_in(decisions).items():
            steps[worker].append(count)
    return steps


def test_every_iteration_has_as_many_steps():
    drive = Drive(make("local", steps=5))
    assert drive.join(FAST) == [Release(FAST, clock=0, version=0, steps=5, lead=0)]
    drive.join(HALF)
    assert not released(drive.push(FAST, busy_s=1))
    decisions = drive.push(HALF, busy_s=100)
    assert applied(decisions) == [((FAST, 0), (HALF, 0))]
    assert steps_in(decisions) == {FAST: 5, HALF: 5}, "speeds do not matter"
    assert drive.roster.samples_applied == 2 * 5 * SAMPLES


def test_the_steps_are_in_proportion_to_the_speed():
    """DyLU: steps_i = floor(v_i / v_max H), so that all take as long."""
    steps = steps_by_speed({FAST: 0.1, HALF: 0.2, FIFTH: 0.5}, paradigm="asp", steps=32)
    assert {worker: counts[0] for worker, counts in steps.items()} == dict.fromkeys(steps, 32), (
        "nobody is measured yet"
    )
    assert {worker: set(counts[2:]) for worker, counts in steps.items()} == {
        FAST: {32},
        HALF: {16},
        FIFTH: {6},
    }


@pytest.mark.parametrize(("slow_s", "steps"), [(0.3, 10), (0.375, 8), (0.4, 7), (0.376, 7)])
def test_a_whole_number_of_steps_is_not_lost_to_rounding(slow_s, steps):
    """10 x (0.3 / 0.375) is 7.999999999999999."""
    assert steps_by_speed({FAST: 0.3, HALF: slow_s}, steps=10)[HALF][-1] == steps


def test_there_is_a_floor():
    """In the program of the paper it is 5."""
    steps = steps_by_speed({FAST: 0.1, HALF: 10.0}, steps=32, floor=5)
    assert set(steps[HALF][1:]) == {5}
    assert set(steps_by_speed({FAST: 0.1, HALF: 10.0}, steps=32)[HALF][1:]) == {1}


def test_speeds_are_smoothed_as_those_of_balanced():
    """From 1 s a step to 4: 1 + 0.3 x 3 = 1.9, and 32 / 1.9 = 16.8."""
    drive = Drive(make("local", steps=32, by="speed"), FAST, HALF)
    for at, half_s in ((32, 32), (160, 128)):
        drive.push(FAST, at, busy_s=32)
        decisions = drive.push(HALF, at, busy_s=half_s)
    assert steps_in(decisions) == {FAST: 32, HALF: 16}


def test_who_takes_no_time_counts_as_fast():
    drive = by_speed(FAST, HALF)
    drive.push(HALF, 8, busy_s=8)
    assert steps_in(drive.push(FAST, 8, busy_s=0)) == {FAST: 8}
    assert steps_in(drive.push(HALF, 16, busy_s=8)) == {HALF: 8}, "the fastest that was measured"


def test_the_next_life_of_a_slot_has_its_speed():
    drive = by_speed(FAST, HALF)
    drive.push(FAST, 8, busy_s=8)
    assert steps_in(drive.push(HALF, 16, busy_s=16)) == {HALF: 4}
    drive.leave(HALF)
    assert steps_in(drive.join("w-1#2")) == {"w-1#2": 4}
    assert steps_in(drive.join("w-7#1")) == {"w-7#1": 8}, "of which nothing is known"


def test_when_the_fastest_has_left_the_next_one_makes_all_steps():
    drive = by_speed(FAST, HALF)
    drive.push(FAST, 8, busy_s=8)
    drive.push(HALF, 16, busy_s=16)
    drive.leave(FAST)
    assert steps_in(drive.push(HALF, 24, busy_s=8)) == {HALF: 8}
    drive.join("w-0#2")
    assert steps_in(drive.push("w-0#2", 32, busy_s=8)) == {"w-0#2": 8}
    assert steps_in(drive.push(HALF, 40, busy_s=16)) == {HALF: 4}
    drive.leave("w-0#2")
    drive.leave(HALF)
    assert steps_in(drive.join("w-9#1")) == {"w-9#1": 8}, "nobody is there who was measured"


def test_the_next_fastest_is_found_as_soon_as_the_fastest_has_left():
    drive = by_speed(FAST, HALF, FIFTH, "w-3#1")
    drive.push(FAST, 8, busy_s=8)
    drive.push(HALF, 16, busy_s=16)
    drive.leave(FAST)
    assert steps_in(drive.push(HALF, 24, busy_s=8)) == {HALF: 8}


def test_nobody_makes_more_steps_than_the_fastest():
    """FAST has slowed down, and HALF, which is now faster, was not compared with it yet."""
    quorum = {"name": "quorum", "k": 2}
    drive = Drive(make("local", paradigm=quorum, steps=8, by="speed"), FAST, HALF, FIFTH)
    drive.push(HALF, 16, busy_s=16)
    drive.push(FAST, 16, busy_s=8)
    drive.push(HALF, 32, busy_s=8)
    decisions = drive.push(FAST, 9000, busy_s=8000)
    assert steps_in(decisions) == {HALF: 8, FAST: 8}


def test_another_becomes_the_fastest():
    """The one that was is slower now: who is the fastest is asked after a push of each."""
    drive = by_speed(FAST, HALF, steps=10)
    drive.push(FAST, 10, busy_s=10)
    drive.push(HALF, 20, busy_s=20)
    seen = []
    for at in range(1, 12):
        seen.append(steps_in(drive.push(FAST, 1000 * at, busy_s=1000))[FAST])
        seen_half = steps_in(
            drive.push(HALF, 1000 * at, busy_s=2 * drive.roster.members[HALF].steps)
        )
    assert seen_half == {HALF: 10}
    assert seen[-1] == 1


def test_what_the_inner_paradigm_decides_stays():
    drive = Drive(make("local", paradigm={"name": "hybrid", "k": 1, "pull_interval": 2}), FAST)
    releases = [drive.push(FAST)[-1] for _ in range(4)]
    assert [each.pull for each in releases] == [False, True, False, True]
    balanced = make("local", paradigm="balanced", steps=4)
    assert [what for what, _ in balanced.demands()] == [
        Capability.LOCAL_STEPS,
        Capability.BATCH_SIZE,
    ]
    drive = Drive(balanced, FAST, HALF)
    drive.push(FAST, 8, busy_s=8)
    decisions = drive.push(HALF, 24, busy_s=24)
    assert batch_sizes(decisions) == [48, 16]
    assert steps_in(decisions) == {FAST: 4, HALF: 4}
    assert make("local", paradigm={"name": "k-sync", "k": 3}).infeasible_reason(2)


def test_balanced_around_it_divides_the_batch_of_a_step():
    drive = Drive(make("balanced", paradigm={"name": "local", "steps": 4}), FAST, HALF)
    drive.push(FAST, 8, busy_s=8)
    decisions = drive.push(HALF, 24, busy_s=24)
    assert batch_sizes(decisions) == [48, 16]
    assert steps_in(decisions) == {FAST: 4, HALF: 4}
    assert drive.machine.paradigm.own == {"w-0": SAMPLES, "w-1": SAMPLES}
    near = Drive(make("balanced", paradigm={"name": "local", "steps": 4}), FAST, HALF)
    near.push(FAST, 128, busy_s=128)
    decisions = near.push(HALF, 208, busy_s=128)  # 80 s of them on the way, 20 for each step
    assert batch_sizes(decisions) == [42, 22], "as without local steps"


def test_what_ringmaster_drops_is_as_many_steps_again():
    inner = {"name": "balanced", "paradigm": {"name": "local", "paradigm": "asp", "steps": 3}}
    drive = Drive(make("ringmaster", paradigm=inner, staleness=0), FAST, HALF)
    drive.push(FAST)
    assert drive.push(HALF)[-1] == Release(
        HALF, clock=1, version=1, batch_size=SAMPLES, steps=3, lead=0
    )


def test_post_local_sgd_is_a_switch():
    """BSP first, then local SGD (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD")."""
    post = make("sync-switch", first="bsp", then={"name": "local", "steps": 8}, fraction=0.5)
    assert post.phases() == ("bsp", "local")
    assert [what for what, _ in post.demands()] == [Capability.LOCAL_STEPS]
    seen = []
    for event, decisions in simulate(
        Machine(post, 8 * SAMPLES), joins(FAST, HALF), lambda *_: 1.0, 8
    ):
        seen += [(event.at, each.phase, len(each.pushes)) for each in of(Apply, decisions)]
        assert not isinstance(event, Pushed) or event.steps == (1 if event.at <= 2 else 8)
    assert seen == [(1, "bsp", 2), (2, "bsp", 2), (10, "local", 2), (18, "local", 2)]


def test_a_restored_machine_goes_on():
    parameters = {"paradigm": "asp", "steps": 8, "by": "speed"}
    drive = Drive(make("local", **parameters), FAST, HALF)
    drive.push(FAST, 8.0, busy_s=8.0)
    drive.push(HALF, 16.0, busy_s=16.0)
    snapshot = drive.machine.snapshot()
    restored = Machine.restore(snapshot, make("local", **parameters))
    assert restored.snapshot() == snapshot
    assert restored.paradigm.step_s == {"w-0": 1.0, "w-1": 2.0}


@dataclass
class Stepping(ASP):
    """A user's own paradigm that sets steps and does not say so."""

    name = "stepping"

    def on_push(self, roster, push):
        return [Apply((push,)), Release(push[0], steps=3)]


def test_an_inner_paradigm_that_sets_steps_is_refused():
    with pytest.raises(ConfigError, match=naming("ringmaster 8")):
        make("local", paradigm={"name": "ringmaster", "paradigm": "local"})
    drive = Drive(make("local", paradigm=f"{__name__}:Stepping"), FAST)
    with pytest.raises(IllegalDecision, match=naming("Stepping.on_push steps=3")):
        drive.push(FAST)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"steps": 0}, "steps 1"),
        ({"steps": 4, "floor": 5}, "floor: 5 1 4"),
        ({"by": "sped"}, "by 'fixed' 'speed'"),
    ],
)
def test_what_is_wrong_is_named(parameters, says):
    with pytest.raises(ConfigError, match=naming(says)):
        make("local", **parameters)


@pytest.mark.parametrize(
    ("preset", "inner", "steps"),
    [
        ("local-sgd", "bsp", 8),
        ("diloco", "bsp", 32),
        ("async-diloco", "asp", 32),
        ("snoo", "bsp", 32),
    ],
)
def test_the_methods_of_the_literature_have_names(preset, inner, steps):
    paradigm = make(preset)
    assert (paradigm.inner.name, paradigm.steps, paradigm.by) == (inner, steps, "fixed")
    assert make(preset, steps=500).steps == 500


@pytest.mark.parametrize(
    ("paradigm", "parameters", "steps"),
    [
        ("bsp", {}, 7),
        ("local", {"steps": 5}, 5),
        ("ringmaster", {"paradigm": {"name": "local", "steps": 3}}, 3),
        ("decoupled", {}, 7),
    ],
)
def test_an_iteration_has_the_steps_that_a_layer_names_or_the_experiment(
    paradigm, parameters, steps
):
    assert steps_per_push(make(paradigm, **parameters), 7) == steps
