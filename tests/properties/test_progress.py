"""No setting hangs, and a push costs as much among many workers as among few."""

from collections import OrderedDict

import pytest
from hypothesis import assume, given, strategies as st

from raysync.core.decisions import Apply, Release
from raysync.core.events import Pushed
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.paradigms.registry import make_inner
from raysync.testing.drive import SAMPLES
from tests.builders.paradigms import (
    HYBRID_PARAMETERS,
    LOCAL_VARIANTS,
    NESTED_OR_LOCAL,
    QUICK,
    VARIANTS,
    is_legal,
    lead_bound_of,
)
from tests.builders.plans import schedules
from tests.builders.schedules import joins, simulate

COUNTS = st.integers(1, 9)
GRACE_S = st.sampled_from([0.0, 0.4, 5.0])


KINDS = [
    "bsp",
    "asp",
    "ssp",
    "lagtuner",
    "hybrid",
    "k-sync",
    "backup-workers",
    "k-batch-sync",
    "k-batch-async",
    "quorum",
]


@st.composite
def rules(draw, depth=2):
    """A paradigm, and the most pushes that n workers can send without an update."""
    kind = draw(st.sampled_from(KINDS if depth == 0 else [*KINDS, *WRAPPING]))
    if kind in WRAPPING:
        return wrapped(draw, kind, depth)
    most = lambda n: n  # noqa: E731 - each is released by an update only
    match kind:
        case "hybrid":
            parameters = draw(HYBRID_PARAMETERS)
        case "k-sync":
            # A late one, and one of the round.
            parameters, most = ({"k": draw(COUNTS)}, lambda n: 2 * n)
        case "backup-workers":
            parameters, most = {"backups": draw(COUNTS) - 1}, lambda n: 2 * n
        case "k-batch-sync" | "k-batch-async":
            parameters = {"k": draw(COUNTS)}
            most = lambda n: n + parameters["k"]  # noqa: E731
        case "quorum":
            late = draw(st.sampled_from(["next", "drop"]))
            parameters = {"k": draw(COUNTS), "grace_s": draw(GRACE_S), "late": late}
            if late == "drop":
                most = lambda n: 2 * n  # noqa: E731
        case "ssp":
            parameters = {"staleness": draw(COUNTS) - 1}
        case "lagtuner":
            s_lower = draw(st.integers(0, 2))
            parameters = {"s_lower": s_lower, "s_upper": s_lower + draw(st.integers(0, 3))}
        case _:
            parameters = {}
    return {"name": kind, **parameters}, most


WRAPPING = ["ringmaster", "balanced", "local", "sync-switch"]


def wrapped(draw, kind, depth):
    """A paradigm around one that is drawn, or two."""
    inner, most = draw(rules(depth - 1))
    match kind:
        case "ringmaster":
            # A dropped one each.
            return (
                {"name": kind, "paradigm": inner, "staleness": draw(st.integers(0, 6))},
                lambda n: n + most(n),
            )
        case "balanced":
            return {"name": kind, "paradigm": inner}, most
        case "local":
            by = draw(st.sampled_from(["fixed", "speed"]))
            return {"name": kind, "paradigm": inner, "steps": draw(COUNTS), "by": by}, most
    then, most_then = draw(rules(depth - 1))
    online = draw(st.sampled_from(["none", "greedy", "elastic"]))
    spec = {"name": kind, "first": inner, "then": then, "fraction": 0.3, "online": online}
    # And a dropped one of each who was suspended.
    return spec | QUICK, lambda n: n + most(n) + most_then(n)


@given(rules(), schedules())
def test_no_setting_hangs(paradigm, schedule):
    """At any moment, under churn, an update is not further than so many pushes."""
    (spec, most), (step_s, churn) = paradigm, schedule
    assume(is_legal(spec))
    machine, without, there = Machine(make_inner(spec, "a test"), 250 * SAMPLES), 0, set()
    for event, decisions in simulate(machine, churn, step_s, 250):
        there |= set(machine.roster.members)
        without = (
            0
            if any(isinstance(one, Apply) for one in decisions)
            else without + isinstance(event, Pushed)
        )
        assert without <= most(len(there)), f"{without} pushes without an update"
    assert machine.roster.received == 250
    assert machine.roster.version > 0


def test_no_nesting_hangs():
    """Three workers, one slow: each leaves the others behind, and drops are many."""
    step_s = {"a#1": 1.0, "b#1": 1.0, "c#1": 3.7}
    for label, spec in NESTED_OR_LOCAL.items():
        machine, without = Machine(make_inner(spec, label), 75 * SAMPLES), 0
        bound = lead_bound_of(spec)
        for event, decisions in simulate(
            machine, joins(*step_s), lambda worker, _: step_s[worker], 50
        ):
            updates = [each for each in decisions if isinstance(each, Apply)]
            without = 0 if updates else without + isinstance(event, Pushed)
            assert without <= 12, f"{label}: {without} pushes without an update"
            leads = [each.lead for each in decisions if isinstance(each, Release)]
            assert bound is None or max(leads, default=0) <= bound, label
        assert machine.roster.received == 50, label


class Touched:
    """How many elements were looked at one by one."""

    count = 0


def counted(kind):
    """A dict that counts what is iterated over."""

    def walk(method):
        def each(self):
            for element in getattr(kind, method)(self):
                Touched.count += 1
                yield element

        return each

    methods = ("__iter__", "items", "keys", "values")
    return type("Counted", (kind,), {method: walk(method) for method in methods})


COUNTED = {kind: counted(kind) for kind in (dict, OrderedDict)}


def touched_per_push(name, parameters, workers):
    """Elements of the roster looked at, and decisions, per push; every worker has a pace of its
    own.
    """
    machine, names = Machine(make(name, **parameters)), [f"w-{index}#1" for index in range(workers)]
    joined, decided, pushes = 0, 0, 8 * workers
    for event, decisions in simulate(
        machine, joins(*names), lambda worker, _: 1 + int(worker[2:-2]) / workers, pushes
    ):
        decided += len(decisions)
        joined += not isinstance(event, Pushed)
        if joined == workers:
            joined += 1
            for attribute, value in vars(machine.roster).items():
                if type(value) in COUNTED:
                    setattr(machine.roster, attribute, COUNTED[type(value)](value))
            Touched.count = decided = 0
    return (Touched.count + decided) / pushes


# Its leads have no bound.
MANY = (
    LOCAL_VARIANTS
    | {name: paradigm for name, paradigm in VARIANTS.items() if name != "lagtuner-literal"}
    | {
        "hybrid-half": ("hybrid", {"k": 150, "staleness_tolerance": "inf"}),
        "k-sync-half": ("k-sync", {"k": 150}),
        "k-batch-half": ("k-batch-sync", {"k": 150}),
    }
)


@pytest.mark.parametrize("paradigm", MANY)
def test_a_push_costs_as_much_among_many_workers(paradigm):
    """Contract 12, O(1) amortised: a barrier may look at everybody whom it releases."""
    name, parameters = MANY[paradigm]
    few, many = (touched_per_push(name, parameters, workers) for workers in (30, 300))
    assert many < 1.5 * few + 5
