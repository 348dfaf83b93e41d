"""What the faults of an experiment name: its workers, groups and nodes."""

from __future__ import annotations

from collections.abc import Sequence

from raysync.config.faults import Crash, Fault
from raysync.config.workers import WorkerGroup, slots_in, slots_named
from raysync.errors import unknown_name


def check_fault_targets(faults: Sequence[Fault], groups: Sequence[WorkerGroup]) -> None:
    """Check that what faults name exists, and is as many as they ask for.

    Raises:
        ConfigError: there is no such worker or group.
        ValueError: a fault asks for more workers than there are.
    """
    for index, fault in enumerate(faults):
        where = f"faults[{index}]"
        _check_workers(groups, fault, where)
        if not isinstance(fault, Crash) and fault.count is not None:
            most = len(slots_named(groups, fault.workers))
            if fault.count > most:
                raise ValueError(
                    f"{where}: count: {fault.count} of {most} worker{'s' * (most > 1)}"
                )


def _check_workers(groups: Sequence[WorkerGroup], fault: Fault, where: str) -> None:
    counts = {group.name: group.count for group in groups}
    allowed = set(slots_in(groups)) | (set() if isinstance(fault, Crash) else set(counts))
    for name in fault.named:
        if name not in allowed:
            shown = [
                f"{group}-0 to {group}-{count - 1}" if count > 1 else f"{group}-0"
                for group, count in counts.items()
            ]
            raise unknown_name("worker", name, allowed, where=where, shown=shown)
