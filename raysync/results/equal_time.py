"""The quality of models at equal time: when the first run of their seed had done its work."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from raysync.results.collection import CollectedRun, Criteria

ROUNDING = 1 + 1e-9


def qualities_at_equal_time(
    runs: Sequence[CollectedRun], criteria: Criteria
) -> dict[tuple[str, int], float | None]:
    """Return (paradigm, seed) -> the quality by the last evaluations until then.

    None: the run had ended before, without having done its work. Absent: no run of another paradigm
    has this seed.

    Args:
        runs: of a scenario.
        criteria: of the scenario.
    """
    if criteria.metric is None:
        return {}
    found = {}
    for run in runs:
        done = [other for other in runs if other.seed == run.seed and other.end.kind == "done"]
        others = {other.paradigm for other in runs if other.seed == run.seed} - {run.paradigm}
        if done and others and run.end.kind != "broken":
            seconds = min(other.end.seconds for other in done)
            found[run.paradigm, run.seed] = _quality_at(run, seconds, criteria)
    return found


def _quality_at(run: CollectedRun, seconds: float, criteria: Criteria) -> float | None:
    """Return the mean of the last evaluations until then, as many as the final quality is of."""
    assert criteria.metric is not None, "no model was trained"
    metric, evaluations = criteria.metric.name, run.record.evaluations
    went_on = run.end.kind == "done" or run.end.seconds * ROUNDING >= seconds
    until = evaluations[evaluations["at"] - run.started_at <= seconds * ROUNDING]
    if metric not in until or until.empty or not went_on:
        return None
    trained = until[until.progress > 0]
    value = float((until if trained.empty else trained)[metric].tail(criteria.last).mean())
    return value if isfinite(value) else None
