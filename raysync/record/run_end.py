"""How a run ended: one typed value, which everything reads that compares or shows runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from raysync.core.journal import Ended
from raysync.record.event_text import seconds

Kind = Literal["done", "reached", "cut", "diverged", "broken"]

UNFINISHED = "unfinished"  # the status of a run without a closing line
SIGNAL = "signal"  # Ctrl-C, or the end of the process or job
KILLED = "killed"  # the journal has no closing line
ERROR = "error"
SCHEDULER = "sweep.scheduler"
TIME_BUDGET = "sweep.time_budget_s"
OF_EARLIER_VERSIONS = "stop"  # their journals do not say by which of its conditions
WORDS: dict[str, str] = {
    SIGNAL: "stopped by a signal",
    KILLED: "killed, or still running",
    ERROR: "failed",
}


@dataclass(frozen=True)
class RunEnd:
    """The end of a run.

    `done`: it did its work. `reached`: it ended since it had reached what it was to reach. `cut`:
    it was ended before that. `diverged`: a loss was not finite. `broken`: it failed or was killed.
    """

    kind: Kind
    # what ended it: a setting (`stop.patience`, `sweep.scheduler`), `signal`, `killed`, `error`, or
    # "": its work was done, or it diverged
    by: str
    seconds: float  # of training, from the first release
    progress: float

    @property
    def is_left_off(self) -> bool:
        """Whether the run would go on, had nobody ended it or its sweep from outside."""
        return self.kind == "broken" or self.by in (SIGNAL, TIME_BUDGET)

    @property
    def how(self) -> str:
        """The end in words: `cut by stop.patience`; "done"."""
        if self.by in WORDS:
            return WORDS[self.by]
        match self.kind:
            case "cut" | "broken":
                return f"{self.kind} by {self.by}"
            case "reached":
                return f"reached {self.by}"
            case kind:
                return kind

    @property
    def words(self) -> str:
        """The end as a clause: `cut by stop.patience at 40% of the work, after 12 s`."""
        return f"{self.how} at {self.progress:.0%} of the work, after {seconds(self.seconds)}"

    def plain(self) -> dict[str, Any]:
        """Return the keys of `summary.json`; it has `seconds` anyway."""
        return {"end": self.kind, "ended_by": self.by, "progress": self.progress}


def end_of(ended: Ended | None, seconds: float, progress: float) -> RunEnd:
    """Return the end of a run from its journal; `ended` None: it has no closing line."""
    if ended is None:
        return _end(UNFINISHED, "", False, seconds, progress)
    return _end(ended.status, ended.by, ended.reached, seconds, progress)


def end_in(summary: Mapping[str, Any], workload_samples: int) -> RunEnd:
    """Return the end of a run from its summary, also of an earlier version's."""
    seconds = float(summary.get("seconds") or 0.0)
    progress = float(summary.get("progress", summary["samples"] / workload_samples))
    kind: Kind | None = summary.get("end")
    if kind is not None:
        return RunEnd(kind, summary.get("ended_by", ""), seconds, progress)
    return _end(summary["status"], "", False, seconds, progress)


def _end(status: str, by: str, reached: bool, seconds: float, progress: float) -> RunEnd:
    if status == UNFINISHED:
        return RunEnd("broken", KILLED, seconds, progress)
    if status == "diverged":
        return RunEnd("diverged", "", seconds, progress)
    if status == "failed":
        return RunEnd("broken", ERROR, seconds, progress)
    if status == "stopped":
        return RunEnd("cut", by or SIGNAL, seconds, progress)
    if not by and progress < 1:
        by = OF_EARLIER_VERSIONS
    if not by:
        return RunEnd("done", "", seconds, progress)
    return RunEnd("reached" if reached else "cut", by, seconds, progress)
