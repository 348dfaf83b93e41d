"""The search for the switch point: candidate fractions, the answer, and its cost.

Source: Li et al., "Sync-Switch" (2021), sections IV-B1 and VI-C, Table II. The paper says binary
search, but its published costs fit this method, which never returns to fractions between the failed
one and the last that passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from raysync.config import Known, SwitchSearch
from raysync.errors import RunFailed

FIRST_ALONE = 1.0  # the fraction of the first phase alone
FIRST_CANDIDATE = 0.5
ROUNDING = 1e-12  # the error of a mean: a candidate exactly the threshold below passes


@dataclass(frozen=True)
class Training:
    value: float | None  # the search's target: an accuracy is a fraction of 1
    seconds: float  # the time to its end, or until it diverged
    why: str = ""  # why it has no value: "diverged", "never converged"


# fraction under `first`, repeats -> trainings; none: it diverged at no cost
Train = Callable[[float, int], Sequence[Training]]


@dataclass(frozen=True)
class FractionTrial:
    fraction: float
    trainings: tuple[Training, ...]
    passes: bool

    @property
    def useful(self) -> list[Training]:
        """The trainings that have a value; others may have ended early."""
        return [training for training in self.trainings if training.value is not None]

    @property
    def value(self) -> float | None:
        return _mean(training.value for training in self.trainings)

    @property
    def seconds(self) -> float | None:
        return _mean(training.seconds for training in self.useful)

    @property
    def failures(self) -> list[str]:
        """Why trainings have no value: `2 diverged`."""
        reasons = Counter(training.why for training in self.trainings if training.why)
        return [f"{count} {reason}" for reason, count in reasons.items()]


@dataclass(frozen=True)
class SearchResult:
    """Costs are in trainings with `first` alone; None: unknown."""

    value: float  # the target with `first` alone
    first_seconds: float | None  # of one training; None: unknown, in a recurring search
    first: FractionTrial  # without trainings in a recurring search
    candidates: tuple[FractionTrial, ...]  # in the order of their trials

    @property
    def passed(self) -> list[FractionTrial]:
        return [self.first, *(candidate for candidate in self.candidates if candidate.passes)]

    @property
    def answer(self) -> FractionTrial:
        """The last candidate that passed; `first` alone if none did."""
        return self.passed[-1]

    @property
    def fraction(self) -> float:
        return self.answer.fraction

    @property
    def seconds(self) -> float:
        """The total duration of all trainings."""
        tried = (self.first, *self.candidates)
        return sum(training.seconds for trial in tried for training in trial.trainings)

    def ratio(self, candidate: FractionTrial) -> float | None:
        """Return a candidate's mean duration relative to `first`; None: unknown."""
        if candidate is self.first and not candidate.trainings:
            return 1.0
        return _ratio(candidate.seconds, self.first_seconds)

    @property
    def cost(self) -> float | None:
        return _ratio(self.seconds, self.first_seconds)

    @property
    def amortisation(self) -> float | None:
        """The trainings with the answer that pay the search back; None: unknown, or never."""
        ratio, cost = self.ratio(self.answer), self.cost
        if ratio is None or cost is None or ratio >= 1:
            return None
        return cost / (1 - ratio)

    @property
    def effective(self) -> float | None:
        """The useful trainings that passed, per unit of cost; None: unknown, or no cost."""
        return sum(len(trial.useful) for trial in self.passed) / self.cost if self.cost else None

    def plain(self) -> dict[str, Any]:
        """Return the result as plain data: seconds, and costs in trainings of `first`."""
        names = ("value", "fraction", "cost", "amortisation", "effective", "seconds")
        return {
            **{name: getattr(self, name) for name in (*names, "first_seconds")},
            "first": self._plain(self.first),
            "candidates": list(map(self._plain, self.candidates)),
        }

    def _plain(self, trial: FractionTrial) -> dict[str, Any]:
        fields = asdict(trial)
        runs = fields.pop("trainings")
        values = {"value": trial.value, "seconds": trial.seconds, "ratio": self.ratio(trial)}
        return fields | values | {"runs": runs}


def search(
    settings: SwitchSearch, train: Train, known: Known | None = None, *, rises: bool = True
) -> SearchResult:
    """Halve the fraction under `first` while the mean target stays within the threshold.

    Args:
        settings: the threshold, the repeats, and the limit of candidates.
        train: trains with `first` alone, then with each fraction in turn.
        known: the results of `first` alone in a recurring job, which is not trained.
        rises: whether a larger target is better.

    Raises:
        RunFailed: no training of `first` has a value.
    """
    trainings = () if known else tuple(train(FIRST_ALONE, settings.first_repeats))
    first = FractionTrial(FIRST_ALONE, trainings, passes=True)
    value = known.value if known else first.value
    if value is None:
        raise RunFailed(
            f"of {len(trainings)} runs of `first` alone, {' and '.join(first.failures)}: there is"
            f" no {settings.target} to keep"
        )
    sign = 1 if rises else -1
    least = sign * value - settings.threshold - ROUNDING
    candidates: list[FractionTrial] = []
    while len(candidates) < settings.candidates_max and all(trial.passes for trial in candidates):
        fraction = 0.5 ** (len(candidates) + 1)
        trainings = tuple(train(fraction, settings.candidate_repeats))
        average = _mean(training.value for training in trainings)
        is_whole = all(training.value is not None for training in trainings)
        passes = is_whole and average is not None and sign * average >= least
        candidates.append(FractionTrial(fraction, trainings, passes))
    return SearchResult(value, known.seconds if known else first.seconds, first, tuple(candidates))


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _ratio(value: float | None, unit: float | None) -> float | None:
    return value / unit if value is not None and unit else None
