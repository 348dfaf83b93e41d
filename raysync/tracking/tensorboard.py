"""Write a run's TensorBoard event file while it goes on: `tensorboard --logdir runs/NAME`.

The file is written by tensorboardX, as Ray Tune's own are: `torch.utils.tensorboard` needs all of
TensorBoard installed where the run is, and this package may not import torch. Steps are samples
applied; the time of an event is when the run began plus the run's own seconds, so that
TensorBoard's "relative" axis also works for virtual seconds. The file is written at once, without
the queue and the thread of a SummaryWriter: these lag behind the run, and their contents are lost
with a run that is killed. A run that goes on from a checkpoint writes its file anew up to there,
so that any reader finds each step once; TensorBoard alone heeds a `purge_step`, which would also
keep the evaluations of steps before the checkpoint that were made after it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import scalar

from raysync.record.storage import NEW
from raysync.tracking.rows import EVALUATION, Beginning, Ending, Row

PREFIX, NAMES = "events", "events.out.tfevents.*"
"""How the name of the file begins, and what names it has."""
HEAD, FOOT = 12, 4
"""The bytes around an event."""


class EventFile:
    """The event file of one run, in the folder of its record: a `Sink`."""

    def __init__(self) -> None:
        self._writer: EventsWriter | None = None
        self._folder = Path()
        self._began = 0.0

    def begin(self, run: Beginning) -> None:
        self._folder, self._began = Path(run.folder), run.began

    def go_back(self, samples: int) -> bool:
        self.close()
        for rest in self._folder.glob(f"{NAMES}{NEW}"):  # of a process that was killed
            rest.unlink()
        files = sorted(self._folder.glob(NAMES))
        self._writer = EventsWriter(str(self._folder / PREFIX), NEW)
        for event in (event for file in files for event in _scalars_in(file)):
            if event.step < samples and not event.summary.value[0].tag.startswith(EVALUATION):
                self._writer.write_event(event)
        self._writer.flush()
        [new] = self._folder.glob(f"{NAMES}{NEW}")
        new.replace(files[0] if files else new.with_suffix(""))
        for file in files[1:]:
            file.unlink()
        return True

    def log(self, row: Row) -> None:
        if self._writer is None:
            self._writer = EventsWriter(str(self._folder / PREFIX))
        for tag, value in row.metrics.items():
            event = Event(
                step=row.samples, wall_time=self._began + row.seconds, summary=scalar(tag, value)
            )
            self._writer.write_event(event)

    def flush(self) -> None:
        assert self._writer is not None, "rows before the beginning"
        self._writer.flush()

    def end(self, run: Ending) -> None:
        """See `Sink.end`; the file knows no status."""

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # on a full disk, closing tries again to write what could not be written
            with suppress(OSError):
                writer.close()


def _scalars_in(file: Path) -> Iterator[Event]:
    """Yield the scalars in an event file: TFRecords, each an event with its length and a checksum
    before it, and a checksum behind. The last one may be cut off.
    """
    data, at = file.read_bytes(), 0
    while len(data) >= at + HEAD:
        (length,) = struct.unpack_from("<Q", data, at)
        if len(data) < (end := at + HEAD + length + FOOT):
            return
        event = Event.FromString(data[at + HEAD : end - FOOT])
        if event.summary.value:
            yield event
        at = end
