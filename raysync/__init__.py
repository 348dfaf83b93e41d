"""raysync: experiments with synchronisation paradigms in distributed deep learning, on Ray.

record = raysync.run({"model": "mlp", "paradigm": {"name": "ssp", "staleness": 3}})
record.summary["final_accuracy"], record.pushes, record.evaluations
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysync.config import Experiment
    from raysync.core.machine import Machine
    from raysync.core.paradigm import Paradigm
    from raysync.errors import ConfigError, ProtocolViolation, RunFailed
    from raysync.record.reader import RunRecord, load
    from raysync.record.sweeps import SweepRecord, load_sweep
    from raysync.runner import run
    from raysync.training.data import DataSet, data_set

_HOMES = {
    "ConfigError": "raysync.errors",
    "DataSet": "raysync.training.data",
    "Experiment": "raysync.config",
    "Machine": "raysync.core.machine",
    "Paradigm": "raysync.core.paradigm",
    "ProtocolViolation": "raysync.errors",
    "RunFailed": "raysync.errors",
    "RunRecord": "raysync.record.reader",
    "SweepRecord": "raysync.record.sweeps",
    "data_set": "raysync.training.data",
    "load": "raysync.record.reader",
    "load_sweep": "raysync.record.sweeps",
    "run": "raysync.runner",
}

__all__ = [
    "ConfigError",
    "DataSet",
    "Experiment",
    "Machine",
    "Paradigm",
    "ProtocolViolation",
    "RunFailed",
    "RunRecord",
    "SweepRecord",
    "data_set",
    "load",
    "load_sweep",
    "run",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used: the pure core works without torch and Ray being
    loaded.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'raysync' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
