"""Whom faults at_step, when, and how step times vary: functions of the seed and of the key that the
fault names.
"""

from itertools import pairwise
from math import exp, log
from statistics import fmean, stdev

import pytest

from raysync import config
from raysync.config import Jitter, Link
from raysync.emulation.fault_plan import FaultPlan
from raysync.emulation.step_time import SHORTEST, StepTime, jitter_of, one_way_s
from raysync.randomness import standard_normal
from raysync.step_fault import NO_FAULT, StepFault

SLOW = {"kind": "slow-down", "factor": 2}
KILL = {"kind": "kill"}
WORKERS = [{"name": "fast", "count": 3}, {"name": "slow", "count": 2}]
SLOTS = ["fast-0", "fast-1", "fast-2", "slow-0", "slow-1"]


def faults(*given, seed=0):
    return FaultPlan(config.validate({"workers": WORKERS, "seed": seed, "faults": list(given)}))


def slot_fault(plan, by="clock", keys=range(40), slots=SLOTS):
    """Slot -> the keys at which a step is slowed down."""
    return {
        slot: [
            key
            for key in keys
            if plan.at_step(slot, *((key, 0.0) if by == "clock" else (0, key))).factor != 1
        ]
        for slot in slots
    }


@pytest.mark.parametrize(
    ("spell", "by", "keys"),
    [
        ({}, "clock", list(range(40))),
        ({"clocks": [5, None]}, "clock", list(range(5, 40))),
        ({"clocks": [5, 8]}, "clock", [5, 6, 7]),
        ({"clocks": [0, 1]}, "clock", [0]),
        ({"start_s": 5}, "seconds", list(range(5, 40))),
        ({"start_s": 5, "lasts_s": 3}, "seconds", [5, 6, 7]),
        ({"lasts_s": 0.5}, "seconds", [0]),
    ],
)
def test_a_single_spell_begins_with_its_start_and_ends_before_its_end(spell, by, keys):
    assert slot_fault(faults(SLOW | spell), by) == dict.fromkeys(SLOTS, keys)


@pytest.mark.parametrize(
    ("whom", "slots"),
    [
        ({}, SLOTS),
        ({"workers": ["fast"]}, SLOTS[:3]),
        ({"workers": ["fast-1", "slow"]}, ["fast-1", "slow-0", "slow-1"]),
    ],
)
def test_faults_affect_slots_and_groups(whom, slots):
    assert [slot for slot, keys in slot_fault(faults(SLOW | whom)).items() if keys] == slots


def test_a_count_draws_that_many_by_the_seed():
    def affected(plan, divisor=2):
        return tuple(slot for slot in SLOTS if plan.at_step(slot, 0, 0.0).factor % divisor == 0)

    drawn = [
        affected(faults(SLOW | {"count": 2, "workers": ["fast"]}, seed=seed)) for seed in range(20)
    ]
    assert all(len(slots) == 2 and set(slots) < set(SLOTS[:3]) for slots in drawn)
    assert len(set(drawn)) == 3, "over twenty seeds, every pair"
    primes = (2, 3, 5, 7, 11, 13)
    several = faults(*(SLOW | {"count": 2, "factor": prime} for prime in primes))
    pairs = [affected(several, prime) for prime in primes]
    assert {len(pair) for pair in pairs} == {2}
    assert len(set(pairs)) > 1, "each fault draws for itself"


def test_spells_a_number_of_times():
    """Each slot has its own three spells of 2 that begin between 500 and 1000; they may overlap."""
    plan = faults(SLOW | {"times": 3, "start_s": 500, "end_s": 1000, "lasts_s": 2})
    keys = slot_fault(plan, "seconds", range(1100))
    assert len({tuple(one) for one in keys.values()}) == len(SLOTS), "every slot has its own"
    assert all(3 <= len(one) <= 6 and one[0] >= 500 and one[-1] < 1002 for one in keys.values())
    assert sum(map(len, keys.values())) == pytest.approx(6 * len(SLOTS), abs=3)
    assert stdev(key for one in keys.values() for key in one) > 100, (
        "anywhere between start and end"
    )


def test_poisson_spells_have_the_mean_gap_and_end():
    plan = faults(SLOW | {"start_s": 100, "end_s": 20_100, "lasts_s": 1, "mean_gap_s": 50})
    keys = slot_fault(plan, "seconds", range(21_000))
    for slot, one in keys.items():
        begun = plan._slot_faults[slot][0].windows._past_starts
        gaps = [b - a for a, b in zip([100, *begun], begun, strict=False)]
        assert fmean(gaps) == pytest.approx(50, rel=0.15)
        assert stdev(gaps) == pytest.approx(50, rel=0.2), "as long as the mean: exponential"
        assert begun[0] >= 100
        assert begun[-1] < 20_100
        assert len(one) == pytest.approx(20_000 * (1 - exp(-1 / 50)), rel=0.15)


