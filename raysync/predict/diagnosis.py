"""Find the bottleneck of a run, and the change that helps most, within a bounded time.

Each limit and each change is one simulation. Together these carry at most `PUSHES` pushes, and
`SHARE` of those of the run itself. If the run is longer, only its first iterations are simulated,
and their time is scaled. Faults that come and go have their times: with them the whole run is
simulated. Where the bound does not allow that, there is no diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from raysync.config import ParadigmChoice
from raysync.predict.limits import Kind, Limit, single_limits, whole_network
from raysync.predict.remedies import Remedy, changes
from raysync.predict.setting import Setting
from raysync.record.measures import Measures
from raysync.training.preparation import TrainingPlan

Varied = TypeVar("Varied", Limit, Remedy)

MATTERS = 0.05
"""The share of the time that the bottleneck takes at least; a run without any computes."""
NETWORK = ("link", "server link", "network", "server update")
HELPS = 0.02
"""The share of the time that a change must save to be named; between changes that differ by less
than that the simplest is named."""
PUSHES = 2_500
"""The pushes that all simulations of a short run may have together: a tenth of a second at most."""
SHARE, TRAINED_SHARE = 0.06, 3.0
"""The pushes that all simulations may have beside these, as a share of the run's: for a run in time
only, and for one with gradients, whose pushes take a hundred times as long as simulated ones. So a
diagnosis makes a run longer by some percent."""
ITERATIONS = 5
"""The iterations of each worker that show the pace of a run at least."""
MOST_ITERATIONS = 24
"""The iterations of each worker beyond which a run shows nothing new."""
FEWEST = 3
"""The fewest simulations that a diagnosis takes: of the run, without a limit, with a change."""
FAULTS_PUSHES = 2 * PUSHES
"""The bound in place of `PUSHES` where a run cannot be shortened."""


@dataclass(frozen=True)
class Effect:
    """A limit or a change, and the predicted seconds without the limit, or with the change."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Diagnosis:
    kind: Kind | Literal["computing"]
    seconds: float
    """The predicted seconds of the work as it is."""
    bottleneck: Effect | None
    """The limit without which the work takes the least time; None: computing takes it."""
    change: Effect | None
    """The change with which it takes the least time; None: none of those tried helps."""
    computing_s: float
    """The seconds of the work if every worker computed all the time."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON-native data, for the record."""
        limit, change = self.bottleneck, self.change
        return {
            "kind": self.kind,
            "what": limit.what if limit else "computing",
            "without_s": limit.seconds if limit else None,
            "change": change.what if change else None,
            "change_s": change.seconds if change else None,
            "computing_s": self.computing_s,
        }


def diagnose(setting: Setting, seconds: float | None = None) -> Diagnosis | None:
    """Repeat a run with one thing changed at a time.

    Args:
        setting: the run.
        seconds: what its work took, if that is known; None: as much as the simulation says.

    Returns:
        None if nothing is described that could be a bottleneck, there is no time to find one,
        or the simulated run takes no time or does not finish.
    """
    if pushes_each(setting, FEWEST) is None:
        return None
    limits, together = list(single_limits(setting)), list(whole_network(setting))
    if not (limits or together):
        return None
    tried = list(changes(setting))
    simulations = 1 + len(limits) + len(together) + len(tried)
    pushes = pushes_each(setting, simulations + sum(change.settles for change in tried))
    if pushes is None:
        return None
    part = setting.shortened(pushes)
    simulated = part.seconds()
    if not simulated:
        return None
    now = seconds or simulated * setting.samples / part.samples
    scale = now / simulated

    def timed(variations: Iterable[Varied]) -> Iterator[tuple[Varied, float]]:
        for variation in variations:
            settles = isinstance(variation, Remedy) and variation.settles
            took = _seconds(variation.setting, part, settles=settles)
            if took is not None:
                yield variation, took * scale

    bottleneck = _best(timed(limits), now, MATTERS) or _best(timed(together), now, MATTERS)
    change = _best(timed(tried), now, HELPS)
    rate = setting.computed_per_s
    computing_s = part.samples / rate * scale if rate else 0.0
    kind = "computing" if bottleneck is None else bottleneck[0].kind
    return Diagnosis(
        kind=kind,
        seconds=now,
        bottleneck=_effect(bottleneck),
        change=_effect(change),
        computing_s=computing_s,
    )


def bottleneck_of_run(
    training: TrainingPlan, choice: ParadigmChoice, measures: Measures
) -> dict[str, Any] | None:
    """Explain a run's time; None if a simulation cannot reproduce it, or not fast enough."""
    if training.experiment.engine != "virtual":
        return None
    if measures.ended is None or measures.ended.status != "finished" or training.experiment.stop:
        return None
    setting = Setting.of(training, choice)
    diagnosis = diagnose(setting, measures.seconds) if setting is not None else None
    return None if diagnosis is None else diagnosis.plain()


def network_limit(setting: Setting) -> Limit | None:
    """Return the limit of a whole run in its network and servers; None: none of them matters."""
    now = setting.seconds()
    for limits in (single_limits, whole_network):
        of_network = (limit for limit in limits(setting) if limit.kind in NETWORK)
        timed = ((limit, limit.setting.seconds()) for limit in of_network)
        found = _best([(each, s) for each, s in timed if s is not None], now or 0.0, MATTERS)
        if found is not None:
            return found[0]
    return None


def pushes_each(setting: Setting, simulations: int) -> int | None:
    """Return how many pushes each simulation carries; None: fewer than it takes."""
    whole, workers = setting.pushes, setting.experiment.worker_count
    most = (TRAINED_SHARE if setting.trained else SHARE) * whole
    if not setting.is_steady:
        return whole if whole * simulations <= FAULTS_PUSHES + most else None
    pushes = min(int((PUSHES + most) / simulations), MOST_ITERATIONS * workers)
    return pushes if pushes >= min(whole, ITERATIONS * workers) else None


def _seconds(changed: Setting, part: Setting, *, settles: bool) -> float | None:
    """Return the seconds of as many samples as a part has."""
    if settles:
        return _settled_s(changed, part.samples)
    if changed.pushes_of(part.samples) >= part.pushes / 2:
        # without a worker the pushes may have another size
        return changed.part(part.samples).seconds()
    # pushes of several local steps: as many of them show the pace
    longer = changed.sized(part.pushes)
    seconds = longer.seconds()
    return None if seconds is None else seconds * part.samples / longer.samples


def _settled_s(setting: Setting, samples: int) -> float | None:
    """Return the seconds of so many samples, at the pace of the second half of a part."""
    part, half = setting.part(samples), setting.part(samples // 2)
    whole_s = part.seconds()
    if whole_s is None or part.samples == setting.samples:
        return whole_s
    half_s = half.seconds()
    if half_s is None:
        return None
    pace = (whole_s - half_s) / (part.samples - half.samples)
    all_s = whole_s + pace * (setting.samples - part.samples)
    return all_s * part.samples / setting.samples


def _effect(varied: tuple[Limit | Remedy, float] | None) -> Effect | None:
    return None if varied is None else Effect(varied[0].what, varied[1])


def _best(
    variations: Iterable[tuple[Varied, float]], now: float, saves: float
) -> tuple[Varied, float] | None:
    """Return the first variation that is about as good as the best, if that saves enough."""
    timed = list(variations)
    least = min((seconds for _, seconds in timed), default=now)
    if least > (1 - saves) * now:
        return None
    return next(each for each in timed if each[1] <= (1 + HELPS) * least)
