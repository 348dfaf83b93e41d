"""Create the trackers of a run; call them and its callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from traceback import extract_tb

from raysync.config import Experiment, Named
from raysync.config.experiment import TRACKERS
from raysync.errors import ConfigError, RaysyncError, RunFailed, unknown_name
from raysync.paradigms.class_loading import load_reference
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord, load
from raysync.record.storage import display_name
from raysync.tracking.callback import RunStart, name_of
from raysync.tracking.library import COMMON_ARGUMENTS, LibraryProcess, LibraryRun
from raysync.tracking.tracker import Sink, Tracker


class TrackerNotice(str):
    """A sentence about a failed tracker, which also the user of a sweep should read."""


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
            trackers: turned off, with a remark, when they fail.
            callbacks: they end the run as failed when they fail.
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

    def __exit__(self, kind: object, *_: object) -> None:
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


def check_trackers(experiment: Experiment) -> None:
    """Refuse trackers whose package is not installed or whose arguments do not exist."""
    for index, choice in enumerate(experiment.track):
        where = f"track[{index}] {choice.name}"
        kind = load_reference(TRACKERS[choice.name], where)
        if not issubclass(kind, LibraryRun):
            if choice.parameters:
                raise ConfigError(
                    f"{where}: it takes no arguments, got {', '.join(choice.parameters)}."
                )
            continue
        if not is_installed(choice.name):
            raise ConfigError(
                f"{where}: the package {choice.name} is not installed: pip install"
                f" 'raysync[{choice.name}]'."
            )
        for name in COMMON_ARGUMENTS:
            if not isinstance(choice.parameters.get(name, True), bool):
                raise ConfigError(f"{where}: {name} must be true or false.")
        unknown = [name for name in choice.parameters if name not in COMMON_ARGUMENTS]
        allowed = (*kind.argument_names(), *COMMON_ARGUMENTS) if unknown else ()
        for name in unknown:
            if name not in allowed:
                raise unknown_name("argument", name, allowed, where=where)


def is_installed(package: str) -> bool:
    spec = find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


def trackers_of(experiment: Experiment, notify: Callable[[str], None]) -> list[Tracker]:
    """Create the trackers of a run; raise `ConfigError` like `check_trackers`."""
    check_trackers(experiment)
    return [Tracker(choice.name, _sink(choice, notify)) for choice in experiment.track]


def _sink(choice: Named, notify: Callable[[str], None]) -> Sink:
    kind = load_reference(TRACKERS[choice.name], choice.name)
    if issubclass(kind, LibraryRun):
        return LibraryProcess(TRACKERS[choice.name], choice.parameters, notify)
    sink: Sink = kind()
    return sink