def test_the_order_of_questions_does_not_matter():
    spells = SLOW | {"mean_gap_s": 7, "lasts_s": 3}
    forwards, backwards = faults(spells), faults(spells)
    there = [forwards.at_step("fast-0", 0, at) for at in range(200)]
    assert there == [backwards.at_step("fast-0", 0, at) for at in reversed(range(200))][::-1]
    assert len(set(there)) == 2


def test_latency_is_added_and_faults_compose():
    plan = faults(
        SLOW | {"clocks": [1, 3]},
        SLOW | {"factor": 5, "clocks": [2, None]},
        {"kind": "latency", "added_s": 0.25},
        {"kind": "latency", "added_s": 0.5, "clocks": [3, None]},
    )
    felt = [plan.at_step("fast-0", clock, 0.0) for clock in range(4)]
    assert [(one.factor, one.latency_s) for one in felt] == [
        (1, 0.25),
        (2, 0.25),
        (10, 0.25),
        (5, 0.75),
    ]
    assert faults().at_step("fast-0", 3, 1.0) is NO_FAULT


def test_drift_wanders_between_0_and_added_s_without_a_jump():
    plan = faults({"kind": "drift", "added_s": 2, "period_s": 10})
    where = {
        slot: [plan.at_step(slot, 0, float(key)).latency_s for key in range(2001)]
        for slot in ("fast-0", "slow-0")
    }
    for path in where.values():
        assert 0 <= min(path) < 0.2
        assert 1.8 < max(path) <= 2
        steps = [b - a for a, b in pairwise(path)]
        assert max(map(abs, steps)) <= 2 / 10 + 1e-12
        lines = [steps[n : n + 10] for n in range(0, 2000, 10)]
        assert all(step == pytest.approx(line[0], abs=1e-9) for line in lines for step in line), (
            "a line between draws"
        )
        assert fmean(path) == pytest.approx(1, abs=0.15)
    assert where["fast-0"] != where["slow-0"]


def test_drift_may_begin_by_clock_and_wanders_by_seconds():
    plan = faults({"kind": "drift", "added_s": 2, "period_s": 1, "clocks": [10, None]})
    assert plan.at_step("fast-0", 9, 3.0) is NO_FAULT
    assert (
        plan.at_step("fast-0", 10, 3.0)
        == plan.at_step("fast-0", 99, 3.0)
        != plan.at_step("fast-0", 99, 4.0)
    )


def test_speed_drifts_by_a_reflected_random_walk():
    """Its logarithm: steps of 0.05 on average 0, a line between them, and within log 1.5."""
    plan = faults({"kind": "speed-drift", "sigma": 0.05, "most": 1.5, "period_s": 4})
    where = {
        slot: [log(plan.at_step(slot, 0, float(key)).factor) for key in range(12_001)]
        for slot in ("fast-0", "slow-0")
    }
    for path in where.values():
        assert path[0] == 0
        steps = [b - a for a, b in pairwise(path[::4])]
        assert fmean(steps) == pytest.approx(0, abs=0.003)
        assert stdev(steps) == pytest.approx(0.05, rel=0.05)
        assert path[2::4] == pytest.approx([(a + b) / 2 for a, b in pairwise(path[::4])])
        # A reflected walk is uniform between its ends in the long run.
        assert -log(1.5) <= min(path) < -0.38
        assert 0.38 < max(path) <= log(1.5)
        assert stdev(path) == pytest.approx(2 * log(1.5) / 12**0.5, rel=0.25)
    assert where["fast-0"] != where["slow-0"]


def test_a_walk_goes_on_from_its_end():
    """The place after 3 steps is that after 2, and a step: near the middle nothing is reflected."""
    sigma, plan = 0.01, faults({"kind": "speed-drift", "sigma": 0.01, "period_s": 1}, seed=5)
    steps = [sigma * standard_normal(5, "trouble 0 walk", "fast-0", number) for number in (1, 2, 3)]
    walked = [log(plan.at_step("fast-0", 0, at).factor) for at in (3.0, 2.0, 1.0)]
    assert walked == pytest.approx([sum(steps), sum(steps[:2]), steps[0]])


