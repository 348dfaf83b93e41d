"""Step times of each rank of a trainer, read from what it left: a table, traces, or a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from statistics import median
from typing import Literal

from raysync.config.base import listed
from raysync.config.bounded_file import is_table, path_of
from raysync.config.durations import Steps
from raysync.config.step_tables import read_tables
from raysync.core.ids import WorkerId
from raysync.errors import ConfigError
from raysync.predict.step_times.ray_timeline import RayTimeline
from raysync.predict.step_times.torch_traces import NO_STEPS, TorchTrace, read_profiles
from raysync.predict.step_times.trace_files import (
    TraceEvent,
    TraceFile,
    is_trace,
    ranks_of,
    traces_in,
)
from raysync.record.storage import is_uri

FORMATS = (
    "a table (.csv, .tsv, .parquet: worker, step, seconds, or a column a rank), torch profiler"
    " traces (.json, .json.gz, .json.zst; one a rank), a Ray timeline (.json), or a"
    " run folder"
)
# a first step is left out that is so many times as long as the middle one of its rank's others;
# there must be at least so many, and it is longer than each
FAR, FEWEST_OTHERS = 5.0, 3
JOURNAL = "journal.jsonl"

Show = Callable[[int, int], object]


@dataclass(frozen=True)
class RankStepTimes:
    """The seconds of each rank's steps."""

    source: str
    steps: Steps  # rank -> the seconds of its steps, in their order
    batch_size: int | None = None
    remarks: tuple[str, ...] = ()  # what the user should know of them
    # whether a step may include waiting for other ranks, as far as the source says
    may_wait: bool = False
    # the bytes of the gradients of an exchange, where the source says it
    exchanged_bytes: int | None = None
    # the steps from an exchange to the next: more than one where gradients accumulate
    steps_per_exchange: int = 1
    # rank -> the mean seconds a step in which it did nothing but communicate, which are not in
    # `steps`; None: unknown
    exposed_s: Mapping[str, float] | None = None

    @property
    def shortest(self) -> int:
        return min(map(len, self.steps.values()))

    @property
    def longest(self) -> int:
        return max(map(len, self.steps.values()))

    @property
    def between_exchanges(self) -> Steps:
        """Rank -> the seconds from an exchange to the next, of as many as are whole."""
        every = self.steps_per_exchange
        return {
            rank: tuple(map(sum, zip(*[iter(seconds)] * every, strict=False)))
            for rank, seconds in self.steps.items()
        }


def read(
    names: Sequence[str],
    event: str | None = None,
    show: Show = lambda done, total: None,
    columns: str | None = None,
) -> RankStepTimes:
    """Read the step times in files.

    Args:
        names: paths; several are tables, or traces of torch's profiler. A folder belongs to a run,
            which can also be a URI, or has the profiler's traces.
        event: of a Ray timeline, the method whose calls are the steps: `Trainer.step`.
        show: called while traces are read, with the bytes read so far, and all bytes.
        columns: of tables, what is in which column: `worker=host,seconds=took,unit=ms`.

    Raises:
        ConfigError: there is no such file, its format is not known, or a step in it is missing,
            given twice or no duration; the message names file and line.
    """
    try:
        times = _read_any(names, event, show, columns)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{error}.") from error
    times = _without_first(times)
    return replace(times, remarks=(*times.remarks, *_remarks(times.steps)))


def _read_any(
    names: Sequence[str], event: str | None, show: Show, columns: str | None
) -> RankStepTimes:
    first = names[0]
    is_remote = len(names) == 1 and is_uri(first)
    paths = [path_of(name) for name in names]
    if not is_remote and (missing := [path for path in paths if not path.exists()]):
        raise ConfigError(f"{missing[0]}: there is no such file.")
    if not is_remote and all(is_table(path) and not path.is_dir() for path in paths):
        return _of_tables(paths, columns)
    if columns is not None:
        raise ConfigError("--columns: applies only to tables (.csv, .tsv, .parquet).")
    if is_remote:
        return _of_record(first)
    if len(paths) == 1:
        [path] = paths
        if (path / JOURNAL).is_file():
            return _of_record(first)
        if path.name == JOURNAL:
            return _of_record(str(path.parent))
        if path.is_dir():
            paths = traces_in(path)
            if not paths and any(map(is_table, path.rglob("*"))):
                raise ConfigError(f"{path}: a folder of tables; name the tables themselves.")
            if not paths:
                raise ConfigError(f"{path}: it holds no run and no trace.\nAllowed: {FORMATS}.")
    for path in paths:
        if path.is_dir():
            raise ConfigError(f"{path}: of several sources none can be a folder; name its files.")
        if not is_trace(path):
            hint = "" if len(paths) == 1 else " Several files must all be tables, or all traces."
            raise ConfigError(f"{path}: its format is not known.{hint}\nAllowed: {FORMATS}.")
    return _of_traces(paths, event, show)


def _of_tables(paths: Sequence[Path], columns: str | None) -> RankStepTimes:
    table = read_tables(paths, columns)
    remarks = []
    if table.left_out:
        remarks.append(f"Columns without step times, and left out: {listed(table.left_out)}.")
    if table.rows_left_out:
        remarks.append(
            "Rows without step times that other columns fill, such as those of a validation, and"
            f" left out: {table.rows_left_out:,}."
        )
    source = f"the table {paths[0]}" if len(paths) == 1 else f"{len(paths)} tables"
    return RankStepTimes(
        f"{source}, in {table.unit}", table.steps, remarks=tuple(remarks), may_wait=True
    )


