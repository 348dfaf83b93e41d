"""How often Sync-Switch's detector was right: the stragglers that a journal notes, beside the
spells that there were.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from raysync.core.decisions import Note, Suspend, Switch
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry
from raysync.engine.faults import NO_FAULT, FaultPlan
from raysync.record.reader import RunRecord
from raysync.record.sweeps import SweepRecord

GRID_S = 0.05
"""Between two looks at whether somebody is in a spell."""
GRACE_S = 2.0
"""What a window of the detector ended with is known at its end: so long after a spell, a finding is
still of that spell."""


def detections(sweep: SweepRecord) -> pd.DataFrame:
    """One row a trial with an online policy: its spells, and what was found of them."""
    return pd.DataFrame(
        [
            {"trial": trial, **_counts(record)}
            for trial, record in sweep.records.items()
            if record.config.paradigm.parameters.get("online", "none") != "none"
        ]
    )


def _counts(record: RunRecord) -> dict[str, float | int]:
    """Of one run.

    spells: that began before the last switch, of workers that were not suspended; found: of those,
    noted while they lasted; notes: times that somebody was called a straggler; right: of those,
    within a spell of that worker; after_s: from the beginning of a spell to its note, mean of the
    found; suspended: workers that were.
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
    out = {_slot(each): at for at, each in events if isinstance(each, Suspend)}
    spells = [
        (slot, begin, last)
        for slot, begin, last in _spells(record, end)
        if begin < out.get(slot, end)
    ]
    after = [
        min(
            (at - begin for at, who in notes if who == slot and begin <= at <= last + GRACE_S),
            default=None,
        )
        for slot, begin, last in spells
    ]
    right = [
        any(who == slot and begin <= at <= last + GRACE_S for slot, begin, last in spells)
        for at, who in notes
    ]
    found = [delay for delay in after if delay is not None]
    return {
        "spells": len(spells),
        "found": len(found),
        "notes": len(notes),
        "right": sum(right),
        "after_s": float(np.mean(found)) if found else float("nan"),
        "suspended": len(out),
    }


def _spells(record: RunRecord, end_s: float) -> list[tuple[str, float, float]]:
    """Slot, beginning and end of each spell before a moment; those that overlap are one."""
    faults, found = FaultPlan(record.config), []
    for slot in record.config.slots_of(()):
        begin = None
        for at in np.arange(0.0, end_s + GRID_S, GRID_S):
            suffers = at < end_s and faults.at_step(slot, 0, float(at)) != NO_FAULT
            if suffers and begin is None:
                begin = float(at)
            elif not suffers and begin is not None:
                found.append((slot, begin, float(at)))
                begin = None
    return found


def _slot(decision: Note | Suspend) -> str:
    return WorkerId(decision.worker).slot
