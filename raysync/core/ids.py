"""Ids of workers, and keys of the timers of stages: made and parsed only here.

    gpu-3#2         the second life of the slot gpu-3, which is worker 3 of the group gpu
    m2/gpu-3#1      stage 2 of a network that was cut, on that worker: a slot of its own

An id or a slot may be a plain `str` anywhere; `WorkerId(text)` and `Slot(text)` give access to its
parts. (Slots are made as plain strings, since each step hashes one in a formatted text.)
The access never fails, since a damaged journal may have any text for a worker: a part that the text
does not have is empty, or 0.
"""

from __future__ import annotations

import re

_STAGE = re.compile(r"m([1-9][0-9]{0,8})/")
"""No name of a worker group contains a slash."""


class Slot(str):
    """A worker's place in a run, which its successive lives fill."""

    __slots__ = ()

    @property
    def stage(self) -> int:
        """The stage that it computes, from 1; 0 if its workers have the whole network."""
        match = _STAGE.match(self)
        return int(match[1]) if match else 0

    @property
    def place(self) -> str:
        """The slot of the experiment file that it is on: its own, but for a stage."""
        return self[match.end() :] if (match := _STAGE.match(self)) else str(self)

    @property
    def group(self) -> str:
        """The group of workers that it is in. The group of a stage's slot includes the stage: the
        workers of one such group do equal work.
        """
        return self.rpartition("-")[0]

    @property
    def number(self) -> int:
        """The number in the group, from 0. (`index` is a method of every `str`.)"""
        return _number(self.rpartition("-")[2])


class WorkerId(str):
    """One life of a worker. An id is used once in a run."""

    __slots__ = ()

    @property
    def slot(self) -> Slot:
        """The slot that it fills."""
        return Slot(self.rpartition("#")[0])

    @property
    def life(self) -> int:
        """The number of this life of the slot, from 1."""
        return _number(self.rpartition("#")[2])

    @property
    def next_life(self) -> WorkerId:
        """The worker that comes in its place."""
        return worker_id(self.slot, self.life + 1)

    @property
    def stage(self) -> int:
        """The stage of its slot."""
        return self.slot.stage

    @property
    def group(self) -> str:
        """The group of its slot."""
        return self.slot.group

    @property
    def number(self) -> int:
        """The number of its slot."""
        return self.slot.number


def worker_slot(group: str, number: int) -> str:
    """Return the slot of a worker that an experiment file describes."""
    return f"{group}-{number}"


def stage_slot(slot: str, stage: int) -> str:
    """Return the slot of a stage that is placed on the worker of another slot."""
    return f"m{stage}/{slot}"


def worker_id(slot: str, life: int) -> WorkerId:
    """Return the id of a worker of that slot."""
    return WorkerId(f"{slot}#{life}")


def stage_timer(stage: int, key: str) -> str:
    """Return the key of a timer that the paradigm of a stage calls `key`."""
    return f"{stage}/{key}"


def split_timer(key: str) -> tuple[int, str]:
    """Return the stage of a timer, or 0, and the key that the paradigm of the stage gave it."""
    stage, _, rest = key.partition("/")
    return _number(stage), rest


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0
