"""Which worker, on which samples, a run diverged at, and what was not finite first."""

from __future__ import annotations

from collections.abc import Sequence

from raysync.core.events import Pushed
from raysync.core.finding import Finding

SHOWN = 5
"""The samples of a batch that are named."""


def why_diverged(event: Pushed, finding: Finding) -> str:
    """Return a sentence about the push with which a run diverged, without its full stop."""
    parameter = f" of {finding.parameter}" if finding.parameter else ""
    first = finding.first
    if first == "weights":
        cause = f"an update up to version {event.base}" if event.base else "the initial model"
        what = f"the weights{parameter}, in {cause}"
    else:
        what = f"the {first}{parameter}, at version {event.base}"
    return (
        f"{event.worker}, clock {event.clock}, samples {_some(finding.samples)}: the first that"
        f" is not finite: {what}"
    )


def _some(samples: Sequence[int]) -> str:
    shown = ", ".join(map(str, samples[:SHOWN]))
    more = len(samples) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
