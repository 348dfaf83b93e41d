"""The measures of a run, accumulated line by line.

Busy is computing alone. Wait is from a push to the worker's next release. Version staleness of a
push: versions applied between the one it was computed on and its own. Lead: clocks ahead of the
slowest member, at a release; suspended workers take no part, so they have no lead and none is
measured from them. Progress: samples in applied pushes / samples of the workload. Time to accuracy:
when the first evaluated model at or above the target was published, counted from the first release;
time to loss likewise, at or below. Perplexity: e to the mean cross-entropy. Chance accuracy: what
the best constant guess gets, the share of the most frequent label in the test set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Any

from raysync.core.decisions import Release, Switch
from raysync.core.events import Left
from raysync.core.ids import WorkerId
from raysync.core.journal import Ended, Entry, Evaluation, Line
from raysync.record.rows import PushRow, PushRows
from raysync.record.switches import Switches

CONVERGED_SPAN = 5
CONVERGED_CHANGE = 0.001
"""Sync-Switch, section VI-A: accuracy has converged when it changed by at most 0.1 % over five
evaluations."""

LARGEST_EXPONENT = 709.0
"""e to more is no float; a loss that large is of a model on its way to diverging."""


@dataclass(slots=True)
class WorkerMeasures:
    """Totals of one worker."""

    released_at: float
    """Its first release."""
    left_at: float | None = None
    pushes: int = 0
    dropped: int = 0
    """Of these pushes."""
    samples: int = 0
    """Of all of them."""
    busy_s: float = 0.0
    wait_s: float = 0.0
    applied: int = 0
    staleness_sum: int = 0
    """In versions, of the applied."""
    staleness_max: int = 0


class Measures:
    """Totals so far; readable at any moment of a run."""

    def __init__(
        self,
        workload_samples: int,
        target_accuracy: float | None = None,
        target_loss: float | None = None,
        chance_accuracy: float | None = None,
    ) -> None:
        """
        Args:
            workload_samples: what progress is measured against.
            target_accuracy: a fraction of 1, for the time to accuracy.
            target_loss: mean cross-entropy in nats, for the time to loss.
            chance_accuracy: of the best constant guess; a model that is no better has not
                converged. None: it is not known, as in the records of an older raysync.
        """
        self.workload_samples = workload_samples
        self.target_accuracy = target_accuracy
        self.target_loss = target_loss
        self.chance_accuracy = chance_accuracy
        self.workers: dict[str, WorkerMeasures] = {}
        self.evaluations: list[Evaluation] = []
        self.ended: Ended | None = None
        self.now = 0.0
        self.started_at: float | None = None
        self.applied_at = 0.0
        self.samples = self.updates = self.lead_max = 0
        self.outcomes = {"applied": 0, "dropped": 0, "buffered": 0}
        self._rows = PushRows(workload_samples)
        self._switches = Switches()

    def feed(self, line: Line) -> Iterator[PushRow]:
        """Take in one line of the journal; yields the rows of pushes that it completes."""
        match line:
            case Evaluation():
                self.evaluations.append(line)
            case Ended():
                self.ended = line
                yield from self.close(max(line.at, self.now))
            case Entry(event=event, decisions=decisions):
                self.now = event.at
                for decision in decisions:
                    if isinstance(decision, Release):
                        self.workers.setdefault(decision.worker, WorkerMeasures(event.at))
                        self.started_at = event.at if self.started_at is None else self.started_at
                    elif isinstance(decision, Switch):
                        self._switches.switched(event.at, decision)
                if isinstance(event, Left) and event.worker in self.workers:
                    self.workers[event.worker].left_at = event.at
                for row in self._rows.feed(line):
                    self._count(row)
                    yield row
                if self._rows.updates > self.updates:
                    self.applied_at = event.at
                self.samples, self.updates = self._rows.roster.samples_applied, self._rows.updates
                self.lead_max = self._rows.lead_max

    def close(self, at: float) -> Iterator[PushRow]:
        """The journal has no more lines; yields the rows that were still open."""
        self.now = max(self.now, at)
        for row in self._rows.close(at):
            self._count(row)
            yield row

    def _count(self, row: PushRow) -> None:
        worker = self.workers[row.worker]
        worker.pushes += 1
        worker.dropped += row.outcome == "dropped"
        worker.samples += row.samples
        worker.busy_s += row.busy_s
        worker.wait_s += row.wait_s
        self.outcomes[row.outcome] += 1
        self._switches.pushed(row.released_at_s, row.pushed_at_s)
        if row.staleness is not None:
            worker.applied += 1
            worker.staleness_sum += row.staleness
            worker.staleness_max = max(worker.staleness_max, row.staleness)

    # ---- what can be asked at any moment ----

    @property
    def progress(self) -> float:
        """Samples in applied pushes / samples of the workload."""
        return self.samples / self.workload_samples

    @property
    def seconds(self) -> float:
        """Of training: first release to last publication (to the last update, of a run that did not
        end by itself).
        """
        published = self.ended is not None and self.ended.status in ("finished", "diverged")
        end = self.ended.at if self.ended is not None and published else self.applied_at
        return max(0.0, end - (self.started_at or 0.0))

    @property
    def throughput_samples_per_s(self) -> float:
        """Samples applied per second of training."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def wait_fraction(self) -> float:
        """Share of the workers' time that they spent between a push and the next release."""
        waited = sum(self.waited_s.values())
        there = sum(self._there_s(worker) for worker in self.workers.values())
        return waited / there if there else 0.0

    def wait_fractions(self) -> dict[str, float]:
        """Worker -> the share of its own time."""
        return {
            name: waited / there if (there := self._there_s(self.workers[name])) else 0.0
            for name, waited in self.waited_s.items()
        }

    def _there_s(self, worker: WorkerMeasures) -> float:
        return (self.now if worker.left_at is None else worker.left_at) - worker.released_at

    @property
    def staleness_mean(self) -> float | None:
        """Of the applied pushes, in versions; None before the first."""
        applied = self.outcomes["applied"]
        return (
            sum(worker.staleness_sum for worker in self.workers.values()) / applied
            if applied
            else None
        )

    @property
    def staleness_max(self) -> int:
        """Of the applied pushes, in versions."""
        return max((worker.staleness_max for worker in self.workers.values()), default=0)

    @property
    def clocks(self) -> dict[str, int]:
        """Of each live worker: the iteration that it computes, or waits to start."""
        return {
            worker: member.clock
            for roster in self._rows.rosters.values()
            for worker, member in roster.live.items()
        }

    @property
    def leads(self) -> dict[str, int]:
        """The lead of each worker that takes part, in clocks ahead of the slowest of them, now."""
        return {
            worker: roster.lead(worker)
            for roster in self._rows.rosters.values()
            for worker in roster.members
        }

    @property
    def waited_s(self) -> dict[str, float]:
        """Of each worker: its waits up to now, that under way included."""
        waits = {name: worker.wait_s for name, worker in self.workers.items()}
        for name, wait_s in self._rows.open_waits_s(self.now):
            waits[name] += wait_s
        return waits

    @property
    def accuracy(self) -> float | None:
        """Of the latest evaluation."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    @property
    def perplexity(self) -> float | None:
        """Of the latest evaluation: e to its loss, so 1 at best; infinite where a float cannot say
        it.
        """
        if not self.evaluations:
            return None
        loss = self.evaluations[-1].loss
        return inf if loss > LARGEST_EXPONENT else exp(loss)

    @property
    def time_to_accuracy_s(self) -> float | None:
        """When the first evaluation at or above the target had its weights published; None if none
        reached it.
        """
        target = self.target_accuracy
        return None if target is None else self._first_s(lambda one: one.accuracy >= target)

    @property
    def time_to_loss_s(self) -> float | None:
        """When the first evaluation at or below the target had its weights published; None if none
        reached it.
        """
        target = self.target_loss
        return None if target is None else self._first_s(lambda one: one.loss <= target)

    def _first_s(self, reached: Callable[[Evaluation], bool]) -> float | None:
        began = self.started_at or 0.0
        return next((max(0.0, one.at - began) for one in self.evaluations if reached(one)), None)

    def summary(self) -> dict[str, Any]:
        """The measures under the keys of `summary.json`."""
        accuracies = [one.accuracy for one in self.evaluations]
        of_versions = {
            one.version: one.accuracy for one in self.evaluations
        }  # an update may pass several marks
        return {
            "status": self.ended.status if self.ended else "unfinished",
            "error": self.ended.error if self.ended else "",
            "faults_without_effect": list(self.ended.faults_without_effect) if self.ended else [],
            "samples": self.samples,
            "pushes": sum(self.outcomes.values()),
            "updates": self.updates,
            "dropped": self.outcomes["dropped"],
            "seconds": self.seconds,
            "throughput_samples_per_s": self.throughput_samples_per_s,
            "final_accuracy": self.accuracy,
            "best_accuracy": max(accuracies, default=None),
            "converged_accuracy": converged(list(of_versions.values()), self.chance_accuracy),
            "final_loss": self.evaluations[-1].loss if self.evaluations else None,
            "final_perplexity": self.perplexity,
            "target_accuracy": self.target_accuracy,
            "time_to_accuracy_s": self.time_to_accuracy_s,
            "target_loss": self.target_loss,
            "time_to_loss_s": self.time_to_loss_s,
            "wait_fraction": self.wait_fraction,
            "staleness_mean": self.staleness_mean,
            "staleness_max": self.staleness_max,
            "lead_max": self.lead_max,
            "switches": self._switches.rows(),
            "per_worker": [
                {
                    "id": name,
                    "group": WorkerId(name).group,
                    "pushes": worker.pushes,
                    "dropped": worker.dropped,
                    "samples": worker.samples,
                    "busy_s": worker.busy_s,
                    "wait_s": worker.wait_s,
                }
                for name, worker in self.workers.items()
            ],
        }


def converged(accuracies: Sequence[float], chance: float | None = None) -> float | None:
    """The accuracy at the first evaluation that ends five within 0.1 % of each other; None if none
    does.

    Five that are not above chance do not count: a model that has learned nothing does not change
    either, and its accuracy is that of its guess.
    """
    for end in range(CONVERGED_SPAN, len(accuracies) + 1):
        window = accuracies[end - CONVERGED_SPAN : end]
        is_steady = max(window) - min(window) <= CONVERGED_CHANGE + 1e-12
        if is_steady and (chance is None or min(window) > chance):
            return window[-1]
    return None
