"""How often Sync-Switch's detector was right: the stragglers that a journal notes, beside the fault
windows that there were.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from raysync.core.decisions import Note, Suspend, Switch
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry
from raysync.emulation.fault_plan import NO_FAULT, FaultPlan
from raysync.record.reader import RunRecord
from raysync.record.sweeps import SweepRecord

GRID_S = 0.05
"""The seconds between two checks of whether a worker is in a window."""
GRACE_S = 2.0
"""The detector decides at the end of its own window: for so long after a fault window, a note still
belongs to it."""


def detections(sweep: SweepRecord) -> pd.DataFrame:
    """Return a row for each trial with an online policy: its windows, and how many were found."""
    return pd.DataFrame(
        [
            {"trial": trial, **_counts(record)}
            for trial, record in sweep.records.items()
            if record.config.paradigm.parameters.get("online", "none") != "none"
        ]
    )


def _counts(record: RunRecord) -> dict[str, float | int]:
    """Count for one run.

    Returns:
        `spells`: the windows that began before the last switch, of workers that were not suspended;
        `found`: those of them that were noted while they lasted; `notes`: how often a worker was
        called a straggler; `right`: the notes within a window of that worker; `after_s`: the mean
        time from the beginning of a window that was found to its note; `suspended`: the workers
        that were suspended.
    """
    events = [
        (entry.event.at, decision)
        for entry in record.journal()
        if isinstance(entry, Entry)
        for decision in entry.decisions
        if isinstance(decision, Note | Suspend | Switch)
    ]
    end = max(at for at, decision in events if isinstance(decision, Switch))
    notes = [
        (at, _slot(note))
        for at, note in events
        if isinstance(note, Note) and note.kind == "straggler"
    ]
    suspended = {_slot(decision): at for at, decision in events if isinstance(decision, Suspend)}
    windows = [
        (slot, begin, last)
        for slot, begin, last in _windows(record, end)
        if begin < suspended.get(slot, end)
    ]
    after = [
        min(
            (
                at - begin
                for at, worker in notes
                if worker == slot and begin <= at <= last + GRACE_S
            ),
            default=None,
        )
        for slot, begin, last in windows
    ]
    right = [
        any(worker == slot and begin <= at <= last + GRACE_S for slot, begin, last in windows)
        for at, worker in notes
    ]
    delays = [delay for delay in after if delay is not None]
    return {
        "spells": len(windows),
        "found": len(delays),
        "notes": len(notes),
        "right": sum(right),
        "after_s": float(np.mean(delays)) if delays else float("nan"),
        "suspended": len(suspended),
    }


def _windows(record: RunRecord, end_s: float) -> list[tuple[str, float, float]]:
    """Return slot, beginning and end of each fault window before a moment; overlapping ones are
    one.
    """
    faults, windows = FaultPlan(record.config), []
    for slot in record.config.slots_of(()):
        begin = None
        for at in np.arange(0.0, end_s + GRID_S, GRID_S):
            suffers = at < end_s and faults.at_step(slot, 0, float(at)) != NO_FAULT
            if suffers and begin is None:
                begin = float(at)
            elif not suffers and begin is not None:
                windows.append((slot, begin, float(at)))
                begin = None
    return windows


def _slot(decision: Note | Suspend) -> str:
    return WorkerId(decision.worker).slot
