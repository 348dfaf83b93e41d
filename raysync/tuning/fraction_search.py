"""The search for the switch point, without the trainings: which fractions are tried, which one is
the answer, and what the search cost.

Source: Li et al., "Sync-Switch" (2021), sections IV-B1 and VI-C, Table II. The paper calls the
method a binary search; its published costs are those of the method here, which never goes back
between the fraction that failed and the last that passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean as mean

from raysync.config import Known, SwitchSearch
from raysync.errors import RunFailed

FIRST_ALONE = 1.0
"""The fraction that trains with the first phase alone."""
ROUNDING = 1e-12
"""The rounding error of a mean: a candidate exactly the threshold below passes."""


@dataclass(frozen=True)
class Training:
    """One training."""

    value: float | None
    """The search's target: an accuracy is a fraction of 1."""
    seconds: float
    """Its duration, to its end or until it diverged."""
    why: str = ""
    """Why it has no value: "diverged", "never converged"."""


Train = Callable[[float, int], Sequence[Training]]
"""Trains so many times with that fraction under `first`. If it returns nothing, the fraction
diverged at no cost."""


@dataclass(frozen=True)
class FractionTrial:
    """A fraction and its trainings."""

    fraction: float
    trainings: tuple[Training, ...]
    passes: bool

    @property
    def useful(self) -> list[Training]:
        """The trainings that have a value; others may have ended early."""
        return [each for each in self.trainings if each.value is not None]

    @property
    def value(self) -> float | None:
        """Mean value of the useful trainings."""
        return mean(_values(self.useful)) if self.useful else None

    @property
    def seconds(self) -> float | None:
        """Mean duration of the useful trainings."""
        return mean(each.seconds for each in self.useful) if self.useful else None


@dataclass(frozen=True)
class SearchResult:
    """The result of a search; costs are in trainings of `first` alone, None: they are not known."""

    value: float
    """The search's target with `first` alone."""
    first_seconds: float | None
    """The duration of a training with `first` alone; None: a recurring search, and it is not given.
    """
    first: FractionTrial
    """`first` alone; without trainings in a recurring search."""
    candidates: tuple[FractionTrial, ...]
    """The fractions, in the order in which they were tried."""

    @property
    def passed(self) -> list[FractionTrial]:
        """`first` alone, and the candidates that passed."""
        return [self.first, *(each for each in self.candidates if each.passes)]

    @property
    def answer(self) -> FractionTrial:
        """The last candidate that passed; `first` alone if none did."""
        return self.passed[-1]

    @property
    def fraction(self) -> float:
        """The fraction of the answer."""
        return self.answer.fraction

    @property
    def seconds(self) -> float:
        """The duration of all trainings of the search, one after the other."""
        tried = (self.first, *self.candidates)
        return sum(training.seconds for each in tried for training in each.trainings)

    def ratio(self, candidate: FractionTrial) -> float | None:
        """Return a candidate's mean duration as a multiple of that of `first`; None where one of
        the two is not known.
        """
        if candidate is self.first and not candidate.trainings:
            return 1.0
        return _ratio(candidate.seconds, self.first_seconds)

    @property
    def cost(self) -> float | None:
        """The cost of the search."""
        return _ratio(self.seconds, self.first_seconds)

    @property
    def amortisation(self) -> float | None:
        """The number of trainings with the answer after which the search is paid back; None also:
        never.
        """
        ratio, cost = self.ratio(self.answer), self.cost
        if ratio is None or cost is None or ratio >= 1:
            return None
        return cost / (1 - ratio)

    @property
    def effective(self) -> float | None:
        """The number of useful trainings, of what passed, for each training of `first` that the
        search cost; None also: it cost nothing.
        """
        return sum(len(each.useful) for each in self.passed) / self.cost if self.cost else None


def search(
    settings: SwitchSearch, train: Train, known: Known | None = None, *, rises: bool = True
) -> SearchResult:
    """Halve the fraction under `first` while the mean of the target stays within the threshold of
    that of `first` alone.

    Args:
        settings: threshold, repeats, and how many fractions are tried at most.
        train: trains with `first` alone, then with each fraction in turn.
        known: the results of `first` alone in a recurring job, which is then not trained.
        rises: whether a larger target is better.

    Raises:
        RunFailed: no training of `first` has a value.
    """
    trainings = () if known else tuple(train(FIRST_ALONE, settings.first_repeats))
    first = FractionTrial(FIRST_ALONE, trainings, passes=True)
    value = known.value if known else first.value
    if value is None:
        whys = Counter(training.why for training in trainings)
        outcomes = " and ".join(f"{count} {why}" for why, count in whys.items())
        raise RunFailed(
            f"of {len(trainings)} runs of `first` alone, {outcomes}: there is no {settings.target}"
            " to keep"
        )
    sign = 1 if rises else -1
    least = sign * value - settings.threshold - ROUNDING
    candidates: list[FractionTrial] = []
    while len(candidates) < settings.candidates_max and all(each.passes for each in candidates):
        fraction = 0.5 ** (len(candidates) + 1)
        trainings = tuple(train(fraction, settings.candidate_repeats))
        values = _values(trainings)
        passes = 0 < len(values) == len(trainings) and sign * mean(values) >= least
        candidates.append(FractionTrial(fraction, trainings, passes))
    return SearchResult(value, known.seconds if known else first.seconds, first, tuple(candidates))


def _values(trainings: Iterable[Training]) -> list[float]:
    return [each.value for each in trainings if each.value is not None]


def _ratio(value: float | None, unit: float | None) -> float | None:
    return value / unit if value is not None and unit else None
