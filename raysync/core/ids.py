"""Ids of workers and keys of stages' timers: made and parsed only here."""

from __future__ import annotations

import re

#     gpu-3#2         the second life of the slot gpu-3, worker 3 of the group gpu
#     m2/gpu-3#1      stage 2 of a network that was cut, placed on that worker: a slot of its own
#
# Both may be a plain `str` (`worker_slot` returns one: each step formats and hashes a slot, faster
# than of a subclass); the classes give access to its parts. A damaged journal may hold any text for
# a worker, so the access never fails: a missing part is empty, or 0.

_STAGE = re.compile(r"m([1-9][0-9]{0,8})/")  # no name of a worker group contains a slash


class Slot(str):
    """A worker's place in a run, filled by successive lives."""

    __slots__ = ()

    @property
    def stage(self) -> int:
        """The pipeline stage, from 1; 0 if its workers have the whole network."""
        match = _STAGE.match(self)
        return int(match[1]) if match else 0

    @property
    def place(self) -> str:
        """The slot of the experiment file on which a stage is placed; otherwise the slot itself."""
        return self[match.end() :] if (match := _STAGE.match(self)) else str(self)

    @property
    def group(self) -> str:
        """The worker group, prefixed with the stage if any: its workers do equal work."""
        return self.rpartition("-")[0]

    @property
    def number(self) -> int:
        """The number in the group, from 0. (`index` is a method of every `str`.)"""
        return _number(self.rpartition("-")[2])


class WorkerId(str):
    """One life of a worker."""

    __slots__ = ()

    @property
    def slot(self) -> Slot:
        """The slot without the life."""
        return Slot(self.rpartition("#")[0])

    @property
    def life(self) -> int:
        """The number of this life, from 1."""
        return _number(self.rpartition("#")[2])

    @property
    def next_life(self) -> WorkerId:
        """The id of its replacement."""
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
    """Format the slot of a worker in the experiment file."""
    return f"{group}-{number}"


def stage_slot(slot: str, stage: int) -> str:
    """Format the slot of a stage that is placed on the worker of another slot."""
    return f"m{stage}/{slot}"


def worker_id(slot: str, life: int) -> WorkerId:
    """Format the id of one life of a slot."""
    return WorkerId(f"{slot}#{life}")


def stage_timer(stage: int, key: str) -> str:
    """Prefix a timer key with its stage."""
    return f"{stage}/{key}"


def split_timer(key: str) -> tuple[int, str]:
    """Split a timer key into its stage (0: none) and the paradigm's own key."""
    stage, _, rest = key.partition("/")
    return _number(stage), rest


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0
