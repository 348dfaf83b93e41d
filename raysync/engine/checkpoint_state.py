"""The driver's state in a checkpoint: its checks, and its change for other workers."""

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

# The file may come from a stranger, with correct checksums. So the command's process checks it
# before it touches the record: types first, then consistency, by restoring the machine.
#
# A run may resume with other workers. The worker of a removed slot leaves, while its arrived pushes
# stay; the worker of a new slot joins at the clock of the slowest. The machine is restored with the
# old workers and these changes are ordinary events, so the journal replays and every paradigm can
# handle them. The training set is dealt out again among the new slots.

# entry of the state: the seconds since the run began up to which no kill strikes again
OUTLIVED_S = "outlived_s"
LEAVING = "leaving"  # entry of the state: the workers that leave as the run resumes
# why a worker leaves whose slot is gone
OTHER_WORKERS = "the run continues with other workers"


class _Closed(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Rejoins(_Closed):
    coming: list[tuple[str, float, Whole, float]]
    unproven: dict[str, Whole]


class _WholeNetwork(_Closed):
    machine: str
    pushers: list[str]
    steps: dict[str, Whole] = {}


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
    evaluations: Whole = 0


class _Faults(_Closed):
    idle: list[Whole]
    to_come: dict[str, list[tuple[Whole, Whole]]]


class _DriverState(_Closed):
    """The driver's state; other workers add `leaving`, and a run in stages `outlived_s`."""

    comebacks: _Rejoins
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
    """Turn errors of restoring a checkpoint's state into a `ConfigError`."""
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
def check_restorable(checkpoint: Checkpoint, paradigm: AnyParadigm) -> None:
    """Refuse a checkpoint whose driver's state cannot be restored.

    The paradigm is the run's, fresh; it is not changed.

    Raises:
        ConfigError: the message says what is wrong.
    """
    if not is_native(checkpoint.state, DEEPEST + 1):
        raise ValueError("a number of more than 64 bits, or too deep a list")
    state = msgspec.convert(checkpoint.state, _DriverState)
    machine, pushers = machine_of(deepcopy(paradigm), None), list[str]()
    if isinstance(machine, Machine):
        whole = msgspec.convert(state.topology, _WholeNetwork)
        text, pushers = whole.machine, [*whole.pushers, *whole.steps]
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
        raise ValueError("its pushes or workers differ from those in its machine")


def files_of(checkpoint: Checkpoint, server: str, count: int) -> Sequence[bytes]:
    """Return the files of a server's shards; a ConfigError refuses another number of them."""
    files = checkpoint.servers.get(server, ())
    if len(files) != count:
        raise ConfigError(
            f"checkpoint: it has {len(files)} files of the {server}, and the run needs {count}."
        )
    return files


@undamaged()
def for_workers_of(checkpoint: Checkpoint, experiment: Experiment) -> Checkpoint:
    """Adapt a checkpoint to the workers of an experiment, which may be others.

    Raises:
        ConfigError: its state is damaged.
    """
    slots = [str(slot) for slot in experiment.slots()]
    workers = checkpoint.state.get("workers")
    if workers is None:
        return checkpoint
    places = {WorkerId(worker).slot.place for worker in workers.values()}  # slots, or stages' hosts
    if places == set(slots):  # always in virtual time, and with stages
        return checkpoint
    state, lives = checkpoint.state, checkpoint.state["lives"]
    added = {slot: _next_worker(slot, lives) for slot in slots if slot not in workers}
    comebacks, topology = state["comebacks"], state["topology"]
    coming = [rejoin for rejoin in comebacks["coming"] if _slot(rejoin[0]) in slots]
    unproven = {
        worker: count for worker, count in comebacks["unproven"].items() if _slot(worker) in slots
    }
    leaving = [worker for worker in lives.values() if _slot(worker) not in slots]
    changes = {
        "workers": {slot: workers.get(slot) or added[slot] for slot in slots},
        "joining": [*_workers_in(state["joining"], slots), *added.values()],
        "comebacks": {**comebacks, "coming": coming, "unproven": unproven},
        "stays_away": [slot for slot in state["stays_away"] if slot in slots],
        "releases": {
            worker: release
            for worker, release in state["releases"].items()
            if _slot(worker) in slots
        },
        "topology": {
            **topology,
            "pushers": _workers_in(topology["pushers"], slots),
            "steps": {
                worker: steps
                for worker, steps in topology.get("steps", {}).items()
                if _slot(worker) in slots
            },
        },
        LEAVING: leaving,
    }
    files = {worker: f for worker, f in checkpoint.worker_files.items() if _slot(worker) in slots}
    return replace(checkpoint, state={**state, **changes}, worker_files=files)


def _next_worker(slot: str, lives: Mapping[str, str]) -> str:
    # an id is used once in a run
    return str(WorkerId(lives[slot]).next_life) if slot in lives else str(worker_id(slot, 1))


def _workers_in(workers: Iterable[str], slots: Collection[str]) -> list[Any]:
    return [worker for worker in workers if _slot(worker) in slots]


def _slot(worker: str) -> str:
    return str(WorkerId(worker).slot)
