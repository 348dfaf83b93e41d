"""A tracker is a callback that turns a run into rows for a sink."""

from __future__ import annotations

from typing_extensions import override

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
        self._resumptions = 0
        self._evaluations = 0
        """The evaluations of the run that need not be logged any more."""
        self._evaluated = -1.0
        """The progress of the latest evaluation that was logged."""
        self._progress = -1.0
        """The progress at which the measures were logged last."""
        self._made_again = -1.0
        """The progress up to which evaluations were logged that the run has lost."""

    @override
    def on_start(self, run: RunStart) -> None:
        self._sink.begin(beginning_of(run))

    def on_progress(self, measures: Measures) -> None:
        """See `Callback.on_progress`: evaluations are logged here, since they may have been lost
        with what came after a checkpoint.
        """
        if len(measures.resumptions) > self._resumptions:
            self._go_back(measures)
        is_due = self._log_evaluations(measures) and measures.progress >= self._progress
        if is_due or measures.ended or measures.progress >= self._progress + EVERY:
            self._progress = measures.progress
            self._sink.log(measures_row(measures))
            self._sink.flush()

    def _go_back(self, measures: Measures) -> None:
        """Take in that the run goes on from a checkpoint; nothing is logged twice."""
        self._resumptions = len(measures.resumptions)
        if self._sink.go_back(measures.samples):
            self._evaluations, self._evaluated, self._progress = 0, -1.0, -1.0
        else:
            self._evaluations = min(self._evaluations, len(measures.evaluations))
            self._made_again = self._evaluated

    def _log_evaluations(self, measures: Measures) -> bool:
        """Log the evaluations that are new, and return whether there are any."""
        new = [
            evaluation
            for evaluation in measures.evaluations[self._evaluations :]
            if evaluation.progress > self._made_again
        ]
        self._evaluations = len(measures.evaluations)
        for evaluation in new:
            self._sink.log(evaluation_row(evaluation, measures.workload_samples))
            self._evaluated = evaluation.progress
        return bool(new)

    @override
    def on_end(self, record: RunRecord) -> None:
        self._sink.end(ending_of(record))

    def close(self) -> None:
        """Leave no process and no open file, whatever has happened."""
        self._sink.close()
