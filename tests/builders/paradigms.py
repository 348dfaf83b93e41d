"""Paradigms to test with: the built-in ones with their settings, and those of users."""

from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import strategies as st

from raysync.core.decisions import Apply, Drop, Release, SetTimer
from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError
from raysync.paradigms.registry import make_inner

VARIANTS = {
    "bsp": ("bsp", {}),
    "asp": ("asp", {}),
    "ssp0": ("ssp", {"staleness": 0}),
    "ssp2": ("ssp", {"staleness": 2}),
    "lagtuner": ("lagtuner", {"s_lower": 1, "s_upper": 4}),
    "lagtuner-wait": ("lagtuner", {"s_lower": 0, "s_upper": 3, "predict": "wait"}),
    "lagtuner-busy": ("lagtuner", {"s_lower": 1, "s_upper": 1, "interval": "busy"}),
    "hybrid-sync": ("hybrid-sync", {}),
    "hybrid-2-1": ("hybrid", {"k": 2, "staleness_tolerance": 1, "pull_interval": 2}),
    "hybrid-all-2": ("hybrid", {"k": "all", "staleness_tolerance": 2, "pull_interval": 3}),
    "hybrid-1-0": ("hybrid", {"k": 1, "staleness_tolerance": 0, "pull_interval": 2}),
    "hybrid-global": (
        "hybrid",
        {"k": 3, "staleness_tolerance": "inf", "pull_interval": 3, "snapshot": "global"},
    ),
    "hybrid-async": ("hybrid-async", {}),
    "k-async": ("k-async", {"k": 3}),
    "k-sync": ("k-sync", {"k": 2}),
    "k-batch-sync": ("k-batch-sync", {"k": 3}),
    "k-batch-async": ("k-batch-async", {"k": 3}),
    "backup-workers": ("backup-workers", {"backups": 1}),
    "quorum": ("quorum", {"k": 2}),
    "quorum-grace": ("quorum", {"k": 2, "grace_s": 0.7}),
    "quorum-drop": ("quorum", {"k": 1, "grace_s": 0.3, "late": "drop"}),
    "ringmaster-asp": ("ringmaster", {"paradigm": "asp", "staleness": 1}),
    "ringmaster-ssp": ("ringmaster", {"paradigm": {"name": "ssp", "staleness": 1}, "staleness": 2}),
    "ringmaster-bsp": ("ringmaster", {"paradigm": "bsp", "staleness": 0}),
    "ringmaster-hybrid": (
        "ringmaster",
        {
            "staleness": 0,
            "paradigm": {
                "name": "hybrid",
                "k": 1,
                "staleness_tolerance": 2,
                "pull_interval": 3,
                "snapshot": "global",
            },
        },
    ),
    "balanced-bsp": ("balanced", {"hysteresis": 0.0}),
    "balanced-asp": ("balanced", {"paradigm": "asp", "smoothing": 1.0}),
    "balanced-ssp": (
        "balanced",
        {"paradigm": {"name": "ssp", "staleness": 1}, "smoothing": 0.3, "hysteresis": 0.02},
    ),
    "lagtuner-literal": ("lagtuner", {"s_lower": 1, "s_upper": 4, "bound": "literal"}),
}
"""Label -> name and parameters of a built-in paradigm."""
LOCAL_VARIANTS = {
    "local-bsp": ("local", {}),
    "local-asp": ("local", {"paradigm": "asp", "steps": 9, "by": "speed", "floor": 2}),
    "local-ringmaster": (
        "local",
        {"paradigm": {"name": "ringmaster", "staleness": 1}, "steps": 5, "by": "speed"},
    ),
    "ringmaster-local": (
        "ringmaster",
        {"paradigm": {"name": "local", "paradigm": "asp", "steps": 3}, "staleness": 1},
    ),
    "local-quorum": (
        "local",
        {"paradigm": {"name": "quorum", "k": 2, "grace_s": 0.5}, "steps": 4, "by": "speed"},
    ),
}
"""The same, of those that only an experiment with `local` can run."""


def lead_bound(name, parameters):
    """The largest lead at a Release that the paradigm promises; None if it promises none."""
    match name, parameters:
        case "bsp" | "hybrid-sync", _:
            return 0
        case "ringmaster" | "balanced" | "local", _:
            return lead_bound_of(parameters.get("paradigm", {"ringmaster": "asp"}.get(name, "bsp")))
        case "ssp", {"staleness": staleness}:
            return staleness
        case "hybrid", {"staleness_tolerance": int(tolerance)}:
            return tolerance + 1
        case "lagtuner", {"s_upper": s_upper, **rest} if rest.get("bound") != "literal":
            return s_upper
    return None


def lead_bound_of(spec):
    """The same, of a paradigm as experiment files name it."""
    rest = {"name": spec} if isinstance(spec, str) else dict(spec)
    return lead_bound(rest.pop("name"), rest)


