"""The timeline of one run as a Chrome trace ("Trace Event Format", Google), in microseconds.

The time between release and push outside the step is drawn as transfer. A step that was never
pushed, as its worker left or the run ended, is not drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

from raysync.core.decisions import Apply, Decision, Drop, Hold, Note, Restore, Suspend, Switch
from raysync.core.events import Joined, Left, Pushed
from raysync.core.ids import WorkerId
from raysync.core.journal import Checkpointed, Ended, Entry, Evaluation, Line, Remark, Resumed
from raysync.core.metrics import ACCURACY
from raysync.core.structs import to_native
from raysync.record.reader import RunRecord
from raysync.results.collection import label_of
from raysync.results.columns import metric_text

# All numbers differ: Perfetto reads the number of a track as unique over all processes.
WORKERS, SERVER, LEAD = 1, 2, 3
UPDATES, CONTROLLER, EVALUATIONS = 4, 5, 6
FIRST_WORKER = 11

TRACKS = {UPDATES: "updates", CONTROLLER: "controller", EVALUATIONS: "evaluations"}
AT_END = "no release: the run ended"
MOST_PUSHES = 20  # the most pushes of an update that are listed one by one
NS_PER_S = 1_000_000_000

TraceEvent = dict[str, Any]


def write_trace(record: RunRecord, path: Path) -> None:
    path.write_text(
        json.dumps(trace(record), separators=(",", ":"), allow_nan=False), encoding="utf-8"
    )


def trace(record: RunRecord) -> TraceEvent:
    """Return a run's `{"traceEvents": [...], ...}`; raise `ConfigError` if it is damaged."""
    lines = list(record.journal())
    tracks = dict(zip(_workers(lines, record), count(FIRST_WORKER), strict=False))
    events = [
        *_metadata(tracks, record),
        *_slices(record, tracks, _hold_reasons(lines)),
        *_marks(lines, tracks, record.summary.get("metric", ACCURACY.name)),
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"record": str(record.path)},
        "traceEvents": events,
    }


def _workers(lines: Iterable[Line], record: RunRecord) -> list[str]:
    """Return every life of every worker, by first appearance of its slot, even without a join."""
    events = (line.event for line in lines if isinstance(line, Entry))
    members = [event.worker for event in events if isinstance(event, Joined | Left)]
    workers = dict.fromkeys([*members, *record.pushes.worker.unique()])
    slots = list(dict.fromkeys(WorkerId(worker).slot for worker in workers))
    return sorted(workers, key=lambda worker: slots.index(WorkerId(worker).slot))


def _metadata(tracks: dict[str, int], record: RunRecord) -> Iterator[TraceEvent]:
    """Name and order the processes and tracks."""
    label = f"{label_of(record)}, seed {record.config.seed}"
    processes = {WORKERS: f"workers: {label}", SERVER: "server", LEAD: "lead, clocks"}
    for process, name in processes.items():
        yield from _name_and_order("process", name, process, {"pid": process})
    for track, name in TRACKS.items():
        yield from _name_and_order("thread", name, track, {"pid": SERVER, "tid": track})
    for worker, track in tracks.items():
        yield from _name_and_order("thread", worker, track, {"pid": WORKERS, "tid": track})


def _name_and_order(kind: str, name: str, number: int, ids: TraceEvent) -> Iterator[TraceEvent]:
    for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": number})):
        yield {"ph": "M", **ids, "name": f"{kind}_{key}", "args": args}


def _hold_reasons(lines: Iterable[Line]) -> dict[tuple[str, int], str]:
    """Return push -> why its worker was held after it."""
    clocks: dict[str, int] = {}  # worker -> clock of its latest push
    reasons: dict[tuple[str, int], str] = {}
    for line in lines:
        if isinstance(line, Entry):
            if isinstance(line.event, Pushed):
                clocks[line.event.worker] = line.event.clock
            for decision in line.decisions:
                if isinstance(decision, Hold) and decision.worker in clocks:
                    reasons.setdefault((decision.worker, clocks[decision.worker]), decision.why)
    return reasons


def _slices(
    record: RunRecord, tracks: dict[str, int], holds: dict[tuple[str, int], str]
) -> Iterator[TraceEvent]:
    """Draw transfers, step and wait of every push, and the lead at its release."""
    for row in record.pushes.to_dict("records"):
        worker, clock, track = row["worker"], row["clock"], tracks[row["worker"]]
        released, pushed = row["released_at_s"], row["pushed_at_s"]
        computed = row["computed_at_s"]
        began = min(max(released, computed - row["busy_s"]), computed)
        about = {name: row[name] for name in ("clock", "base", "samples", "outcome")}
        about |= {"loss": _finite(row["loss"]), "staleness": _finite(row["staleness"])}
        yield from _slice("pull", "transfer", track, released, began, {"clock": clock})
        yield from _slice(f"step {clock}", "step", track, began, computed, about)
        yield from _slice("push", "transfer", track, computed, pushed, {"clock": clock})
        why = {"why": holds.get((worker, clock), AT_END)}
        yield from _slice("wait", "wait", track, pushed, pushed + row["wait_s"], why)
        yield {
            "ph": "C",
            "pid": LEAD,
            "name": f"lead {worker}",
            "ts": _microseconds(released),
            "args": {"clocks": row["lead"]},
        }


