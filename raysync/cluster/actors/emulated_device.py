"""A worker or stage that takes as long as the device and the link that its group describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from raysync.cluster.clock import Stopwatch, sleep_s, slept_s
from raysync.config import Link
from raysync.emulation.step_time import one_way_s
from raysync.engine.messages import Message
from raysync.programs.program import Handled
from raysync.programs.stage import StageProgram
from raysync.programs.worker import WorkerProgram


class EmulatedDevice:
    """Reports with each push the seconds of all computing since the last one.

    These include the emulated part and, on a CPU, drawing the batch unless drawn ahead.
    """

    def __init__(
        self,
        program: WorkerProgram | StageProgram,
        watch: Stopwatch,  # runs while the program computes
        # the seconds of a message that the described device takes, given the measured ones
        seconds_of: Callable[[Any, float], float],
        link: Link,
        input_bytes: Mapping[type[Message], int],  # what comes over the link, if it has inputs
    ) -> None:
        self._program, self._watch, self._seconds_of = program, watch, seconds_of
        self._link, self._input_bytes = link, input_bytes
        self._busy_s = 0.0  # since the last push

    def handle(self, message: Any, inputs: Sequence[Any], into: Tensor | None = None) -> Handled:
        size = self._input_bytes.get(type(message))
        if size is None:
            return self._program.handle(message, inputs)
        if inputs and size:  # the backend emulates uploads: another step may begin meanwhile
            sleep_s(one_way_s(self._link, size, message.fault))
        handled = self._program.handle(message, inputs, into)
        # On a GPU the copies run beside this thread: they are no computing.
        computed_s = self._program.device_s or self._watch.seconds
        self._busy_s += computed_s + slept_s(self._seconds_of(message, computed_s) - computed_s)
        if not message.row.is_push:
            return handled
        busy_s, self._busy_s = self._busy_s, 0.0
        return handled._replace(answer=replace(handled.answer, busy_s=busy_s))
