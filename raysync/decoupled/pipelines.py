"""The passes that each stage may begin: S pipelines of K stages that draw their batches from one
pool, as a state machine without I/O.

A stage of one group is named by its `StageId`; it makes its passes in the order of
`PipelineSchedule`. One *iteration* of it ends with a backward pass, whose gradient is its push to
the server of the stage. So it is a worker like any other: it begins an iteration when the paradigm
of the stage has released it, and a release brings the weights.

    iteration 1 of stage k < K:   F1 ... FD, B1          of stage K:   F1, B1
    iteration i:                  F(D + i - 1), Bi                     Fi, Bi

A forward pass needs the output of the stage before it (the first stage: a batch of the pool), a
backward pass the gradient from the stage behind it. Once the pool is empty, iterations have no
forward pass any more: the pipelines drain.

A run that goes on from a checkpoint, where nothing in flight is kept, *begins anew* behind the last
batch that all stages of a pipeline have pushed. Its last stages have pushed more than that. They
compute these batches again, since the stages before them need the gradients, but do not push them
again: so each stage learns once from every batch. Such passes belong to iterations that are over,
and need no release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raysync.decoupled.schedule import Locked, PipelineSchedule
from raysync.errors import ProtocolViolation

StageId = tuple[int, int]
"""(group, stage): groups are counted from 0, stages from 1."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One batch through one stage of one group. Batches are counted from 1 in each group."""

    stage_id: StageId
    direction: Literal["forward", "backward"]
    batch: int


@dataclass(slots=True)
class Counts:
    """The passes that a stage of one group has begun, and those that its neighbours know of."""

    releases: int = 0
    forwards: int = 0
    """Forward passes that it has begun."""
    backwards: int = 0
    """Backward passes that it has begun."""
    forwards_done: int = 0
    """Forward passes whose output the next stage has, or will have."""
    backwards_done: int = 0
    """Backward passes whose gradient the stage before has, or will have."""
    pushed: int = 0
    """The batches that it had pushed when the run began anew."""


@dataclass
class Pipelines:
    """Takes in what happened, and returns the passes that may begin; each stage begins its passes
    in that order, one after another.
    """

    groups: int
    """S."""
    stages: int
    """K."""
    batches: int
    """The size of the pool, for all groups together."""
    locked: bool = False
    """Whether stages compute one after another, without delays."""
    counts: dict[StageId, Counts] = field(init=False)
    taken: list[int] = field(init=False)
    """Group -> the batches that it has taken from the pool."""

    def __post_init__(self) -> None:
        self.schedule = Locked(self.stages) if self.locked else PipelineSchedule(self.stages)
        self.taken = [0] * self.groups
        self.counts = {
            (group, stage): Counts()
            for group in range(self.groups)
            for stage in range(1, self.stages + 1)
        }

    def released(self, stage_id: StageId) -> list[Pass]:
        """Take in that a stage may do its next iteration.

        Raises:
            ProtocolViolation: it has not finished its last iteration.
        """
        counts = self.counts[stage_id]
        if counts.releases > max(counts.backwards_done, counts.pushed):
            raise ProtocolViolation(
                f"stage {stage_id} is released before its iteration {counts.releases} has ended"
            )
        counts.releases += 1
        return self._next(stage_id)

    def done(self, ended: Pass) -> list[Pass]:
        """Take in that the output of a pass is there, or is known to come.

        Raises:
            ProtocolViolation: the pass was not begun, or another one of its stage ends first.
        """
        counts, (group, stage) = self.counts[ended.stage_id], ended.stage_id
        forward = ended.direction == "forward"
        begun, done = (
            (counts.forwards, counts.forwards_done)
            if forward
            else (counts.backwards, counts.backwards_done)
        )
        if ended.batch != done + 1 or ended.batch > begun:
            raise ProtocolViolation(
                f"{ended} is done, but {begun} were begun and {done} done before"
            )
        if forward:
            counts.forwards_done += 1
            reached = [(group, stage + 1)] if stage < self.stages else [ended.stage_id]
        else:
            counts.backwards_done += 1
            reached = [(group, stage - 1)] if stage > 1 else []
        return [following for stage_id in reached for following in self._next(stage_id)]

    def begin_anew(self, taken: Sequence[int], pushed: Mapping[StageId, int]) -> list[Pass]:
        """Begin behind the last batch that all stages of a group have pushed.

        Args:
            taken: group -> the batches that it has taken from the pool.
            pushed: stage of a group -> the batches that it has pushed.
        """
        self.taken = list(taken)
        for (group, stage), batches in pushed.items():
            behind = min(pushed[group, each] for each in range(1, self.stages + 1))
            self.counts[group, stage] = Counts(
                releases=batches,
                forwards=behind,
                backwards=behind,
                forwards_done=behind,
                backwards_done=behind,
                pushed=batches,
            )
        return [following for stage_id in self.counts for following in self._next(stage_id)]

    def is_drained(self, stage_id: StageId) -> bool:
        """Say whether the stage has run backward all batches that its group will ever get."""
        group, _ = stage_id
        return self.is_empty and self.counts[stage_id].backwards_done == self.taken[group]

    @property
    def is_empty(self) -> bool:
        """Whether the pool is empty."""
        return sum(self.taken) == self.batches

    def _next(self, stage_id: StageId) -> list[Pass]:
        """Return what the stage may begin now, in its order, and also what others may begin if it
        takes the last batch of the pool.

        Those need no longer wait for a batch that will never come. (Where a paradigm holds the
        first stage of a group, nothing that happens later reaches the other stages of that group.)
        """
        was_empty = self.is_empty
        passes: list[Pass] = []
        group, _ = stage_id
        while (following := self._following(stage_id)) is not None:
            passes.append(following)
            if following.direction == "forward":
                self.counts[stage_id].forwards += 1
                if stage_id[1] == 1:
                    self.taken[group] = max(self.taken[group], following.batch)
            else:
                self.counts[stage_id].backwards += 1
        if self.is_empty and not was_empty:
            others = [other for other in self.counts if other != stage_id]
            passes += [following for other in others for following in self._next(other)]
        return passes

    def _following(self, stage_id: StageId) -> Pass | None:
        """Return the next pass of the stage if it may begin now."""
        (group, stage), counts = stage_id, self.counts[stage_id]
        batch = counts.backwards + 1
        if counts.releases < batch:
            # It is not released yet for the iteration that ends with that batch. But after a new
            # beginning the forward passes of iterations that are over are made again.
            batch = counts.releases
            if not batch or counts.forwards >= self.schedule.forwards_before(stage, batch):
                return None
        if counts.forwards < self.schedule.forwards_before(stage, batch) and not self._has_all(
            stage_id
        ):
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

    def _has_all(self, stage_id: StageId) -> bool:
        group, _ = stage_id
        return self.is_empty and self.counts[stage_id].forwards == self.taken[group]