HYBRID_PARAMETERS = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["all", 1, 2, 3, 5]),
        "staleness_tolerance": st.sampled_from([0, 0, 1, 2, 4, "inf"]),
        "pull_interval": st.integers(1, 4),
        "snapshot": st.sampled_from(["worker", "global"]),
    }
)


@dataclass
class Simple(Paradigm):
    """Says only what it does at a push."""

    def on_leave(self, roster, worker):
        return []

    def explain(self, roster, worker):
        return "waits for others"


@dataclass
class TwoTimers(Simple):
    """A user's paradigm with two timers, of which one never fires: what has come by a tick is one
    update, except its first push.
    """

    name: ClassVar[str] = "ticking"
    ticks: int = field(default=0, init=False)
    waiting: bool = field(default=False, init=False)

    def on_push(self, roster, push):
        self.waiting, waited = True, self.waiting
        return [] if waited else [SetTimer("tick", roster.now + 0.5), SetTimer("never", 1e9)]

    def on_timer(self, roster, key):
        self.waiting = False
        self.ticks += 1
        first, *rest = [*roster.buffered] or [None]
        used = (
            [Apply(tuple(rest)), Drop(first, why="the first of several")]
            if rest
            else [Apply((first,))]
            if first
            else []
        )
        return [
            *used,
            SetTimer("never", None),
            *(Release(worker, batch_size=4) for worker in roster.held),
        ]


TICKING = "tests.builders.paradigms:TwoTimers"


QUICK = {"window": 1, "windows": 1, "margin": 0.0}
"""A detector that finds somebody in most windows."""
SSP = {"name": "ssp", "staleness": 1}
TUNER = {"name": "lagtuner", "s_lower": 0, "s_upper": 3}
HYBRID = {"name": "hybrid", "k": 2, "staleness_tolerance": 1, "pull_interval": 2}
GLOBAL = {
    "name": "hybrid",
    "k": 2,
    "staleness_tolerance": "inf",
    "pull_interval": 3,
    "snapshot": "global",
}


def is_legal(spec):
    """Whether the paradigms that it names may be in each other."""
    try:
        return bool(make_inner(spec, "a test"))
    except ConfigError:
        return False


EXTREMES = {
    "bsp": {"name": "bsp"},
    "asp": {"name": "asp"},
    "ssp0": {"name": "ssp", "staleness": 0},
    "lagtuner": {"name": "lagtuner", "s_lower": 0, "s_upper": 2},
    "literal": {"name": "lagtuner", "s_lower": 0, "s_upper": 2, "bound": "literal"},
    "hybrid": {"name": "hybrid", "k": 2, "staleness_tolerance": 0, "pull_interval": 3},
    "hybrid-one": {"name": "hybrid", "k": 1, "staleness_tolerance": 0, "pull_interval": 2},
    "hybrid-all": {"name": "hybrid", "k": "all", "staleness_tolerance": 1, "pull_interval": 3},
    "hybrid-global": {
        "name": "hybrid",
        "k": 2,
        "staleness_tolerance": 0,
        "pull_interval": 3,
        "snapshot": "global",
    },
    "k-sync": {"name": "k-sync", "k": 1},
    "k-sync-all": {"name": "k-sync", "k": 3},
    "k-batch-sync": {"name": "k-batch-sync", "k": 5},
    "k-batch-async": {"name": "k-batch-async", "k": 5},
    "backup-workers": {"name": "backup-workers", "backups": 2},
    "quorum": {"name": "quorum", "k": 2, "grace_s": 0.5},
    "quorum-drop": {"name": "quorum", "k": 1, "grace_s": 0.5, "late": "drop"},
}
"""Label -> a paradigm that contains no other, mostly at an end of its range; it suits three
workers."""
WRAPPERS = {
    "ringmaster": lambda inner: {"name": "ringmaster", "staleness": 0, "paradigm": inner},
    "ringmaster1": lambda inner: {"name": "ringmaster", "staleness": 1, "paradigm": inner},
    "balanced": lambda inner: {"name": "balanced", "hysteresis": 0.0, "paradigm": inner},
    "first": lambda inner: {"name": "sync-switch", "first": inner, "fraction": 0.4},
    "then": lambda inner: {"name": "sync-switch", "then": inner, "fraction": 0.4},
    "elastic": lambda inner: {"name": "sync-switch", "first": inner, "online": "elastic", **QUICK},
    "greedy": lambda inner: {"name": "sync-switch", "then": inner, "online": "greedy", **QUICK},
}
"""Label -> a function that puts a paradigm into another one."""
LOCAL = {"local": lambda inner: {"name": "local", "by": "speed", "paradigm": inner}}


def nested(wrappers):
    """Label -> a paradigm in one or two others, in every way that is allowed."""
    once = {
        f"{label}({inner})": wrap(spec)
        for inner, spec in EXTREMES.items()
        for label, wrap in wrappers.items()
    }
    twice = {
        f"{outer}({label})": around(spec)
        for label, spec in once.items()
        for outer, around in wrappers.items()
    }
    return {label: spec for label, spec in (once | twice).items() if is_legal(spec)}


