"""A record on its way to a URI, while the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from raysync.errors import ConfigError, RunFailed
from raysync.record.measures import Measures
from raysync.record.storage import is_copy, keep_copy, upload
from raysync.record.writer import NEW

COPY_EVERY_S = 30.0
COPY_SHARE = 0.05
"""Of a run's time, the most that its copies may take: those of a long journal become rarer."""


class Uploader:
    """Copies a record to its URI: now and then, called as a watch, and when a `with` block ends. A
    folder is left alone.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        """
        Args:
            folder: of the record.
            notify: is told that copies fail; they are tried again.
        """
        self._folder = folder
        self._notify = notify
        self._wanted = is_copy(folder)
        self._sent: dict[Path, tuple[int, int]] = {}
        self._due = datetime.min  # at once: who looks for the run finds it

    def __enter__(self) -> Uploader:
        return self

    def __call__(self, measures: Measures) -> None:
        """Copy what has changed, if it is time."""
        if not self._wanted or (began := datetime.now()) < self._due:
            return
        try:
            self._copy()
        except ConfigError as error:
            self._notify(f"The run goes on, but its record is not up to date: {error}")
        took_s = (datetime.now() - began).total_seconds()
        self._due = began + timedelta(seconds=max(COPY_EVERY_S, took_s / COPY_SHARE))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._wanted:
            return
        try:
            self._copy()
        except ConfigError as error:
            keep_copy(self._folder)
            lost = f"its record could not be copied, and stays in {self._folder}\n{error}"
            if kind is None:
                raise RunFailed(lost) from error
            self._notify(f"The run has ended; {lost}")

    def _copy(self) -> None:
        files = sorted(self._folder.rglob("*"), key=lambda one: (one.name == "summary.json", one))
        whole = [file for file in files if file.is_file() and file.suffix != NEW]
        states = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in whole}
        # by name: config.yaml before journal.jsonl, by which a record is found; the summary last:
        # with it, all is there
        upload(*(file for file in states if self._sent.get(file) != states[file]))
        self._sent = states
