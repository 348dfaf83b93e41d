"""How paradigms relate to each other, over random step times, churn and transient stragglers; and
batches that suit the speeds.
"""

from itertools import chain, product
from math import inf

import hypothesis
import pytest
from hypothesis import given, settings, strategies as st

from raysync.core.decisions import (
    Apply,
    Drop,
    Hold,
    Note,
    Release,
    Restore,
    SetTimer,
    Suspend,
    Switch,
)
from raysync.core.events import Joined, Pushed, TimerFired
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.paradigms.batch_shares import DeviceSpeed, divide
from raysync.paradigms.registry import make_inner
from raysync.testing.drive import SAMPLES
from tests.builders.paradigms import VARIANTS
from tests.builders.plans import schedules
from tests.builders.schedules import batch_sizes, of, simulate, trace, without

HUGE = 10**9


def releases(events):
    return sorted(
        (event.at, release.worker, release.clock)
        for event, decisions in events
        for release in of(Release, decisions)
    )


def updates(events):
    """(when, set of pushes, published) of every update."""
    return [
        (event.at, set(apply.pushes), apply.publish)
        for event, decisions in events
        for apply in of(Apply, decisions)
    ]


def updates_and_releases(events):
    return updates(events), releases(events)


def without_holds(events):
    return [
        (event, [decision for decision in decisions if not isinstance(decision, Hold)])
        for event, decisions in events
    ]


def hybrid(k=1, staleness_tolerance=0, **others):
    parameters = {"k": k, "staleness_tolerance": staleness_tolerance}
    return "hybrid", {"pull_interval": 1} | parameters | others


def quorum(**parameters):
    return "quorum", {"late": "next", "grace_s": 0.0} | parameters


