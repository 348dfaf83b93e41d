"""A tracker is a callback that turns a run into rows for a sink."""

from __future__ import annotations

from raysync.core.journal import Evaluation
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord
from raysync.tracking.callback import Callback, RunStart
from raysync.tracking.rows import Sink, beginning_of, ending_of, evaluation_row, measures_row

EVERY = 0.01
"""Progress after which the measures are logged even without an evaluation."""


class Tracker(Callback):
    """Logs every evaluation, and the measures with each, after each hundredth of the work, and at
    the end.
    """

    def __init__(self, name: str, sink: Sink) -> None:
        """
        Args:
            name: its name in the experiment file.
            sink: gets the rows.
        """
        self.name = name
        self._sink = sink
        self._progress = -1.0
        self._is_due = False

    def on_start(self, run: RunStart) -> None:
        """See `Callback.on_start`."""
        self._sink.begin(beginning_of(run))

    def on_evaluation(self, evaluation: Evaluation, measures: Measures) -> None:
        """See `Callback.on_evaluation`."""
        self._sink.log(evaluation_row(evaluation, measures.workload_samples))
        self._is_due = True

    def on_progress(self, measures: Measures) -> None:
        """See `Callback.on_progress`."""
        has_ended = measures.ended is not None
        if self._is_due or has_ended or measures.progress >= self._progress + EVERY:
            self._progress, self._is_due = measures.progress, False
            self._sink.log(measures_row(measures))
            self._sink.flush()

    def on_end(self, record: RunRecord) -> None:
        """See `Callback.on_end`."""
        self._sink.end(ending_of(record))

    def close(self) -> None:
        """Leave no process and no open file, whatever has happened."""
        self._sink.close()
