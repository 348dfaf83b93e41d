"""The driver's state in a checkpoint: what must be in it before a run goes on from there.

The file may come from a stranger, with checksums that fit. So it is checked by the process of the
command, before the record is touched: its types, and by restoring the machine, what they say of
each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from raysync.core.checkpoint import Checkpoint
from raysync.core.decisions import Release
from raysync.core.json_values import DEEPEST, is_native
from raysync.core.machine import Machine
from raysync.core.paradigm import AnyParadigm
from raysync.core.roster import Buffered, Member
from raysync.core.stages import machine_of, rosters_in
from raysync.errors import ConfigError, ProtocolViolation

CLOSED = with_config(ConfigDict(extra="forbid", strict=True))
OUTLIVED_S = "outlived_s"
"""The entry of a checkpoint's state with the moment, in seconds since the run began, up to which
workers are not killed again."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Comebacks(TypedDict):
    coming: list[tuple[str, float, int, float]]
    unproven: dict[str, int]


class _WholeNetwork(TypedDict):
    machine: str
    pushers: list[str]


class _Stages(TypedDict):
    machine: str
    taken: list[int]


class _Models(TypedDict):
    best_value: float | None
    unsaved: list[str]


class _Evaluations(TypedDict):
    marks: list[float]
    published_at: Finite
    waiting: list[tuple[int, float, list[float], bool, float | None]]
    models: _Models


class _EarlyStop(TypedDict):
    best: float | None
    version: int
    not_better: int


class _Faults(TypedDict):
    idle: list[int]
    to_come: dict[str, list[tuple[int, int]]]


@CLOSED
class _DriverState(TypedDict):
    """What `Driver` writes down; `leaving` is added where other workers go on, and `outlived_s`
    where a run in stages does.
    """

    comebacks: _Comebacks
    stays_away: list[str]
    lives: dict[str, str]
    workers: dict[str, str]
    joining: list[str]
    topology: _WholeNetwork | _Stages
    evaluations: _Evaluations
    early_stop: _EarlyStop
    faults: _Faults
    pushed: list[tuple[Release, int, bool]]
    batch_sizes: dict[str, int | None]
    last_at: Finite
    progress: Finite
    version: int
    leaving: NotRequired[list[str]]
    outlived_s: NotRequired[Finite]


class _Roster(TypedDict):
    """What `Roster.dump` returns."""

    workload_samples: int | None
    now: Finite
    version: int
    published: int
    samples_applied: int
    received: int
    applied: int
    dropped: int
    slow: int
    fast: int
    floor_clock: int
    departed: dict[str, int | None]
    suspended: dict[str, str]
    live: dict[str, Member]
    members: list[str]
    computing: list[str]
    held: list[str]
    outdated: list[str]
    buffered: list[tuple[str, int, Buffered]]


@CLOSED
class _Snapshot(TypedDict):
    """What `Machine.snapshot` writes down."""

    snapshot: int
    paradigm: dict[str, Any]
    state: dict[str, Any]
    timers: dict[str, float]
    roster: _Roster


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
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
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
    state = checkpoint.state
    _check(_DriverState, state)
    machine, text = machine_of(deepcopy(paradigm), None), state["topology"]["machine"]
    for snapshot in [text] if isinstance(machine, Machine) else json.loads(text):
        _check(_Snapshot, json.loads(snapshot))
    if isinstance(machine, Machine):
        machine = Machine.restore(text, machine.paradigm)
    else:
        machine.restore(text)
    machine.resume(checkpoint.at)
    rosters = rosters_in(text).values()
    live = {worker for roster in rosters for worker in roster.live}
    buffered = {push for roster in rosters for push in roster.buffered}
    pushed = {(release["worker"], release["clock"]) for release, _, _ in state["pushed"]}
    workers = {*state["batch_sizes"], *state["topology"].get("pushers", ())}
    if pushed != buffered or not workers <= live:
        raise ValueError("its pushes or workers are not those of its machine")


_adapter = cache(TypeAdapter)


def _check(kind: type, value: object) -> None:
    if not is_native(value, DEEPEST + 1):
        raise ValueError("a number of more than 64 bits, or too deep a list")
    _adapter(kind).validate_json(json.dumps(value))  # as JSON, where a tuple is a list


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
