"""The driver's state in a checkpoint: what must be in it before a run goes on from there.

The file may come from a stranger, with checksums that fit. So it is checked by the process of the
command, before the record is touched: its types, and by restoring the machine, what they say of
each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from raysync.core.checkpoint import Checkpoint
from raysync.core.json_values import LARGEST
from raysync.core.machine import Machine
from raysync.core.paradigm import AnyParadigm
from raysync.core.roster import Member, Roster
from raysync.core.stages import machine_of
from raysync.errors import ConfigError, ProtocolViolation

CLOSED = with_config(ConfigDict(extra="forbid", strict=True))
Whole = Annotated[int, Field(ge=-LARGEST, lt=LARGEST)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Pair = Annotated[list[Whole], Field(min_length=2, max_length=2)]


@CLOSED
class _Comebacks(TypedDict):
    coming: list[tuple[str, float, Whole, float]]
    unproven: dict[str, Whole]


@CLOSED
class _WholeNetwork(TypedDict):
    machine: str
    pushers: list[str]


@CLOSED
class _Stages(TypedDict):
    machine: str
    taken: list[Whole]
    closed: list[Whole]
    stages: list[tuple[str, Whole, Whole | None, bool]]


@CLOSED
class _Models(TypedDict):
    best_value: float | None
    unsaved: list[str]


@CLOSED
class _Evaluations(TypedDict):
    marks: list[float]
    published_at: Finite
    waiting: list[tuple[Whole, float, list[float], bool, float | None]]
    models: _Models


@CLOSED
class _EarlyStop(TypedDict):
    best: float | None
    version: Whole
    not_better: Whole


@CLOSED
class _Faults(TypedDict):
    idle: list[Whole]
    to_come: dict[str, list[Pair]]


@CLOSED
class _Release(TypedDict):
    worker: str
    clock: Whole
    version: Whole
    pull: bool
    batch_size: Whole | None
    lead: Whole


@CLOSED
class _DriverState(TypedDict):
    """What `Driver` writes down; `leaving` is added where other workers go on."""

    comebacks: _Comebacks
    stays_away: list[str]
    lives: dict[str, str]
    workers: dict[str, str]
    joining: list[str]
    topology: _WholeNetwork | _Stages
    evaluations: _Evaluations
    early_stop: _EarlyStop
    faults: _Faults
    pushed: list[tuple[_Release, Whole, bool]]
    batch_sizes: dict[str, Whole | None]
    last_at: Finite
    progress: Finite
    version: Whole
    leaving: NotRequired[list[str]]


@CLOSED
class _Buffered(TypedDict):
    base: Whole
    samples: Whole


@CLOSED
class _Roster(TypedDict):
    """What `Roster.dump` returns."""

    workload_samples: Whole | None
    now: Finite
    version: Whole
    published: Whole
    samples_applied: Whole
    received: Whole
    applied: Whole
    dropped: Whole
    slow: Whole
    fast: Whole
    floor_clock: Whole
    departed: dict[str, Whole | None]
    suspended: dict[str, str]
    live: dict[str, Member]
    members: list[str]
    computing: list[str]
    held: list[str]
    outdated: list[str]
    buffered: list[tuple[str, Whole, _Buffered]]


@CLOSED
class _Snapshot(TypedDict):
    """What `Machine.snapshot` writes down."""

    snapshot: Whole
    paradigm: dict[str, Any]
    state: dict[str, Any]
    timers: dict[str, float]
    roster: _Roster


@CLOSED
class _EventsState(TypedDict):
    """What a run in virtual time writes down."""

    events: Annotated[int, Field(ge=0, lt=LARGEST)]
    intervals: list[float | None]


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_driver_state(state: Mapping[str, Any]) -> None:
    """Refuse what is no state of a driver.

    Raises:
        ConfigError: it names the first part that is missing, or of another type.
    """
    with _damage():
        _check(_DriverState, state)


def check_events_state(state: Mapping[str, Any]) -> None:
    """Refuse what is no state of a run in virtual time.

    Raises:
        ConfigError: see `check_driver_state`.
    """
    with _damage():
        _check(_EventsState, state)


def check_goes_on(checkpoint: Checkpoint, paradigm: AnyParadigm) -> None:
    """Refuse a checkpoint whose driver's state cannot be restored.

    Args:
        checkpoint: of a run whose driver writes down its own state.
        paradigm: that of the run, fresh; it is not changed.

    Raises:
        ConfigError: it says what is wrong.
    """
    with _damage():
        _check(_DriverState, checkpoint.state)
        state = checkpoint.state
        rosters = _restored(state["topology"]["machine"], deepcopy(paradigm), checkpoint.at)
        live = {worker for roster in rosters for worker in roster.live}
        buffered = {push for roster in rosters for push in roster.buffered}
        pushed = {(release["worker"], release["clock"]) for release, _, _ in state["pushed"]}
        workers = {*state["batch_sizes"], *state["topology"].get("pushers", ())}
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


def _restored(text: str, paradigm: AnyParadigm, at: float) -> list[Roster]:
    """Return the rosters of a machine, or of those of stages, which goes on at that time."""
    machine = machine_of(paradigm, None)
    for snapshot in [text] if isinstance(machine, Machine) else json.loads(text):
        _check(_Snapshot, json.loads(snapshot))
    if isinstance(machine, Machine):
        machine = Machine.restore(text, machine.paradigm)
        machines = [machine]
    else:
        machine.restore(text)
        machines = list(machine.machines.values())
    machine.resume(at)
    return [each.roster for each in machines]


def _check(kind: type, value: object) -> None:
    # as JSON, where a tuple is a list
    _adapter(kind).validate_json(json.dumps(value))


@contextmanager
def _damage() -> Iterator[None]:
    """Turn what a damaged state raises into a `ConfigError` of one line."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"checkpoint: its state is damaged: {where}: {first['msg']}.") from error
    except _UNRESTORABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"checkpoint: its state is damaged ({reason}).") from error


_UNRESTORABLE = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    RecursionError,
    ProtocolViolation,
)
"""What restoring raises where the parts of a state do not go together."""
