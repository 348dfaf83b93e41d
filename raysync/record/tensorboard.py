"""Write a run's TensorBoard event file while it goes on: `tensorboard --logdir runs/NAME`.

The file is written by tensorboardX, as Ray Tune's own are: `torch.utils.tensorboard` needs all of
TensorBoard installed where the run is, and this package may not import torch. Steps are samples
applied, so that paradigms are compared at the same work; the time of an event is when the run began
plus the run's own seconds, so that TensorBoard's "relative" axis also works for virtual seconds.
The file is written at once, without the queue and the thread of a SummaryWriter: these lag behind
the run, and their contents are lost with a run that is killed.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import scalar

from raysync.core.journal import Evaluation
from raysync.record.measures import Measures
from raysync.record.writer import writable

EVERY = 0.01
"""Progress after which the measures are written even without an evaluation."""

LEADS_SHOWN = 64
"""With more members than that their leads are left out: so many curves cannot be read."""


class EventLog:
    """The event file of one run: a context manager, and a `watch` of the run."""

    def __init__(self, folder: Path, began: datetime) -> None:
        """
        Args:
            folder: the folder of the record.
            began: when the run was requested.
        """
        self._folder = folder
        with writable(folder):
            self._writer = EventsWriter(str(folder / "events"))
        self._began = began.timestamp()
        self._evaluations = 0
        self._progress = -1.0
        self._ended = False

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        # on a full disk, closing tries again to write what could not be written
        with suppress(OSError):
            self._writer.close()

    def __call__(self, measures: Measures) -> None:
        """Write new evaluations, and the measures with each evaluation, after each hundredth of
        the work, and at the end.

        Raises:
            RunFailed: the file cannot be written.
        """
        with writable(self._folder):
            self._write(measures)

    def _write(self, measures: Measures) -> None:
        new = measures.evaluations[self._evaluations :]
        self._evaluations += len(new)
        for evaluation in new:
            self._write_evaluation(evaluation, measures.workload_samples)
        ended = measures.ended is not None and not self._ended
        if new or ended or measures.progress >= self._progress + EVERY:
            self._progress, self._ended = measures.progress, measures.ended is not None
            self._write_measures(measures)
            self._writer.flush()

    def _write_evaluation(self, evaluation: Evaluation, workload_samples: int) -> None:
        samples = round(evaluation.progress * workload_samples)
        for name, value in evaluation.metrics.items():
            self._scalar(f"evaluation/{name}", value, samples, evaluation.at)

    def _write_measures(self, measures: Measures) -> None:
        summary = measures.summary()
        for tag, key in (
            ("run/samples_per_s", "throughput_samples_per_s"),
            ("run/wait_share", "wait_fraction"),
            ("staleness/mean", "staleness_mean"),
            ("staleness/max", "staleness_max"),
            ("lead/max", "lead_max"),
        ):
            if summary[key] is not None:
                self._scalar(tag, summary[key], measures.samples, measures.now)
        leads = measures.leads
        if len(leads) <= LEADS_SHOWN:
            for worker, lead in leads.items():
                self._scalar(
                    f"lead/{worker.replace('#', '.')}", lead, measures.samples, measures.now
                )

    def _scalar(self, tag: str, value: float, samples: int, at: float) -> None:
        self._writer.write_event(
            Event(step=samples, wall_time=self._began + at, summary=scalar(tag, value))
        )
