"""Several machines over one stream of events: one for each stage of a network that is cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from raysync.core.decisions import Decision, Release, SetTimer
from raysync.core.events import Event, TimerFired
from raysync.core.ids import WorkerId, split_timer, stage_timer
from raysync.core.machine import Machine, roster_in
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.core.roster import Roster
from raysync.errors import IllegalDecision, ProtocolViolation


class StageMachines:
    """A `Machine` for each stage, whose workers are the stage's replicas.

    Each stage counts its own versions, leads and progress; the network's progress is its last
    stage's.
    """

    def __init__(
        self,
        make: Callable[[], Paradigm],
        stages: int,
        workload_samples: int | None = None,
        seed: int = 0,
    ) -> None:
        self._make_paradigm = make  # called once for each stage
        self.machines = {
            stage: Machine(make(), workload_samples, seed) for stage in range(1, stages + 1)
        }

    @property
    def roster(self) -> Roster:
        """The last stage's roster."""
        return self.machines[len(self.machines)].roster

    @property
    def timers(self) -> dict[str, float]:
        """All timers; each key begins with the number of its stage."""
        return {
            stage_timer(stage, key): at
            for stage, machine in self.machines.items()
            for key, at in machine.timers.items()
        }

    def handle(self, event: Event) -> list[Decision]:
        """Handle one event of one stage and return the decisions.

        Raises:
            ProtocolViolation: the event is impossible; the state is unchanged.
            IllegalDecision: the paradigm's decision is impossible in a network of stages.
        """
        if isinstance(event, TimerFired):
            stage, key = split_timer(event.key)
            event = replace(event, key=key)
        else:
            stage = WorkerId(event.worker).stage
        if stage not in self.machines:
            raise ProtocolViolation(f"there are stages 1 to {len(self.machines)}: {event}")
        decisions = self.machines[stage].handle(event)
        _refuse_ignored(decisions)
        return [
            replace(decision, key=stage_timer(stage, decision.key))
            if isinstance(decision, SetTimer)
            else decision
            for decision in decisions
        ]

    def resume(self, at: float) -> None:
        """Resume every stage, as `Machine.resume` does."""
        for machine in self.machines.values():
            machine.resume(at)

    def snapshot(self) -> str:
        """Return the whole state as JSON."""
        return json.dumps([machine.snapshot() for machine in self.machines.values()])

    def restore(self, text: str) -> None:
        """Restore every stage from the result of `snapshot`."""
        self.machines = {
            stage: Machine.restore(state, self._make_paradigm())
            for stage, state in enumerate(json.loads(text), start=1)
        }


def rosters_in(snapshot: str) -> dict[int, Roster]:
    """Return the rosters of a snapshot by stage; 0 if the network is whole."""
    state = json.loads(snapshot)
    if isinstance(state, list):
        return {stage: roster_in(machine) for stage, machine in enumerate(state, start=1)}
    return {0: roster_in(snapshot)}


# Built-in paradigms are refused before the run, by their demands; a user's may not state them.
def _refuse_ignored(decisions: Iterable[Decision]) -> None:
    """Refuse decisions that the stages would ignore: the run would differ from its journal."""
    for decision in decisions:
        if not isinstance(decision, Release):
            continue
        if decision.batch_size is not None:
            raise IllegalDecision(
                "paradigm: decoupled: sync: it decided Release(...,"
                f" batch_size={decision.batch_size}), but the stages of a network compute batches"
                " of one size."
            )
        if decision.steps is not None:
            raise IllegalDecision(
                f"paradigm: decoupled: sync: it decided Release(..., steps={decision.steps}), but"
                " a stage pushes after each batch."
            )


@runtime_checkable
class StagedParadigm(Protocol):
    """A kind of run, other than a `Paradigm`, that builds the machines of its stages."""

    def machine(self, workload_samples: int | None, seed: int = 0) -> StageMachines:
        """Build a machine for each stage, as at the beginning."""


def machine_of(
    paradigm: AnyParadigm, workload_samples: int | None, seed: int = 0
) -> Machine | StageMachines:
    """Build the machine of a run under that paradigm."""
    if isinstance(paradigm, Paradigm):
        return Machine(paradigm, workload_samples, seed)
    assert isinstance(paradigm, StagedParadigm), (
        f"{paradigm.name} is neither a paradigm nor a kind of run"
    )
    return paradigm.machine(workload_samples, seed)