def _of_traces(paths: Sequence[Path], event: str | None, show: Show) -> RankStepTimes:
    traces = _traces(paths, show)
    first, reader = next(traces)
    kind = reader.kind
    if kind is None:
        raise ConfigError(
            f"{first.path}: a trace, but {NO_STEPS}; it also has no tasks of Ray. A table can have"
            " the step times of any program."
        )
    if kind != "ray" and event is not None:
        raise ConfigError("--event: applies only to a Ray timeline; other traces mark their steps.")
    if kind == "torch":
        profiles = read_profiles(
            ((trace, other.torch) for trace, other in chain([(first, reader)], traces)),
            ranks_of(paths),
        )
        source = f"{len(paths)} trace{'s' * (len(paths) > 1)} of torch's profiler"
        return RankStepTimes(source, **vars(profiles))
    if len(paths) > 1:
        raise ConfigError("A Ray timeline is one file, with the steps of all ranks; name it alone.")
    steps, method = reader.ray.read(first.path, event)
    source = f"the calls of {method} in the Ray timeline {first.path}"
    return RankStepTimes(source, steps, may_wait=True)


class AnyTrace:
    """The readers of a trace, whose program is known once all of its events are read."""

    def __init__(self) -> None:
        self.torch, self.ray = TorchTrace(), RayTimeline()

    def add(self, event: TraceEvent) -> None:
        if str(event.get("cat")).startswith("task:"):
            self.ray.add(event)
        else:
            self.torch.add(event)

    @property
    def kind(self) -> Literal["torch", "ray"] | None:
        """What wrote the trace; None: something else."""
        if self.torch.steps:
            return "torch"
        return "ray" if self.ray.calls else None


def _traces(paths: Sequence[Path], show: Show) -> Iterator[tuple[TraceFile, AnyTrace]]:
    sizes = [path.stat().st_size for path in paths]
    for path, before in zip(paths, accumulate([0, *sizes[:-1]]), strict=True):
        trace, reader = TraceFile(path, partial(_show_more, show, before, sum(sizes))), AnyTrace()
        for event in trace.events():
            reader.add(event)
        yield trace, reader


def _show_more(show: Show, before: int, total: int, done: int) -> None:
    show(before + done, total)


def _of_record(location: str) -> RankStepTimes:
    """Return the seconds of computing of each push in a record, by the slot of its worker."""
    from raysync.paradigms.decoupled import Decoupled
    from raysync.record.reader import load

    record = load(location)
    experiment = record.config
    if experiment.paradigm.name == Decoupled.name:
        raise ConfigError(
            f"{location}: its steps belong to the stages of a {Decoupled.name} run, not to"
            " workers with the whole model."
        )
    pushes = record.pushes.sort_values(["pushed_at_s", "clock"], kind="stable")
    steps: dict[str, list[float]] = {slot: [] for slot in experiment.slots()}
    slots = {worker: str(WorkerId(worker).slot) for worker in pushes.worker.unique()}
    for worker, busy_s in zip(pushes.worker, pushes.busy_s, strict=True):
        if not busy_s > 0:
            raise ConfigError(f"{location}: a step of {worker} took {busy_s:g} s to compute.")
        steps.setdefault(slots[worker], []).append(float(busy_s))
    silent = [slot for slot, seconds in steps.items() if not seconds]
    if len(silent) == len(steps):
        raise ConfigError(f"{location}: the run has no push yet.")
    remarks = [f"{slot} is left out: none of its pushes arrived." for slot in silent]
    sizes = pushes.samples.unique()
    if len(sizes) > 1:
        remarks.append(
            f"Its pushes have {min(sizes):,} to {max(sizes):,} samples, so rates are in steps,"
            " not samples."
        )
    return RankStepTimes(
        f"the {experiment.paradigm.label} run {location}",
        {slot: tuple(seconds) for slot, seconds in steps.items() if seconds},
        int(sizes[0]) if len(sizes) == 1 else None,
        tuple(remarks),
    )


def _without_first(times: RankStepTimes) -> RankStepTimes:
    """Leave out the first step of all ranks where one of them was compiling, or warming up."""
    far = [rank for rank, seconds in times.steps.items() if _begins_late(seconds)]
    if not far or times.shortest == 1:
        return times
    longest = max(far, key=lambda rank: times.steps[rank][0])
    seconds, *others = times.steps[longest]
    remark = (
        f"The first step of {listed(far)} takes far longer than all others of the same rank"
        f" ({longest}: {seconds:.3g} s, and then {median(others):.3g} s), as where it compiles; the"
        " first step of every rank is left out."
    )
    steps = {rank: steps[1:] for rank, steps in times.steps.items()}
    return replace(times, steps=steps, remarks=(*times.remarks, remark))


def _begins_late(seconds: Sequence[float]) -> bool:
    first, *others = seconds
    return len(others) >= FEWEST_OTHERS and first > max(max(others), FAR * median(others))


def _remarks(steps: Steps) -> Iterable[str]:
    counts = {rank: len(seconds) for rank, seconds in steps.items()}
    if len(steps) == 1:
        yield "There is only one rank, so none waits for another: name the traces of all ranks."
    if len({*counts.values()}) > 1:
        shortest = min(counts, key=counts.__getitem__)
        yield (
            f"Ranks have {counts[shortest]:,} ({shortest}) to {max(counts.values()):,} steps, so"
            " each is given as many as the shortest on average."
        )