NESTED = nested(WRAPPERS)
NESTED_OR_LOCAL = nested(WRAPPERS | LOCAL)
"""The same, also with those that only an experiment with `local` can run."""


SWITCHES = {
    "bsp-asp": {},
    "asp-bsp": {"first": "asp", "then": "bsp", "fraction": 0.2},
    "bsp-asp-bsp": {"then": ["asp", "bsp"], "fraction": [0.1, 0.2], "batch_sizes": {"asp": 3}},
    "ssp-hybrid": {"first": SSP, "then": HYBRID, "fraction": 0.2},
    "lagtuner-ksync": {"first": TUNER, "then": {"name": "k-sync", "k": 2}, "fraction": 0.2},
    "global-backup": {"first": GLOBAL, "then": "backup-workers", "fraction": 0.2},
    "ticking-batches": {
        "first": TICKING,
        "then": {"name": "k-batch-sync", "k": 3},
        "fraction": 0.2,
    },
    "batches-ticking": {"first": "k-batch-async", "then": TICKING, "fraction": 0.2},
    "greedy": {"online": "greedy", "fraction": 0.5, **QUICK},
    "greedy-three": {
        "first": HYBRID,
        "then": [TICKING, "k-sync"],
        "fraction": [0.2, 0.3],
        "online": "greedy",
        **QUICK,
    },
    "greedy-skips": {
        "first": GLOBAL,
        "then": ["asp", "k-sync"],
        "fraction": [0.5, 0],
        "online": "greedy",
        **QUICK,
    },
    "elastic": {"online": "elastic", "fraction": 0.5, **QUICK},
    "elastic-three": {
        "first": "bsp",
        "then": [{"name": "ssp", "staleness": 0}, "bsp", "asp"],
        "fraction": [0.1, 0.2, 0.2],
        "online": "elastic",
        **QUICK,
    },
    "elastic-ticking": {
        "first": TICKING,
        "then": [TUNER, HYBRID],
        "fraction": [0.1, 0.5],
        "online": "elastic",
        **QUICK,
    },
    "elastic-batches": {
        "first": {"name": "k-batch-sync", "k": 4},
        "then": [GLOBAL, "bsp"],
        "fraction": [0.2, 0.4],
        "online": "elastic",
        **QUICK,
    },
}
"""Label -> parameters of Sync-Switch."""


@dataclass
class Ticking(Simple):
    """Everything that the four paradigms do not use: a timer, a drop, releases without a pull,
    other batch sizes.
    """

    name: ClassVar[str] = "ticking"
    period_s: float = 0.03
    ticks: int = field(default=0, init=False)
    waiting: bool = field(default=False, init=False)

    def on_push(self, roster, push):
        if self.waiting:
            return []
        self.waiting = True
        return [SetTimer("tick", roster.now + self.period_s)]

    def on_timer(self, roster, key):
        self.waiting = False
        self.ticks += 1
        first, *rest = roster.buffered
        used = (
            [Apply(tuple(rest)), Drop(first, why="the first of several")]
            if rest
            else [Apply((first,))]
        )
        return [
            *used,
            *(Release(worker, pull=self.ticks % 2 == 0, batch_size=4) for worker in roster.held),
        ]


@dataclass
class Eager(Simple):
    """Releases before it applies, and breaks after a while if it is told to."""

    name: ClassVar[str] = "eager"
    breaks_after: int = 10**9

    def on_push(self, roster, push):
        if roster.received > self.breaks_after:
            raise ZeroDivisionError("a bug in my paradigm")
        return [Release(push[0]), Apply((push,))]


@dataclass
class Sticky(Simple):
    """ASP whose workers pull every third time."""

    name = "sticky"

    def on_push(self, roster, push):
        return [Apply((push,)), Release(push[0], pull=push[1] % 3 == 2)]


@dataclass
class Twice(Simple):
    """Two updates by two pushes; what is pulled then is the model between them."""

    name = "twice"

    def on_push(self, roster, push):
        if len(roster.buffered) < 2:
            return []
        first, second = roster.buffered
        return [Apply((first,)), Apply((second,), publish=False), *map(Release, roster.held)]


@dataclass
class Patient(Simple):
    """Applies what it has every 10 seconds, by a timer that each push sets anew, and drops every
    fourth push.
    """

    name = "patient"

    def on_push(self, roster, push):
        dropped = [Drop(push, why="the fourth")] if push[1] % 4 == 3 else []
        return [
            *dropped,
            SetTimer("tick", roster.now + 0.5),
            SetTimer("tick", 10.0 * (1 + roster.now // 10)),
        ]

    def on_timer(self, roster, key):
        update = [Apply(tuple(roster.buffered))] if roster.buffered else []
        return [*update, *(Release(worker, batch_size=4) for worker in roster.held)]
