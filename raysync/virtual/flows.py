"""Transfers that share links as TCP flows do: fluid, and max-min fair.

Progressive filling (Bertsekas and Gallager, "Data Networks", section 6.5.2): the rates of all flows
rise together; a flow stops at the limit of its own links, or when a shared link is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

ROUNDING = 1e-12  # flows of a lane end together if their targets differ by less, relatively
Arrived = Callable[[Any, float], None]


class Clock(Protocol):
    now: float

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None: ...


class FairLink:
    """One direction of a link that flows share."""

    __slots__ = ("bytes_per_s", "lanes")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.lanes: dict[Lane, None] = {}  # the lanes that have flows


class Lane:
    """The flows over the same links.

    They have one rate, so the lane counts the bytes served to each, and a flow ends at its target.
    An event costs the logarithm of the flows, and the number of lanes.
    """

    __slots__ = (
        "_begun", "_flows", "_limit", "_links", "_rate", "_served", "_since", "_wakes_at", "_weight"
    )  # fmt: skip

    def __init__(self, limit: float, links: Sequence[tuple[FairLink, float]]) -> None:
        """
        Args:
            limit: the bytes per second of a flow over its own links.
            links: the shared links, each with the multiple of a flow's rate that it carries: 2 if
                the flow represents two equal ones there.
        """
        self._limit, self._links = limit, links
        # a heap of (target, number, callback, argument, seconds from its last byte to its arrival,
        # weight)
        self._flows: list[tuple[float, int, Arrived, Any, float, float]] = []
        self._weight = 0.0  # the sum of the flows' weights
        self._begun = 0
        self._rate = 0.0  # bytes per second of a flow of weight 1, from `_since` on
        # bytes served to such a flow until `_since`, from when the lane was empty
        self._served, self._since = 0.0, 0.0
        self._wakes_at = inf  # the time of the next check for ended flows

    def begin(
        self,
        clock: Clock,
        size_bytes: float,
        weight: float,
        after_s: float,
        arrived: Arrived,
        argument: Any,
    ) -> None:
        """Begin a flow now.

        Args:
            clock: the source of time.
            size_bytes: the size of the flow.
            weight: the flow's share of a link, relative to other flows.
            after_s: the seconds from the flow's last byte on the links to its arrival.
            arrived: called with `argument` and the time of arrival, once known.
            argument: see `arrived`.
        """
        flows, now = self._flows, clock.now
        if flows:
            self._served += self._rate * (now - self._since)
        else:
            self._served = self._weight = 0.0
            for link, _ in self._links:
                link.lanes[self] = None
        self._since = now
        self._begun = number = self._begun + 1
        self._weight += weight
        target = self._served + size_bytes / weight
        heappush(flows, (target, number, arrived, argument, after_s, weight))
        self._update_rates(clock)
        if flows[0][1] == number:
            self._set_alarm(clock)

    def _update_rates(self, clock: Clock) -> None:
        """Set the rates of all lanes that share links, also indirectly."""
        if self._flows:
            rate, weight = self.limit, self._weight
        for link, parts in self._links:
            if len(link.lanes) != 1 or not self._flows:
                break
            rate = min(rate, link.bytes_per_s / (parts * weight))
        else:  # mostly: all workers push over one server's link
            self._rate = rate
            return
        lanes = self._connected_lanes()
        for lane, rate in zip(lanes, fair_rates(lanes), strict=True):
            before = lane._rate
            if rate != before:
                lane._served += before * (clock.now - lane._since)
                lane._since, lane._rate = clock.now, rate
                if rate > before:  # at a lower rate, the present alarm is early, and sets another
                    lane._set_alarm(clock)

    def _connected_lanes(self) -> list[Lane]:
        lanes: dict[Lane, None] = {}
        links = {link: None for link, _ in self._links}
        unseen = list(links)
        while unseen:
            for lane in unseen.pop().lanes:
                if lane not in lanes:
                    lanes[lane] = None
                    new = [link for link, _ in lane._links if link not in links]
                    links.update(dict.fromkeys(new))
                    unseen += new
        return list(lanes)

    @property
    def limit(self) -> float:
        """The rate of a flow of weight 1 at which the flows are at their own limits.

        Flows with a limit all have one weight: see `FairRoute.lanes`.
        """
        return self._limit * len(self._flows) / self._weight

    def _set_alarm(self, clock: Clock) -> None:
        ends_at = self._ends_at
        if ends_at < self._wakes_at * (1 - ROUNDING):
            self._wakes_at = ends_at
            clock.schedule(ends_at, self._wake, clock)

    @property
    def _ends_at(self) -> float:
        return self._since + max(0.0, self._flows[0][0] - self._served) / self._rate

    def _wake(self, clock: Clock) -> None:
        """Call back for the flows that have ended."""
        if clock.now != self._wakes_at:
            return  # the check was moved to a sooner end
        self._wakes_at = inf
        if self._ends_at > clock.now:  # the rate has fallen since
            self._set_alarm(clock)
            return
        flows = self._flows
        self._served, self._since = flows[0][0], clock.now
        last = self._served * (1 + ROUNDING)
        ended = [heappop(flows)]
        while flows and flows[0][0] <= last:
            ended.append(heappop(flows))
        self._weight -= sum(each[-1] for each in ended)
        if not flows:
            self._rate = 0.0
            for link, _ in self._links:
                del link.lanes[self]
        self._update_rates(clock)
        if flows:
            self._set_alarm(clock)
        for _, _, arrived, argument, after_s, _ in ended:
            arrived(argument, clock.now + after_s)


def fair_rates(lanes: Sequence[Lane]) -> list[float]:
    """Return the max-min fair bytes per second of each flow of each lane."""
    rates = dict.fromkeys(lanes, 0.0)
    left = {link: link.bytes_per_s for lane in lanes for link, _ in lane._links}
    rising = list(lanes)
    while rising:
        level, full = _first_full(rising, left)
        stops = {lane for lane in rising if lane.limit <= level} or set(full.lanes)
        for lane in rising:
            if lane in stops:
                rate = rates[lane] = min(lane.limit, level)
                for link, parts in lane._links:
                    left[link] -= parts * lane._weight * rate
        rising = [lane for lane in rising if lane not in stops]
    return list(rates.values())


def _first_full(lanes: Iterable[Lane], left: dict[FairLink, float]) -> tuple[float, FairLink]:
    """Return the rate to which flows can rise, and the link that is full then."""
    demand: dict[FairLink, float] = {}
    for lane in lanes:
        for link, parts in lane._links:
            demand[link] = demand.get(link, 0.0) + parts * lane._weight
    full = min(demand, key=lambda link: left[link] / demand[link])
    return left[full] / demand[full], full
