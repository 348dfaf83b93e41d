"""Sync-Switch beside the paradigms that it is made of, over random step times, churn and transient
stragglers.
"""

from itertools import chain

import pytest
from hypothesis import event, given, settings, strategies as st
from msgspec.structs import replace

from raysync.core.decisions import Apply, Restore, Suspend, Switch
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.testing.drive import SAMPLES
from tests.builders.plans import schedules
from tests.builders.schedules import simulate

OTHERS = [
    "bsp",
    "asp",
    {"name": "ssp", "staleness": 1},
    {"name": "lagtuner", "s_lower": 1, "s_upper": 4},
    {"name": "hybrid", "k": 2, "staleness_tolerance": 1, "pull_interval": 2},
    "backup-workers",
]


def trace(paradigm, schedule, pushes, workload=10**9):
    return traced(Machine(paradigm, workload), schedule, pushes)


def traced(machine, schedule, pushes):
    step_s, churn = schedule
    return list(simulate(machine, churn, step_s, pushes))


def without_phases(events):
    return [
        (
            happened,
            [replace(each, phase="") if isinstance(each, Apply) else each for each in decisions],
        )
        for happened, decisions in events
    ]


@pytest.mark.parametrize("spec", OTHERS, ids=str)
@settings(max_examples=15)
@given(schedule=schedules(), first=st.booleans())
def test_a_fraction_of_1_decides_as_first_alone_and_0_as_then_alone(spec, schedule, first):
    switch = (
        make("sync-switch", first=spec, then="bsp", fraction=1)
        if first
        else make("sync-switch", then=spec, fraction=0)
    )
    settings = {"name": spec} if isinstance(spec, str) else dict(spec)
    alone = make(settings.pop("name"), **settings)
    workload = 100 * SAMPLES
    assert without_phases(trace(switch, schedule, 100, workload)) == without_phases(
        trace(alone, schedule, 100, workload)
    )


@st.composite
def faultd(draw):
    """A schedule, and somebody who is stuck now and then."""
    step_s, churn = draw(schedules())
    whom = draw(st.sampled_from([f"w-{n}#1" for n in range(4)]))
    since, factor = draw(st.integers(0, 20)), draw(st.integers(3, 9))

    def faultd_s(worker, clock):
        return step_s(worker, clock) * (
            factor if worker == whom and since <= clock % 30 < since + 5 else 1
        )

    return faultd_s, churn


@settings(max_examples=60)
@given(
    faultd(),
    st.sampled_from(["greedy", "elastic", "none"]),
    st.sampled_from([0.1, 0.3, 0.5]),
    st.booleans(),
)
def test_a_share_is_done_once_and_under_its_phase(schedule, online, fraction, back):
    """Counted by the phases of the updates: the one that completes the share comes before the last
    switch, none after.
    """
    then, fractions = (["asp", "ssp"], [fraction, 0.2]) if back else (["asp"], [fraction])
    paradigm = make("sync-switch", then=then, fraction=fractions, online=online, windows=2)
    workload = 300 * SAMPLES
    machine = Machine(paradigm, workload)
    decisions = list(chain.from_iterable(each for _, each in traced(machine, schedule, 400)))
    done = [
        index
        for index, each in enumerate(decisions)
        if isinstance(each, Switch) and "has done its" in each.why
    ]
    event(f"{online}: {len([each for each in decisions if isinstance(each, Switch)])} switches")
    event(f"{online}: {sum(isinstance(each, Suspend) for each in decisions)} suspended")
    end = done[0] if done else len(decisions)
    under_bsp = [
        SAMPLES * len(each.pushes)
        for each in decisions[:end]
        if isinstance(each, Apply) and each.phase == "bsp"
    ]
    if done:
        assert sum(under_bsp) >= fraction * workload > sum(under_bsp[:-1])
        assert not any(isinstance(each, Apply) and each.phase == "bsp" for each in decisions[end:])
    else:
        assert sum(under_bsp) < fraction * workload
    if len(done) == 2:
        under_asp = [
            SAMPLES * len(each.pushes)
            for each in decisions[end : done[1]]
            if isinstance(each, Apply) and each.phase == "asp"
        ]
        assert sum(under_asp) >= 0.2 * workload > sum(under_asp[:-1])
    suspended = [each.worker for each in decisions if isinstance(each, Suspend)]
    restored = [each.worker for each in decisions if isinstance(each, Restore)]
    assert set(restored) <= set(suspended)
    if len(done) == len(fractions):
        assert not machine.roster.suspended
