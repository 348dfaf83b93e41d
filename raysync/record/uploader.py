"""Upload a record, or its checkpoints, to a URI while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from raysync.errors import ConfigError, RunFailed
from raysync.record.checkpoints import CHECKPOINT_NAME, MANIFEST, name_of, numbers_in
from raysync.record.measures import Measures
from raysync.record.storage import NEW, drop_copy, is_copy, keep_copy, location_of, remove, upload

COPY_EVERY_S = 30.0
COPY_SHARE = 0.05  # of a run's time, at most: uploads of a long journal become rarer


class Uploader:
    """Uploads a record behind a URI, as a `watch` of the run and when its block ends.

    A checkpoint exists once its manifest does, so the manifest follows the checkpoint's other files
    and the journal with its line. A plain folder is left alone.
    """

    def __init__(
        self,
        folder: Path,
        notify: Callable[[str], None],
        what: str = "its record",
        *,
        is_essential: bool = True,
    ) -> None:
        """
        Args:
            folder: a record, or the checkpoints of one.
            notify: receives a sentence when an upload fails; the next one tries again.
            what: the folder's contents, for these sentences.
            is_essential: whether the run fails if the last upload does.
        """
        self._folder = folder
        self._notify = notify
        self._what = what
        self._is_essential = is_essential
        self._is_needed = is_copy(folder)
        # file -> modification time and size when it was uploaded
        self._uploaded: dict[Path, tuple[int, int]] = {}
        self._due = datetime.min  # at once, so that the run can be found behind its URI

    def skip_present_files(self) -> None:
        """Treat all present files as uploaded: they were downloaded."""
        self._uploaded = self._states()

    def __enter__(self) -> Uploader:
        return self

    def __call__(self, measures: Measures) -> None:
        """Upload the changes, if the next upload is due."""
        if not self._is_needed or (began := datetime.now()) < self._due:
            return
        try:
            self._upload()
        except ConfigError as error:
            self._notify(f"The run continues, but {self._what} is not up to date: {error}")
        took_s = (datetime.now() - began).total_seconds()
        self._due = began + timedelta(seconds=max(COPY_EVERY_S, took_s / COPY_SHARE))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_needed:
            return
        try:
            self._upload()
        except ConfigError as error:
            keep_copy(self._folder)
            problem = f"{self._what} could not be uploaded, and stays in {self._folder}\n{error}"
            if kind is None and self._is_essential:
                raise RunFailed(problem) from error
            self._notify(f"The run has ended; {problem}")

    def _upload(self) -> None:
        states = self._states()
        changed = [file for file in states if self._uploaded.get(file) != states[file]]
        upload(*changed)
        for folder in {file.parent.parent for file in changed if file.name == MANIFEST}:
            _remove_older(folder)
        self._uploaded = states

    def _states(self) -> dict[Path, tuple[int, int]]:
        """Return modification time and size of each complete file, in the order of uploads."""
        files = [
            file
            for file in sorted(self._folder.rglob("*"), key=_upload_order)
            if file.is_file() and NEW not in (file.suffix, file.parent.suffix)
        ]
        return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in files}


@contextmanager
def uploads(
    record: Path, checkpoints: Path, notify: Callable[[str], None], *, is_resumed: bool = False
) -> Iterator[Callable[[Measures], None]]:
    """Upload a record and its checkpoints, which may be elsewhere; yield a `watch` of the run.

    If it `is_resumed`, the present files were downloaded.
    """
    with Uploader(record, notify) as uploader:
        if is_resumed:
            uploader.skip_present_files()
        if record in checkpoints.parents:
            yield uploader
            return
        what = "the folder of its checkpoints"
        with Uploader(checkpoints, notify, what, is_essential=False) as other:
            if is_resumed:
                other.skip_present_files()

            def upload_both(measures: Measures) -> None:
                uploader(measures)
                other(measures)

            yield upload_both
        drop_copy(checkpoints)  # another process may continue with the files behind the URI


def _upload_order(file: Path) -> tuple[bool, bool, bool, Path]:
    """Return the sort key of uploads: files by name, checkpoints, manifests, the summary.

    A journal implies a config.yaml, a manifest the files of its checkpoint, the summary all else.
    """
    is_of_checkpoint = CHECKPOINT_NAME.fullmatch(file.parent.name) is not None
    return file.name == "summary.json", file.name == MANIFEST, is_of_checkpoint, file


def _remove_older(folder: Path) -> None:
    """Remove the checkpoints behind the URI that are older than the folder's."""
    oldest = numbers_in(folder)[0]
    for number in numbers_in(location_of(folder)):
        if number < oldest:
            remove(folder / name_of(number))
