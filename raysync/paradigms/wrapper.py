"""A paradigm around another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from raysync.core.capability import Demand
from raysync.core.decisions import Decision, Push
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster
from raysync.paradigms.registry import Spec, make_inner


@dataclass
class Wrapper(Paradigm):
    """Delegates to an inner paradigm all that its subclass does not override."""

    paradigm: Spec = "bsp"  # a name, or a mapping with `name` and parameters
    inner: Paradigm = field(init=False)

    def __post_init__(self) -> None:
        self.inner = make_inner(self.paradigm, f"{self.name}: paradigm")

    def adapt(self, roster: Roster, decided: list[Decision]) -> list[Decision]:
        """Change the inner paradigm's decisions, at every event."""
        return decided

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        return self.adapt(roster, self.inner.on_push(roster, push))

    @override
    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        return self.adapt(roster, self.inner.on_join(roster, worker))

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        return self.adapt(roster, self.inner.on_leave(roster, worker))

    @override
    def on_timer(self, roster: Roster, key: str) -> list[Decision]:
        return self.adapt(roster, self.inner.on_timer(roster, key))

    @override
    def on_switch(self, roster: Roster) -> list[Decision]:
        return self.adapt(roster, self.inner.on_switch(roster))

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        return self.inner.explain(roster, worker)

    @override
    def infeasible_reason(self, workers: int) -> str:
        why = self.inner.infeasible_reason(workers)
        return f"{self.inner.name}: {why}" if why else ""

    @override
    def demands(self) -> Iterator[Demand]:
        return self.inner.demands()

    @override
    def named_batch_sizes(self) -> Mapping[str, int]:
        return self.inner.named_batch_sizes()

    @property
    @override
    def collective(self) -> str:
        return self.inner.collective

    @property
    @override
    def phase(self) -> str:
        return self.inner.phase

    @override
    def phases(self) -> tuple[str, ...]:
        return self.inner.phases()

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int | None:
        return self.inner.pushes_per_update(workers, phase)

    @override
    def state(self) -> dict[str, Any]:
        return super().state() | {"inner": self.inner.state()}

    @override
    def load_state(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        self.inner.load_state(rest.pop("inner"))
        super().load_state(rest)


def layers(paradigm: Paradigm) -> Iterator[Paradigm]:
    """Yield a paradigm, then its inner one, and so on."""
    yield paradigm
    if isinstance(paradigm, Wrapper):
        yield from layers(paradigm.inner)
