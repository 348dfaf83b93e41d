"""A state machine of the passes that stages may begin: S pipelines of K stages, one batch pool.

To its paradigm a stage is a worker like any other: a release starts an iteration and brings the
weights; the iteration ends with a backward pass, whose gradient is pushed. Once the pool is empty,
the pipelines drain.

A resumed run continues behind the last batch that all stages of a pipeline have pushed. Later
stages have pushed more; they compute these batches again, since earlier stages need the gradients,
but do not push them again: each stage learns once from every batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raysync.decoupled.schedule import Locked, PipelineSchedule
from raysync.errors import ProtocolViolation

StageId = tuple[int, int]
"""(group, stage): groups from 0, stages from 1."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One batch, counted from 1 in each group, through one stage."""

    stage_id: StageId
    direction: Literal["forward", "backward"]
    batch: int


@dataclass(slots=True)
class Counts:
    releases: int = 0
    forwards: int = 0  # begun
    backwards: int = 0  # begun
    # passes whose output or gradient exists, or is certain to arrive
    forwards_done: int = 0
    backwards_done: int = 0
    pushed: int = 0  # batches, before the run was resumed


@dataclass
class Pipelines:
    """Takes events and returns the passes that may begin, in the order in which stages run them."""

    groups: int  # S
    stages: int  # K
    batches: int  # in the pool, for all groups
    locked: bool = False  # stages compute one after another, without delays
    counts: dict[StageId, Counts] = field(init=False)
    taken: list[int] = field(init=False)  # group -> batches taken from the pool

    def __post_init__(self) -> None:
        self.schedule = Locked(self.stages) if self.locked else PipelineSchedule(self.stages)
        self.taken = [0] * self.groups
        self.counts = {
            (group, stage): Counts()
            for group in range(self.groups)
            for stage in range(1, self.stages + 1)
        }

    def released(self, stage_id: StageId) -> list[Pass]:
        """Allow a stage its next iteration, or raise a ProtocolViolation before the last
        one ended.
        """
        counts = self.counts[stage_id]
        if counts.releases > max(counts.backwards_done, counts.pushed):
            raise ProtocolViolation(
                f"stage {stage_id} is released before its iteration {counts.releases} has ended"
            )
        counts.releases += 1
        return self._begin_next(stage_id)

    def done(self, ended: Pass) -> list[Pass]:
        """Record that the output of a pass exists, or is certain to arrive."""
        counts, (group, stage) = self.counts[ended.stage_id], ended.stage_id
        is_forward = ended.direction == "forward"
        begun, done = (
            (counts.forwards, counts.forwards_done)
            if is_forward
            else (counts.backwards, counts.backwards_done)
        )
        if ended.batch != done + 1 or ended.batch > begun:
            raise ProtocolViolation(
                f"{ended} is done, but {begun} were begun and {done} done before"
            )
        if is_forward:
            counts.forwards_done += 1
            reached = [(group, stage + 1)] if stage < self.stages else [ended.stage_id]
        else:
            counts.backwards_done += 1
            reached = [(group, stage - 1)] if stage > 1 else []
        return [following for stage_id in reached for following in self._begin_next(stage_id)]

    # taken: group -> batches taken from the pool; pushed: stage of a group -> batches pushed
    def resume(self, taken: Sequence[int], pushed: Mapping[StageId, int]) -> list[Pass]:
        """Continue behind the last batch that all stages of a group have pushed."""
        self.taken = list(taken)
        for (group, stage), batches in pushed.items():
            behind = min(pushed[group, other] for other in range(1, self.stages + 1))
            self.counts[group, stage] = Counts(
                releases=batches,
                forwards=behind,
                backwards=behind,
                forwards_done=behind,
                backwards_done=behind,
                pushed=batches,
            )
        return [following for stage_id in self.counts for following in self._begin_next(stage_id)]

    @property
    def is_empty(self) -> bool:
        return sum(self.taken) == self.batches

    def _begin_next(self, stage_id: StageId) -> list[Pass]:
        """Begin the passes that the stage may run now, and return them in order."""
        was_empty = self.is_empty
        passes: list[Pass] = []
        group, _ = stage_id
        while (following := self._next_pass(stage_id)) is not None:
            passes.append(following)
            if following.direction == "forward":
                self.counts[stage_id].forwards += 1
                if stage_id[1] == 1:
                    self.taken[group] = max(self.taken[group], following.batch)
            else:
                self.counts[stage_id].backwards += 1
        # Other stages need no longer wait for further batches. If a paradigm holds a group's first
        # stage, no later event reaches the group's other stages.
        if self.is_empty and not was_empty:
            others = [other for other in self.counts if other != stage_id]
            passes += [following for other in others for following in self._begin_next(other)]
        return passes

    def _next_pass(self, stage_id: StageId) -> Pass | None:
        """Return the pass that the stage may begin now; None: it lacks a release or an input."""
        (group, stage), counts = stage_id, self.counts[stage_id]
        batch = counts.backwards + 1
        if counts.releases < batch:
            # The stage is not released for the iteration that ends with this batch. But a resumed
            # run repeats the forward passes of completed iterations.
            batch = counts.releases
            if not batch or counts.forwards >= self.schedule.forwards_before(stage, batch):
                return None
        has_run_all = self.is_empty and counts.forwards == self.taken[group]
        if counts.forwards < self.schedule.forwards_before(stage, batch) and not has_run_all:
            has_input = (
                counts.forwards < self.taken[group] or not self.is_empty
                if stage == 1
                else self.counts[group, stage - 1].forwards_done > counts.forwards
            )
            return Pass(stage_id, "forward", counts.forwards + 1) if has_input else None
        if counts.backwards == batch:
            return None
        gradients = (
            counts.forwards_done
            if stage == self.stages
            else self.counts[group, stage + 1].backwards_done
        )
        return Pass(stage_id, "backward", batch) if gradients >= batch <= counts.forwards else None
