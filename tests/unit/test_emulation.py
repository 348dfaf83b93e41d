"""Whom faults at_step, when, and how step times vary: functions of the seed and of the key that the
fault names.
"""

from itertools import chain, combinations, pairwise
from math import exp, log
from statistics import fmean, stdev

import pytest

from raysync import config
from raysync.config import Jitter
from raysync.emulation.fault_plan import FaultPlan
from raysync.emulation.step_time import SHORTEST, StepTime, jitter_of
from raysync.randomness import standard_normal
from raysync.step_fault import NO_FAULT

SLOW = {"kind": "slow-down", "factor": 2}
KILL = {"kind": "kill"}
WORKERS = [{"name": "fast", "count": 3}, {"name": "slow", "count": 2}]
SLOTS = ["fast-0", "fast-1", "fast-2", "slow-0", "slow-1"]


def faults(*given, seed=0):
    return FaultPlan(config.validate({"workers": WORKERS, "seed": seed, "faults": list(given)}))


def affected(plan, keys=range(40), by="clock", slots=SLOTS):
    """Slot -> the keys, clocks or seconds, at which a step is slowed down."""
    moments = {key: (key, 0.0) if by == "clock" else (0, key) for key in keys}
    return {
        slot: [key for key in keys if plan.at_step(slot, *moments[key]).factor != 1]
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
    assert affected(faults(SLOW | spell), by=by) == dict.fromkeys(SLOTS, keys)


@pytest.mark.parametrize(
    ("whom", "slots"),
    [
        ({}, SLOTS),
        ({"workers": ["fast"]}, SLOTS[:3]),
        ({"workers": ["fast-1", "slow"]}, ["fast-1", "slow-0", "slow-1"]),
    ],
)
def test_faults_affect_slots_and_groups(whom, slots):
    assert [slot for slot, keys in affected(faults(SLOW | whom)).items() if keys] == slots


def test_a_count_draws_that_many_by_the_seed():
    def drawn(*given, divisor=2, seed=0):
        plan = faults(*given, seed=seed)
        return tuple(slot for slot in SLOTS if plan.at_step(slot, 0, 0.0).factor % divisor == 0)

    some = SLOW | {"count": 2, "workers": ["fast"]}
    pairs = {drawn(some, seed=seed) for seed in range(20)}
    assert pairs == set(combinations(SLOTS[:3], 2)), "over twenty seeds, every pair"
    primes = (2, 3, 5, 7, 11, 13)
    several = [SLOW | {"count": 2, "factor": prime} for prime in primes]
    pairs = [drawn(*several, divisor=prime) for prime in primes]
    assert {len(pair) for pair in pairs} == {2}
    assert len(set(pairs)) > 1, "each fault draws for itself"


def test_spells_a_number_of_times():
    """Each slot has its own three spells of 2 that begin between 500 and 1000; they may overlap."""
    plan = faults(SLOW | {"times": 3, "start_s": 500, "end_s": 1000, "lasts_s": 2})
    keys = affected(plan, range(1100), "seconds").values()
    assert len({tuple(one) for one in keys}) == len(SLOTS), "every slot has its own"
    assert all(3 <= len(one) <= 6 and one[0] >= 500 and one[-1] < 1002 for one in keys)
    assert sum(map(len, keys)) == pytest.approx(6 * len(SLOTS), abs=3)
    assert stdev(chain(*keys)) > 100, "anywhere between start and end"


def test_poisson_spells_have_the_mean_gap_and_end():
    """A spell of a second covers a whole second."""
    plan = faults(SLOW | {"start_s": 100, "end_s": 20_100, "lasts_s": 1, "mean_gap_s": 50})
    for begun in affected(plan, range(21_000), "seconds", SLOTS[:2]).values():
        gaps = [b - a for a, b in pairwise([100, *begun])]
        assert fmean(gaps) == pytest.approx(50, rel=0.15)
        assert stdev(gaps) == pytest.approx(50, rel=0.2), "as long as the mean: exponential"
        assert begun[0] >= 100
        assert begun[-1] <= 20_100
        assert len(begun) == pytest.approx(20_000 * (1 - exp(-1 / 50)), rel=0.15)


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
    assert [one.factor for one in felt] == [1, 2, 10, 5]
    assert [one.latency_s for one in felt] == [0.25, 0.25, 0.25, 0.75]
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
    first, same, later = (plan.at_step("fast-0", *at) for at in [(10, 3.0), (99, 3.0), (99, 4.0)])
    assert first == same != later


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
        return affected(faults(*given, seed=seed), by="seconds")

    assert slowed(spells) == slowed(spells)
    assert slowed(spells) != slowed(spells, seed=1)
    assert slowed(spells) != slowed({"kind": "latency", "added_s": 1}, spells)


def test_crashes_at_a_clock_come_once_each_the_earliest_first():
    moments = [{"at_clock": 5}, {"at_clock": 2}, {"at_s": 1}, {"at_clock": 2}]
    plan = faults(*({"kind": "crash", "worker": "fast-0"} | moment for moment in moments))
    popped = [plan.pop_crash("fast-0", clock) for clock in (0, 1, 3, 3, 3, 9, 9)]
    assert popped == [None, None, 1, 3, None, 0, None]
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
        KILL | {"at_s": 7, "count": 2},
        KILL | {"at_s": 150, "workers": ["fast-0"]},
    )
    kills = {slot: kills_of(plan, slot) for slot in SLOTS}
    for slot in SLOTS:
        often = {at for at, index in kills[slot] if index == 0}
        assert len(often) == (5 if slot.startswith("fast") else 0)
        assert all(100 < at < 200 for at in often)
        assert kills_of(plan, slot) == [], "the past does not come back"
    assert sum((7, 1) in found for found in kills.values()) == 2
    assert [slot for slot in SLOTS if (150, 2) in kills[slot]] == ["fast-0"]


