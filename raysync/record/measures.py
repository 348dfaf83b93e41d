"""The measures of a run, computed from its journal; README.md beside this file defines them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from statistics import fmean
from typing import Any

from raysync.config import Target
from raysync.core.ids import WorkerId
from raysync.core.metrics import ACCURACY, LOSS, MODES, PERPLEXITY, PrimaryMetric
from raysync.record.follower import Follower
from raysync.record.run_end import RunEnd, end_of
from raysync.record.worker_totals import WorkerMeasures

# Sync-Switch, section VI-A: accuracy changed by at most 0.1 % over five evaluations
CONVERGED_SPAN = 5
CONVERGED_CHANGE = 0.001

# of each worker, in `summary.json`
TOTALS = ("pushes", "dropped", "samples", "busy_s", "transfer_s", "server_s", "wait_s")

OF_LABELS = (ACCURACY, PERPLEXITY)  # primary metrics of label predictions: these have both


class Measures(Follower):
    """The measures so far, readable at any moment of a run."""

    def __init__(
        self,
        workload_samples: int,
        target: Target | None = None,
        primary: PrimaryMetric = ACCURACY,
        chance_accuracy: float | None = None,
        *,
        last: int = 1,
    ) -> None:
        """
        Args:
            workload_samples: the samples of a whole run.
            target: for the time to the target.
            primary: the metric that judges the task's models.
            chance_accuracy: share of the most frequent label in the test set; None: unknown.
            last: the evaluations at the end whose mean is the final metric.
        """
        super().__init__(workload_samples)
        self.target = target
        self.primary = primary
        self.chance_accuracy = chance_accuracy
        self.last = last

    def fresh(self) -> Measures:
        """Return the measures of the same run before its first line."""
        return Measures(
            self.workload_samples, self.target, self.primary, self.chance_accuracy, last=self.last
        )

    @property
    def progress(self) -> float:
        return self.samples / self.workload_samples

    @property
    def seconds(self) -> float:
        """From the first release to the last publication, or update if the run was cut short."""
        published = self.ended is not None and self.ended.status in ("finished", "diverged")
        end = self.ended.at if self.ended is not None and published else self._updated_at
        return max(0.0, end - (self.started_at or 0.0))

    @property
    def end(self) -> RunEnd:
        """How the run ended; before that, how it would have ended if it were lost now."""
        return end_of(self.ended, self.seconds, self.progress)

    @property
    def throughput_samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def wait_fraction(self) -> float:
        waited = sum(self.waited_s.values())
        total = sum(map(self._membership_s, self.workers.values()))
        return waited / total if total else 0.0

    def fractions(self) -> dict[str, float]:
        """Return shares of the workers' time by key of `summary.json`.

        With `wait_fraction` they add up to 1, but for steps in flight at the end.
        """
        workers = self.workers.values()
        total = sum(map(self._membership_s, workers))
        parts = {
            "busy": sum(worker.busy_s for worker in workers),
            "transfer": sum(worker.transfer_s for worker in workers),
            "server": sum(worker.server_s for worker in workers),
        }
        return {f"{part}_fraction": s / total if total else 0.0 for part, s in parts.items()}

    def wait_fractions(self) -> dict[str, float]:
        """Return the share of its time in the run that each worker waited."""
        return {
            name: waited / total if (total := self._membership_s(self.workers[name])) else 0.0
            for name, waited in self.waited_s.items()
        }

    def _membership_s(self, worker: WorkerMeasures) -> float:
        return (self.now if worker.left_at is None else worker.left_at) - worker.released_at

    @property
    def staleness_mean(self) -> float | None:
        """Mean over the applied pushes, in versions; None before the first."""
        applied = self.outcomes["applied"]
        total = sum(worker.staleness_sum for worker in self.workers.values())
        return total / applied if applied else None

    @property
    def staleness_max(self) -> int:
        """Maximum over the applied pushes, in versions."""
        return max((worker.staleness_max for worker in self.workers.values()), default=0)

    @property
    def clocks(self) -> dict[str, int]:
        """Live worker -> the iteration that it computes or waits for."""
        return {
            worker: member.clock
            for roster in self.rosters.values()
            for worker, member in roster.live.items()
        }

    @property
    def leads(self) -> dict[str, int]:
        """Participating worker -> its clocks ahead of the slowest participant."""
        return {
            worker: roster.lead(worker)
            for roster in self.rosters.values()
            for worker in roster.members
        }

    @property
    def waited_s(self) -> dict[str, float]:
        """Worker -> seconds waited so far, including a wait in progress."""
        waits = {name: worker.wait_s for name, worker in self.workers.items()}
        for name, wait_s in self._open_waits_s():
            waits[name] += wait_s
        return waits

    def latest(self, metric: str) -> float | None:
        return self.evaluations[-1].value(metric) if self.evaluations else None

    @property
    def quality(self) -> float | None:
        return self.latest(self.primary.name)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the evaluated metrics; before the first evaluation, the expected ones."""
        if self.evaluations:
            names = chain.from_iterable(result.metrics for result in self.evaluations)
            return tuple(dict.fromkeys(names))
        first = ACCURACY.name if self.primary in OF_LABELS else self.primary.name
        return tuple(dict.fromkeys((first, LOSS)))

    @property
    def time_to_target_s(self) -> float | None:
        """From the first release until a model that met the target was published; None: never."""
        target, began = self.target, self.started_at or 0.0
        if target is None:
            return None
        met = (result for result in self.evaluations if target.is_met(result.value(target.metric)))
        return next((max(0.0, result.at - began) for result in met), None)

    def _directed_metrics(self) -> dict[str, PrimaryMetric]:
        """Return the metrics with a known direction, by name."""
        known = {name: PrimaryMetric(name, mode) for name, mode in MODES.items()}
        if self.target is not None:
            name = self.target.metric
            known[name] = PrimaryMetric(name, "max" if self.target.rises else "min")
        return known | {self.primary.name: self.primary}

    def _qualities(self) -> dict[str, float | None]:
        """Return the last and the best value of each metric, by key of `summary.json`."""
        names, directed = self.metrics, self._directed_metrics()
        if self.primary in OF_LABELS:
            names = tuple(dict.fromkeys((*names, PERPLEXITY.name)))
        found: dict[str, float | None] = {}
        for name in names:
            values = _known(result.value(name) for result in self.evaluations)
            found[f"final_{name}"] = self._final(name)
            if name in directed:
                found[f"best_{name}"] = directed[name].best(values)
            if name == ACCURACY.name:
                found["converged_accuracy"] = self._converged_accuracy()
        return found

    def _final(self, metric: str) -> float | None:
        trained = self.evaluations[1:] or self.evaluations  # the first one is before training
        known = _known(result.value(metric) for result in trained[-self.last :])
        return fmean(known) if known else None

    def _converged_accuracy(self) -> float | None:
        # one value for each version: an update can pass several marks
        of_versions = {result.version: result.value(ACCURACY.name) for result in self.evaluations}
        return converged(_known(of_versions.values()), self.chance_accuracy)

    def summary(self) -> dict[str, Any]:
        return {
            "status": self.ended.status if self.ended else "unfinished",
            "error": self.ended.error if self.ended else "",
            **self.end.plain(),
            "faults_without_effect": list(self.ended.faults_without_effect) if self.ended else [],
            "samples": self.samples,
            "pushes": sum(self.outcomes.values()),
            "updates": self.updates,
            "dropped": self.outcomes["dropped"],
            "seconds": self.seconds,
            "throughput_samples_per_s": self.throughput_samples_per_s,
            **self._qualities(),
            "target": None if self.target is None else self.target.plain(),
            "time_to_target_s": self.time_to_target_s,
            **self.fractions(),
            "wait_fraction": self.wait_fraction,
            "staleness_mean": self.staleness_mean,
            "staleness_max": self.staleness_max,
            "lead_max": self.lead_max,
            "switches": [asdict(switch) for switch in self.switches],
            "per_worker": [
                {"id": name, "group": WorkerId(name).group}
                | {total: getattr(worker, total) for total in TOTALS}
                for name, worker in self.workers.items()
            ],
            **self.losses.summary(self.now),
            **self._recovery(),
        }

    def _recovery(self) -> dict[str, Any]:
        """Return the keys that only a run with checkpoints has."""
        keys: dict[str, Any] = {"checkpoints": self.checkpoints} if self.checkpoints else {}
        if self.resumptions:
            keys["resumptions"] = len(self.resumptions)
            for key in ("away_s", "lost_s", "lost_pushes"):
                keys[key] = sum(getattr(resumption, key) for resumption in self.resumptions)
        return keys


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def converged(accuracies: Sequence[float], chance: float | None = None) -> float | None:
    """Return the accuracy at the first evaluation that ends five within 0.1 %; None: no such five.

    All five must exceed chance: a model that learns nothing does not change either.
    """
    for end in range(CONVERGED_SPAN, len(accuracies) + 1):
        window = accuracies[end - CONVERGED_SPAN : end]
        is_steady = max(window) - min(window) <= CONVERGED_CHANGE + 1e-12  # rounding
        if is_steady and (chance is None or min(window) > chance):
            return window[-1]
    return None
