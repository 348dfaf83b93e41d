"""Transfers that share links as TCP flows do: fluid, and max-min fair.

All flows rise to one rate together; a flow stops rising at the limit of its own links, or when a
shared link on its way is full (progressive filling: Bertsekas and Gallager, "Data Networks",
section 6.5.2). Rates are divided anew whenever a flow begins or ends. The flows over the same links
have one rate, so their lane counts the bytes that each of them has been served, and a flow ends
when these reach its target: an event costs the logarithm of the flows, and the number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

ROUNDING = 1e-12
"""Flows of a lane whose targets differ by less, in parts, end together."""
Arrived = Callable[[Any, float], None]


class Clock(Protocol):
    """What moves the time."""

    now: float

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None: ...


class FairLink:
    """One direction of a link that flows share."""

    __slots__ = ("bytes_per_s", "lanes")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.lanes: dict[Lane, None] = {}
        """The lanes over it that have flows."""


class Lane:
    """The flows over the same links."""

    __slots__ = (
        "_begun", "_flows", "_limit", "_links", "_rate", "_served", "_since", "_wakes_at", "_weight"
    )  # fmt: skip

    def __init__(self, limit: float, links: Sequence[tuple[FairLink, float]]) -> None:
        """
        Args:
            limit: the bytes per second of a flow over links that it shares with none.
            links: the shared links, each with how many times the rate of a flow it carries: 2 if
                the flow stands for two alike over this link.
        """
        self._limit, self._links = limit, links
        self._flows: list[tuple[float, int, Arrived, Any, float, float]] = []
        """A heap of the bytes that the lane will have served when the flow ends, its number, what
        to call then, with what, the seconds from its last byte to its arrival, and its weight."""
        self._weight = 0.0
        """The sum of the weights of the flows."""
        self._begun = 0
        self._rate = 0.0
        """The bytes per second of a flow of weight 1, from `_since` on."""
        self._served, self._since = 0.0, 0.0
        """The bytes that such a flow was served until then, since the lane was empty."""
        self._wakes_at = inf
        """The time at which it looks whether a flow has ended."""

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
            clock: moves the time.
            size_bytes: its size.
            weight: its share of a link, relative to that of the others there.
            after_s: the seconds from its last byte on the links to its arrival.
            arrived: called with `argument` and the time of its arrival, when that is known.
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
        self._divide(clock)
        if flows[0][1] == number:
            self._set_alarm(clock)

    def _divide(self, clock: Clock) -> None:
        """Give all that share links with this lane, and with those, their rates."""
        if self._flows:
            rate, weight = self.limit, self._weight
        for link, parts in self._links:
            if len(link.lanes) != 1 or not self._flows:
                break
            rate = min(rate, link.bytes_per_s / (parts * weight))
        else:  # the usual case: all workers push over one server's link
            self._rate = rate
            return
        lanes = self._sharing()
        for lane, rate in zip(lanes, fair_rates(lanes), strict=True):
            before = lane._rate
            if rate != before:
                lane._served += before * (clock.now - lane._since)
                lane._since, lane._rate = clock.now, rate
                if rate > before:  # otherwise it looks too soon, and then again
                    lane._set_alarm(clock)

    def _sharing(self) -> list[Lane]:
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
        """The rate of a flow of weight 1 at which all flows together are at their own limits."""
        return self._limit * len(self._flows) / self._weight

    def _set_alarm(self, clock: Clock) -> None:
        ends_at = self._ends_at
        if ends_at < self._wakes_at * (1 - ROUNDING):
            self._wakes_at = ends_at
            clock.schedule(ends_at, self._wake, clock)

    @property
    def _ends_at(self) -> float:
        """The end of the first flow, at the present rate."""
        return self._since + max(0.0, self._flows[0][0] - self._served) / self._rate

    def _wake(self, clock: Clock) -> None:
        """Let the flows arrive that have ended."""
        if clock.now != self._wakes_at:
            return  # another has ended sooner
        self._wakes_at = inf
        if self._ends_at > clock.now:  # others have begun since
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
        self._divide(clock)
        if flows:
            self._set_alarm(clock)
        for _, _, arrived, argument, after_s, _ in ended:
            arrived(argument, clock.now + after_s)


def fair_rates(lanes: Sequence[Lane]) -> list[float]:
    """Return the max-min fair bytes per second of each flow of each lane."""
    rates = dict.fromkeys(lanes, 0.0)
    room = {link: link.bytes_per_s for lane in lanes for link, _ in lane._links}
    rising = list(lanes)
    while rising:
        level, full = _first_full(rising, room)
        stops = {lane for lane in rising if lane.limit <= level} or set(full.lanes)
        for lane in rising:
            if lane in stops:
                rate = rates[lane] = min(lane.limit, level)
                for link, parts in lane._links:
                    room[link] -= parts * lane._weight * rate
        rising = [lane for lane in rising if lane not in stops]
    return list(rates.values())


def _first_full(lanes: Iterable[Lane], room: dict[FairLink, float]) -> tuple[float, FairLink]:
    """Return the rate to which flows can rise, and the link that is full then."""
    demand: dict[FairLink, float] = {}
    for lane in lanes:
        for link, parts in lane._links:
            demand[link] = demand.get(link, 0.0) + parts * lane._weight
    full = min(demand, key=lambda link: room[link] / demand[link])
    return room[full] / demand[full], full
