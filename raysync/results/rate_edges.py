"""Whether what leads has the lowest or the highest of the learning rates that it was tried with."""

from __future__ import annotations

from collections.abc import Iterator

from raysync.config import Experiment
from raysync.results.collection import Collection
from raysync.results.ranking import rank

FEWEST = 3  # of two rates each is the first or the last


def rate_edges(collection: Collection) -> Iterator[str]:
    """Yield a caution for each leader, by the target or else by the model, at an edge of its rates.

    Rates are compared where they are rows of one comparison, by `set` of a paradigm.
    """
    for scenario, groups in collection.scenarios.items():
        configs = {label: runs[0].record.config for label, runs in groups.items() if runs}
        rates: dict[str, set[float]] = {}
        for experiment in configs.values():
            rates.setdefault(_paradigm(experiment), set()).add(_rate(experiment))
        if max(map(len, rates.values()), default=0) < FEWEST:
            continue
        ranking = rank(collection, scenario)
        standings = ranking.to_target if ranking.target else ranking.final
        leader = None if standings is None else configs.get(standings.leader.name)
        if standings is not None and leader is not None:
            tried = sorted(rates[_paradigm(leader)])
            if len(tried) >= FEWEST and _rate(leader) in (tried[0], tried[-1]):
                lowest = _rate(leader) == tried[0]
                edge, beyond = ("lowest", "lower") if lowest else ("highest", "higher")
                yield (
                    f"{standings.leader.name} has the {edge} of the {len(tried)} learning rates"
                    f" that it was tried with: a {beyond} one may be better."
                )


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
    )
    return repr(settings)
