"""Where a run that was lost goes on; and one that has lost what it cannot do without goes on inside
the same command.

A server, a stage, the controller, or all of a node: new processes take up the newest checkpoint, as
`raysync run --resume` would. The measure of how often is that of workers (`cluster.restarts`): so
many attempts in a row, each after a longer wait, and a further checkpoint sets the count back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Line, Resumed
from raysync.errors import ConfigError, RunFailed, RunLost
from raysync.record.journal_cut import Resumption
from raysync.record.reader import RunRecord
from raysync.record.resumption import environment_of, newest_checkpoint
from raysync.record.writer import RecordWriter

RunReport = list[Line] | Checkpoint
Reports = Iterator[RunReport]


@dataclass(frozen=True)
class GoesOn:
    """A run that was lost, and is resumed."""

    record: RunRecord
    checkpoint: Checkpoint
    remark: str = ""
    """What the journal says about it, beside the line that it is resumed."""

    @property
    def began(self) -> datetime:
        """When it was requested first."""
        started = str(environment_of(self.record).get("started"))
        with suppress(ValueError):
            return datetime.fromisoformat(started).astimezone().replace(tzinfo=None)
        return datetime.now()

    def resumption(self, *, exact: bool) -> Resumption:
        """Return what the writer of its record is told."""
        return Resumption(self.checkpoint, environment_of(self.record), exact)


class Recoveries:
    """The recoveries of one run."""

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
            experiment: says how often, how soon, and where the checkpoints are.
            begin: lets the engine go on from a checkpoint; returns its reports once it does.
            wait: waits so many seconds, unless the run is to be stopped; returns whether it is.
            notify: receives sentences that the user should read.
            exact: whether the engine resumes exactly; see `Resumed.exact`.
        """
        self._restarts, setting = experiment.cluster.restarts, experiment.checkpoint
        self._output = None if setting is None else setting.output
        self._begin, self._wait, self._notify, self._exact = begin, wait, notify, exact
        self._attempts = 0
        """The attempts in a row without a further checkpoint."""
        self._number = 0
        """The number of the checkpoint that the run went on from last."""

    def reports(self, reports: Reports, writer: RecordWriter) -> Iterator[RunReport | Resumed]:
        """Yield the reports of a run to its end, and each `Resumed` that the writer has written.

        Raises:
            RunLost: there is no checkpoint to go on from, or there have been enough attempts.
        """
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
        """Let the run go on from its newest checkpoint; return that, and the further reports."""
        why: Exception = loss
        writer.flush()  # where the run goes on depends on how far it came
        while True:
            try:
                checkpoint = newest_checkpoint(writer.folder, self._notify, self._output)
            except ConfigError:
                raise loss from None
            if checkpoint.number > self._number:
                self._attempts, self._number = 0, checkpoint.number
            if self._attempts >= self._restarts.attempts:
                raise loss
            # in virtual time nothing has to come back
            wait_s = 0.0 if self._exact else self._restarts.wait_s(self._attempts)
            self._attempts += 1
            reason = str(why).splitlines()[0].rstrip(".")
            self._notify(
                f"{reason}. The run goes on from checkpoint {checkpoint.number} in {wait_s:g} s."
            )
            if self._wait(wait_s):
                raise loss
            try:
                return checkpoint, self._begin(checkpoint)
            except (ConfigError, RunFailed) as failure:  # there may be no room for it yet
                why = failure