def test_another_seed_and_another_place_in_the_list_mean_other_spells():
    spells = SLOW | {"mean_gap_s": 5, "lasts_s": 1}

    def slowed(*given, seed=0):
        return slot_fault(faults(*given, seed=seed), "seconds")

    assert slowed(spells) == slowed(spells)
    assert slowed(spells) != slowed(spells, seed=1)
    assert slowed(spells) != slowed({"kind": "latency", "added_s": 1}, spells)


def test_crashes_at_a_clock_come_once_each_the_earliest_first():
    crash = {"kind": "crash", "worker": "fast-0"}
    plan = faults(
        crash | {"at_clock": 5},
        crash | {"at_clock": 2},
        crash | {"at_s": 1},
        crash | {"at_clock": 2},
    )
    assert [plan.pop_crash("fast-0", clock) for clock in (0, 1, 3, 3, 3, 9, 9)] == [
        None,
        None,
        1,
        3,
        None,
        0,
        None,
    ]
    assert plan.pop_crash("fast-1", 9) is None
    assert sorted(plan.crashes) == [0, 1, 2, 3]


def kills_of(plan, slot, until=1000.0):
    """When the worker of a slot is killed, and by which fault."""
    found, at = [], -1.0
    while (kill := plan.next_kill(slot, at)) is not None and (at := kill[0]) < until:
        found.append(kill)
    return found


def test_kills_are_as_many_as_was_asked_and_lie_in_their_interval():
    plan = faults(
        KILL | {"times": 5, "start_s": 100, "end_s": 200, "workers": ["fast"]},
        KILL | {"at_s": 0, "count": 2},
        KILL | {"at_s": 150, "workers": ["fast-0"]},
    )
    for slot in SLOTS:
        kills = [at for at, index in kills_of(plan, slot) if index == 0]
        assert len(set(kills)) == (5 if slot.startswith("fast") else 0)
        assert all(100 < at < 200 for at in kills)
        assert kills_of(plan, slot) == [], "the past does not come back"
    plan = faults(KILL | {"at_s": 0, "count": 2}, KILL | {"at_s": 150, "workers": ["fast-0"]})
    assert sum((0, 0) in kills_of(plan, slot) for slot in SLOTS) == 2
    plan = faults(KILL | {"at_s": 7}, KILL | {"at_s": 150, "workers": ["fast-0"]})
    assert kills_of(plan, "fast-0") == [(7, 0), (150, 1)]


def test_kills_by_a_mean_gap_are_a_poisson_process_of_each_worker():
    """Exponential gaps: their mean and their deviation are alike; no two workers have the same."""
    plan = faults(KILL | {"mean_gap_s": 2, "start_s": 10, "end_s": 4000})
    all_kills = {slot: [at for at, _ in kills_of(plan, slot, 1e9)] for slot in SLOTS}
    gaps = [b - a for kills in all_kills.values() for a, b in pairwise([10, *kills])]
    assert fmean(gaps) == pytest.approx(2, rel=0.05)
    assert stdev(gaps) == pytest.approx(2, rel=0.05)
    assert all(kills[0] > 10 and 3900 < kills[-1] < 4000 for kills in all_kills.values())
    assert len({kills[0] for kills in all_kills.values()}) == len(SLOTS)
    assert kills_of(faults(KILL | {"mean_gap_s": 2}, seed=1), "fast-0") != kills_of(
        faults(KILL | {"mean_gap_s": 2}), "fast-0"
    )


def test_what_nobody_met_is_described_as_the_file_has_it():
    plan = faults(
        SLOW,
        SLOW | {"clocks": [90, None]},
        {"kind": "crash", "worker": "slow-1", "at_s": 7},
        {"kind": "latency", "added_s": 1, "workers": ["slow"]},
    )
    plan.at_step("fast-0", 0, 0.0)
    assert plan.without_effect() == (
        "faults[1] {clocks: [90, null], kind: slow-down, factor: 2.0}",
        "faults[2] {kind: crash, worker: slow-1, at_s: 7.0}",
        "faults[3] {workers: [slow], kind: latency, added_s: 1.0}",
    )
    plan.at_step("slow-0", 90, 0.0)
    plan.mark_effective(2)
    assert plan.without_effect() == ()


