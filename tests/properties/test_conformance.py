"""Every built-in paradigm passes the suite that a user's own one has to pass."""

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import initialize, invariant, run_state_machine_as_test

from raysync.paradigms import make
from raysync.paradigms.registry import make_inner
from raysync.testing.conformance import STEPS, Conformance
from tests.builders.paradigms import LOCAL_VARIANTS, NESTED_OR_LOCAL, VARIANTS, lead_bound_of


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


@pytest.mark.parametrize("label", VARIANTS | LOCAL_VARIANTS)
def test_conformance(label):
    name, parameters = (VARIANTS | LOCAL_VARIANTS)[label]
    attributes = {
        "fresh": staticmethod(partial(make, name, **parameters)),
        "lead_bound": lead_bound_of({"name": name, **parameters}),
    }
    run_state_machine_as_test(
        type(f"Conformance_{label}", (Counted,), attributes),
        settings=settings(max_examples=settings().max_examples // 10, stateful_step_count=STEPS),
    )


class Nested(Counted):
    """Any paradigm in one or two others."""

    @initialize(
        workload=Conformance.workloads,
        step_s=Conformance.steps_s,
        label=st.sampled_from([*NESTED_OR_LOCAL]),
    )
    def start(self, workload, step_s, label):
        self.fresh = partial(make_inner, NESTED_OR_LOCAL[label], label)
        self.lead_bound = lead_bound_of(NESTED_OR_LOCAL[label])
        super().start(workload, step_s)


def test_conformance_of_nestings():
    run_state_machine_as_test(
        Nested,
        settings=settings(max_examples=settings().max_examples // 2, stateful_step_count=STEPS),
    )
