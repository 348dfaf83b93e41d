"""Find the bottleneck of a run, and the change that helps most, within a bounded time.

Each cause and each remedy is one simulation. Together these carry at most `PUSHES` pushes, and
`SHARE` of the run's own. If the run is longer, only its first iterations are simulated,
and their time is scaled. Faults that come and go and long traces have their times: with them the
whole run is simulated. Where the bound does not allow that, there is no diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NamedTuple

from raysync.config import ParadigmChoice
from raysync.predict.setting import Setting
from raysync.predict.variations import Kind, Variation, causes, remedies
from raysync.record.measures import Measures
from raysync.training.preparation import TrainingPlan

MATTERS = 0.05  # the share of the time that the bottleneck takes at least
NETWORK = ("link", "server link", "network", "server update")
# the share of the time that a change must save to be named; between changes that differ by less
# the simplest is named
HELPS = 0.02
# the pushes that all simulations of a short run may have together: a tenth of a second at most
PUSHES = 2_500
# the pushes that all simulations may have beside these, as a share of the run's: for a run in time
# only, and for one with gradients, whose pushes take a hundred times as long as simulated ones; so
# a diagnosis makes a run longer by some percent
SHARE, TRAINED_SHARE = 0.06, 3.0
ITERATIONS = 5  # of each worker, which show the pace of a run at least
MOST_ITERATIONS = 24  # of each worker, beyond which a run shows nothing new
FEWEST = 3  # simulations that a diagnosis takes: of the run, without a cause, with a remedy
FAULTS_PUSHES = 2 * PUSHES  # the bound in place of `PUSHES` where a run cannot be shortened


SecondsOf = Callable[[Variation], float | None]  # None: it does not finish


class Effect(NamedTuple):
    what: str
    seconds: float  # predicted, without the cause or with the remedy
    kind: Kind | None = None  # of a cause


@dataclass(frozen=True)
class Diagnosis:
    seconds: float  # predicted for the work as it is
    bottleneck: Effect | None  # the largest cause; None: computing takes the time
    change: Effect | None  # the best remedy; None: none of those tried helps
    computing_s: float  # the seconds of the work if every worker computed all the time

    @property
    def kind(self) -> Kind | Literal["computing"]:
        return (self.bottleneck and self.bottleneck.kind) or "computing"

    def plain(self) -> dict[str, Any]:
        """Return it as JSON-native data, for the record."""
        cause, change = self.bottleneck, self.change
        return {
            "kind": self.kind,
            "what": cause.what if cause else "computing",
            "without_s": cause.seconds if cause else None,
            "change": change.what if change else None,
            "change_s": change.seconds if change else None,
            "computing_s": self.computing_s,
        }


def diagnose(
    setting: Setting, seconds: float | None = None, *, whole: bool = False
) -> Diagnosis | None:
    """Repeat a run with one thing changed at a time.

    Args:
        setting: the run.
        seconds: what its work took, if that is known; None: as much as the simulation says.
        whole: whether to simulate all of its work, however long that takes.

    Returns:
        None if nothing is described that could be a bottleneck, there is no time to find one,
        or the simulated run takes no time or does not finish.
    """
    if not whole and pushes_each(setting, FEWEST) is None:
        return None
    possible = list(causes(setting))
    if not possible:
        return None
    tried = list(remedies(setting))
    simulations = 1 + len(possible) + len(tried) + sum(remedy.settles for remedy in tried)
    pushes = setting.pushes if whole else pushes_each(setting, simulations)
    if pushes is None:
        return None
    part = setting.shortened(pushes)
    simulated = part.seconds()
    if not simulated:
        return None
    now = seconds or simulated * setting.samples / part.samples
    scale = now / simulated

    def seconds_of(variation: Variation) -> float | None:
        took = _seconds(variation, part)
        return None if took is None else took * scale

    rate = setting.computed_per_s
    return Diagnosis(
        seconds=now,
        bottleneck=_largest_cause(possible, seconds_of, now),
        change=_best(tried, seconds_of, (1 - HELPS) * now),
        computing_s=part.samples / rate * scale if rate else 0.0,
    )


def _best(variations: Iterable[Variation], seconds_of: SecondsOf, most_s: float) -> Effect | None:
    """Simulate variations, and return the first that is about as good as the best.

    Returns:
        None if each takes longer than `most_s`, or does not finish.
    """
    effects = [
        Effect(variation.what, seconds, variation.kind)
        for variation in variations
        if (seconds := seconds_of(variation)) is not None
    ]
    least = min((effect.seconds for effect in effects), default=inf)
    if least > most_s:
        return None
    return next(effect for effect in effects if effect.seconds <= (1 + HELPS) * least)


def _largest_cause(
    possible: Sequence[Variation], seconds_of: SecondsOf, now: float
) -> Effect | None:
    """Return the largest of single causes or, where none of them matters, the whole network."""
    single = [cause for cause in possible if cause.kind != "network"]
    together = [cause for cause in possible if cause.kind == "network"]
    most_s = (1 - MATTERS) * now
    return _best(single, seconds_of, most_s) or _best(together, seconds_of, most_s)


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


def network_cause(setting: Setting) -> Effect | None:
    """Return what slows a whole run down in its network and servers; None: nothing does."""
    of_network = [cause for cause in causes(setting) if cause.kind in NETWORK]
    return _largest_cause(
        of_network, lambda cause: cause.setting.seconds(), setting.seconds() or 0.0
    )


def pushes_each(setting: Setting, simulations: int) -> int | None:
    """Return how many pushes each simulation carries; None: fewer than it takes."""
    whole, workers = setting.pushes, setting.experiment.worker_count
    most = (TRAINED_SHARE if setting.trained else SHARE) * whole
    if not setting.is_steady:
        return whole if whole * simulations <= FAULTS_PUSHES + most else None
    pushes = min(int((PUSHES + most) / simulations), MOST_ITERATIONS * workers)
    return pushes if pushes >= min(whole, ITERATIONS * workers) else None


def _seconds(variation: Variation, part: Setting) -> float | None:
    """Return the seconds of as many samples as a part has."""
    changed = variation.setting
    if variation.settles:
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
