"""Files of events in the Chrome format, as programs write them and Chrome reads them."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from raysync.config.bounded_file import open_plain
from raysync.core.structs import LONGEST_S
from raysync.errors import ConfigError
from raysync.predict.step_times import json_stream

PACKED = {".gz": "gzip", ".zst": "zstd"}
SUFFIXES = (".json", *(f".json{suffix}" for suffix in PACKED))
BLOCK_BYTES = 1 << 20
DEEPEST = 4  # the levels of folders that are searched for traces
MOST_FILES = 10_000
ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
SINCE_EPOCH_US = 1e15  # larger times count from 1970; smaller ones would be before September 2001

US = 1e-6
TraceEvent = dict[str, Any]


class TraceFile:
    """A trace: an object with `traceEvents`, or the list of these.

    Args:
        path: of the file.
        show: called with the bytes of the file read so far.
    """

    def __init__(self, path: Path, show: Callable[[int], object] = lambda done: None) -> None:
        self.path = path
        self._show = show
        self._header: dict[str, Any] = {}
        self._has_list = False

    def events(self) -> Iterator[TraceEvent]:
        """Yield the events with a duration (`X`).

        Raises:
            ConfigError: the file cannot be read, or is no trace.
        """
        for event in self._items():
            # Chrome shows no event without a time, either
            if isinstance(event, dict) and event.get("ph") == "X" and "ts" in event:
                at = event["ts"]
                if not isinstance(at, float) or not abs(at) <= LONGEST_S / US:
                    raise ConfigError(
                        f"{self.path}: {event.get('name')!r} begins at {at!r} us; a number of at"
                        f" most {LONGEST_S / US:g} is expected."
                    )
                yield event

    @property
    def rank(self) -> int | None:
        """The rank of its `distributedInfo`, once all events are read; None: none, or there is only
        one rank in its world.
        """
        return None if self.world_size == 1 else self._distributed("rank")

    @property
    def world_size(self) -> int | None:
        """The number of ranks of its `distributedInfo`, once all events are read; None: none."""
        return self._distributed("world_size")

    def _distributed(self, key: str) -> int | None:
        info = self._header.get("distributedInfo")
        value = info.get(key) if isinstance(info, dict) else None
        return int(value) if isinstance(value, float) and isfinite(value) else None

    def base_us(self, at_us: float) -> float | None:
        """Return what to add to the times of events for those since 1970; None: unknown.

        Args:
            at_us: the time of an event.
        """
        base_ns = self._header.get("baseTimeNanoseconds")
        if isinstance(base_ns, float) and isfinite(base_ns):
            return base_ns / 1000
        return 0.0 if at_us > SINCE_EPOCH_US else None

    def _items(self) -> Iterator[Any]:
        stream = json_stream.JsonStream(iter(()))
        try:
            with open_plain(self.path) as file:
                stream = json_stream.JsonStream(self._blocks(file))
                yield from self._parsed(stream)
        except json.JSONDecodeError as error:
            if self._has_list and _is_cut_off(error):
                return
            line = stream.line + error.lineno - 1
            raise ConfigError(f"{self.path}: line {line}: it is no trace ({error.msg}).") from error
        except OSError as error:
            raise ConfigError(
                f"{self.path}: cannot be read ({error.strerror or error})."
            ) from error
        except ConfigError:  # a ValueError, too
            raise
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self.path}: it is no trace ({error}).") from error

    def _parsed(self, stream: json_stream.JsonStream) -> Iterator[Any]:
        opening = stream.peek()
        self._has_list = opening == "["
        if self._has_list:
            yield from stream.items()
        elif opening != "{":
            stream.value()
        stream.skip()
        while opening == "{" and stream.peek() not in ("}", ""):
            key = stream.value()
            if stream.peek() == "[" and key == "traceEvents":
                self._has_list = True
                yield from stream.items()
            else:
                value = stream.value()
                if key in ("distributedInfo", "baseTimeNanoseconds"):
                    self._header[key] = value
        if not self._has_list:
            raise ValueError("it has no list traceEvents")

    def _blocks(self, file: BinaryIO) -> Iterator[str]:
        # names, the only text in a trace, have bytes of any encoding where they are of kernels
        decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        packing, unpacked, rest = PACKED.get(self.path.suffix.lower()), file, ""
        if packing is not None:
            import pyarrow as pa

            unpacked = pa.CompressedInputStream(file, packing)
        while data := unpacked.read(BLOCK_BYTES):
            self._show(file.tell())
            text, comma, rest = (rest + decode(data)).rpartition(",")
            if comma:
                yield _escaped(text + comma)
            elif len(rest) > json_stream.LARGEST_VALUE:
                break
        yield _escaped(rest + decode(b"", final=True))


def _is_cut_off(error: json.JSONDecodeError) -> bool:
    """Return whether a value was not written to its end, as where the program was stopped."""
    in_text = error.msg.startswith("Unterminated string")
    return len(error.doc) <= json_stream.LARGEST_VALUE and (
        in_text or "}" not in error.doc[error.pos :]
    )


def _escaped(text: str) -> str:
    r"""Return JSON with the paths of Windows in it (`"C:\Users"`) written as they must be."""
    return ESCAPE.sub(lambda match: match[1] or r"\\", text) if "\\" in text else text


def seconds_of(event: TraceEvent, what: str) -> float:
    """Return the duration of an event.

    Raises:
        ConfigError: it is no duration.
    """
    us = event.get("dur")
    if not isinstance(us, float) or not 0 < us <= LONGEST_S / US:
        given = f"{us:g}" if isinstance(us, float) else repr(us)
        raise ConfigError(
            f"{what} lasts {given} us; it must be above 0 and at most {LONGEST_S:g} s."
        )
    return us * US


def is_trace(path: Path) -> bool:
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


# ---- which files are of one rank ----

# what torch puts behind the name of a worker: when it wrote the trace (a part of an address has
# three digits at most), and what it is
WRITTEN_AT = re.compile(r"(\.\d{4,})?\.pt\.trace$")
RANK = re.compile(r"(?:trace[_.-]?)?rank[_.-]?(\d+)(?:[_.-]?trace)?", re.I)
# a folder that is called after a rank or a part of a cluster; others are times of profiling
PLACE = re.compile(r"(rank|node|host|worker|machine|gpu|pod)[_.-]?\w*\d+", re.I)
NO_RANK = ("trace", "profile", "timeline", "")


def ranks_of(traces: Iterable[Path]) -> dict[Path, str]:
    """Return the rank that the name of each file says, for traces that do not say it themselves.

    It is the whole name but for what torch and packing put behind it, so hosts with dots stay
    apart; and the folders that are called after ranks or nodes.
    """
    paths = list(traces)
    above = set(paths[0].absolute().parents).intersection(*(p.absolute().parents for p in paths))
    return {path: _rank_in_name(path, above) for path in paths}


def _rank_in_name(path: Path, above: set[Path]) -> str:
    folders = [folder.name for folder in reversed(path.absolute().parents) if folder not in above]
    own = re.sub(r"\.(gz|zst)$", "", path.name, flags=re.I)
    own = WRITTEN_AT.sub("", re.sub(r"\.json$", "", own, flags=re.I))
    parts = [name for name in folders if PLACE.fullmatch(name)]
    if own.lower() not in NO_RANK or not parts:
        parts.append(own)
    return " ".join(f"rank{int(m[1])}" if (m := RANK.fullmatch(name)) else name for name in parts)
