"""Sync-Switch: a switch of paradigms in the running cluster, and reactions to stragglers before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, Lt
from msgspec.structs import replace
from typing_extensions import override

from raysync.core.capability import Capability, Demand
from raysync.core.decisions import (
    Apply,
    Decision,
    Drop,
    Note,
    Push,
    Release,
    Restore,
    SetTimer,
    Suspend,
    Switch,
)
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.phase_schedule import PhaseSchedule, schedule_of
from raysync.paradigms.registry import Spec, make_inner
from raysync.paradigms.stragglers import Detector
from raysync.paradigms.wrapper import layers

DETECT = "sync-switch: detect"  # the timer at the end of a detection window
STAY = 2  # that many workers are never suspended
AS_STRAGGLER = "as a straggler"  # the reason of a suspension

Share = Annotated[float, Ge(0), Le(1)]


# Configuration (IV-C): each worker keeps its batch size B (the paper's nB is all workers' batch)
# and `update.lr_scaling: linear` is its learning rate; `batch_sizes` and `update.phases` differ
# by phase.
@dataclass
class SyncSwitch(Paradigm):
    """Trains a share of the work under `first`, the rest under `then`; reacts to stragglers.

    Source: Li et al., "Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning"
    (2021), section IV. Its program has no online policy and no detector; these follow the text.

    Protocol (IV-A): phases are any paradigms; lists mean several switches.

    Timing (IV-B1): `fraction` is the share of the workload applied *under* a phase before the
    switch (`raysync switch-search` searches for it). Without a workload there is no switch.

    Online policies (IV-B2), on stragglers (`stragglers.Detector`), until the last phase:

    * `greedy`: the next phase stands in while there is a straggler. Its updates count as progress,
      but not for the present phase's share.
    * `elastic`: stragglers are suspended, and their buffered pushes dropped, until the next switch.
      Two workers always stay; when crashes leave fewer, all are restored.

    At a switch, buffered pushes become one update, leads become 0, and held workers are newcomers
    to a fresh paradigm. Running steps continue, and the new phase gets their pushes. (The paper's
    switch is a checkpoint and a restart.)
    """

    name: ClassVar[str] = "sync-switch"

    first: Spec = "bsp"
    then: Spec | list[Spec] = "asp"
    fraction: Share | list[Share] = 0.5  # of the workload, for each phase but the last
    online: Literal["none", "greedy", "elastic"] = "none"
    window: Annotated[int, Ge(1)] = 5  # in steps
    windows: Annotated[int, Ge(1)] = 3  # the consecutive slow windows that make a straggler
    # the least share by which a straggler is slower than the others
    margin: Annotated[float, Ge(0), Lt(1)] = 0.2
    # phase -> samples of one worker's iteration, if not the experiment's
    batch_sizes: dict[str, Annotated[int, Ge(1)]] = field(default_factory=dict)
    watching: bool = field(default=False, init=False)  # the detector's timer is set
    timers: list[str] = field(default_factory=list, init=False)  # the current phase has set them

    def __post_init__(self) -> None:
        self._specs = [self.first, *(self.then if isinstance(self.then, list) else [self.then])]
        phases = [_name(spec) for spec in self._specs]
        shares = [*self.fraction] if isinstance(self.fraction, list) else [self.fraction]
        self.schedule = schedule_of(phases, shares, self.name)
        for index, spec in enumerate(self._specs):
            place = f"then[{index - 1}]" if isinstance(self.then, list) else "then"
            where = f"{self.name}: {place if index else 'first'}"
            inner = make_inner(spec, where)
            if inner.collective:
                raise ConfigError(
                    f"{where}: {inner.name}: exchange: {inner.collective}: the phases of one run"
                    " share a server; only bsp as the whole paradigm exchanges gradients without."
                )
            if any(isinstance(layer, SyncSwitch) for layer in layers(inner)):
                raise ConfigError(
                    f"{where}: a {self.name} in a {self.name}; name the phases in `then: [...]`."
                )
        for phase in self.batch_sizes:
            if phase not in phases:
                raise unknown_name("phase", phase, set(phases), where=f"{self.name}: batch_sizes")
        self.detector = Detector(self.window, self.windows, self.margin)
        self._inner = self._make_inner()

    @override
    def infeasible_reason(self, workers: int) -> str:
        for spec in self._specs:
            if why := make_inner(spec, self.name).infeasible_reason(workers):
                return f"{_name(spec)}: {why}"
        return ""

    @override
    def demands(self) -> Iterator[Demand]:
        if self.batch_sizes:
            yield Capability.BATCH_SIZE, f"{self.name}: batch_sizes"
        for spec in self._specs:
            yield from make_inner(spec, self.name).demands()

    @override
    def named_batch_sizes(self) -> Mapping[str, int]:
        return {f"batch_sizes.{phase}": size for phase, size in self.batch_sizes.items()}

    @override
    def phases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.schedule.phases))

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int | None:
        specs = [spec for spec in self._specs if _name(spec) == phase]
        pushes = {make_inner(spec, self.name).pushes_per_update(workers) for spec in specs}
        return pushes.pop() if len(pushes) == 1 else None

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        decisions = self._watch(roster, push[0])
        return self._carry_out(roster, self._inner.on_push(roster, push), decisions)

    @override
    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        return self._carry_out(roster, self._inner.on_join(roster, worker))

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        self.detector.forget(worker)
        decisions = self._carry_out(roster, self._inner.on_leave(roster, worker))
        is_switching = any(isinstance(decision, Switch) for decision in decisions)
        if roster.suspended and len(roster.members) < STAY and not is_switching:
            return self._begin(
                roster, decisions, self.schedule.index, f"{self.phase} has too few workers left"
            )
        return decisions

    @override
    def on_timer(self, roster: Roster, key: str) -> list[Decision]:
        if key != DETECT:
            self.timers.remove(key)
            return self._carry_out(roster, self._inner.on_timer(roster, key))
        notes = self.detector.close_window(roster)
        stragglers = self.detector.stragglers
        index, standing_in = self.schedule.index, self.schedule.standing_in
        decisions: list[Decision] = [*self._set_timer(roster, self.detector.window_s()), *notes]
        match self.online:
            case "greedy" if stragglers and not standing_in:
                why = f"straggler: {roster.names(stragglers, len(stragglers))}"
                return self._begin(roster, decisions, index, why, stand_in=True)
            case "greedy" if not stragglers and standing_in:
                return self._begin(roster, decisions, index, "no straggler any more")
            case "elastic":
                decisions += _suspend(roster, stragglers[: max(0, len(roster.members) - STAY)])
        return decisions

    @override
    def on_switch(self, roster: Roster) -> list[Decision]:
        joins = (self._inner.on_join(roster, worker) for worker in roster.held)
        return self._carry_out(roster, [*chain.from_iterable(joins)])

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        if worker in roster.suspended:
            return f"suspended {AS_STRAGGLER}, until {self.phase} has done its share of the work"
        return self._inner.explain(roster, worker)

    @property
    @override
    def phase(self) -> str:
        return self.schedule.phase

    def _carry_out(
        self, roster: Roster, decided: list[Decision], before: Iterable[Decision] = ()
    ) -> list[Decision]:
        """Pass the phase's decisions on, up to the update that completes its share: then switch."""
        decisions = [*before]
        for index, bare in enumerate(decided):
            decision = self._completed(bare)
            if isinstance(decision, Apply) and self._completes_share(roster, decision.pushes):
                # The next phase begins with the newest weights.
                decisions.append(replace(decision, publish=True))
                decisions += [
                    rest for rest in decided[index + 1 :] if isinstance(rest, Drop | Note)
                ]
                schedule = self.schedule
                return self._begin(roster, decisions, schedule.next_index, schedule.switch_reason)
            decisions.append(decision)
        return decisions

    def _completed(self, decision: Decision) -> Decision:
        """Fill in the phase and its batch size; remember which timers it has set."""
        match decision:
            case Apply():
                return replace(decision, phase=self.phase)
            case Release(batch_size=None) if self.phase in self.batch_sizes:
                return replace(decision, batch_size=self.batch_sizes[self.phase])
            case SetTimer(key=key, at=at):
                self.timers = [
                    *(other for other in self.timers if other != key),
                    *([key] if at is not None else []),
                ]
        return decision

    def _completes_share(self, roster: Roster, pushes: Iterable[Push]) -> bool:
        """Count an update; return whether it completes the phase's share."""
        # Pushes that are not buffered are ignored here: the machine refuses the Apply.
        samples = sum(roster.buffered[push].samples for push in pushes if push in roster.buffered)
        return self.schedule.completes_share(samples, roster.workload_samples)

    def _begin(
        self,
        roster: Roster,
        before: Iterable[Decision],
        index: int,
        why: str,
        *,
        stand_in: bool = False,
    ) -> list[Decision]:
        """Switch: one update of the buffered pushes, timers off, all workers restored."""
        decisions = [*before]
        if pushes := _unused_pushes(roster, decisions):
            decisions.append(Apply(pushes, phase=self.phase))
            if index == self.schedule.index and self._completes_share(roster, pushes):
                index, stand_in = self.schedule.next_index, False
                why = self.schedule.switch_reason
        decisions += [SetTimer(key, None) for key in self.timers]
        decisions += map(Restore, roster.suspended)
        self.timers = []
        self.schedule.begin(index, stand_in=stand_in)
        self._inner = self._make_inner()
        if self.schedule.is_last and self.watching:
            self.watching, self.detector.stragglers = False, []
            decisions.append(SetTimer(DETECT, None))
        return [*decisions, Switch(self.phase, why)]

    def _make_inner(self) -> Paradigm:
        return make_inner(self._specs[self.schedule.running_index], self.name)

    def _watch(self, roster: Roster, worker: str) -> list[Decision]:
        """Report a push to the detector; the first push starts it."""
        active_s = roster.telemetry(worker).active_s
        if self.online == "none" or self.schedule.is_last or not active_s:
            return []
        self.detector.pushed(worker, active_s)
        return [] if self.watching else self._set_timer(roster, self.window * active_s)

    def _set_timer(self, roster: Roster, window_s: float | None) -> list[Decision]:
        self.watching = window_s is not None
        return [SetTimer(DETECT, roster.now + window_s)] if window_s is not None else []

    @override
    def state(self) -> dict[str, Any]:
        return super().state() | {
            "inner": self._inner.state(),
            "schedule": asdict(self.schedule),
            "detector": asdict(self.detector),
        }

    @override
    def load_state(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        inner, schedule, detector = rest.pop("inner"), rest.pop("schedule"), rest.pop("detector")
        super().load_state(rest)
        self.schedule = PhaseSchedule(**schedule)
        self._inner = self._make_inner()
        self._inner.load_state(inner)
        self.detector = Detector(**detector)


def _name(spec: Spec) -> str:
    """Return the name of a phase, as in `Apply.phase`."""
    return (spec if isinstance(spec, str) else str(spec.get("name"))).rpartition(":")[2]


def _suspend(roster: Roster, workers: Iterable[str]) -> Iterator[Decision]:
    for worker in workers:
        for push in roster.buffered:
            if push[0] == worker:
                yield Drop(push, why=f"its worker was suspended {AS_STRAGGLER}", reason="suspended")
        yield Suspend(worker, AS_STRAGGLER)


def _unused_pushes(roster: Roster, decisions: Iterable[Decision]) -> tuple[Push, ...]:
    used: set[Push] = set()
    for decision in decisions:
        match decision:
            case Apply(pushes=pushes):
                used.update(pushes)
            case Drop(push=push):
                used.add(push)
    return tuple(push for push in roster.buffered if push not in used)
