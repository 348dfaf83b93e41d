"""Sync-Switch: from one paradigm to another while the cluster runs, and what to do about stragglers until then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, Lt

from raysync.core.decisions import Apply, Decision, Drop, Note, Push, Release, SetTimer, Switch
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.registry import Spec, make_inner
from raysync.paradigms.stragglers import Detector
from raysync.paradigms.views import follow, unused, without

DETECT = "sync-switch: detect"
"""Key of the timer that ends a detection window."""
STAY = 2
"""Workers that are never suspended."""

Share = Annotated[float, Ge(0), Le(1)]


@dataclass
class SyncSwitch(Paradigm):
    """Trains a share of the work under `first`, and the rest under `then`; reacts to stragglers until the last switch.

    Source: Li et al., "Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning" (2021), section IV. Its
        program has no online policy and no detector; these are from the text.
    Protocol policy (IV-A): `first`, then `then`: any two paradigms, BSP and ASP by default. With lists, several switches:
        `then: [asp, bsp], fraction: [0.25, 0.5]` is BSP for a quarter of the work, ASP for half of it, BSP for the rest.
    Timing policy (IV-B1): `fraction` is the share of the workload that is applied *under* a protocol before the switch. It
        is searched by `raysync switch-search`. Without a workload no switch comes.
    Online policies (IV-B2), until the last protocol begins, for whomever `stragglers.Detector` finds:
        * `greedy`: goes over to the next protocol while there is a straggler, and back once there is none and the share of
          this one is not done yet. What is applied in between counts as progress, not as this protocol's share.
        * `elastic`: goes on without the stragglers; they are suspended until the next switch, which restores everybody. What
          they have pushed and is not applied yet is dropped, and so is the step that they are at, however late it comes:
          with that push they enter as newcomers, and until then nobody waits for them. Two workers always stay; when
          crashes leave fewer, everybody is restored at once.
        * `none`.
    Configuration policy (IV-C): each worker keeps its batch size B (the paper's nB is the batch of all workers together),
        and `update.lr_scaling: linear` is its learning rate. Others: `batch_sizes` by protocol here, and `update.phases`
        for momentum and the rest; both by the protocols' names.
    A switch: the buffered pushes become one update, all leads become 0, and each of the held is a newcomer to the new rule,
        which begins afresh. Steps under way go on, and their pushes are the new rule's. (The paper's takes a checkpoint and
        a restart, 36 s on 8 workers.)
    Notes: `straggler` and `recovered` when the detector's verdict changes, `suspended`, `restored`.
    """

    name: ClassVar[str] = "sync-switch"

    first: Spec = "bsp"
    then: Spec | list[Spec] = "asp"
    fraction: Share | list[Share] = 0.5
    """Of the workload, for each protocol but the last."""
    online: Literal["none", "greedy", "elastic"] = "none"
    window: Annotated[int, Ge(1)] = 5
    """Of the detector, in steps."""
    windows: Annotated[int, Ge(1)] = 3
    """In a row, until a worker is a straggler."""
    margin: Annotated[float, Ge(0), Lt(1)] = 0.2
    """A straggler is slower than the others by more than this share."""
    batch_sizes: dict[str, Annotated[int, Ge(1)]] = field(default_factory=dict)
    """Protocol -> samples of one worker's iteration, where it is not the experiment's own."""
    phase: int = field(default=0, init=False)
    """Which protocol's share is being done."""
    standing_in: bool = field(default=False, init=False)
    """Whether the next protocol runs in place of this one, because of a straggler."""
    samples: int = field(default=0, init=False)
    """Applied under this protocol in this phase."""
    stragglers: list[str] = field(default_factory=list, init=False)
    suspended: list[str] = field(default_factory=list, init=False)
    outdated: list[str] = field(default_factory=list, init=False)
    """Restored, but still at a step from before; not seen by the protocol in force until that is pushed."""
    watching: bool = field(default=False, init=False)
    """Whether the detector's timer is set."""
    timers: list[str] = field(default_factory=list, init=False)
    """Keys that the protocol in force has set."""

    def __post_init__(self) -> None:
        self._specs = [self.first, *(self.then if isinstance(self.then, list) else [self.then])]
        self._shares = [*self.fraction] if isinstance(self.fraction, list) else [self.fraction]
        self._check()
        self._labels = [_name(spec) for spec in self._specs]
        for label in self.batch_sizes:
            if label not in self._labels:
                raise unknown_name("protocol", label, set(self._labels), where=f"{self.name}: batch_sizes")
        self._detector = Detector(self.window, self.windows, self.margin)
        self._view: Roster | None = None
        """The roster as the protocol in force sees it, since somebody was suspended or is outdated."""
        self.phase = self._phase_from(0)
        self._inner = self._make_inner()

    def _check(self) -> None:
        if len(self._specs) < 2:
            raise ConfigError(f"{self.name}: then: at least one protocol comes after the first.")
        if len(self._shares) != len(self._specs) - 1:
            raise ConfigError(f"{self.name}: fraction: {len(self._shares)} for {len(self._specs) - 1} switches; give one "
                              "for each protocol but the last.")
        if sum(self._shares) > 1 + 1e-9:
            raise ConfigError(f"{self.name}: fraction: {' + '.join(map(str, self._shares))} is more than 1.")
        for index, spec in enumerate(self._specs):
            place = f"then[{index - 1}]" if isinstance(self.then, list) else "then"
            where = f"{self.name}: {place if index else 'first'}"
            if isinstance(make_inner(spec, where), SyncSwitch):
                raise ConfigError(f"{where}: a {self.name} in a {self.name}; name the protocols in `then: [...]`.")

    def misfit(self, workers: int) -> str:
        for spec in self._specs:
            if why := make_inner(spec, self.name).misfit(workers):
                return f"{_name(spec)}: {why}"
        return ""

    def phases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._labels))

    # ---- events ----

    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        worker, clock = push
        if worker in self.suspended:
            return [Drop(push, why="its worker was suspended as a straggler")]
        if worker in self.outdated:
            self.outdated.remove(worker)
            return self._enter(roster, worker, [Drop(push, why="begun before its worker was restored")])
        view, info = self._seen(roster), roster.buffered[push]
        if view is not roster:
            view.push(worker, clock, info.base, info.samples, roster.telemetry(worker).busy_s)
        decisions = self._watch(roster, worker)
        return self._carry_out(roster, self._inner.on_push(view, push), decisions)

    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        return self._enter(roster, worker)

    def _enter(self, roster: Roster, worker: str, before: Iterable[Decision] = ()) -> list[Decision]:
        view = self._seen(roster)
        if view is not roster:
            view.join(worker)
        return self._carry_out(roster, self._inner.on_join(view, worker), before)

    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        if worker in self.stragglers:
            self.stragglers.remove(worker)
        for absent in (self.suspended, self.outdated):
            if worker in absent:
                absent.remove(worker)
                return []
        view = self._seen(roster)
        if view is not roster:
            view.leave(worker)
        decisions = self._carry_out(roster, self._inner.on_leave(view, worker))
        if self.suspended and len(view.members) < STAY:
            return self._begin(roster, decisions, self.phase, why=f"{self._label} has too few workers left")
        return decisions

    def on_timer(self, roster: Roster, key: str) -> list[Decision]:
        if key != DETECT:
            self.timers.remove(key)
            return self._carry_out(roster, self._inner.on_timer(self._seen(roster), key))
        members = self._seen(roster).members
        found = self._detector.close_window(roster, members)
        decisions: list[Decision] = [*self._set_timer(roster), *self._news(found)]
        match self.online:
            case "greedy" if found and not self.standing_in:
                return self._begin(roster, decisions, self.phase, why=f"straggler: {roster.names(found, len(found))}",
                                   stand_in=True)
            case "greedy" if not found and self.standing_in:
                return self._begin(roster, decisions, self.phase, why="no straggler any more")
            case "elastic":
                return self._suspend(roster, found[: max(0, len(members) - STAY)], decisions)
        return decisions

    def on_switch(self, roster: Roster) -> list[Decision]:
        if self.outdated:
            self._view = without(roster, self.outdated)
        view = self._seen(roster)
        return self._carry_out(roster, [each for worker in view.held for each in self._inner.on_join(view, worker)])

    def explain(self, roster: Roster, worker: str) -> str:
        if worker in self.suspended:
            return f"suspended as a straggler, until {self._label} has done its share of the work"
        return self._inner.explain(self._seen(roster), worker)

    # ---- the protocol in force ----

    @property
    def protocol(self) -> str:
        return self._label

    @property
    def _running(self) -> int:
        """Which protocol is in force."""
        return self._phase_from(self.phase + 1) if self.standing_in else self.phase

    @property
    def _label(self) -> str:
        return self._labels[self._running]

    @property
    def _is_last(self) -> bool:
        return self.phase == len(self._shares)

    def _phase_from(self, phase: int) -> int:
        """The first from there on that has something to do."""
        while phase < len(self._shares) and self._shares[phase] == 0:
            phase += 1
        return phase

    def _make_inner(self) -> Paradigm:
        return make_inner(self._specs[self._running], self.name)

    @property
    def _done(self) -> str:
        return f"{self._label} has done its {100 * self._shares[self.phase]:g} % of the work"

    def _share_is_done(self, roster: Roster, pushes: Iterable[Push]) -> bool:
        """Counts an update."""
        if self.standing_in:
            return False
        self.samples += sum(roster.buffered[push].samples for push in pushes)
        if self._is_last or roster.workload_samples is None or sum(self._shares[: self.phase + 1]) > 1 - 1e-9:
            return False
        return self.samples >= self._shares[self.phase] * roster.workload_samples - 0.5  # samples are whole, shares are not

    def _carry_out(self, roster: Roster, wanted: list[Decision], before: Iterable[Decision] = ()) -> list[Decision]:
        """What the protocol in force wants, up to the update that completes its share; then the next one's turn."""
        decisions = [*before]
        for index, each in enumerate(wanted):
            decision = self._dressed(each)
            if isinstance(decision, Apply) and self._share_is_done(roster, decision.pushes):
                decisions.append(replace(decision, publish=True))  # the next protocol begins with the newest weights
                decisions += [rest for rest in wanted[index + 1 :] if isinstance(rest, Drop | Note)]
                return self._begin(roster, decisions, self._phase_from(self.phase + 1), self._done)
            decisions.append(decision)
            if self._view is not None:
                follow(self._view, decision)
        return decisions

    def _dressed(self, decision: Decision) -> Decision:
        match decision:
            case Apply():
                return replace(decision, phase=self._label)
            case Release(batch_size=None) if self._label in self.batch_sizes:
                return replace(decision, batch_size=self.batch_sizes[self._label])
            case SetTimer(key=key, at=at):
                self.timers = [*(other for other in self.timers if other != key), *([key] if at is not None else [])]
        return decision

    def _begin(
        self, roster: Roster, before: Iterable[Decision], phase: int, why: str, *, stand_in: bool = False,
    ) -> list[Decision]:
        """Switch: one update of what is buffered, timers off, everybody restored, and a fresh rule."""
        decisions = [*before]
        if left := unused(roster, decisions):
            decisions.append(Apply(left, phase=self._label))
            if phase == self.phase and self._share_is_done(roster, left):
                phase, stand_in, why = self._phase_from(phase + 1), False, self._done
        decisions += [SetTimer(key, None) for key in self.timers]
        decisions += [Note("restored", worker) for worker in self.suspended]
        self.outdated = [worker for worker in (*self.outdated, *self.suspended) if worker in roster.computing]
        self.timers, self.suspended, self._view = [], [], None
        self.samples = self.samples if phase == self.phase else 0
        self.phase, self.standing_in = phase, stand_in
        self._inner = self._make_inner()
        if self._is_last and self.watching:
            self.watching, self.stragglers = False, []
            decisions.append(SetTimer(DETECT, None))
        return [*decisions, Switch(self._label, why)]

    # ---- stragglers ----

    def _seen(self, roster: Roster) -> Roster:
        if self._view is None:
            return roster
        self._view.now = roster.now
        return self._view

    def _watch(self, roster: Roster, worker: str) -> list[Decision]:
        """Tell the detector of a push; the first one starts it."""
        active_s = roster.telemetry(worker).active_s
        if self.online == "none" or self._is_last or not active_s:
            return []
        self._detector.pushed(worker, active_s)
        if self.watching:
            return []
        self.watching = True
        return [SetTimer(DETECT, roster.now + self.window * active_s)]

    def _set_timer(self, roster: Roster) -> list[Decision]:
        window_s = self._detector.window_s()
        self.watching = window_s is not None
        return [SetTimer(DETECT, roster.now + window_s)] if window_s is not None else []

    def _news(self, found: list[str]) -> list[Decision]:
        rates = self._detector.rates
        notes: list[Decision] = [
            Note("straggler", worker, {"pushes_per_active_s": rates[worker], "windows": self._detector.slow[worker],
                                       "mean_pushes_per_active_s": sum(rates.values()) / len(rates)})
            for worker in found if worker not in self.stragglers]
        notes += [Note("recovered", worker, {"pushes_per_active_s": rates.get(worker)})
                  for worker in self.stragglers if worker not in found]
        self.stragglers = found
        return notes

    def _suspend(self, roster: Roster, workers: list[str], before: list[Decision]) -> list[Decision]:
        """Go on without those workers."""
        if not workers:
            return before
        self._view = without(self._seen(roster), workers)
        decisions = [*before]
        for worker in workers:
            decisions += [Drop(push, why="its worker was suspended as a straggler")
                          for push in roster.buffered if push[0] == worker]
            decisions.append(Note("suspended", worker))
            self.suspended.append(worker)
            self.stragglers.remove(worker)
            self._detector.forget(worker)
        for worker in workers:
            if self._view is not None:  # the share is not done
                decisions = self._carry_out(roster, self._inner.on_leave(self._view, worker), decisions)
        return decisions

    # ---- snapshot ----

    def state(self) -> dict[str, Any]:
        return super().state() | {"inner": self._inner.state(), "detector": asdict(self._detector),
                                  "view": self._view.dump() if self._view is not None else None}

    def load_state(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        inner, detector, view = rest.pop("inner"), rest.pop("detector"), rest.pop("view")
        super().load_state(rest)
        self._inner = self._make_inner()
        self._inner.load_state(inner)
        self._detector = Detector(**detector)
        self._view = Roster.load(view) if view is not None else None


def _name(spec: Spec) -> str:
    """The protocol's name, which is the phase of its updates."""
    return (spec if isinstance(spec, str) else str(spec.get("name"))).rpartition(":")[2]
