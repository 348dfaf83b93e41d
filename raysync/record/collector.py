"""Compute the registry's metrics from the journal's lines, while a run goes on.

Increments add up to the record's `Measures`. A push counts once its outcome and wait are known; a
wait counts while it lasts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raysync.core.decisions import Note, Release
from raysync.core.events import Left
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry, Line
from raysync.record.measures import Measures
from raysync.record.metrics_registry import RunLabels
from raysync.record.push_rows import PushRow

# a series: its metric, and the values of its labels in the registry's order
Key = tuple[str, tuple[str, ...]]

GRANT = "raysync_lagtuner_extra_clocks"
PREDICTED = "raysync_lagtuner_predicted_wait_seconds"
ACTUAL = "raysync_lagtuner_actual_wait_seconds"


@dataclass(slots=True)
class Collected:
    """The changes of the metrics by a batch of journal lines."""

    run: tuple[str, ...]  # the values of the run's labels
    # series -> increment; 0 starts the series
    counters: dict[Key, float] = field(default_factory=dict)
    # series -> value, of all gauges of the run: a missing series has ended
    gauges: dict[Key, float] = field(default_factory=dict)
    histograms: dict[Key, list[float]] = field(default_factory=dict)  # series -> new observations

    def add(self, key: Key, increment: float) -> None:
        self.counters[key] = self.counters.get(key, 0.0) + increment

    def observe(self, key: Key, value: float) -> None:
        self.histograms.setdefault(key, []).append(value)


class Collector:
    """Follows one run. Memory is bounded by workers and evaluations."""

    def __init__(
        self,
        labels: RunLabels,
        phase: str,  # the first
        measures: Measures,  # receive the lines
        per_worker_histograms: bool = False,
    ) -> None:
        """Begin all counters with 0, even with measures from a checkpoint on.

        Prometheus expects 0 of a new process.
        """
        self._run = labels.values
        self._per_worker_histograms = per_worker_histograms
        self.measures = measures
        self._phase = phase
        self._phases = {phase}  # all so far
        self._loss: float | None = None
        # how many are counted
        self._samples, self._updates, self._switches = measures.samples, measures.updates, 0
        self._waited_s: dict[str, float] = {}  # worker -> counted seconds
        self._uncounted = list(measures.workers)  # released already, without counters yet
        self._lagtuner: dict[Key, float] = {}  # each worker's latest decision and finished wait

    def collect(self, lines: Iterable[Line]) -> Collected:
        """Process the lines since the last call; return the changes of the metrics."""
        collected = Collected(self._run)
        for worker in self._uncounted:
            self._begin(worker, collected)
        self._uncounted = []
        for line in lines:
            for row in self.measures.feed((line,)):
                self._add_push(row, collected)
            if isinstance(line, Entry):
                self._add_entry(line, collected)
        self._count_switches(collected)
        self._count_totals(collected)
        self._set_gauges(collected.gauges)
        return collected

    def _add_push(self, row: PushRow, collected: Collected) -> None:
        run, worker = self._run, self._labels_of(row.worker)
        collected.add(("raysync_pushes", worker), 1)
        collected.add(("raysync_busy_seconds", worker), row.busy_s)
        collected.add(("raysync_transfer_seconds", worker), row.transfer_s)
        if self._per_worker_histograms:
            collected.observe(("raysync_step_busy_seconds", worker), row.busy_s)
            collected.observe(("raysync_step_wait_seconds", worker), row.wait_s)
        collected.observe(("raysync_step_transfer_seconds", run), row.transfer_s)
        collected.observe(("raysync_step_lead_clocks", run), row.lead)
        if row.staleness is not None:
            collected.observe(("raysync_step_staleness_versions", run), row.staleness)
        if row.outcome == "dropped":
            collected.add(("raysync_drops", (*worker, row.reason or "other")), 1)
        if row.loss is not None:
            self._loss = row.loss

    def _add_entry(self, entry: Entry, collected: Collected) -> None:
        for decision in entry.decisions:
            match decision:
                case Release(worker=worker) if worker not in self._waited_s:
                    self._begin(worker, collected)
                case Note():
                    self._add_note(decision, collected)
        if isinstance(entry.event, Left):
            labels = self._labels_of(entry.event.worker)
            for name in (GRANT, PREDICTED, ACTUAL):
                self._lagtuner.pop((name, labels), None)

    def _begin(self, worker: str, collected: Collected) -> None:
        """Start the counters of a worker at 0, also the waits of one that never waits.

        Series that dashboards divide must begin together: Prometheus sees no earlier growth.
        """
        self._waited_s[worker] = 0.0
        for name in ("busy_seconds", "wait_seconds", "transfer_seconds", "pushes"):
            collected.add((f"raysync_{name}", self._labels_of(worker)), 0)
        for name in ("raysync_samples_applied", "raysync_updates"):
            collected.add((name, self._run), 0)

    def _add_note(self, note: Note, collected: Collected) -> None:
        worker = self._labels_of(note.worker)
        match note.kind:
            case "straggler":
                collected.add(("raysync_stragglers_detected", worker), 1)
            case "controller":
                self._set_latest((GRANT, worker), note.values.get("extra"))
            # Both values are of the same wait; the latest prediction would belong to the next one.
            case "waited":
                self._set_latest((PREDICTED, worker), note.values.get("predicted_wait_s"))
                self._set_latest((ACTUAL, worker), note.values.get("actual_wait_s"))

    def _set_latest(self, key: Key, value: float | None) -> None:
        self._lagtuner.pop(key, None)
        if value is not None:
            self._lagtuner[key] = value

    def _count_switches(self, collected: Collected) -> None:
        for switch in self.measures.switches[self._switches :]:
            self._phase = switch.to
            self._phases.add(switch.to)
            collected.add(("raysync_switches", (*self._run, switch.to)), 1)
        self._switches = len(self.measures.switches)

    def _count_totals(self, collected: Collected) -> None:
        """Increment the counters by differences of totals."""
        measures = self.measures
        for name, total, before in (
            ("raysync_samples_applied", measures.samples, self._samples),
            ("raysync_updates", measures.updates, self._updates),
        ):
            if total > before:
                collected.add((name, self._run), total - before)
        self._samples, self._updates = measures.samples, measures.updates
        for worker, waited_s in measures.waited_s.items():
            # the total is lower while a push whose wait is over has no outcome yet
            if waited_s > self._waited_s[worker]:
                key = ("raysync_wait_seconds", self._labels_of(worker))
                collected.add(key, waited_s - self._waited_s[worker])
                self._waited_s[worker] = waited_s

    def _set_gauges(self, gauges: dict[Key, float]) -> None:
        measures, run = self.measures, self._run
        leads = measures.leads if measures.ended is None else {}
        latest = measures.evaluations[-1] if measures.evaluations else None
        for name, value in (
            ("raysync_loss_nats", self._loss),
            ("raysync_evaluation_loss_nats", None if latest is None else latest.loss),
            ("raysync_time_to_target_seconds", measures.time_to_target_s),
            ("raysync_progress_ratio", min(1.0, measures.progress)),
            ("raysync_model_versions", measures.updates),
            ("raysync_throughput_samples_per_second", measures.throughput_samples_per_s),
            ("raysync_workers_live", len(measures.clocks) if measures.ended is None else 0),
        ):
            if value is not None:
                gauges[name, run] = value
        if (quality := measures.quality) is not None:
            primary = measures.primary
            gauges["raysync_primary_metric", (*run, primary.name, primary.mode)] = quality
        for worker, lead in leads.items():
            gauges["raysync_worker_lead_clocks", self._labels_of(worker)] = lead
        for phase in self._phases:
            is_active = phase == self._phase and measures.ended is None
            gauges["raysync_phase_active", (*run, phase)] = float(is_active)
        if measures.ended is None:
            gauges.update(self._lagtuner)

    def _labels_of(self, worker: str) -> tuple[str, ...]:
        return *self._run, WorkerId(worker).slot
