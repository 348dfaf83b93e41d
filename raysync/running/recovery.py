"""Resume runs from their newest checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Line, Resumed
from raysync.errors import ConfigError, RunFailed, RunLost
from raysync.record.journal_file import Resumption
from raysync.record.reader import RunRecord
from raysync.record.resumption import environment_of, newest_checkpoint
from raysync.record.writer import RecordWriter

RunReport = list[Line] | Checkpoint
Reports = Iterator[RunReport]


@dataclass(frozen=True)
class ResumePoint:
    """A run to resume, and its checkpoint."""

    record: RunRecord
    checkpoint: Checkpoint
    remark: str = ""
    """A line for the journal, beside `Resumed`."""

    @property
    def began(self) -> datetime:
        """The time of the run's first request."""
        started = str(environment_of(self.record).get("started"))
        with suppress(ValueError):
            return datetime.fromisoformat(started).astimezone().replace(tzinfo=None)
        return datetime.now()

    def resumption(self, *, exact: bool) -> Resumption:
        """Describe the resumption for the record's writer."""
        return Resumption(self.checkpoint, environment_of(self.record), exact)


class Recoveries:
    """Restart a run from its newest checkpoint after the loss of an actor or node it needs.

    `cluster.restarts` limits the attempts in a row and their waits, as for workers. A new
    checkpoint resets the count.
    """

    def __init__(
        self,
        experiment: Experiment,
        begin: Callable[[Checkpoint], Reports],
        wait: Callable[[float], bool],
        notify: Callable[[str], None],
        *,
        exact: bool,
    ) -> None:
        """
        Args:
            begin: starts the engine from a checkpoint; returns its reports.
            wait: waits up to so many seconds; returns whether the run is to be stopped.
        """
        self._restarts, setting = experiment.cluster.restarts, experiment.checkpoint
        self._output = None if setting is None else setting.output
        self._begin, self._wait, self._notify, self._exact = begin, wait, notify, exact
        self._attempts = 0  # in a row, without a new checkpoint
        self._resumed_number = 0  # of the latest checkpoint that was resumed

    def reports(self, reports: Reports, writer: RecordWriter) -> Iterator[RunReport | Resumed]:
        """Yield a run's reports and each `Resumed`; raise `RunLost` if no attempt is left."""
        while True:
            try:
                yield from reports
                return
            except RunLost as loss:
                checkpoint, reports = self._recover(loss, writer)
                writer.resume(checkpoint, exact=self._exact)
                assert writer.resumed is not None, "resumed without a line"
                yield writer.resumed

    def _recover(self, loss: RunLost, writer: RecordWriter) -> tuple[Checkpoint, Reports]:
        why: Exception = loss
        writer.flush()  # the end of the journal says how far the run came
        while True:
            try:
                checkpoint = newest_checkpoint(writer.folder, self._notify, self._output)
            except ConfigError:
                raise loss from None
            if checkpoint.number > self._resumed_number:
                self._attempts, self._resumed_number = 0, checkpoint.number
            if self._attempts >= self._restarts.attempts:
                raise loss
            # virtual actors need no time to restart
            wait_s = 0.0 if self._exact else self._restarts.wait_s(self._attempts)
            self._attempts += 1
            reason = str(why).splitlines()[0].rstrip(".")
            self._notify(
                f"{reason}. The run recovers from checkpoint {checkpoint.number} in {wait_s:g} s."
            )
            if self._wait(wait_s):
                raise loss
            try:
                return checkpoint, self._begin(checkpoint)
            except (ConfigError, RunFailed) as failure:  # the cluster may have no room for it yet
                why = failure
