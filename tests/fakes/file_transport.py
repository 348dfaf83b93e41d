"""A third transport: vectors in files of a folder that all processes see.

It is as plain as one can be, and shows what a transport has to be: a plan, the driver's side, and
the actor's side.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from uuid import uuid4

import torch
from safetensors.torch import load_file, save_file

from raysync.cluster.transports.object_store import ObjectStore
from raysync.training.vectors.parts import spans

NAME = "files"


@dataclass(frozen=True)
class FileVector:
    """The actor's side."""

    path: Path
    begin: int
    end: int

    def read(self):
        return load_file(self.path)["vector"][self.begin : self.end]

    @contextmanager
    def writing(self):
        vector = torch.empty(self.end)
        yield vector
        save_file({"vector": vector}, self.path)

    def parts(self, sizes):
        starts = accumulate(sizes, initial=self.begin)
        return [replace(self, begin=begin, end=end) for begin, end in pairwise(starts)]

    def in_place(self, vector_bytes):
        return None


@dataclass
class FileLease:
    """The file is there as long as its lease."""

    handle: FileVector

    def __del__(self):
        self.handle.path.unlink(missing_ok=True)


class FileTransport(ObjectStore):
    """The driver's side; calls are Ray's."""

    def __init__(self, folder, writers):
        self._folder = folder
        self._push = writers.push_bytes // 4
        self._parts = [part.stop - part.start for part in self._spans(writers)]

    @staticmethod
    def _spans(writers):
        return spans(writers.vector_bytes // 4, len(writers.servers))

    def reserve(self, actor, message, node):
        if not (message.row.is_hot and message.value_count):
            return ()
        return tuple(map(self._lease, [self._push] if message.row.is_push else self._parts))

    def _lease(self, size):
        # A name of its own: the leases of the run before may end in the midst of this one.
        return FileLease(FileVector(self._folder / uuid4().hex, 0, size))


@dataclass(frozen=True)
class FilePlan:
    """What the session settles."""

    folder: Path
    transports: dict = field(default_factory=dict)

    def begin(self, writers, previous):
        return FileTransport(self.folder, writers)
