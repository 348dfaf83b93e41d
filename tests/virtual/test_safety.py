"""Random clusters and faults under every paradigm: nothing illegal happens, and nobody is stuck
after the faults.

Two phases, as TigerBeetle's simulator has them: with faults, each line is checked as it comes; from
the time and clock on at which no fault begins or lasts any more, each worker that is left makes ten
iterations within a bound of virtual time.
"""

from collections import Counter

from hypothesis import event, given, settings, strategies as st

from raysync.config import ParadigmChoice
from raysync.core.journal import Ended
from raysync.virtual.engine import VirtualEngine
from tests.properties.test_conformance import RULES, lead_bound
from tests.virtual.checker import Checker, checked
from tests.virtual.parts import BYTES, replayed, run, slot_of, timed

OVER_S, OVER_CLOCK = 30, 20
"""From here on no fault begins or lasts."""
ITERATIONS = 10
ENDLESS = 10**9


def workers():
    jitter = st.sampled_from(
        [
            {},
            {"sigma": 0.4},
            {"distribution": "exponential"},
            {"distribution": "normal", "sigma": 0.3},
        ]
    )
    link = st.fixed_dictionaries(
        {
            "latency_s": st.sampled_from([0, 0.1]),
            "bandwidth_bytes_per_s": st.sampled_from([None, 4 * BYTES]),
        }
    )
    group = st.fixed_dictionaries(
        {
            "count": st.integers(1, 3),
            "step_s": st.sampled_from([0.5, 1, 1, 2.5]),
            "jitter": jitter,
            "link": link,
        }
    )
    return st.lists(group, min_size=1, max_size=3).map(
        lambda groups: [group | {"name": name} for name, group in zip("abc", groups, strict=False)]
    )


def networks():
    return st.fixed_dictionaries(
        {
            "link": st.fixed_dictionaries({"latency_s": st.sampled_from([0, 0.05])}),
            "server_bandwidth_bytes_per_s": st.sampled_from([None, 10 * BYTES, BYTES]),
            "update_s": st.sampled_from([0, 0.2]),
            "update_bytes_per_s": st.sampled_from([None, 20 * BYTES]),
        }
    )


def spells():
    once = st.builds(
        lambda start, lasts: {"start_s": start, "lasts_s": lasts},
        st.floats(0, 20),
        st.floats(0.1, 10),
    )
    clocks = st.builds(
        lambda start, lasts: {"start_clock": start, "lasts_clocks": lasts},
        st.integers(0, 15),
        st.integers(1, 5),
    )
    times = st.builds(lambda times: {"times": times, "end_s": 25, "lasts_s": 5}, st.integers(1, 4))
    often = st.just({"mean_gap_clocks": 3, "lasts_clocks": 1, "end_clock": 18})
    return st.one_of(once, clocks, times, often)


def faults(slots):
    whom = st.one_of(
        st.just({}), st.builds(lambda count: {"count": count}, st.integers(1, min(3, len(slots))))
    )
    kinds = [
        st.builds(
            lambda factor: {"kind": "slow-down", "factor": factor}, st.sampled_from([1.5, 3, 8])
        ),
        st.builds(
            lambda added_s: {"kind": "latency", "added_s": added_s}, st.sampled_from([0.1, 1.5])
        ),
        st.builds(
            lambda period: {"kind": "drift", "added_s": 1, "period_s": period},
            st.sampled_from([0.5, 4]),
        ),
    ]
    moment = st.one_of(
        st.builds(lambda at: {"at_s": at}, st.floats(0, 25)),
        st.builds(lambda clock: {"at_clock": clock}, st.integers(0, 15)),
    )
    back = st.one_of(
        st.just({}), st.builds(lambda s: {"rejoin_after_s": s}, st.sampled_from([0, 0.3, 4]))
    )
    crash = st.builds(
        lambda slot, when, then: {"kind": "crash", "worker": slot} | when | then,
        st.sampled_from(slots),
        moment,
        back,
    )
    spelled = [
        st.builds(lambda kind, when, who: kind | when | who, kind, spells(), whom) for kind in kinds
    ]
    return st.lists(st.one_of(*spelled, crash, crash, crash), max_size=6)


@st.composite
def plans(draw):
    groups = draw(workers())
    slots = [f"{group['name']}-{n}" for group in groups for n in range(group["count"])]
    return {
        "seed": draw(st.integers(0, 1000)),
        "workers": groups,
        "network": draw(networks()),
        "faults": draw(faults(slots)),
        "cluster": {
            "server_shards": draw(st.integers(1, 3)),
            "step_deadline_s": 1e6,
            "server_placement": draw(st.sampled_from(["apart", "with-workers"])),
        },
    }


rules = st.sampled_from(list(RULES))


@settings(max_examples=120)
@given(plans(), rules, st.integers(1, 150))
def test_nothing_illegal_happens(plan, paradigm, pushes):
    """And the journal replays to the same decisions, and the end is the last update or
    nobody left.
    """
    name, parameters = RULES[paradigm]
    task, choice = (
        timed(**plan, workload={"samples": pushes}),
        ParadigmChoice(name=name, **parameters),
    )
    lines = run(task, choice)
    checker = checked(lines, name, lead_bound(name, parameters), pushes)
    event(lines[-1].status)
    roster = (again := replayed(task, lines, choice)).machine.roster
    assert again.difference is None
    assert (
        roster.received
        == sum(checker.advanced.values())
        == roster.applied + roster.dropped + len(roster.buffered)
    )
    lives = Counter(slot_of(worker) for worker in checker.used)
    assert checker.used == {
        f"{slot}#{life + 1}" for slot, lived in lives.items() for life in range(lived)
    }
    if lines[-1].status == "failed":
        left_for_good = {
            fault["worker"]
            for fault in plan["faults"]
            if fault["kind"] == "crash" and "rejoin_after_s" not in fault
        }
        assert left_for_good == set(lives), "it fails only if every slot was taken away"


@settings(max_examples=60)
@given(plans(), rules)
def test_nobody_is_stuck_once_the_faults_are_over(plan, paradigm):
    name, parameters = RULES[paradigm]
    checker = Checker(name, lead_bound(name, parameters), ENDLESS)
    pending = sum("rejoin_after_s" in fault for fault in plan["faults"])
    since, start, bound_s = None, {}, 0.0
    for lines in VirtualEngine().run(
        timed(**plan, workload={"samples": ENDLESS}), ParadigmChoice(name=name, **parameters).make()
    ):
        for line in lines:
            checker.feed(line)
            if isinstance(line, Ended):
                return  # nobody is left, or the checker would have said so
            if since is not None:
                if all(
                    checker.advanced[worker] >= start[worker] + ITERATIONS
                    for worker in checker.clocks
                ):
                    return
                assert checker.now < since + bound_s, (
                    f"stuck: {start} at {since} s, {checker.advanced} at {checker.now} s"
                )
            elif checker.now > OVER_S and min(checker.clocks.values(), default=0) > OVER_CLOCK:
                # A worker that is far ahead waits until the slowest has caught up, a clock in one
                # step at most.
                lead = max(checker.clocks.values()) - min(checker.clocks.values())
                since, start = (
                    checker.now,
                    {worker: checker.advanced.get(worker, 0) for worker in checker.clocks},
                )
                bound_s = (lead + ITERATIONS + 2) * 2 * checker.longest_s
            else:
                bound_s = OVER_S + (OVER_CLOCK + pending + 10) * 2 * max(checker.longest_s, 5)
                assert checker.now < bound_s, "stuck in faults"
