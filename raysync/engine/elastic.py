"""Resume a run with other workers than it had: a checkpoint for the slots of another experiment.

A slot that is gone      its worker leaves as the run goes on; its pushes that had arrived stay
a slot that is new       its worker joins, at the clock of the slowest
any other                goes on

The machine is restored with the workers of the cut, and the changes are events like any others: so
the journal replays, and every paradigm knows what to do. Each sample of the training set is dealt
out anew among the slots, so from there on a slot meets other samples than it would have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.ids import WorkerId, worker_id
from raysync.engine.checkpoint_state import undamaged
from raysync.engine.rejoin import next_life_of

WHY = "the run goes on with other workers"
"""The reason with which a worker leaves whose slot is gone."""
LEAVING = "leaving"
"""The entry of a checkpoint's state with the workers that leave as the run goes on."""


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
        "batch_sizes": {
            worker: size for worker, size in state["batch_sizes"].items() if _slot(worker) in slots
        },
        "topology": {**topology, "pushers": _of(topology["pushers"], slots)},
        LEAVING: gone,
    }
    return replace(checkpoint, state={**state, **changed})


def _next_worker(slot: str, lives: Mapping[str, str]) -> str:
    """Return the id of a slot's new worker: an id is used once in a run."""
    return next_life_of(lives[slot]) if slot in lives else str(worker_id(slot, 1))


def _of(workers: Iterable[str], slots: Collection[str]) -> list[Any]:
    return [worker for worker in workers if _slot(worker) in slots]


def _slot(worker: str) -> str:
    return str(WorkerId(worker).slot)
