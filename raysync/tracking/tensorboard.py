"""Write a run's TensorBoard event file during the run: `tensorboard --logdir runs/NAME`.

tensorboardX writes the file, as for Ray Tune: `torch.utils.tensorboard` needs all of TensorBoard,
and this package may not import torch.
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
from raysync.tracking.tracker import EVALUATION, Beginning, Ending, Row

PREFIX, NAMES = "events", "events.out.tfevents.*"  # the prefix and the pattern of file names
HEAD, FOOT = 12, 4  # the bytes before and after an event


class EventFile:
    """A `Sink` to a run's event file, whose steps are samples applied.

    An event's time is the run's request plus the row's seconds, for TensorBoard's "relative" axis.
    """

    def __init__(self) -> None:
        self._writer: EventsWriter | None = None
        self._folder = Path()
        self._began = 0.0

    def begin(self, run: Beginning) -> None:
        self._folder, self._began = Path(run.folder), run.began

    def rewind(self, samples: int) -> bool:
        # Rewrite the file up to the checkpoint, so that any reader finds each step once. A
        # `purge_step`, which only TensorBoard honours, would keep evaluations of earlier steps that
        # were logged after the checkpoint.
        self.close()
        for leftover in self._folder.glob(f"{NAMES}{NEW}"):  # of a killed process
            leftover.unlink()
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
        # no SummaryWriter: its queue and thread lag behind, and a killed run loses their contents
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

    def end(self, run: Ending) -> None: ...

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # on a full disk, closing tries the failed write again
            with suppress(OSError):
                writer.close()


def _scalars_in(file: Path) -> Iterator[Event]:
    """Yield the scalars in an event file; the last event may be cut off."""
    # a TFRecord: length and checksum, event, checksum
    data, at = file.read_bytes(), 0
    while len(data) >= at + HEAD:
        (length,) = struct.unpack_from("<Q", data, at)
        if len(data) < (end := at + HEAD + length + FOOT):
            return
        event = Event.FromString(data[at + HEAD : end - FOOT])
        if event.summary.value:
            yield event
        at = end
