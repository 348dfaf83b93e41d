"""The calls of the virtual clock: when they end, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from msgspec import Struct

from raysync.engine.backend import Failure
from raysync.engine.messages import StepReport
from raysync.step_fault import NO_FAULT, StepFault

Following = tuple[Callable[[Any], None], Any]  # a callback and its argument


# A call is in one of four states:
#
# * its end is unknown: `followers` is a list, `at` is infinity;
# * its end is known: `followers` is None;
# * a push that arrived and waits for the coordinator: `arrives_at` is set, `at` is infinity;
# * it never ends, as its process froze: `followers` is None, `at` is infinity.
class VirtualCall(Struct, eq=False, weakref=True):
    """A call, and the first of its values."""

    at: float  # its end, in seconds since the run began; infinity: never, or unknown
    site: str = ""
    fault: StepFault = NO_FAULT  # of the route of its values
    answer: Any = None
    values: Sequence[Any] | None = None  # None: not computed yet, or nothing is
    moved: VirtualCall | None = None  # the retry that replaces it
    # the arrival of a push, while it waits for the coordinator; `at` is infinity meanwhile
    arrives_at: float | None = None
    # callbacks for when its end is known; None: it is known
    followers: list[Following] | None = None
    # callbacks for its end, each followed by its argument, while the end is unknown
    watchers: tuple[Any, ...] = ()

    def value(self, index: int) -> VirtualCall | OtherValue:
        return self if index == 0 else OtherValue(self, index)

    @property
    def computed(self) -> Any:
        assert self.values is not None, "nothing is computed"
        return self.values[0]


def follow(value: VirtualCall | OtherValue, then: Callable[[Any], None], argument: Any) -> None:
    """Call `then(argument)` once the time of a value is known."""
    if value.followers is None:
        then(argument)
    else:
        value.followers.append((then, argument))


def notify_followers(value: VirtualCall | OtherValue) -> None:
    """Notify the followers of a value, whose time is now known."""
    followers, value.followers = value.followers or (), None
    for then, argument in followers:
        then(argument)


class OtherValue:
    """A further value of a call."""

    def __init__(self, call: VirtualCall, index: int) -> None:
        self._call, self._index = call, index
        self.at, self.site, self.fault = call.at, call.site, call.fault
        self.followers: list[Following] | None = None  # see `VirtualCall.followers`
        if call.followers is not None:
            self.followers = []
            call.followers.append((self._take_end, call))

    def _take_end(self, call: VirtualCall) -> None:
        self.at = call.at
        notify_followers(self)

    @property
    def answer(self) -> Any:
        return self._call.answer

    @property
    def computed(self) -> Any:
        assert self._call.values is not None, "nothing is computed"
        return self._call.values[self._index]


def is_computed(call: VirtualCall) -> bool:
    # files of states only leave the run, so they are no values
    if call.values is None:
        return isinstance(call.answer, Failure)
    return not any(isinstance(each, bytes) for each in call.values)


def state_of(call: VirtualCall) -> dict[str, Any]:
    if isinstance(call.answer, Failure):
        return {"failure": astuple(call.answer)}
    assert call.values is not None, "nothing is computed"
    answer, values = call.answer, {"values": list(call.values), "count": len(call.values)}
    if isinstance(answer, StepReport):
        return values | {"step": [answer.loss, answer.busy_s]}
    return values | {"answer": answer}


def load_state(call: VirtualCall, state: Mapping[str, Any]) -> None:
    if "failure" in state:
        call.answer = Failure(*state["failure"])
    else:
        call.values = state["values"]
        if len(call.values) != state.get("count", len(call.values)):
            raise ValueError("a value of a call is missing")
        call.answer = StepReport(*state["step"]) if "step" in state else state["answer"]


def copy_results(calls: tuple[VirtualCall, VirtualCall]) -> None:
    """Copy the results of a retry to the lost call."""
    lost, call = calls
    if lost.moved is call:
        lost.answer, lost.values = call.answer, call.values
