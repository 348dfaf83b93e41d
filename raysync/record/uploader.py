"""Upload a record to its URI while the run goes on."""

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
"""The largest share of a run's time that uploads take: those of a long journal become rarer."""


class Uploader:
    """Uploads a record that has a URI: now and then (it is a `watch` of the run), and when its
    `with` block ends. A record in a plain folder is left alone.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        """
        Args:
            folder: the folder of the record.
            notify: receives a sentence when an upload fails; the next one tries again.
        """
        self._folder = folder
        self._notify = notify
        self._is_needed = is_copy(folder)
        self._uploaded: dict[Path, tuple[int, int]] = {}
        """File -> its modification time and size when it was uploaded."""
        self._due = datetime.min  # at once, so that the run can be found behind its URI

    def __enter__(self) -> Uploader:
        return self

    def __call__(self, measures: Measures) -> None:
        """Upload what has changed, if the next upload is due."""
        if not self._is_needed or (began := datetime.now()) < self._due:
            return
        try:
            self._upload()
        except ConfigError as error:
            self._notify(f"The run goes on, but its record is not up to date: {error}")
        took_s = (datetime.now() - began).total_seconds()
        self._due = began + timedelta(seconds=max(COPY_EVERY_S, took_s / COPY_SHARE))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_needed:
            return
        try:
            self._upload()
        except ConfigError as error:
            keep_copy(self._folder)
            problem = f"its record could not be uploaded, and stays in {self._folder}\n{error}"
            if kind is None:
                raise RunFailed(problem) from error
            self._notify(f"The run has ended; {problem}")

    def _upload(self) -> None:
        # By name: config.yaml before journal.jsonl, by which a record is found. The summary last:
        # once it is there, so is everything else.
        files = sorted(
            self._folder.rglob("*"), key=lambda file: (file.name == "summary.json", file)
        )
        complete = [file for file in files if file.is_file() and file.suffix != NEW]
        states = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in complete}
        upload(*(file for file in states if self._uploaded.get(file) != states[file]))
        self._uploaded = states