def _slice(
    name: str, category: str, track: int, begin_s: float, end_s: float, args: TraceEvent
) -> Iterator[TraceEvent]:
    """Draw a bar on a worker's track, if it has a length."""
    # whole nanoseconds, so that neighbours touch and never overlap
    begin, end = round(begin_s * NS_PER_S), round(end_s * NS_PER_S)
    if end > begin:
        yield {
            "ph": "X",
            "pid": WORKERS,
            "tid": track,
            "name": name,
            "cat": category,
            "ts": begin / 1000,
            "dur": (end - begin) / 1000,
            "args": args,
        }


def _marks(lines: Iterable[Line], tracks: dict[str, int], metric: str) -> Iterator[TraceEvent]:
    """Mark events; an evaluation by its primary metric."""
    for line in lines:
        match line:
            case Entry(event=event, decisions=decisions):
                if isinstance(event, Joined | Left):
                    name = "joined" if isinstance(event, Joined) else "left"
                    report = to_native(line.report)
                    yield _mark(name, "member", event.at, tracks[event.worker], report)
                for decision in decisions:
                    yield from _decision_marks(decision, event.at, tracks)
            case Evaluation():
                args = {name: _finite(value) for name, value in line.metrics.items()}
                args |= {"version": line.version}
                value = line.value(metric)
                quality = "" if value is None else f": {metric} {metric_text(metric, value)}"
                yield _mark(f"evaluation{quality}", "evaluation", line.at, EVALUATIONS, args)
            case Remark(at=at, text=text):
                yield _mark(text, "remark", at, CONTROLLER, {})
            case Checkpointed(at=at, number=number):
                yield _mark(f"checkpoint {number}", "checkpoint", at, CONTROLLER, {})
            case Resumed(at=at, number=number):
                args = {name: getattr(line, name) for name in ("away_s", "lost_s", "lost_pushes")}
                name = f"resumed from checkpoint {number}"
                yield _mark(name, "resumption", at, CONTROLLER, args)
            case Ended(status=status, at=at, error=error):
                yield _mark(status, "end", at, UPDATES, {"error": error} if error else {})


def _decision_marks(decision: Decision, at: float, tracks: dict[str, int]) -> Iterator[TraceEvent]:
    match decision:
        case Apply(pushes=pushes, version=version):
            sources = ", ".join(f"{worker} {clock}" for worker, clock in pushes[:MOST_PUSHES])
            more = f" and {len(pushes) - MOST_PUSHES} more" if len(pushes) > MOST_PUSHES else ""
            args = {"pushes": f"{sources}{more}"}
            yield _mark(f"version {version}", "update", at, UPDATES, args)
        case Drop(push=(worker, clock), why=why, reason=reason):
            args = {"reason": reason, "why": why}
            yield _mark(f"dropped {worker} {clock}", "drop", at, UPDATES, args)
        case Switch(to=to, why=why):
            yield _mark(f"switch to {to}", "switch", at, CONTROLLER, {"why": why})
        case Suspend(worker=worker, why=why):
            yield from _worker_marks("suspended", worker, at, tracks, {"why": why})
        case Restore(worker=worker):
            yield from _worker_marks("restored", worker, at, tracks, {})
        case Note(kind=kind, worker=worker, values=values):
            yield from _worker_marks(kind, worker, at, tracks, values)


def _worker_marks(
    name: str, worker: str, at: float, tracks: dict[str, int], args: Mapping[str, Any]
) -> Iterator[TraceEvent]:
    """Mark a decision, also on the worker's track."""
    yield _mark(name, "note", at, CONTROLLER, {"worker": worker, **args})
    if worker in tracks:
        yield _mark(name, "note", at, tracks[worker], dict(args))


def _mark(name: str, category: str, at: float, track: int, args: TraceEvent) -> TraceEvent:
    return {
        "ph": "i",
        "s": "t",
        "pid": SERVER if track in TRACKS else WORKERS,
        "tid": track,
        "name": name,
        "cat": category,
        "ts": _microseconds(at),
        "args": _json_value(args),
    }


def _microseconds(at: float) -> float:
    return round(at * NS_PER_S) / 1000


def _json_value(value: Any) -> Any:
    """Return the data of a note or report, without numbers that JSON lacks."""
    if isinstance(value, dict):
        return {name: _json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(inner) for inner in value]
    return _finite(value) if isinstance(value, float) else value


def _finite(value: Any) -> float | None:
    """Return a number, with None for NaN and infinity."""
    return float(value) if value is not None and isfinite(value) else None