def test_kills_by_a_mean_gap_are_a_poisson_process_of_each_worker():
    """Exponential gaps: their mean and their deviation are alike; no two workers have the same."""
    plan = faults(KILL | {"mean_gap_s": 2, "start_s": 10, "end_s": 4000})
    all_kills = {slot: [at for at, _ in kills_of(plan, slot, 1e9)] for slot in SLOTS}
    gaps = [b - a for kills in all_kills.values() for a, b in pairwise([10, *kills])]
    assert fmean(gaps) == pytest.approx(2, rel=0.05)
    assert stdev(gaps) == pytest.approx(2, rel=0.05)
    assert all(kills[0] > 10 and 3900 < kills[-1] < 4000 for kills in all_kills.values())
    assert len({kills[0] for kills in all_kills.values()}) == len(SLOTS)
    drawn = [kills_of(faults(KILL | {"mean_gap_s": 2}, seed=seed), "fast-0") for seed in (0, 1)]
    assert drawn[0] != drawn[1]


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


def factors_of(jitter, count):
    draw = jitter_of(Jitter(**jitter), 0, "w-0")
    return [draw(clock) for clock in range(count)]


def test_the_tail_of_a_pareto_jitter():
    """Above x are (m / x)^1.5 of the factors, with m = 1/3: 1 / 27 above 3, 1 / 216 above 12."""
    factors = factors_of({"distribution": "pareto", "tail": 1.5}, 40_000)
    assert min(factors) == pytest.approx(1 / 3, rel=1e-3)
    for x, share in ((1 / 3 * 4 ** (2 / 3), 1 / 4), (3, 1 / 27), (12, 1 / 216)):
        assert fmean(factor > x for factor in factors) == pytest.approx(share, rel=0.15)


def test_an_empirical_jitter_draws_the_samples_over_their_mean():
    factors = factors_of({"distribution": "empirical", "samples": [0.1, 0.1, 0.4]}, 3000)
    assert {round(factor, 9) for factor in factors} == {0.5, 2.0}
    assert sum(factor > 1 for factor in factors) == pytest.approx(1000, rel=0.1)


def test_a_normal_jitter_is_cut():
    assert min(factors_of({"distribution": "normal", "sigma": 2}, 200)) == SHORTEST


FIXED = {"fixed_s": 2, "per_sample_s": 0.25, "floor_s": 3}
"""max(3, 2 + b / 4): the floor holds up to 4 samples; 8 take 2 + 2, 16 take 2 + 4."""


@pytest.mark.parametrize(
    ("group", "size", "seconds"),
    [
        ({}, 8, 8),
        ({}, 4, 8),  # the measured 8 s are those of the half already
        ({"speed": 2}, 8, 4),
        ({"step_s": 3}, 8, 3),
        ({"step_s": 3}, 4, 1.5),
        ({"step_s": 3, "speed": 0.5}, 8, 6),
        ({"trace": [1, 2, 3], "speed": 2}, 8, 1.5),
        ({"trace": [1, 2, 3], "speed": 2}, 4, 0.75),
        ({"per_sample_s": 0.5}, 8, 4),
        ({"per_sample_s": 0.5}, 4, 2),
        *(
            (FIXED, size, seconds)
            for size, seconds in [(1, 3), (4, 3), (8, 4), (9, 4.25), (64, 18)]
        ),
        (FIXED | {"speed": 4}, 9, 4.25 / 4),
    ],
)
def test_a_step_lasts_as_long_as_its_group_says(group, size, seconds):
    """Slot 0 at clock 2; the step itself took 8 s here, and `step_s` is that of 8 samples."""
    step_time = StepTime(config.WorkerGroup(**group), 0, "worker-0", batch_size=8)
    assert step_time.seconds(2, size, computed_s=8) == seconds
    assert step_time.seconds(2, size, factor=10, computed_s=8) == 10 * seconds
