"""Exact resumption of a run in virtual time, under any paradigm.

The event queue holds callbacks, which no file can hold. So a new process *reenacts* the run: from
its beginning, with calls that take time but compute nothing, for as many events. Then actors'
states, and the values of calls still referred to, are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nextafter
from typing import Any

from raysync.core.journal import Entry, Evaluation, Line
from raysync.engine.driver import Driver
from raysync.engine.messages import EvaluateCall, Message
from raysync.errors import ConfigError
from raysync.training.formats.state_dict import legible
from raysync.training.formats.state_file import CHECKPOINT, State, decode, encode
from raysync.virtual.virtual_backend import VirtualBackend


def snapshot(driver: Driver) -> tuple[State, bytes]:
    """Return the state of a run, between two events or within one that computes nothing.

    Returns:
        The number of its events, as JSON-native data; and computed results, as a safetensors file.

    Raises:
        ConfigError: the optimizer keeps something that such a file cannot hold.
        Exception: the error of an update, if one has failed.
    """
    assert not driver.status, "the run is over"
    backend = _backend_of(driver)
    computed = backend.state() if backend.computes else {}
    return {"events": backend.processed}, bytes(encode(computed))


def reenact(
    driver: Driver, state: Mapping[str, Any], data: bytes, lines: Sequence[Line], at: float = -inf
) -> None:
    """Bring a fresh driver to the state of another one of the same run: it continues identically.

    Args:
        driver: of the same experiment, with a fresh paradigm; it has not begun.
        state: see `snapshot`.
        data: see `snapshot`.
        lines: the journal up to that state.
        at: the state's time. The settings in `stop`, which may have changed, apply after it.

    Raises:
        ConfigError: the repeated run differs from its journal: the program or the settings have
            changed; or the data are damaged.
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
    """Answers of calls that do not compute: metrics come from the journal, by which models are
    ranked and runs stop early. Losses matter only to the journal, unless one that is not finite
    ends the run.
    """

    def __init__(self, driver: Driver, lines: Sequence[Line]) -> None:
        self._lines = driver.lines
        self._metrics = [line.metrics for line in lines if isinstance(line, Evaluation)]
        # the driver's lines read so far, and the evaluations among them
        self._seen, self._evaluations = 0, 0

    def answer(self, message: Message, answer: Any) -> Any:
        """Return the answer of a call, given its answer by `cost`."""
        if not isinstance(message, EvaluateCall):
            return answer
        following = self._lines[self._seen :]
        self._seen += len(following)
        self._evaluations += sum(isinstance(line, Evaluation) for line in following)
        is_recorded = self._evaluations < len(self._metrics)
        return self._metrics[self._evaluations] if is_recorded else answer


def _check_course(lines: Sequence[Line], recorded: Sequence[Line]) -> None:
    events, expected = (
        [line.event for line in each if isinstance(line, Entry)] for each in (lines, recorded)
    )
    if events == expected:
        return
    pairs = zip(events, expected, strict=False)
    differences = (
        f"the journal has {wanted}, but {event} happened"
        for event, wanted in pairs
        if event != wanted
    )
    count_text = f"the journal has {len(expected)} events, but {len(events)} happened"
    raise ConfigError(
        f"{CHECKPOINT}: the repeated run differs from its journal, so it cannot be resumed"
        f" ({next(differences, count_text)}).\n"
        "Did the settings or the version of raysync change?"
    )


def _backend_of(driver: Driver) -> VirtualBackend:
    assert isinstance(driver.backend, VirtualBackend), "only runs in virtual time are reenacted"
    return driver.backend
