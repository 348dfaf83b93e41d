"""A tracker: a callback that turns a run into rows for a sink."""

from __future__ import annotations

from typing_extensions import override

from raysync.record.measures import Measures
from raysync.record.reader import RunRecord
from raysync.tracking.callback import Callback, RunStart
from raysync.tracking.rows import Sink, beginning_of, ending_of, evaluation_row, measures_row

ROW_EVERY = 0.01
"""Progress between rows of measures without an evaluation."""


class Tracker(Callback):
    """Logs each evaluation with the measures, and the measures at least every hundredth of the
    work.
    """

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self._sink = sink
        self._resumptions = 0
        self._evaluation_count = 0  # the number of evaluations that were logged, or need not be
        self._evaluation_progress = -1.0  # the progress of the latest evaluation that was logged
        self._row_progress = -1.0  # the progress of the latest row of measures
        self._repeated_until = -1.0  # logged evaluations up to this progress are lost and repeated

    @override
    def on_start(self, run: RunStart) -> None:
        self._sink.begin(beginning_of(run))

    @override
    def on_progress(self, measures: Measures) -> None:
        # not in `on_evaluation`: a resumed run may have lost evaluations, and repeat them
        if len(measures.resumptions) > self._resumptions:
            self._rewind(measures)
        is_due = self._log_evaluations(measures) and measures.progress >= self._row_progress
        if is_due or measures.ended or measures.progress >= self._row_progress + ROW_EVERY:
            self._row_progress = measures.progress
            self._sink.log(measures_row(measures))
            self._sink.flush()

    def _rewind(self, measures: Measures) -> None:
        self._resumptions = len(measures.resumptions)
        if self._sink.rewind(measures.samples):
            self._evaluation_count, self._evaluation_progress, self._row_progress = 0, -1.0, -1.0
        else:
            self._evaluation_count = min(self._evaluation_count, len(measures.evaluations))
            self._repeated_until = self._evaluation_progress

    def _log_evaluations(self, measures: Measures) -> bool:
        """Log new evaluations; return whether there are any."""
        new = [
            evaluation
            for evaluation in measures.evaluations[self._evaluation_count :]
            if evaluation.progress > self._repeated_until
        ]
        self._evaluation_count = len(measures.evaluations)
        for evaluation in new:
            self._sink.log(evaluation_row(evaluation, measures.workload_samples))
            self._evaluation_progress = evaluation.progress
        return bool(new)

    @override
    def on_end(self, record: RunRecord) -> None:
        self._sink.end(ending_of(record))

    def close(self) -> None:
        self._sink.close()