BSP, ASP = ("bsp", {}), ("asp", {})
SAME = {
    "ssp(0) releases exactly when bsp does": lambda n: (releases, ("ssp", {"staleness": 0}), BSP),
    "ssp with a huge bound decides as asp": lambda n: (list, ("ssp", {"staleness": HUGE}), ASP),
    # s_lower = s_upper leaves r* = 0 as the only choice
    "lagtuner without a range releases as ssp": lambda n: (
        releases,
        ("lagtuner", {"s_lower": n, "s_upper": n}),
        ("ssp", {"staleness": n}),
    ),
    "the synchronous hybrid applies as bsp": lambda n: (updates_and_releases, hybrid("all"), BSP),
    "the asynchronous hybrid decides as asp": lambda n: (list, hybrid(1, "inf"), ASP),
    # but what waits is applied only then
    "one push an update within a tolerance releases as ssp": lambda n: (
        releases,
        hybrid(1, n),
        ("ssp", {"staleness": n + 1}),
    ),
    # who waits for whom is k's and the tolerance's alone
    "what is pulled decides nothing": lambda n: (
        releases,
        hybrid(2, 1),
        hybrid(2, 1, pull_interval=3, snapshot=("worker", "global")[n % 2]),
    ),
    "backup workers without any decide as bsp": lambda n: (
        without_holds,
        ("backup-workers", {"backups": 0}),
        BSP,
    ),
    "k-sync with k of all decides as bsp": lambda n: (without_holds, ("k-sync", {"k": HUGE}), BSP),
    "one batch an update decides as asp": lambda n: (list, ("k-batch-async", {"k": 1}), ASP),
    # whatever happens to late pushes, of which there are none
    "a quorum of all decides as bsp": lambda n: (
        without_holds,
        quorum(k=HUGE, late=("next", "drop")[n % 2], grace_s=0.75 * (n // 2)),
        BSP,
    ),
    "a quorum of one decides as asp": lambda n: (list, quorum(k=1), ASP),
    "a quorum that drops what is late decides as k-sync": lambda n: (
        without_holds,
        quorum(k=n + 1, late="drop"),
        ("k-sync", {"k": n + 1}),
    ),
    "bsp has nothing for ringmaster to drop": lambda n: (
        list,
        ("ringmaster", {"paradigm": "bsp", "staleness": n}),
        BSP,
    ),
}


@pytest.mark.parametrize("relation", SAME)
@given(schedule=schedules(), n=st.integers(0, 6))
def test_one_is_the_other(relation, schedule, n):
    """Also under churn."""
    view, (one, parameters), (other, others) = SAME[relation](n)
    assert view(trace(one, schedule, **parameters)) == view(trace(other, schedule, **others))


@settings(max_examples=2 * settings().max_examples)
@given(
    schedules(),
    st.integers(0, 3),
    st.integers(0, 5),
    st.sampled_from(["align", "wait"]),
    st.sampled_from(["push", "busy"]),
)
def test_lagtuner_hard_never_releases_above_s_upper(schedule, s_lower, width, predict, interval):
    bounds = {"s_lower": s_lower, "s_upper": s_lower + width}
    events = trace("lagtuner", schedule, **bounds, predict=predict, interval=interval)
    leads = [each.lead for _, decisions in events for each in of(Release, decisions)]
    assert max(leads) <= s_lower + width


@given(schedules())
def test_an_update_of_bsp_holds_one_push_of_every_member(schedule):
    step_s, churn = schedule
    machine = Machine(make("bsp"))
    for event, decisions in simulate(machine, churn, step_s, 150):
        for decision in decisions:
            if isinstance(decision, Apply):
                workers = {worker for worker, _ in decision.pushes}
                assert len(workers) == len(decision.pushes)
                assert workers >= set(machine.roster.members) or not isinstance(event, Pushed)


@given(schedules())
def test_no_worker_finishes_more_iterations_than_under_asp(schedule):
    """Waiting never makes a single worker faster: at each push, ASP's count of that worker is at
    least as large.
    """
    step_s, churn = schedule
    joins_only = [event for event in churn if isinstance(event, Joined)]
    at_zero = [Joined(at=0.0, worker=event.worker) for event in joins_only]
    asp = {
        (event.worker, event.clock): event.at
        for event, _ in trace("asp", (step_s, at_zero), 300)
        if isinstance(event, Pushed)
    }
    for name, parameters in (
        ("bsp", {}),
        ("ssp", {"staleness": 2}),
        ("lagtuner", {"s_lower": 1, "s_upper": 4}),
    ):
        for event, _ in trace(name, (step_s, at_zero), 100, **parameters):
            if isinstance(event, Pushed) and (event.worker, event.clock) in asp:
                assert asp[event.worker, event.clock] <= event.at + 1e-9


@given(schedules())
def test_the_same_events_give_the_same_decisions(schedule):
    assert trace("lagtuner", schedule) == trace("lagtuner", schedule)


@given(schedules(), st.integers(0, 5))
def test_backup_workers_are_k_sync_with_k_of_the_others(schedule, backups):
    step_s, churn = schedule
    everybody = [
        Joined(at=0.0, worker=event.worker) for event in churn if isinstance(event, Joined)
    ]
    k = max(1, len(everybody) - backups)
    there = [
        trace(name, (step_s, everybody), **parameters)[len(everybody) :]
        for name, parameters in (("backup-workers", {"backups": backups}), ("k-sync", {"k": k}))
    ]
    assert there[0] == there[1]


@given(
    schedules(), st.sampled_from(["k-sync", "backup-workers", "k-batch-sync"]), st.integers(1, 7)
)
def test_a_synchronous_update_holds_gradients_of_the_newest_model_alone(schedule, name, size):
    bases = {}
    for event, decisions in trace(
        name, schedule, **{"backups" if name == "backup-workers" else "k": size}
    ):
        if isinstance(event, Pushed):
            bases[event.worker, event.clock] = event.base
        for decision in decisions:
            if isinstance(decision, Apply):
                assert {bases[push] for push in decision.pushes} == {decision.version - 1}
                assert name != "k-batch-sync" or len(decision.pushes) == size
            if isinstance(decision, Drop) and decision.why.startswith("late"):
                assert bases[decision.push] < max(
                    one.version for one in decisions if isinstance(one, Release)
                )


@given(schedules(), st.integers(1, 7), st.sampled_from([0.4, 3.0]))
def test_in_a_grace_period_an_update_takes_all_that_comes(schedule, k, grace_s):
    """Every push is in the next update, which is made at the end, or when all have pushed."""
    came, ends_at, machine = [], None, Machine(make("quorum", k=k, grace_s=grace_s))
    for event, decisions in simulate(machine, schedule[1], schedule[0], 150):
        if isinstance(event, Pushed) and event.worker in machine.roster.members:
            came.append((event.worker, event.clock))
        for decision in decisions:
            match decision:
                case SetTimer(at=None):
                    ends_at = None
                case SetTimer(at=at):
                    assert (ends_at, at) == (None, event.at + grace_s)
                    assert len(machine.roster.held) >= min(k, len(machine.roster.members))
                    ends_at = at
                case Apply(pushes=pushes):
                    assert pushes == tuple(came)
                    all_pushed = {*machine.roster.members} <= {worker for worker, _ in came}
                    assert event.at == ends_at if isinstance(event, TimerFired) else all_pushed
                    came, ends_at = [], None


@given(
    schedules(),
    st.sampled_from(["bsp", "asp", "k-sync", "lagtuner", "quorum", "ringmaster"]),
    st.integers(1, 6),
)
def test_local_steps_change_nothing_else(schedule, name, steps):
    """What the inner paradigm decides about iterations that take as long is the same."""
    step_s, churn = schedule
    inner = trace(name, (lambda worker, clock: steps * step_s(worker, clock), churn))
    local = trace("local", schedule, paradigm=name, steps=steps)
    for (event, expected), (other, decisions) in zip(inner, local, strict=True):
        assert (type(event), event.at) == (type(other), other.at)
        alike = {"steps": None, "samples_before": 0}
        assert without(decisions, **alike) == without(expected, **alike)
        assert {release.steps for release in of(Release, decisions)} <= {steps}


@given(schedules(), st.sampled_from(["bsp", "asp", "quorum"]), st.integers(1, 9), st.data())
def test_steps_by_speed_are_within_their_bounds_and_in_the_order_of_speeds(
    schedule, name, steps, data
):
    floor = data.draw(st.integers(1, steps))
    machine = Machine(make("local", paradigm=name, steps=steps, by="speed", floor=floor))
    local = machine.paradigm
    for _, decisions in simulate(machine, schedule[1], schedule[0], 150):
        given_steps = {
            local.step_s.get(each.worker.partition("#")[0], 0.0): each.steps
            for each in of(Release, decisions)
        }
        assert all(floor <= each <= steps for each in given_steps.values())
        in_order = [given_steps[step_s] for step_s in sorted(given_steps)]
        assert in_order == sorted(in_order, reverse=True), "the slower, the fewer"


@given(
    schedules(),
    st.sampled_from(
        [
            ("asp", {}),
            ("bsp", {}),
            ("ssp", {"staleness": 1}),
            ("lagtuner", {"s_lower": 1, "s_upper": 4}),
            ("hybrid", {"k": 2, "staleness_tolerance": 1, "pull_interval": 2}),
            ("k-sync", {"k": 2}),
            ("k-batch-sync", {"k": 3}),
        ]
    ),
)
def test_ringmaster_with_a_huge_bound_is_the_inner_rule(schedule, inner):
    name, parameters = inner
    wrapped = trace("ringmaster", schedule, paradigm={"name": name, **parameters}, staleness=HUGE)
    assert wrapped == trace(name, schedule, **parameters)


@given(schedules(), st.integers(0, 5))
def test_ringmaster_applies_nothing_staler_than_its_bound(schedule, staleness):
    """And drops nothing that is not."""
    version = 0
    for event, decisions in trace("ringmaster", schedule, paradigm="asp", staleness=staleness):
        if isinstance(event, Pushed):
            stale = version - event.base > staleness
            assert [type(one) for one in decisions[:1]] == (
                [Drop] if stale else [Apply]
            ) or "had left" in decisions[0].why
        version += sum(isinstance(one, Apply) for one in decisions)


OTHERS = [
    "bsp",
    "asp",
    {"name": "ssp", "staleness": 1},
    {"name": "lagtuner", "s_lower": 1, "s_upper": 4},
    {"name": "hybrid", "k": 2, "staleness_tolerance": 1, "pull_interval": 2},
    "backup-workers",
]


def traced(machine, schedule, pushes):
    step_s, churn = schedule
    return list(simulate(machine, churn, step_s, pushes))


@pytest.mark.parametrize("spec", OTHERS, ids=str)
@settings(max_examples=15)
@given(schedule=schedules(), is_first=st.booleans())
def test_a_fraction_of_1_decides_as_first_alone_and_0_as_then_alone(spec, schedule, is_first):
    parts = {"first": spec, "then": "bsp"} if is_first else {"then": spec}
    switch = make("sync-switch", **parts, fraction=float(is_first))
    alone, switched = (
        [
            (event, without(decisions, phase=""))
            for event, decisions in traced(Machine(paradigm, 100 * SAMPLES), schedule, 100)
        ]
        for paradigm in (make_inner(spec, "a test"), switch)
    )
    assert switched == alone


@st.composite
def hindered(draw):
    """A schedule, and somebody who is stuck now and then."""
    step_s, churn = draw(schedules())
    whom = draw(st.sampled_from([f"w-{n}#1" for n in range(4)]))
    since, factor = draw(st.integers(0, 20)), draw(st.integers(3, 9))

    def hindered_s(worker, clock):
        return step_s(worker, clock) * (
            factor if worker == whom and since <= clock % 30 < since + 5 else 1
        )

    return hindered_s, churn


@settings(max_examples=60)
@given(
    hindered(),
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
    hypothesis.event(f"{online}: {len(of(Switch, decisions))} switches")
    hypothesis.event(f"{online}: {len(of(Suspend, decisions))} suspended")
    end = done[0] if done else len(decisions)

    def samples(phase, begin, end):
        """Of the updates between two decisions."""
        applies = [each for each in of(Apply, decisions[begin:end]) if each.phase == phase]
        return [SAMPLES * len(each.pushes) for each in applies]

    under_bsp = samples("bsp", 0, end)
    if done:
        assert sum(under_bsp) >= fraction * workload > sum(under_bsp[:-1])
        assert not samples("bsp", end, None)
    else:
        assert sum(under_bsp) < fraction * workload
    if len(done) == 2:
        under_asp = samples("asp", end, done[1])
        assert sum(under_asp) >= 0.2 * workload > sum(under_asp[:-1])
    suspended, restored = (
        {each.worker for each in of(kind, decisions)} for kind in (Suspend, Restore)
    )
    assert restored <= suspended
    if len(done) == len(fractions):
        assert not machine.roster.suspended


SECONDS = st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0])


@st.composite
def clusters(draw):
    """Devices, a batch that they can take, and the unit of their shares."""
    multiple = draw(st.sampled_from([1, 1, 2, 4]))
    devices = [
        DeviceSpeed(
            draw(st.floats(0.1, 10)),
            draw(SECONDS),
            draw(SECONDS),
            draw(st.floats(0.05, 2)),
            draw(SECONDS),
            multiple * (smallest := draw(st.integers(1, 2))),
            multiple * draw(st.sampled_from([smallest, smallest + 3, inf])),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    least = sum(device.smallest for device in devices)
    most = min(sum(device.largest for device in devices), least + 12 * multiple)
    units = draw(st.integers(least // multiple, int(most) // multiple))
    return devices, units * multiple, multiple


@given(clusters())
def test_no_division_is_faster_by_more_than_a_unit(cluster):
    """Against all divisions into whole units that the limits allow."""
    devices, total, multiple = cluster
    shares = divide(devices, total, multiple)
    assert sum(shares) == total
    for device, share in zip(devices, shares, strict=True):
        assert device.smallest <= share <= device.largest
        assert share % multiple == 0

    def longest(shares):
        return max(device.seconds(share) for device, share in zip(devices, shares, strict=True))

    best = min(
        longest(each)
        for each in product(
            *(
                range(device.smallest, int(min(device.largest, total)) + 1, multiple)
                for device in devices
            )
        )
        if sum(each) == total
    )
    unit_s = max(device.slowness * device.per_sample_s for device in devices) * multiple
    assert longest(shares) <= best + unit_s + 1e-9


INNER = ["bsp", "bsp", "asp", "ssp2", "lagtuner", "hybrid-2-1", "k-sync", "ringmaster-asp"]


@given(st.sampled_from(INNER), schedules())
def test_only_batch_sizes_differ_from_the_inner_paradigm(label, schedule):
    """Step times that do not depend on the batch: everything else is the same, and what a round of
    BSP computes is as much.
    """
    name, parameters = VARIANTS[label]
    inner = trace(name, schedule, 80, **parameters)
    paradigm = {"name": name, **parameters}
    balanced = trace("balanced", schedule, 80, paradigm=paradigm, hysteresis=0.0)
    for (event, expected), (other, decisions) in zip(inner, balanced, strict=True):
        assert (type(event), event.at) == (type(other), other.at)
        sizes = batch_sizes(decisions)
        assert all(size is None or size >= 1 for size in sizes)
        if label == "bsp" and of(Apply, decisions):
            assert sum(size or SAMPLES for size in sizes) == SAMPLES * len(sizes)
        assert unsized(decisions) == unsized(expected)


def unsized(decisions):
    """Without what the sizes of batches change."""
    told = [each for each in decisions if not isinstance(each, Note)]
    return without(told, batch_size=None, samples_before=0)
