"""Every built-in paradigm passes the suite that a user's own one has to pass."""

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from raysync.paradigms import make
from raysync.testing.conformance import STEPS, Conformance

RULES = {
    "bsp": ("bsp", {}),
    "asp": ("asp", {}),
    "ssp0": ("ssp", {"staleness": 0}),
    "ssp2": ("ssp", {"staleness": 2}),
    "lagtuner": ("lagtuner", {"s_lower": 1, "s_upper": 4}),
    "lagtuner-wait": ("lagtuner", {"s_lower": 0, "s_upper": 3, "predict": "wait"}),
    "lagtuner-busy": ("lagtuner", {"s_lower": 1, "s_upper": 1, "interval": "busy"}),
    "hybrid-sync": ("hybrid-sync", {}),
    "hybrid-2-1": ("hybrid", {"k": 2, "staleness_tolerance": 1, "pull_interval": 2}),
    "hybrid-all-2": ("hybrid", {"k": "all", "staleness_tolerance": 2, "pull_interval": 3}),
    "hybrid-1-0": ("hybrid", {"k": 1, "staleness_tolerance": 0, "pull_interval": 2}),
    "hybrid-global": (
        "hybrid",
        {"k": 3, "staleness_tolerance": "inf", "pull_interval": 3, "snapshot": "global"},
    ),
    "hybrid-async": ("hybrid-async", {}),
    "k-async": ("k-async", {"k": 3}),
    "k-sync": ("k-sync", {"k": 2}),
    "k-batch-sync": ("k-batch-sync", {"k": 3}),
    "k-batch-async": ("k-batch-async", {"k": 3}),
    "backup-workers": ("backup-workers", {"backups": 1}),
    "ringmaster-asp": ("ringmaster", {"paradigm": "asp", "staleness": 1}),
    "ringmaster-ssp": ("ringmaster", {"paradigm": {"name": "ssp", "staleness": 1}, "staleness": 2}),
    "ringmaster-bsp": ("ringmaster", {"paradigm": "bsp", "staleness": 0}),
    "ringmaster-hybrid": (
        "ringmaster",
        {
            "staleness": 0,
            "paradigm": {
                "name": "hybrid",
                "k": 1,
                "staleness_tolerance": 2,
                "pull_interval": 3,
                "snapshot": "global",
            },
        },
    ),
    "lagtuner-literal": ("lagtuner", {"s_lower": 1, "s_upper": 4, "bound": "literal"}),
}


def lead_bound(name, parameters):
    """The largest lead at a Release that the rule promises; None if it promises none."""
    match name, parameters:
        case ("bsp" | "hybrid-sync", _) | ("ringmaster", {"paradigm": "bsp"}):
            return 0
        case "ssp", {"staleness": staleness}:
            return staleness
        case "hybrid", {"staleness_tolerance": int(tolerance)}:
            return tolerance + 1
        case "lagtuner", {"s_upper": s_upper, **rest} if rest.get("bound") != "literal":
            return s_upper
    return None


class Counted(Conformance):
    """The suite that users have, and what the roster counts beside it."""

    @invariant()
    def counted_paces_are_true(self):
        if not self.has_begun:
            return
        roster = self.machine.roster
        paces = [member.pace for member in roster.members.values()]
        if paces:
            assert (roster.slow, roster.fast) == (min(paces), max(paces))
            assert roster.slowest_worker() == min(
                w for w, member in roster.members.items() if member.pace == roster.slow
            )
        held = sorted(((roster.members[w].pace, i, w) for i, w in enumerate(roster.held)))
        for limit in range(4):
            assert roster.held_within(limit) == [
                w for pace, _, w in held if pace <= roster.slow + limit
            ]

    @invariant()
    def bsp_clocks_differ_by_at_most_one(self):
        if self.has_begun and self.machine.paradigm.name == "bsp":
            clocks = sorted({member.clock for member in self.machine.roster.members.values()})
            assert all(b - a == 1 for a, b in pairwise(clocks))
            assert len(clocks) <= 2


@pytest.mark.parametrize("label", RULES)
def test_conformance(label):
    name, parameters = RULES[label]
    attributes = {
        "fresh": staticmethod(partial(make, name, **parameters)),
        "lead_bound": lead_bound(name, parameters),
    }
    run_state_machine_as_test(
        type(f"Conformance_{label}", (Counted,), attributes),
        settings=settings(max_examples=settings().max_examples * 2 // 5, stateful_step_count=STEPS),
    )
