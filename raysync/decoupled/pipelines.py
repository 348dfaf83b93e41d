"""Which stage may do what next: S pipelines of K modules that draw their batches from one pool. A
machine without I/O.

A stage is one module of one group; it works its list off in the order of `Schedule`. One
*iteration* of a stage ends with a backward pass, and what that yields is its push to the server of
its module. So a stage is a worker like any other: it begins an iteration when the module's paradigm
has released it, and a release brings the weights.

    iteration 1 of module k < K:  F1 ... FD, B1          of module K:  F1, B1
    iteration i:                  F(D + i - 1), Bi                      Fi, Bi

A forward pass needs the output of the module before it (the first one: a batch of the pool), a
backward pass the gradient from the module behind it. When the pool is empty iterations have no
forward pass any more: the pipelines drain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from raysync.decoupled.schedule import Locked, Schedule
from raysync.errors import ProtocolViolation

Stage = tuple[int, int]
"""(group, module), groups from 0, modules from 1."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One batch through one stage. Batches are counted from 1 in each group."""

    stage: Stage
    direction: Literal["forward", "backward"]
    batch: int


@dataclass(slots=True)
class _Stage:
    """Counts of what a stage was told to do, and of what its neighbours have of it."""

    releases: int = 0
    forwards: int = 0
    backwards: int = 0
    forwards_done: int = 0
    backwards_done: int = 0


@dataclass
class Pipelines:
    """Feed it what happened, and it says which passes may begin; each stage begins them in that
    order, one after another.
    """

    groups: int
    """S."""
    modules: int
    """K."""
    batches: int
    """Of the pool, for all groups together."""
    locked: bool = False
    """Whether modules compute one after another, without delays."""
    fed: int = 0
    """Batches that were taken from the pool."""
    stages: dict[Stage, _Stage] = field(init=False)

    def __post_init__(self) -> None:
        self.schedule = Locked(self.modules) if self.locked else Schedule(self.modules)
        self.stages = {
            (group, module): _Stage()
            for group in range(self.groups)
            for module in range(1, self.modules + 1)
        }

    def released(self, stage: Stage) -> list[Pass]:
        """The stage may do its next iteration.

        Raises:
            ProtocolViolation: it has not finished the last one.
        """
        state = self.stages[stage]
        if state.releases > state.backwards_done:
            raise ProtocolViolation(
                f"stage {stage} is released before its iteration {state.releases} has ended"
            )
        state.releases += 1
        return self._next(stage)

    def done(self, one: Pass) -> list[Pass]:
        """What the pass yields is there, or is known to come.

        Raises:
            ProtocolViolation: it was not begun, or is not the stage's next one to be done.
        """
        state, (group, module) = self.stages[one.stage], one.stage
        forward = one.direction == "forward"
        begun, done = (
            (state.forwards, state.forwards_done)
            if forward
            else (state.backwards, state.backwards_done)
        )
        if one.batch != done + 1 or one.batch > begun:
            raise ProtocolViolation(f"{one} is done, but {begun} were begun and {done} done before")
        if forward:
            state.forwards_done += 1
            reached = [(group, module + 1)] if module < self.modules else [one.stage]
        else:
            state.backwards_done += 1
            reached = [(group, module - 1)] if module > 1 else []
        return [each for stage in reached for each in self._next(stage)]

    def is_drained(self, stage: Stage) -> bool:
        """Whether the stage has run backward all that its group will ever be fed."""
        return (
            self.is_closed
            and self.stages[stage].backwards_done == self.stages[stage[0], 1].forwards
        )

    @property
    def is_closed(self) -> bool:
        """Whether the pool is empty."""
        return self.fed == self.batches

    def stashed(self, stage: Stage) -> int:
        """Batches that the stage has begun forward and not yet begun backward: at most max(1, 2(K -
        k)).
        """
        return self.stages[stage].forwards - self.stages[stage].backwards

    def waiting(self, stage: Stage) -> tuple[int, int]:
        """Activations and gradients that wait in the stage's mailboxes."""
        group, module = stage
        state, before, behind = (self.stages.get((group, module + step)) for step in (0, -1, 1))
        assert state is not None, f"no stage {stage}"
        return (
            before.forwards_done - state.forwards if before else 0,
            behind.backwards_done - state.backwards if behind else 0,
        )

    def _next(self, stage: Stage) -> list[Pass]:
        """What the stage may begin now, in its order; and others, if it takes the last batch of the
        pool.

        They need no longer wait for a batch that will never come. (Where a paradigm holds a group's
        first stage, the others of that group may have nothing to hear of later.)
        """
        was_closed = self.is_closed
        passes: list[Pass] = []
        while (one := self._one(stage)) is not None:
            passes.append(one)
            if one.direction == "forward":
                self.stages[stage].forwards += 1
                self.fed += stage[1] == 1
            else:
                self.stages[stage].backwards += 1
        if self.is_closed and not was_closed:
            passes += [one for other in self.stages if other != stage for one in self._next(other)]
        return passes

    def _one(self, stage: Stage) -> Pass | None:
        (group, module), state = stage, self.stages[stage]
        batch = state.backwards + 1
        if state.releases < batch:
            return None  # not yet released for the iteration that ends with it
        if state.forwards < self.schedule.forwards_before(module, batch) and not self._has_all(
            stage
        ):
            there = (
                not self.is_closed
                if module == 1
                else self.stages[group, module - 1].forwards_done > state.forwards
            )
            return Pass(stage, "forward", state.forwards + 1) if there else None
        behind = (
            state.forwards_done
            if module == self.modules
            else self.stages[group, module + 1].backwards_done
        )
        return Pass(stage, "backward", batch) if behind >= batch <= state.forwards else None

    def _has_all(self, stage: Stage) -> bool:
        return self.is_closed and self.stages[stage].forwards == self.stages[stage[0], 1].forwards
