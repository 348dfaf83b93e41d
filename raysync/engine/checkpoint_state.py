"""The driver's state in a checkpoint: what must be in it before a run goes on from there.

The file may come from a stranger, with checksums that fit. So it is checked by the process of the
command, before the record is touched: its types, and by restoring the machine, what they say of
each other.

Where a run goes on with other workers than it had, the worker of a slot that is gone leaves, and
its pushes that had arrived stay; that of a new slot joins, at the clock of the slowest. The machine
is restored with the workers of the cut, and these changes are events like any others: so the
journal replays, and every paradigm knows what to do. Each sample of the training set is dealt out
anew among the slots, so from there on a slot meets other samples than it would have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec

from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.decisions import Release
from raysync.core.ids import WorkerId, worker_id
from raysync.core.machine import Machine
from raysync.core.paradigm import AnyParadigm
from raysync.core.stages import machine_of, rosters_in
from raysync.core.structs import DEEPEST, Seconds, Whole, is_native
from raysync.errors import ConfigError, ProtocolViolation

OUTLIVED_S = "outlived_s"
"""The entry of a checkpoint's state with the moment, in seconds since the run began, up to which
workers are not killed again."""
LEAVING = "leaving"
"""The entry of a checkpoint's state with the workers that leave as the run goes on."""
WHY = "the run goes on with other workers"
"""The reason with which a worker leaves whose slot is gone."""


class _Closed(msgspec.Struct, forbid_unknown_fields=True):
    """A mapping with these keys alone."""


class _Away(_Closed):
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

    comebacks: _Away
    stays_away: list[str]
    lives: dict[str, str]
    workers: dict[str, str]
    joining: list[str]
    topology: dict[str, Any]
    evaluations: _Evaluations
    early_stop: _Stopping
    faults: _Faults
    pushed: list[tuple[Release, Whole, bool]]
    releases: dict[str, tuple[Whole | None, Whole | None]]
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
    workers = {*state.releases, *pushers}
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


@undamaged()
def for_workers_of(checkpoint: Checkpoint, experiment: Experiment) -> Checkpoint:
    """Return a checkpoint as a run with the workers of an experiment goes on from it.

    Args:
        checkpoint: of a run that may have had others.
        experiment: the settings that it is to go on with.

    Raises:
        ConfigError: its state is damaged.
    """
    slots = [str(slot) for slot in experiment.slots()]
    workers = checkpoint.state.get("workers")
    if workers is None:
        return checkpoint
    places = {WorkerId(worker).slot.place for worker in workers.values()}  # of stages, their hosts
    if places == set(slots):  # in virtual time, and of stages, they never change
        return checkpoint
    state, lives = checkpoint.state, checkpoint.state["lives"]
    added = {slot: _next_worker(slot, lives) for slot in slots if slot not in workers}
    comebacks, topology = state["comebacks"], state["topology"]
    coming = [each for each in comebacks["coming"] if _slot(each[0]) in slots]
    unproven = {
        worker: count for worker, count in comebacks["unproven"].items() if _slot(worker) in slots
    }
    gone = [worker for worker in lives.values() if _slot(worker) not in slots]
    changed = {
        "workers": {slot: workers.get(slot) or added[slot] for slot in slots},
        "joining": [*_of(state["joining"], slots), *added.values()],
        "comebacks": {**comebacks, "coming": coming, "unproven": unproven},
        "stays_away": [slot for slot in state["stays_away"] if slot in slots],
        "releases": {
            worker: each for worker, each in state["releases"].items() if _slot(worker) in slots
        },
        "topology": {**topology, "pushers": _of(topology["pushers"], slots)},
        LEAVING: gone,
    }
    return replace(checkpoint, state={**state, **changed})


def _next_worker(slot: str, lives: Mapping[str, str]) -> str:
    """Return the id of a slot's new worker: an id is used once in a run."""
    return str(WorkerId(lives[slot]).next_life) if slot in lives else str(worker_id(slot, 1))


def _of(workers: Iterable[str], slots: Collection[str]) -> list[Any]:
    return [worker for worker in workers if _slot(worker) in slots]


def _slot(worker: str) -> str:
    return str(WorkerId(worker).slot)
