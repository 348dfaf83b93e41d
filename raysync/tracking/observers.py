"""Call the callbacks and trackers of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from traceback import extract_tb
from types import TracebackType

from raysync.errors import RaysyncError, RunFailed
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord, load
from raysync.record.storage import display_name
from raysync.tracking.callback import RunStart, name_of
from raysync.tracking.tracker import Tracker


class TrackerNotice(str):
    """A sentence about a tracker that is away, which also the user of a sweep should read."""


class Observers:
    """A context manager around a run and the writing of its record, and a `watch` of the run.

    When its block ends, the record is complete, and the observers receive it.
    """

    def __init__(
        self,
        run: RunStart,
        trackers: Iterable[Tracker],
        callbacks: Iterable[object],
        notify: Callable[[str], None],
    ) -> None:
        """
        Args:
            trackers: are turned off, with a remark, when they fail.
            callbacks: end the run as failed when they fail.
        """
        self._run = run
        self._observers: list[object] = [*trackers, *callbacks]
        self._notify = notify
        self._remark = notify
        self._evaluations = 0

    def __enter__(self) -> Observers:
        return self

    def start(self, remark: Callable[[str], None]) -> None:
        """Report the start; raise `RunFailed`, which names the callback, if one fails.

        Until the run ends, `remark` receives sentences for its journal.
        """
        self._remark = remark
        self._call("on_start", self._run)

    def __call__(self, measures: Measures) -> None:
        """Report new evaluations and the progress; raise `RunFailed` like `start`."""
        # a resumed run may be behind evaluations that were reported
        self._evaluations = min(self._evaluations, len(measures.evaluations))
        new = measures.evaluations[self._evaluations :]
        self._evaluations += len(new)
        for evaluation in new:
            self._call("on_evaluation", evaluation, measures)
        self._call("on_progress", measures)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remark = self._notify  # the journal is closed
        failures: list[RunFailed] = []
        try:
            record = self._load_record() if self._observers else None
            for observer in list(self._observers) if record is not None else []:
                try:
                    self._call_one(observer, "on_end", record)
                except RunFailed as failure:
                    failures.append(failure)
        finally:
            for observer in self._observers:
                if isinstance(observer, Tracker):
                    observer.close()
        if not failures:
            return
        path = display_name(self._run.folder)
        problem = "\n".join([*map(str, failures), f"The record of the run: {path}"])
        if kind is None:
            raise RunFailed(problem) from failures[0]
        self._notify(problem)

    def _load_record(self) -> RunRecord | None:
        with suppress(RaysyncError):
            record = load(self._run.folder, trust=True)
            if record.summary:
                return record
        return None  # the disk is full, or the folder is gone

    def _call(self, method: str, *arguments: object) -> None:
        for observer in list(self._observers):
            self._call_one(observer, method, *arguments)

    def _call_one(self, observer: object, method: str, *arguments: object) -> None:
        function = getattr(observer, method, None)
        if function is None:
            return
        try:
            function(*arguments)
        except Exception as error:
            if not isinstance(observer, Tracker):
                raise RunFailed(_failure_text(observer, method, error)) from error
            self._observers.remove(observer)
            observer.close()
            why = " ".join(str(error).split()) or type(error).__name__
            result = (
                "what it has not sent is lost"
                if method == "on_end"
                else "the run continues without it"
            )
            self._remark(TrackerNotice(f"The tracker {observer.name} failed ({why}): {result}."))


def _failure_text(callback: object, method: str, error: Exception) -> str:
    *_, last = extract_tb(error.__traceback__)
    text = " ".join(str(error).split())
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"callback {name_of(callback)}.{method}: {what} ({last.filename}:{last.lineno})"
