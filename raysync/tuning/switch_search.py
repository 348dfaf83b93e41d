"""The search for the switch point, without the trainings: which fractions are tried, which is the
answer, what it cost.

Source: Li et al., "Sync-Switch" (2021), sections IV-B1 and VI-C, Table II. It calls the rule a
binary search; the published costs are those of the rule here, which never goes back between the
fraction that failed and the last that passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean as mean

from raysync.config import Known, SwitchSearch
from raysync.errors import RunFailed

FIRST_ALONE = 1.0
"""The fraction that is the first phase alone."""
ROUNDING = 1e-12
"""Of a mean; a candidate that is the threshold below passes."""


@dataclass(frozen=True)
class Run:
    """One training."""

    accuracy: float | None
    """The search's target, a fraction of 1."""
    seconds: float
    """That it took, to its end or until it diverged."""
    why: str = ""
    """Why it has no accuracy: "diverged", "never converged"."""


Runs = Callable[[float, int], Sequence[Run]]
"""Trains with that fraction under `first`, so many times; none came back: it diverged at no
cost."""


@dataclass(frozen=True)
class Tried:
    """A fraction and its runs."""

    fraction: float
    runs: tuple[Run, ...]
    passes: bool

    @property
    def accuracy(self) -> float | None:
        """Mean of the runs that have one."""
        return _mean([run.accuracy for run in self.runs if run.accuracy is not None])

    @property
    def seconds(self) -> float | None:
        """Mean of the runs that have an accuracy: others may have ended early."""
        return _mean([run.seconds for run in self.runs if run.accuracy is not None])

    @property
    def useful(self) -> int:
        """Runs that have an accuracy."""
        return sum(run.accuracy is not None for run in self.runs)


@dataclass(frozen=True)
class Found:
    """How a search came out."""

    accuracy: float
    """Of `first` alone."""
    first_seconds: float | None
    """That a training takes with `first` alone; None: nobody said, in a recurring search."""
    first: Tried
    """`first` alone; without runs in a recurring search."""
    candidates: tuple[Tried, ...]
    """In the order in which they were tried."""

    @property
    def answer(self) -> Tried:
        """The last that passed; `first` alone if none did."""
        return [self.first, *(one for one in self.candidates if one.passes)][-1]

    @property
    def fraction(self) -> float:
        """The answer's."""
        return self.answer.fraction

    @property
    def seconds(self) -> float:
        """Of all trainings of the search, one after the other."""
        return sum(run.seconds for one in (self.first, *self.candidates) for run in one.runs)

    def ratio(self, tried: Tried) -> float | None:
        """Its mean seconds, in trainings of `first`; None where one of the two is not known."""
        if tried is self.first and not tried.runs:
            return 1.0
        return _ratio(tried.seconds, self.first_seconds)

    @property
    def cost(self) -> float | None:
        """Of the search, in trainings of `first`; None: what those take is not known."""
        return _ratio(self.seconds, self.first_seconds)

    @property
    def amortisation(self) -> float | None:
        """Trainings with the answer after which the search is paid back; None: never, or
        not known.
        """
        ratio, cost = self.ratio(self.answer), self.cost
        if ratio is None or cost is None or ratio >= 1:
            return None
        return cost / (1 - ratio)

    @property
    def effective(self) -> float | None:
        """Good trainings that the search made, for each training of `first` that it cost; None:
        nothing was paid, or what it cost is not known. Good are those of `first` that have an
        accuracy and those of fractions that passed."""
        if not self.cost:
            return None
        return (
            self.first.useful + sum(one.useful for one in self.candidates if one.passes)
        ) / self.cost


def search(settings: SwitchSearch, runs: Runs, known: Known | None = None) -> Found:
    """Halve the fraction under `first` while the mean accuracy stays within the threshold of that
    of `first` alone.

    Args:
        rule: threshold, repeats, and how many fractions are tried at most.
        runs: is asked for `first` alone, then for each fraction as its turn comes.
        known: of a recurring job; no run of `first` is asked for.

    Raises:
        RunFailed: no run of `first` has an accuracy.
    """
    first = Tried(
        FIRST_ALONE, () if known else tuple(runs(FIRST_ALONE, settings.first_repeats)), passes=True
    )
    accuracy = known.accuracy if known else first.accuracy
    if accuracy is None:
        whys = Counter(run.why for run in first.runs)
        became = " and ".join(f"{count} {why}" for why, count in whys.items())
        raise RunFailed(
            f"of {len(first.runs)} runs of `first` alone, {became}: there is no {settings.target}"
            " to keep"
        )
    candidates = tuple(_candidates(settings, runs, accuracy - settings.threshold))
    return Found(accuracy, known.seconds if known else first.seconds, first, candidates)


def _candidates(settings: SwitchSearch, runs: Runs, least: float) -> Iterator[Tried]:
    """Until one fails."""
    for halvings in range(1, settings.candidates_max + 1):
        fraction = 0.5**halvings
        made = tuple(runs(fraction, settings.candidate_repeats))
        passes = _good_enough(made, least)
        yield Tried(fraction, made, passes)
        if not passes:
            return


def _good_enough(runs: Sequence[Run], least: float) -> bool:
    """A run without an accuracy fails them all."""
    accuracies = [run.accuracy for run in runs if run.accuracy is not None]
    return 0 < len(accuracies) == len(runs) and mean(accuracies) >= least - ROUNDING


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _ratio(value: float | None, unit: float | None) -> float | None:
    return value / unit if value is not None and unit else None
