"""Write a run's TensorBoard event file while it goes on: `tensorboard --logdir runs/NAME`.

The file is written by tensorboardX, as Ray Tune's own are: `torch.utils.tensorboard` needs all of
TensorBoard installed where the run is, and this package may not import torch. Steps are samples
applied; the time of an event is when the run began plus the run's own seconds, so that
TensorBoard's "relative" axis also works for virtual seconds. The file is written at once, without
the queue and the thread of a SummaryWriter: these lag behind the run, and their contents are lost
with a run that is killed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import scalar

from raysync.tracking.rows import Beginning, Ending, Row


class EventFile:
    """The event file of one run, in the folder of its record: a `Sink`."""

    def __init__(self) -> None:
        self._writer: EventsWriter | None = None
        self._began = 0.0

    def begin(self, run: Beginning) -> None:
        """See `Sink.begin`."""
        self._writer = EventsWriter(str(Path(run.folder) / "events"))
        self._began = run.began

    def log(self, row: Row) -> None:
        """See `Sink.log`."""
        assert self._writer is not None, "a row before the beginning"
        for tag, value in row.metrics.items():
            event = Event(
                step=row.samples, wall_time=self._began + row.seconds, summary=scalar(tag, value)
            )
            self._writer.write_event(event)

    def flush(self) -> None:
        """See `Sink.flush`."""
        assert self._writer is not None, "rows before the beginning"
        self._writer.flush()

    def end(self, run: Ending) -> None:
        """See `Sink.end`; the file knows no status."""

    def close(self) -> None:
        """See `Sink.close`."""
        writer, self._writer = self._writer, None
        if writer is not None:
            # on a full disk, closing tries again to write what could not be written
            with suppress(OSError):
                writer.close()
