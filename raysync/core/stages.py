"""Several machines over one stream of events: one for each module of a network that was cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, runtime_checkable

from raysync.core.decisions import Decision, Release, SetTimer
from raysync.core.events import Event, TimerFired
from raysync.core.ids import WorkerId, split_timer, stage_timer
from raysync.core.machine import Machine
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.core.roster import Roster
from raysync.errors import IllegalDecision, ProtocolViolation


class StageMachines:
    """A `Machine` for each module, whose workers are its replicas: who waits for whom, how stale,
    and how far ahead is a question among these. Versions are those of a module, and so is progress:
    that of the network is its last module's.
    """

    def __init__(
        self, make: Callable[[], Paradigm], modules: int, workload_samples: int | None = None
    ) -> None:
        """
        Args:
            make: a fresh paradigm, for each module.
            modules: K.
            workload_samples: size of the whole work in samples; each module does all of it.
        """
        self._make = make
        self.machines = {
            module: Machine(make(), workload_samples) for module in range(1, modules + 1)
        }

    @property
    def roster(self) -> Roster:
        """Of the last module."""
        return self.machines[len(self.machines)].roster

    @property
    def timers(self) -> dict[str, float]:
        """Of all modules, by keys that say whose they are."""
        return {
            stage_timer(module, key): at
            for module, machine in self.machines.items()
            for key, at in machine.timers.items()
        }

    def handle(self, event: Event) -> list[Decision]:
        """Take in one event, of one module, and say what to do.

        Raises:
            ProtocolViolation: the event cannot have happened; the state is as before the call.
            IllegalDecision: the paradigm decided something that a network in modules cannot do.
        """
        if isinstance(event, TimerFired):
            module, key = split_timer(event.key)
            event = replace(event, key=key)
        else:
            module = WorkerId(event.worker).stage
        if module not in self.machines:
            raise ProtocolViolation(f"there are modules 1 to {len(self.machines)}: {event}")
        decisions = self.machines[module].handle(event)
        _refuse_ignored(decisions)
        return [
            replace(each, key=stage_timer(module, each.key)) if isinstance(each, SetTimer) else each
            for each in decisions
        ]

    def snapshot(self) -> str:
        """The whole state as JSON."""
        return json.dumps([machine.snapshot() for machine in self.machines.values()])

    def restore(self, text: str) -> None:
        """Go on from what `snapshot` wrote down."""
        self.machines = {
            module: Machine.restore(each, self._make())
            for module, each in enumerate(json.loads(text), start=1)
        }


def _refuse_ignored(decisions: Iterable[Decision]) -> None:
    """Refuse a decision that no stage heeds: the journal would say one thing, and the run do
    another.

    The built-in paradigms are refused before the run, by what they demand; one of a user may not
    say.
    """
    for decision in decisions:
        if isinstance(decision, Release) and decision.batch_size is not None:
            raise IllegalDecision(
                "paradigm: decoupled: sync: it decided Release(...,"
                f" batch_size={decision.batch_size}), but the stages of a network compute batches"
                " of one size."
            )


@runtime_checkable
class OfStages(Protocol):
    """A rule that is no `Paradigm`: it brings its machines."""

    def machine(self, workload_samples: int | None) -> StageMachines:
        """Fresh ones."""


def machine_of(paradigm: AnyParadigm, workload_samples: int | None) -> Machine | StageMachines:
    """What decides in a run under that paradigm, fresh."""
    if isinstance(paradigm, Paradigm):
        return Machine(paradigm, workload_samples)
    assert isinstance(paradigm, OfStages), (
        f"{paradigm.name} is neither a paradigm nor a kind of run"
    )
    return paradigm.machine(workload_samples)
