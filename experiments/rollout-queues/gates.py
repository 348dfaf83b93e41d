"""A queue between slots that generate rollouts and a trainer, and gates that bound staleness.

A worker is a slot that generates one sample at a time, a push is a sample, an update is a step of
the trainer on a batch of groups of samples of one prompt. A group *starts* at version s (when its
first sample does), is *ready* at version q (with its last sample), and is *trained* at version c
(when its step begins): its staleness is c - s, of which q - s before the queue and c - q in it.

Sources: the law of staleness by Applied Compute (2026); AReaL (arXiv 2505.24298); the samplers
`windowed` and `in_order` of NeMo-RL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt
from typing_extensions import override

from raysync.core.decisions import Apply, Decision, Drop, Note, Push, Release, SetTimer
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster

TRAINER = "rollout queue: the trainer"  # the timer at the end of a step
TRAINED = "trained"  # the note at its beginning


@dataclass
class RolloutQueue(Paradigm):
    """A step of the trainer takes the groups that were ready first, while others are generated.

    Gates, by `bound` (the versions that a group should be stale at most):

    * `none`: no group is refused or dropped.
    * `drop-oldest`: the queue holds `capacity` batches; of more, the group ready first is dropped.
    * `evict`: a step leaves out, and drops, groups that are staler than the bound.
    * `count` (AReaL): a group may start while fewer than (bound + version + 1) batches were started
      and not dropped.
    * `in-order`: batch k is trained at version k and no other; its groups may start from version
      k - bound on.
    """

    name: ClassVar[str] = "rollout-queue"

    gate: Literal["none", "drop-oldest", "evict", "count", "in-order"] = "none"
    group: Annotated[int, Ge(1)] = 8  # samples
    batch: Annotated[int, Ge(1)] = 15  # groups
    update_s: Annotated[float, Gt(0)] = 1.0  # of a step of the trainer
    capacity: Annotated[float, Gt(0)] = 2.0  # batches
    bound: Annotated[int, Ge(0)] = 1

    version: int = field(default=0, init=False)
    started: int = field(default=0, init=False)  # samples
    dropped: int = field(default=0, init=False)  # groups
    # worker -> the group of its sample; group -> the version at its start; its pushes so far
    group_of: dict[str, int] = field(default_factory=dict, init=False)
    start: dict[str, int] = field(default_factory=dict, init=False)
    pushes: dict[str, list[Any]] = field(default_factory=dict, init=False)
    # (group, the version when it was ready), the first one first; those of the step under way
    ready: list[list[int]] = field(default_factory=list, init=False)
    training: list[int] = field(default_factory=list, init=False)

    @override
    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        return self._admit([worker])

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        group = self.group_of.pop(push[0])
        self.pushes[str(group)].append(list(push))
        decisions: list[Decision] = []
        if len(self.pushes[str(group)]) == self.group:
            self.ready.append([group, self.version])
            if self.gate == "drop-oldest" and len(self.ready) > self.capacity * self.batch:
                decisions += self._drop(self.ready.pop(0)[0], "the queue is full")
            decisions += self._train(roster)
        return decisions + self._admit(roster.held)

    @override
    def on_timer(self, roster: Roster, key: str) -> list[Decision]:
        pushes = [push for group in self.training for push in self._taken(group)]
        self.training = []
        self.version += 1
        return [Apply(tuple(pushes)), *self._train(roster), *self._admit(roster.held)]

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        raise AssertionError("a slot never leaves")

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        return f"the gate {self.gate} lets no group start before version {self.version + 1}"

    def _admit(self, workers: Sequence[str]) -> list[Decision]:
        """Release held workers, each for the next sample, as far as the gate allows."""
        decisions: list[Decision] = []
        for worker in workers:
            group, sample = divmod(self.started, self.group)
            if sample == 0 and not self._may_start(group):
                break
            if sample == 0:
                self.start[str(group)], self.pushes[str(group)] = self.version, []
            self.started += 1
            self.group_of[worker] = group
            decisions.append(Release(worker))
        return decisions

    def _may_start(self, group: int) -> bool:
        if self.gate == "count":
            return group - self.dropped < (self.bound + self.version + 1) * self.batch
        if self.gate == "in-order":
            return group // self.batch <= self.version + self.bound
        return True

    def _train(self, roster: Roster) -> list[Decision]:
        """Begin a step if the trainer is free and a batch is ready."""
        if self.training:
            return []
        decisions: list[Decision] = []
        if self.gate == "evict":
            stale = [one for one in self.ready if self._age(one[0]) > self.bound]
            self.ready = [one for one in self.ready if self._age(one[0]) <= self.bound]
            for group, _ in stale:
                decisions += self._drop(group, f"staler than {self.bound}")
        chosen = self.ready
        if self.gate == "in-order":
            chosen = [one for one in self.ready if one[0] // self.batch == self.version]
        chosen = chosen[: self.batch]
        if len(chosen) < self.batch:
            return decisions
        self.ready = [one for one in self.ready if one not in chosen]
        self.training = [group for group, _ in chosen]
        ages = {
            "staleness": [self._age(group) for group in self.training],
            "before": [ready - self.start[str(group)] for group, ready in chosen],
        }
        timer = SetTimer(TRAINER, roster.now + self.update_s)
        return [*decisions, Note(TRAINED, "", {"version": self.version, **ages}), timer]

    def _age(self, group: int) -> int:
        return self.version - self.start[str(group)]

    def _drop(self, group: int, why: str) -> list[Decision]:
        self.dropped += 1
        return [Drop(push, why) for push in self._taken(group)]

    def _taken(self, group: int) -> list[Push]:
        """Forget a group; return its pushes."""
        del self.start[str(group)]
        return [(worker, clock) for worker, clock in self.pushes.pop(str(group))]
