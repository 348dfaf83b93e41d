"""The measures of a run, accumulated line by line.

busy               seconds of computing alone
wait               seconds from a push to the worker's next release
staleness          of a push: versions applied between the one that it was computed on and its
                   own
lead               clocks ahead of the slowest member, at a release; suspended workers take no
                   part, so they have no lead and none is measured from them
progress           samples in applied pushes / samples of the workload
time to accuracy   when the first evaluated model at or above the target was published, counted
                   from the first release; time to loss likewise, at or below
perplexity         e to the mean cross-entropy
chance accuracy    what the best constant guess gets: the share of the most frequent label in
                   the test set
cost of a switch   seconds from a switch to the first push of a step that began after it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import exp, inf
from typing import Any

from raysync.core.decisions import Release, Switch
from raysync.core.events import Left
from raysync.core.ids import WorkerId
from raysync.core.journal import Ended, Entry, Evaluation, Line
from raysync.record.push_rows import PushRow, PushRows

CONVERGED_SPAN = 5
CONVERGED_CHANGE = 0.001
"""Sync-Switch, section VI-A: accuracy has converged when it changed by at most 0.1 % over five
evaluations."""

LARGEST_EXPONENT = 709.0
"""The largest exponent of e that a float can hold; a model with a loss that large is about to
diverge."""


@dataclass(slots=True)
class WorkerMeasures:
    """The totals of one worker."""

    released_at: float
    """When it was released first."""
    left_at: float | None = None
    pushes: int = 0
    dropped: int = 0
    """The pushes that were dropped."""
    samples: int = 0
    """The samples of all pushes."""
    busy_s: float = 0.0
    wait_s: float = 0.0
    applied: int = 0
    """The pushes that were applied."""
    staleness_sum: int = 0
    """The staleness of the applied pushes, in versions."""
    staleness_max: int = 0


@dataclass(slots=True)
class SwitchMeasures:
    """One switch from a phase of the paradigm to the next."""

    at_s: float
    """Seconds since the run began."""
    to: str
    why: str
    first_push_s: float | None = None
    """From the switch to the first push of a step that began after it; None if none came.

    Steps under way at a switch do not count, though their pushes belong to the new phase: they
    would make the switch look free. (Sync-Switch's own restart from a checkpoint takes 36 s on 8
    workers, Table III.)"""


class Measures:
    """The measures so far; they can be read at any moment of a run."""

    def __init__(
        self,
        workload_samples: int,
        target_accuracy: float | None = None,
        target_loss: float | None = None,
        chance_accuracy: float | None = None,
    ) -> None:
        """
        Args:
            workload_samples: the samples that count as a progress of 1.
            target_accuracy: a fraction of 1, for the time to accuracy.
            target_loss: mean cross-entropy in nats, for the time to loss.
            chance_accuracy: the accuracy of the best constant guess; a model that is no better has
                not converged. None: it is not known, as in the records of an older raysync.
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
        self._switches: list[SwitchMeasures] = []

    def feed(self, line: Line) -> Iterator[PushRow]:
        """Take in one line of the journal, and yield the rows of pushes that it completes."""
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
                        switch = SwitchMeasures(event.at, decision.to, decision.why)
                        self._switches.append(switch)
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
        """Take in that the journal has ended, and yield the rows that were still open."""
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
        self._measure_switch(row)
        if row.staleness is not None:
            worker.applied += 1
            worker.staleness_sum += row.staleness
            worker.staleness_max = max(worker.staleness_max, row.staleness)

    def _measure_switch(self, row: PushRow) -> None:
        """Count a step for the latest switch before its release. Rows come in any order."""
        for switch in reversed(self._switches):
            if row.released_at_s >= switch.at_s:
                after_s = row.pushed_at_s - switch.at_s
                switch.first_push_s = (
                    after_s if switch.first_push_s is None else min(switch.first_push_s, after_s)
                )
                return

    @property
    def progress(self) -> float:
        """Samples in applied pushes / samples of the workload."""
        return self.samples / self.workload_samples

    @property
    def seconds(self) -> float:
        """Duration of the training: from the first release to the last publication, or to the last
        update of a run that did not end by itself.
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
        total = sum(self._membership_s(worker) for worker in self.workers.values())
        return waited / total if total else 0.0

    def wait_fractions(self) -> dict[str, float]:
        """Return the share of its own time that each worker spent waiting."""
        return {
            name: waited / total if (total := self._membership_s(self.workers[name])) else 0.0
            for name, waited in self.waited_s.items()
        }

    def _membership_s(self, worker: WorkerMeasures) -> float:
        return (self.now if worker.left_at is None else worker.left_at) - worker.released_at

    @property
    def staleness_mean(self) -> float | None:
        """Mean staleness of the applied pushes, in versions; None before the first."""
        applied = self.outcomes["applied"]
        return (
            sum(worker.staleness_sum for worker in self.workers.values()) / applied
            if applied
            else None
        )

    @property
    def staleness_max(self) -> int:
        """Largest staleness of the applied pushes, in versions."""
        return max((worker.staleness_max for worker in self.workers.values()), default=0)

    @property
    def clocks(self) -> dict[str, int]:
        """Live worker -> the iteration that it computes, or waits to start."""
        return {
            worker: member.clock
            for roster in self._rows.rosters.values()
            for worker, member in roster.live.items()
        }

    @property
    def leads(self) -> dict[str, int]:
        """Worker that takes part -> its lead now, in clocks ahead of the slowest of them."""
        return {
            worker: roster.lead(worker)
            for roster in self._rows.rosters.values()
            for worker in roster.members
        }

    @property
    def waited_s(self) -> dict[str, float]:
        """Worker -> the seconds that it has waited up to now, including the wait under way."""
        waits = {name: worker.wait_s for name, worker in self.workers.items()}
        for name, wait_s in self._rows.open_waits_s(self.now):
            waits[name] += wait_s
        return waits

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the latest evaluation, a fraction of 1."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    @property
    def perplexity(self) -> float | None:
        """Perplexity of the latest evaluation: e to its loss, so 1 at best; infinite where a float
        cannot hold it.
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
        return None if target is None else self._first_s(lambda each: each.accuracy >= target)

    @property
    def time_to_loss_s(self) -> float | None:
        """When the first evaluation at or below the target had its weights published; None if none
        reached it.
        """
        target = self.target_loss
        return None if target is None else self._first_s(lambda each: each.loss <= target)

    def _first_s(self, reached: Callable[[Evaluation], bool]) -> float | None:
        began = self.started_at or 0.0
        return next((max(0.0, each.at - began) for each in self.evaluations if reached(each)), None)

    def summary(self) -> dict[str, Any]:
        """Return the measures under the keys of `summary.json`."""
        accuracies = [each.accuracy for each in self.evaluations]
        # one value a version: an update can pass several marks
        of_versions = {each.version: each.accuracy for each in self.evaluations}
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
            "switches": [asdict(switch) for switch in self._switches],
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
    """Return the accuracy at the first evaluation that ends five within 0.1 % of each other; None
    if there is none.

    Five that are not above chance do not count: a model that has learned nothing does not change
    either, and its accuracy is that of a guess.
    """
    for end in range(CONVERGED_SPAN, len(accuracies) + 1):
        window = accuracies[end - CONVERGED_SPAN : end]
        is_steady = max(window) - min(window) <= CONVERGED_CHANGE + 1e-12
        if is_steady and (chance is None or min(window) > chance):
            return window[-1]
    return None
