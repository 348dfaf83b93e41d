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

    None: the run had ended before, without having done its work. Absent: there is one paradigm, or
    not each has a run with this seed.

    Args:
        runs: of a scenario.
        criteria: of the scenario.
    """
    if criteria.metric is None:
        return {}
    results = [run for run in runs if run.end.kind != "broken"]
    paradigms = {run.paradigm for run in results}
    found = {}
    for run in results:
        ends = [other.end for other in results if other.seed == run.seed]
        done_s = [end.seconds for end in ends if end.kind == "done"]
        if done_s and len(ends) == len(paradigms) > 1:
            found[run.paradigm, run.seed] = _quality_at(run, min(done_s), criteria)
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
