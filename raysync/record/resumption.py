"""Find out whether a run can be resumed, and from which checkpoint."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from raysync.config.secret_masking import MASK
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Ended, decode
from raysync.errors import ConfigError
from raysync.record.checkpoints import CHECKPOINTS, MANIFEST, name_of, numbers_in, read_checkpoint
from raysync.record.journal_file import checkpoint_times
from raysync.record.reader import RunRecord, legible, load
from raysync.record.storage import Location, display_name, download, folder_of, join, location_of
from raysync.record.writer import JOURNAL

# so long after a write or an upload, a record on another machine may still have its writer
RECENT_S = 90.0
OVER = ("finished", "diverged")  # the statuses of runs with nothing left to do


class NoCheckpointError(ConfigError):
    """There is no checkpoint to resume from."""


def newest_checkpoint(
    record: RunRecord | str | Path,
    notify: Callable[[str], None] = lambda _: None,
    output: Location | None = None,
) -> Checkpoint:
    """Return the newest valid checkpoint that the journal has a line of.

    Args:
        record: the record of a run, its folder, or its URI.
        notify: receives a sentence for each checkpoint that is skipped.
        output: overrides the experiment's `checkpoint.output`.

    Raises:
        NoCheckpointError: there is none.
        ConfigError: there is no record, or its checkpoints cannot be reached.
    """
    if not isinstance(record, RunRecord):
        record = load(record)
    where = display_name(record.path)
    setting = record.config.checkpoint
    if output is None and setting is not None:
        output = setting.output
    if MASK in str(output):
        raise ConfigError(
            f"{where}: its checkpoints are at {output}; secrets are not recorded: set"
            " checkpoint.output again."
        )
    folder = checkpoints_of(record.path, output)
    with legible(record.path):
        times = checkpoint_times(record.path / JOURNAL)
    numbers = sorted({*numbers_in(folder), *numbers_in(location_of(folder))})
    for number in reversed(numbers):
        try:
            return _read_usable(folder / name_of(number), times)
        except ConfigError as error:
            reason = str(error).rstrip(".")
            notify(f"{where}: checkpoint {number} is skipped: {reason}.")
    if numbers:
        raise NoCheckpointError(f"{where}: none of its checkpoints can be used.")
    hint = " Its experiment takes no checkpoints; set checkpoint: {every_s: 60}." * (
        setting is None
    )
    raise NoCheckpointError(f"{where}: it has no checkpoint to resume from.{hint}")


def _read_usable(folder: Path, times: dict[int, float]) -> Checkpoint:
    """Read a checkpoint, also from its URI; raise `ConfigError` with a clause if it is unusable."""
    if not (folder / MANIFEST).exists():
        download(folder)
    checkpoint = read_checkpoint(folder)
    if checkpoint is None:
        raise ConfigError(f"it has no {MANIFEST}, so it is not complete")
    if times.get(checkpoint.number) != checkpoint.at:
        raise ConfigError("the journal has no line about it")
    return checkpoint


def checkpoints_of(record: Path, output: Location | None) -> Path:
    """Return the folder of a record's checkpoints (`checkpoint.output`), or its URI's copy."""
    if output is None:
        return record / CHECKPOINTS
    return folder_of(join(output, record.name))


def is_over(record: RunRecord) -> bool:
    """Return whether a run needs no resumption; raise `ConfigError` if its record is damaged."""
    return _status(record) in OVER


def check_resumable(record: RunRecord, *, is_gone: bool = False) -> dict[str, Any]:
    """Return what the header says of a lost run, from its trusted record.

    Raises `ConfigError` if the run is over, or running and not known to be gone.
    """
    head = record.header
    where = display_name(record.path)
    status = _status(record)
    if status in OVER:
        raise ConfigError(f"{where}: the run has {status}; nothing is left to do.")
    if status is None and not is_gone:
        check_gone(record)
    return dict(head.about)


def check_gone(record: RunRecord) -> None:
    """Raise `ConfigError` if a process still writes an unclosed record, or may."""
    if why := _why_alive(record):
        raise ConfigError(f"{display_name(record.path)}: the run is still active: {why}.")


def _why_alive(record: RunRecord) -> str:
    """Return why an unclosed record may still have a writer; empty: it is gone."""
    if (is_gone := is_writer_gone(record)) is not None:
        return "" if is_gone else f"its process, {environment_of(record)['pid']}, is running"
    silent_s = datetime.now().timestamp() - (record.path / JOURNAL).stat().st_mtime
    if silent_s > RECENT_S:
        return ""
    host = environment_of(record).get("host") or "another machine"
    return (
        f"{host} wrote to its journal {silent_s:.0f} s ago, and cannot be asked from here. If it"
        f" is gone, try again in {RECENT_S - silent_s + 1:.0f} s"
    )


def is_writer_gone(record: RunRecord) -> bool | None:
    """Return whether a record's writer is gone; None: on another machine, or unknown."""
    environment = environment_of(record)
    pid = environment.get("pid")
    if environment.get("host") != platform.node() or pid is None or pid <= 0:
        return None
    journal = record.path / JOURNAL
    try:
        process = psutil.Process(pid)
        # a later process can have the number of one that is gone
        is_another = process.create_time() > journal.stat().st_mtime
        return bool(is_another or process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, OverflowError, OSError):  # another user's process, or no process number
        return None


def environment_of(record: RunRecord) -> dict[str, Any]:
    """Return `environment.json`; empty if it is missing or damaged."""
    with suppress(ConfigError):
        return record.environment
    return {}


def workload_of(record: RunRecord) -> int:
    """Return the samples of a run's workload; raise `ConfigError` if the record is damaged."""
    samples = record.header.workload_samples
    assert samples is not None, "the run of a record has a workload"
    return samples


def _status(record: RunRecord) -> str | None:
    """Return how the run ended; None: it has not, as far as summary and journal say."""
    if record.complete:
        return str(record.summary["status"])
    if not record.ended:
        return None
    with legible(record.path):
        last = decode(record.closing_line.decode("utf-8", errors="replace"))
        assert isinstance(last, Ended), f"a closing line that says {last}"
        return last.status
