"""A run in virtual time goes on exactly where it was cut, whatever its paradigm.

The queue of events holds callbacks, which no file can hold. So a run is resumed by *reenacting* it:
the driver of a new process runs the experiment from its beginning, with calls that take their time
but compute nothing, until as many events have been processed. By then clocks, timers, faults,
links, and all that is on its way are as they were. What was computed is put in place: the state of
the actors, and the values of those calls that something still refers to, which are known by their
number.

The driver looks at little that is computed. The metrics of evaluations, by which a model is the
best or the run stops early, are in the journal; losses matter only to the journal itself, but for
one that is not finite, which ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nextafter
from typing import Any

from raysync.core.journal import Entry, Evaluation, Line
from raysync.engine.driver import Driver
from raysync.engine.messages import EvaluateCall, Message
from raysync.errors import ConfigError
from raysync.training.files.state_dict import legible
from raysync.training.files.state_file import CHECKPOINT, State, decode, encode
from raysync.virtual.virtual_backend import VirtualBackend


def snapshot(driver: Driver) -> tuple[State, bytes]:
    """Return where a run stands, between two events or within one that computes nothing.

    Returns:
        The number of its events, as JSON-native data; and what was computed, as the contents of a
        safetensors file.

    Raises:
        ConfigError: the optimizer keeps something that such a file cannot hold.
        Exception: the error of an update, if one has failed.
    """
    assert not driver.status, "the run is over"
    backend = _backend_of(driver)
    computed = backend.state() if backend.computes else {}
    return {"events": backend.processed}, encode(computed)


def reenact(
    driver: Driver, state: Mapping[str, Any], data: bytes, lines: Sequence[Line], at: float = -inf
) -> None:
    """Bring a fresh driver to where another one of the same run stood: all that it writes into the
    journal from then on, and all that it trains, is what the other one would have written and
    trained.

    Args:
        driver: of the same experiment, with a fresh paradigm; it has not begun.
        state: see `snapshot`.
        data: see `snapshot`.
        lines: the journal up to there.
        at: when that was. What `stop` says holds from then on: the settings of a run that goes on
            may be others, and it did not stop before.

    Raises:
        ConfigError: the run does not take the course that the journal tells: the program or the
            settings are others; or the data are damaged.
    """
    backend, computed = _backend_of(driver), decode(data)
    driver.is_reenacted = True
    driver.start(nextafter(at, inf))
    backend.reenact(state["events"], _Answers(driver, lines).answer, at if at > -inf else inf)
    driver.is_reenacted = False
    _check_course(driver.lines, lines)
    driver.lines.clear()
    if backend.computes:
        with legible(CHECKPOINT):
            backend.load_state(computed)


class _Answers:
    """The answers of calls that do not compute."""

    def __init__(self, driver: Driver, lines: Sequence[Line]) -> None:
        self._lines = driver.lines
        self._metrics = [line.metrics for line in lines if isinstance(line, Evaluation)]
        self._seen, self._evaluations = 0, 0
        """Lines of the driver that have been looked at, and the evaluations among them."""

    def answer(self, message: Message, answer: Any) -> Any:
        """Return the answer of a call, given that of its cost.

        Evaluations are made one after another, so those before this one are among the lines.
        """
        if not isinstance(message, EvaluateCall):
            return answer
        following = self._lines[self._seen :]
        self._seen += len(following)
        self._evaluations += sum(isinstance(line, Evaluation) for line in following)
        is_told = self._evaluations < len(self._metrics)
        return self._metrics[self._evaluations] if is_told else answer


def _check_course(lines: Sequence[Line], told: Sequence[Line]) -> None:
    events, expected = (
        [line.event for line in each if isinstance(line, Entry)] for each in (lines, told)
    )
    if events == expected:
        return
    pairs = zip(events, expected, strict=False)
    differ = [
        f"{wanted} is told, and {event} happened" for event, wanted in pairs if event != wanted
    ]
    reason = differ[0] if differ else f"{len(expected)} events are told, and {len(events)} happened"
    raise ConfigError(
        f"{CHECKPOINT}: the run takes another course than its journal tells, so it cannot go on"
        f" from there ({reason}).\nWere the settings or the version of raysync others?"
    )


def _backend_of(driver: Driver) -> VirtualBackend:
    assert isinstance(driver.backend, VirtualBackend), "only runs in virtual time are reenacted"
    return driver.backend
