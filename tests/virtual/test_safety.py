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
from tests.builders.paradigms import NESTED, SWITCHES, VARIANTS, lead_bound_of
from tests.builders.plans import plans
from tests.builders.virtual import replayed, run, slot_of, timed
from tests.virtual.checker import Checker, checked

OVER_S, OVER_CLOCK = 30, 20
"""From here on no fault begins or lasts."""
ITERATIONS = 10
ENDLESS = 10**9


def left_for_good(plan):
    """The slots that a fault may empty for the rest of the run."""
    slots = [f"{group['name']}-{n}" for group in plan["workers"] for n in range(group["count"])]
    stays = plan["cluster"]["restarts"]["attempts"] == 0
    crashed = {
        fault["worker"]
        for fault in plan["faults"]
        if fault["kind"] == "crash" and "rejoin_after_s" not in fault
    }
    is_killed = stays and any(fault["kind"] == "kill" for fault in plan["faults"])
    return crashed | set(slots if is_killed else [])


SWITCHING = {label: {"name": "sync-switch", **rest} for label, rest in SWITCHES.items()}
PARADIGMS = {label: {"name": name, **rest} for label, (name, rest) in VARIANTS.items()}
PARADIGMS |= NESTED | SWITCHING
SUSPENDING = {label for label in NESTED if "elastic" in label}
"""Here a worker may be left out for as long as its phase lasts."""


def variants(*left_out):
    """Labels, half of them or more of paradigms in others."""
    nested = [label for label in NESTED if label not in left_out]
    return st.one_of(st.sampled_from([*VARIANTS]), st.sampled_from(nested))


@settings(max_examples=80)
@given(plans(), st.one_of(variants(), st.sampled_from([*SWITCHING])), st.integers(1, 150))
def test_nothing_illegal_happens(plan, paradigm, pushes):
    """And the journal replays to the same decisions, and the end is the last update or
    nobody left.
    """
    choice = ParadigmChoice.model_validate(PARADIGMS[paradigm])
    task = timed(**plan, workload={"samples": pushes})
    lines = run(task, choice)
    checker = checked(lines, choice.name, lead_bound_of(PARADIGMS[paradigm]), pushes)
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
        assert left_for_good(plan) >= set(lives), "it fails only if every slot was taken away"


@settings(max_examples=40)
@given(plans(), variants(*SUSPENDING))
def test_nobody_is_stuck_once_the_faults_are_over(plan, paradigm):
    choice = ParadigmChoice.model_validate(PARADIGMS[paradigm])
    checker = Checker(choice.name, lead_bound_of(PARADIGMS[paradigm]), ENDLESS)
    pending = sum("rejoin_after_s" in fault for fault in plan["faults"])
    since, start, bound_s = None, {}, 0.0
    for lines in VirtualEngine().run(timed(**plan, workload={"samples": ENDLESS}), choice.make()):
        for line in lines:
            checker.feed(line)
            if isinstance(line, Ended):
                return  # nobody is left, or the checker would have said so
            if since is not None and start.keys() < checker.clocks.keys() | start.keys():
                since = None  # a worker came back whose death was noticed late
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
