"""Fluid links by themselves: closed forms, and what holds whatever the shares are."""

from heapq import heappop, heappush
from itertools import count
from math import inf, prod

import pytest
from hypothesis import assume, given, strategies as st

from raysync.calibration.sharing import weights_of
from raysync.virtual.flows import FairLink, Lane


class Clock:
    """Moves the time to the next of what is scheduled."""

    def __init__(self):
        self.now, self.queue, self.numbers = 0.0, [], count()

    def schedule(self, at, happens, argument):
        heappush(self.queue, (at, next(self.numbers), happens, argument))

    def run(self):
        while self.queue:
            self.now, _, happens, argument = heappop(self.queue)
            happens(argument)


def arrivals(*flows):
    """Return when flows arrive, each of (begin, lane, bytes) and perhaps a weight."""
    clock, found = Clock(), {}
    for name, (begin, lane, size, *weight) in enumerate(flows):

        def start(what):
            name, lane, size, weight = what
            lane.begin(clock, size, weight, 0.0, found.__setitem__, name)

        clock.schedule(begin, start, (name, lane, size, *(weight or [1.0])))
    clock.run()
    return [found[name] for name in range(len(flows))]


@pytest.mark.parametrize("k", [1, 2, 16])
def test_equal_flows_all_take_as_many_times_as_long_as_there_are(k):
    lane = Lane(inf, [(FairLink(2.0), 1)])
    assert arrivals(*[(1.0, lane, 6.0)] * k) == [pytest.approx(1 + 3 * k)] * k


def test_the_shorter_of_two_flows_ends_at_half_the_rate_and_the_other_goes_on_at_all_of_it():
    lane = Lane(inf, [(FairLink(1.0), 1)])
    assert arrivals((0, lane, 1), (0, lane, 3)) == pytest.approx([2, 4])
    assert arrivals((0, lane, 3), (1, lane, 1)) == pytest.approx([4, 3])


def test_a_flow_over_two_links_leaves_of_the_wider_one_what_the_narrower_does_not_let_through():
    """a: both; b: the narrow one; c: the wide one. a and b have 1/2, c has 3/2."""
    narrow, wide = FairLink(1.0), FairLink(2.0)
    a = Lane(inf, [(narrow, 1), (wide, 1)])
    b, c = Lane(inf, [(narrow, 1)]), Lane(inf, [(wide, 1)])
    assert arrivals((0, a, 1), (0, b, 1), (0, c, 3)) == pytest.approx([2, 2, 2])


def test_what_a_slow_flow_leaves_goes_to_the_others():
    link = FairLink(10.0)
    slow, fast = Lane(1.0, [(link, 1)]), Lane(inf, [(link, 1)])
    assert arrivals((0, slow, 2), (0, fast, 18)) == pytest.approx([2, 2])


def test_a_flow_that_stands_for_two_takes_twice_its_rate_of_a_link():
    assert arrivals((0, Lane(inf, [(FairLink(2.0), 2)]), 3)) == pytest.approx([3])


flows = st.lists(
    st.tuples(st.floats(0, 5), st.integers(0, 2), st.floats(0.1, 9), st.floats(0.2, 5)), max_size=12
)


@given(flows, st.lists(st.floats(0.5, 4), min_size=2, max_size=2), st.floats(0.2, 9))
def test_no_link_carries_more_than_it_can_and_a_full_one_is_never_idle(drawn, rates, limit):
    """By the time at which all is there: not before the bytes of a link fit through it; and if all
    share one link, exactly then, whatever the shares are.
    """
    links = [FairLink(rate) for rate in rates]
    lanes = [Lane(limit, [(links[0], 1)]), Lane(limit, [(links[1], 1)]),
             Lane(limit, [(links[0], 1), (links[1], 1)])]  # fmt: skip
    times = arrivals(*[(begin, lanes[which], size, weight) for begin, which, size, weight in drawn])
    for number, link in enumerate(links):
        over = [
            (begin, size, at)
            for (begin, which, size, _), at in zip(drawn, times, strict=True)
            if which in (number, 2)
        ]
        if over:
            first, last = min(begin for begin, _, _ in over), max(at for _, _, at in over)
            assert (last - first) * link.bytes_per_s >= sum(size for _, size, _ in over) * (
                1 - 1e-9
            )
            assert not link.lanes, "a link that carries nothing has no lanes"


@given(st.lists(st.floats(0.2, 5), min_size=1, max_size=9))
def test_the_last_of_those_that_begin_together_comes_when_all_bytes_fit(weights):
    lane = Lane(inf, [(FairLink(2.0), 1)])
    assert max(arrivals(*[(0, lane, 3, weight) for weight in weights])) == pytest.approx(
        1.5 * len(weights)
    )


@given(
    st.lists(
        st.tuples(st.floats(0, 0.2), st.floats(0.5, 2), st.floats(0.5, 1)), min_size=2, max_size=9
    )
)
def test_weights_follow_from_when_transfers_began_and_had_come(drawn):
    """While all are on the link for some time."""
    lane = Lane(inf, [(FairLink(1.0), 1)])
    ends = arrivals(*[(begin, lane, part, weight) for begin, weight, part in drawn])
    assume(min(ends) > max(begin for begin, *_ in drawn))
    found = weights_of(
        [(part, begin, end) for (begin, _, part), end in zip(drawn, ends, strict=True)]
    )
    mean = prod(weight for _, weight, _ in drawn) ** (1 / len(drawn))
    assert found == pytest.approx([weight / mean for _, weight, _ in drawn], rel=1e-3)
