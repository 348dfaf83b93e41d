"""Files of events in the Chrome format, as programs write them and Chrome reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from raysync.config.bounded_file import read_bytes
from raysync.errors import ConfigError

SUFFIXES = (".json", ".json.gz")
LARGEST_BYTES = 512_000_000
"""The most bytes of a trace, unpacked."""
MOST_VALUES = 20_000_000
"""The most values in a trace. So many take one or two gigabytes, whatever they are; those of 512 MB
of ordinary events are fewer."""
DEEPEST = 4
"""The levels of folders in which traces are looked for."""
MOST_FILES = 10_000
COLLECTIVE = "Collective name"
"""What torch writes among the `args` of a collective, whatever the backend."""
ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')

TraceEvent = dict[str, Any]


@dataclass(frozen=True)
class TraceFile:
    """What a file holds."""

    path: Path
    events: list[TraceEvent]
    """The events with a duration (`X`), and those that begin or end (`B`, `E`)."""
    rank: int | None
    """The rank of its `distributedInfo`; None: none, or there is only one rank in its world."""

    def spans(self) -> Iterator[TraceEvent]:
        """Yield the events that have a duration."""
        return (event for event in self.events if event["ph"] == "X")


def begin_us(event: TraceEvent) -> float:
    """Return when an event begins, in microseconds."""
    return float(event["ts"])


def is_trace(path: Path) -> bool:
    """Say whether a file is a trace, by its name."""
    return path.name.lower().endswith(SUFFIXES)


def traces_in(folder: Path) -> list[Path]:
    """Return the traces in a folder, and in the folders in it.

    Raises:
        ConfigError: they are too many.
    """
    found: list[Path] = []
    for depth in range(DEEPEST):
        for path in folder.glob("*/" * depth + "*"):
            if is_trace(path) and not path.is_dir():
                found.append(path)
            if len(found) > MOST_FILES:
                raise ConfigError(f"{folder}: it has more than {MOST_FILES:,} traces.")
    return sorted(found)


def load(path: Path) -> TraceFile:
    """Read a trace: an object with `traceEvents`, or the list of these.

    Raises:
        ConfigError: it cannot be read, or is no trace.
    """
    # names of kernels have bytes of any encoding, and the names are all that is text in it
    text = read_bytes(path, LARGEST_BYTES).decode("utf-8-sig", errors="replace")
    if text.count(",") > MOST_VALUES:
        raise ConfigError(
            f"{path}: it has more than {MOST_VALUES:,} values, the most that are read; profile"
            " fewer steps."
        )
    try:
        data = _parsed(text)
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{path}: {where}it is no trace ({error}).") from error
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise ConfigError(f"{path}: it is no trace: it has no list traceEvents.")
    # Chrome shows none without a time, either
    kept = [event for event in events if isinstance(event, dict) and event.keys() >= {"ph", "ts"}]
    for event in kept:
        at = event["ts"]
        if not isinstance(at, float) or not isfinite(at):
            raise ConfigError(
                f"{path}: {event.get('name')!r} begins at {at!r} us; a number is expected."
            )
    return TraceFile(path, kept, _rank(data))


def _parsed(text: str) -> Any:
    """Parse JSON; failing that, with what is usual in traces and Chrome forgives put right.

    These are paths of Windows (`"C:\\Users"`), and a list that the writer never closed.
    """
    # libraries that take broken JSON (json5, demjson3, json_repair) are written in Python: for
    # hundreds of megabytes much too slow
    try:
        return _json(text)
    except json.JSONDecodeError as error:
        if "escape" in error.msg:
            text = ESCAPE.sub(lambda match: match[1] or r"\\", text)
            try:
                return _json(text)
            except json.JSONDecodeError:
                pass
        closing = "]" if text.lstrip().startswith("[") else "]}"
        try:
            return _json(text[: text.rfind("}") + 1] + closing)
        except json.JSONDecodeError:
            raise error from None


def _json(text: str) -> Any:
    # a whole number as a float has a bound; objects are cut down as they come, or a large trace
    # would not fit
    return json.loads(text, strict=False, object_hook=_kept, parse_int=float)


TOP = {"traceEvents", "distributedInfo", "rank", COLLECTIVE}
"""Keys of objects that are no events and are needed."""
KEPT = ("ph", "cat", "name", "ts", "dur", "pid", "tid")


def _kept(value: TraceEvent) -> TraceEvent | None:
    """Return what is needed of an object in a trace."""
    if value.get("ph") not in ("X", "B", "E"):
        return value if value.keys() & TOP else None
    event = {key: value[key] for key in KEPT if key in value}
    arguments = value.get("args")
    if isinstance(arguments, dict) and COLLECTIVE in arguments:
        event[COLLECTIVE] = arguments[COLLECTIVE]
    return event


def _rank(data: Any) -> int | None:
    info = data.get("distributedInfo") if isinstance(data, Mapping) else None
    if not isinstance(info, Mapping) or info.get("world_size") == 1:
        return None
    rank = info.get("rank")
    return int(rank) if isinstance(rank, float) and isfinite(rank) else None


# ---- which files are of one rank ----

WRITTEN_AT = re.compile(r"(\.\d{4,})?\.pt\.trace$")
"""What torch puts behind the name of a worker: when it wrote the trace (a part of an address has
three digits at most), and what it is."""
RANK = re.compile(r"(?:trace[_.-]?)?rank[_.-]?(\d+)(?:[_.-]?trace)?", re.I)
PLACE = re.compile(r"(rank|node|host|worker|machine|gpu|pod)[_.-]?\w*\d+", re.I)
"""A folder that is called after a rank or a part of a cluster; others are times of profiling."""
NOTHING = ("trace", "profile", "timeline", "")


def ranks_of(traces: Iterable[Path]) -> dict[Path, str]:
    """Return the rank that the name of each file says, for traces that do not say it themselves.

    It is the whole name but for what torch and gzip put behind it, so hosts with dots stay apart;
    and the folders that are called after ranks or nodes.
    """
    paths = list(traces)
    above = set(paths[0].absolute().parents).intersection(*(p.absolute().parents for p in paths))
    return {path: _named(path, above) for path in paths}


def _named(path: Path, above: set[Path]) -> str:
    folders = [each.name for each in reversed(path.absolute().parents) if each not in above]
    name = re.sub(r"\.gz$", "", path.name, flags=re.I)
    name = WRITTEN_AT.sub("", re.sub(r"\.json$", "", name, flags=re.I))
    parts = [each for each in folders if PLACE.fullmatch(each)]
    if name.lower() not in NOTHING or not parts:
        parts.append(name)
    return " ".join(f"rank{int(m[1])}" if (m := RANK.fullmatch(each)) else each for each in parts)
