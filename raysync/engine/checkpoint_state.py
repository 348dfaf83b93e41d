"""The driver's state in a checkpoint: what must be in it before a run goes on from there.

The file may come from a stranger, with checksums that fit. So it is checked by the process of the
command, before the record is touched: its types, and by restoring the machine, what they say of
each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import msgspec

from raysync.core.checkpoint import Checkpoint
from raysync.core.decisions import Release
from raysync.core.machine import Machine
from raysync.core.paradigm import AnyParadigm
from raysync.core.stages import machine_of, rosters_in
from raysync.core.structs import DEEPEST, Seconds, Whole, is_native
from raysync.errors import ConfigError, ProtocolViolation

OUTLIVED_S = "outlived_s"
"""The entry of a checkpoint's state with the moment, in seconds since the run began, up to which
workers are not killed again."""


class _Closed(msgspec.Struct, forbid_unknown_fields=True):
    """A mapping with these keys alone."""


class _Comebacks(_Closed):
    coming: list[tuple[str, float, Whole, float]]
    unproven: dict[str, Whole]


class _WholeNetwork(_Closed):
    machine: str
    pushers: list[str]


class _Stages(_Closed):
    machine: str
    taken: list[Whole]


class _Models(_Closed):
    best_value: float | None
    unsaved: list[str]


class _Evaluations(_Closed):
    marks: list[float]
    published_at: Seconds
    waiting: list[tuple[Whole, float, list[float], bool, float | None]]
    models: _Models


class _Stopping(_Closed):
    best: float | None
    version: Whole
    not_better: Whole


class _Faults(_Closed):
    idle: list[Whole]
    to_come: dict[str, list[tuple[Whole, Whole]]]


class _DriverState(_Closed):
    """What `Driver` writes down; `leaving` is added where other workers go on, and `outlived_s`
    where a run in stages does.
    """

    comebacks: _Comebacks
    stays_away: list[str]
    lives: dict[str, str]
    workers: dict[str, str]
    joining: list[str]
    topology: dict[str, Any]
    evaluations: _Evaluations
    early_stop: _Stopping
    faults: _Faults
    pushed: list[tuple[Release, Whole, bool]]
    batch_sizes: dict[str, Whole | None]
    last_at: Seconds
    progress: Seconds
    version: Whole
    leaving: list[str] = []
    outlived_s: Seconds = 0.0


@contextmanager
def undamaged() -> Iterator[None]:
    """Turn what the state of a checkpoint raises as it is restored into a `ConfigError`."""
    try:
        yield
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        ProtocolViolation,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"checkpoint: its state is damaged ({reason}).") from error


@undamaged()
def check_goes_on(checkpoint: Checkpoint, paradigm: AnyParadigm) -> None:
    """Refuse a checkpoint whose driver's state cannot be restored.

    Args:
        checkpoint: of a run whose driver writes down its own state.
        paradigm: that of the run, fresh; it is not changed.

    Raises:
        ConfigError: it says what is wrong.
    """
    if not is_native(checkpoint.state, DEEPEST + 1):
        raise ValueError("a number of more than 64 bits, or too deep a list")
    state = msgspec.convert(checkpoint.state, _DriverState)
    machine, pushers = machine_of(deepcopy(paradigm), None), list[str]()
    if isinstance(machine, Machine):
        whole = msgspec.convert(state.topology, _WholeNetwork)
        text, pushers = whole.machine, whole.pushers
        machine = Machine.restore(text, machine.paradigm)
    else:
        text = msgspec.convert(state.topology, _Stages).machine
        machine.restore(text)
    machine.resume(checkpoint.at)
    rosters = rosters_in(text).values()
    live = {worker for roster in rosters for worker in roster.live}
    buffered = {push for roster in rosters for push in roster.buffered}
    pushed = {(release.worker, release.clock) for release, _, _ in state.pushed}
    workers = {*state.batch_sizes, *pushers}
    if pushed != buffered or not workers <= live:
        raise ValueError("its pushes or workers are not those of its machine")


def files_of(checkpoint: Checkpoint, server: str, count: int) -> Sequence[bytes]:
    """Return the files of a server that has so many shards.

    Raises:
        ConfigError: the checkpoint has another number of them.
    """
    files = checkpoint.servers.get(server, ())
    if len(files) != count:
        raise ConfigError(
            f"checkpoint: it has {len(files)} files of the {server}, and the run needs {count}."
        )
    return files
