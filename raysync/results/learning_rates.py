"""Rows that differ in their learning rate alone: each paradigm is judged by its best rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from raysync.config import Experiment
from raysync.results.collection import CollectedRun, Criteria

FEWEST = 3  # of two rates each is the first or the last


@dataclass(frozen=True)
class RateChoice:
    """The learning rates of a paradigm, as rows of one comparison by `set`, and the best one."""

    labels: Mapping[float, str]  # rate -> row; rising, and at least two
    rate: float
    chosen_by: str

    @property
    def label(self) -> str:
        return self.labels[self.rate]

    @property
    def edge(self) -> str:
        """`lowest` or `highest` if a rate beyond the best one may be better; else ""."""
        rates = list(self.labels)
        if len(rates) < FEWEST or self.rate not in (rates[0], rates[-1]):
            return ""
        return "lowest" if self.rate == rates[0] else "highest"


def rate_choices(
    groups: Mapping[str, Sequence[CollectedRun]], criteria: Criteria
) -> list[RateChoice]:
    """Choose the rate of each paradigm that several rows of a scenario have.

    By the time to the target if there is one. Otherwise by the models: on the validation set, which
    judges none at the end; without one on the test set, so that many rates have an advantage over
    few. Only seeds count that each of its rates has.
    """
    if criteria.metric is None:
        return []
    rows: dict[str, dict[float, str]] = {}
    for label, runs in groups.items():
        if runs:
            experiment = runs[0].record.config
            rows.setdefault(_paradigm(experiment), {})[_rate(experiment)] = label
    found = []
    for labels in rows.values():
        if len(labels) > 1:
            results = {
                rate: {run.seed: run for run in groups[label] if run.end.kind != "broken"}
                for rate, label in labels.items()
            }
            common = set.intersection(*(set(runs) for runs in results.values()))
            scores = {
                rate: _score([runs[seed] for seed in sorted(common or runs)], criteria)
                for rate, runs in results.items()
            }
            best = max(scores, key=lambda rate: scores[rate])
            by = _basis(criteria)
            found.append(RateChoice(dict(sorted(labels.items())), best, by))
    return found


def _score(runs: Sequence[CollectedRun], criteria: Criteria) -> tuple[float, float]:
    """Return the share of the runs with a value, and what is better the larger it is."""
    assert criteria.metric is not None, "no model was trained"
    key = f"final_{criteria.metric.name}" if criteria.target is None else criteria.time_key
    known = [value for run in runs if (value := run.value(key)) is not None]
    rises = criteria.target is None and criteria.metric.rises
    return (len(known) / len(runs), fmean(known) * (1 if rises else -1)) if known else (0.0, 0.0)


def _basis(criteria: Criteria) -> str:
    if criteria.target is not None:
        return "the time to the target"
    return "the validation set" if criteria.tested else "the last model"


def _rate(experiment: Experiment) -> float:
    return experiment.update.lr if experiment.local is None else experiment.local.lr


def _paradigm(experiment: Experiment) -> str:
    """Return what rows have in common that differ in their rate alone."""
    update, local = experiment.update, experiment.local
    settings = (
        experiment.paradigm.model_copy(update={"set": None}).label,
        update.model_dump(exclude={"lr"} if local is None else set()),
        None if local is None else local.model_dump(exclude={"lr"}),
        experiment.cluster.wire,
        experiment.batch_size,
        experiment.network,
    )
    return repr(settings)