@pytest.mark.parametrize(
    ("jitter", "spread"),
    [
        ({"distribution": "exponential"}, 1.0),
        # m = (a - 1) / a: m^2 a / (a - 2) - 1 = 1 / (a (a - 2))
        ({"distribution": "pareto", "tail": 6}, 24**-0.5),
        ({"distribution": "empirical", "samples": [3, 1, 2]}, (2 / 3) ** 0.5 / 2),
        ({"distribution": "lognormal", "sigma": 0.5}, (exp(0.25) - 1) ** 0.5),
        ({"distribution": "normal", "sigma": 0.2}, 0.2),
        ({"sigma": 0}, 0),
        ({"distribution": "none", "sigma": 1}, 0),
    ],
    ids=lambda value: value.get("distribution", "default") if isinstance(value, dict) else None,
)
def test_jitter_has_mean_1(jitter, spread):
    factors = [
        jitter_of(Jitter(**jitter), 0, f"w-{slot}")(clock)
        for slot in range(4)
        for clock in range(2500)
    ]
    assert fmean(factors) == pytest.approx(1, abs=0.03 * spread + 1e-12)
    assert stdev(factors) == pytest.approx(spread, rel=0.05)
    assert min(factors) > 0


def test_the_tail_of_a_pareto_jitter():
    """Above x are (m / x)^1.5 of the factors, with m = 1/3: 1 / 27 above 3, 1 / 216 above 12."""
    jitter = jitter_of(Jitter(distribution="pareto", tail=1.5), 0, "w-0")
    factors = [jitter(clock) for clock in range(40_000)]
    assert min(factors) == pytest.approx(1 / 3, rel=1e-3)
    for x, share in ((1 / 3 * 4 ** (2 / 3), 1 / 4), (3, 1 / 27), (12, 1 / 216)):
        assert fmean(factor > x for factor in factors) == pytest.approx(share, rel=0.15)


def test_an_empirical_jitter_draws_the_samples_over_their_mean():
    jitter = jitter_of(Jitter(distribution="empirical", samples=[0.1, 0.1, 0.4]), 0, "w-0")
    factors = [round(jitter(clock), 9) for clock in range(3000)]
    assert set(factors) == {0.5, 2.0}
    assert factors.count(2.0) == pytest.approx(1000, rel=0.1)


def test_a_normal_jitter_is_cut():
    factors = [
        jitter_of(Jitter(distribution="normal", sigma=2), 0, "w-0")(clock) for clock in range(200)
    ]
    assert min(factors) == SHORTEST


@pytest.mark.parametrize(
    ("group", "seconds"),
    [
        ({}, 8),
        ({"speed": 2}, 4),
        ({"step_s": 3}, 3),
        ({"step_s": 3, "speed": 0.5}, 6),
        ({"trace": [1, 2, 3], "speed": 2}, 1.5),
        ({"per_sample_s": 0.5}, 4),
    ],
)
def test_a_step_lasts_as_long_as_its_group_says(group, seconds):
    """Slot 0 at clock 2; the step itself took 8 s here, and the batch has 8 samples."""
    group = config.WorkerGroup(**group)
    step_time = StepTime(group, 0, "worker-0", batch_size=8)
    assert step_time.seconds(2, 8, computed_s=8) == seconds
    assert step_time.seconds(2, 8, factor=10, computed_s=8) == 10 * seconds
    # The 8 s are those of the half already.
    half = seconds / 2 if group.emulates_steps else seconds
    assert step_time.seconds(2, 4, computed_s=8) == half


@pytest.mark.parametrize(
    ("size", "seconds"), [(1, 3.0), (4, 3.0), (8, 4.0), (9, 4.25), (16, 6.0), (64, 18.0)]
)
def test_a_step_has_a_fixed_part_a_part_a_sample_and_a_floor(size, seconds):
    """max(3, 2 + b / 4): the floor holds up to 4 samples; 8 take 2 + 2, 16 take 2 + 4."""
    described = {"fixed_s": 2, "per_sample_s": 0.25, "floor_s": 3}
    step_time = StepTime(config.WorkerGroup(**described), 0, "worker-0", batch_size=8)
    assert step_time.seconds(5, size, computed_s=99) == seconds
    assert step_time.seconds(5, size, factor=1.5) == 1.5 * seconds
    fast = config.WorkerGroup(**described, speed=4)
    assert StepTime(fast, 0, "worker-0", 8).seconds(5, size) == seconds / 4, "all of it"


def test_one_way_is_latency_and_bytes_over_bandwidth():
    assert (
        one_way_s(Link(latency_s=0.5, bandwidth_bytes_per_s=4), 10, StepFault(latency_s=0.25))
        == 0.75 + 2.5
    )
    assert one_way_s(Link(latency_s=0.5), 10) == 0.5
