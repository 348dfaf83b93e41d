"""A checkpoint: see `raysync.core.checkpoint`, where records, too, can know it."""

from raysync.core.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
