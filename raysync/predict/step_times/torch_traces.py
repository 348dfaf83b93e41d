"""Step times in traces of torch's profiler: `ProfilerStep#N`, from a `prof.step()` to the next.

On a GPU a step ends with the last kernel that it launched, and begins where the one before ends.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np

from raysync.config.base import listed
from raysync.config.durations import Steps, by_number
from raysync.errors import ConfigError
from raysync.predict.step_times.collectives import Communication, Group
from raysync.predict.step_times.launched_kernels import LaunchedKernels
from raysync.predict.step_times.replicas import Moved, groups_of_gradients, reduced
from raysync.predict.step_times.trace_files import US, TraceEvent, TraceFile, seconds_of

PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
NO_STEPS = (
    "it has no events ProfilerStep#N: give torch.profiler a schedule, and call prof.step() in the"
    " loop"
)
LITTLE = 0.01  # if communication has a smaller share of a step, it was hardly recognised
# a step that reduces a smaller share of what others do exchanges measures, and no gradients
MUCH = 0.1


@dataclass(frozen=True)
class ProfiledStep:
    path: Path
    seconds: float
    exposed_s: float
    moved: Moved


@dataclass
class ProfiledRank:
    steps: dict[int, ProfiledStep] = field(default_factory=dict)
    world_size: int | None = None  # the ranks of its program, where the trace says it
    # the begin of the first and the end of the last step of each trace, since 1970, if known
    spans_us: list[tuple[float, float]] = field(default_factory=list)

    @property
    def exposed_s(self) -> float:
        return fmean(step.exposed_s for step in self.steps.values())

    @property
    def exposed_share(self) -> float:
        """The share of its time in which it only communicated."""
        return self.exposed_s / (self.exposed_s + fmean(s.seconds for s in self.steps.values()))


@dataclass(frozen=True)
class Profiles:
    steps: Steps
    remarks: tuple[str, ...]
    may_wait: bool  # whether hardly anything was found in which ranks wait for each other
    exchanged_bytes: int | None
    steps_per_exchange: int
    exposed_s: Mapping[str, float]


class TorchTrace:
    def __init__(self) -> None:
        self.steps: list[tuple[int, TraceEvent]] = []
        self._communication, self._kernels = Communication(), LaunchedKernels()

    def add(self, event: TraceEvent) -> None:
        us, match = event.get("dur"), PROFILER_STEP.fullmatch(str(event.get("name")))
        if match is not None:
            if not str(event.get("cat")).startswith("gpu"):  # the GPU's part of a step
                self.steps.append((int(match[1]), event))
            return
        self._kernels.add(event)
        if isinstance(us, float) and us > 0:
            self._communication.add(event, us)

    def add_to(self, rank: ProfiledRank, name: str, trace: TraceFile) -> None:
        """Add the steps to the rank's, less the time in which it only communicates.

        Raises:
            ConfigError: there is no step, it is there twice, or it does not last.
        """
        path = trace.path
        if not self.steps:
            raise ConfigError(f"{path}: a trace, but {NO_STEPS}.")
        self.steps.sort(key=lambda step: step[1]["ts"])
        lasted = [seconds_of(step, f"{path}: ProfilerStep#{n}") for n, step in self.steps]
        launched = np.array([step["ts"] for _, step in self.steps])
        on_cpu = launched + np.array(lasted) / US
        begins, ends = self._kernels.spans(launched, on_cpu)
        seconds = np.array(lasted) + ((ends - on_cpu) - (begins - launched)) * US
        exposed = self._communication.exposed_us(begins, ends) * US
        moved = self._communication.moved_after(launched, begins)
        for index, (number, _) in enumerate(self.steps):
            if number in rank.steps:
                raise ConfigError(_duplicate_text(number, path, rank.steps[number].path, name))
            exposed_s, step_s = float(exposed[index]), float(seconds[index])
            if step_s <= exposed_s:
                raise ConfigError(
                    f"{path}: ProfilerStep#{number} does nothing but communicate, or ends before"
                    " the kernels of the step before it."
                )
            rank.steps[number] = ProfiledStep(path, step_s - exposed_s, exposed_s, moved[index])
        rank.world_size = trace.world_size
        base_us = trace.base_us(begins[0])
        if base_us is not None:
            rank.spans_us.append((base_us + begins[0], base_us + ends[-1]))


def read_profiles(
    traces: Iterable[tuple[TraceFile, TorchTrace]], names: Mapping[Path, str]
) -> Profiles:
    """Read the steps in traces of torch's profiler, without the time in which a rank only
    communicates (see `collectives`).

    A rank is known by the `distributedInfo` of its trace, otherwise by the name of its file. It may
    have several files, one for each time that the profiler was active.

    Args:
        traces: are read one after the other.
        names: file -> the rank by its name.

    Raises:
        ConfigError: a rank lacks steps before its last one, or one is given twice; or the ranks
            are no replicas.
    """
    found: dict[str, ProfiledRank] = defaultdict(ProfiledRank)
    for trace, reader in traces:
        name = names[trace.path] if trace.rank is None else f"rank{trace.rank}"
        reader.add_to(found[name], name, trace)
    ranks = {name: found[name] for name in sorted(found, key=by_number)}
    numbers = _common_steps(ranks)
    remarks = list(_remarks(ranks, numbers))
    moved = {name: [rank.steps[n].moved for n in numbers] for name, rank in ranks.items()}
    worlds = [rank.world_size for rank in ranks.values() if rank.world_size is not None]
    groups = groups_of_gradients(moved, max(worlds, default=None))
    size, every = _exchanges(moved, groups, numbers)
    if every > 1:
        remarks.append(f"Gradients are exchanged once in {every} steps, as where they accumulate.")
    return Profiles(
        steps={name: tuple(rank.steps[n].seconds for n in numbers) for name, rank in ranks.items()},
        remarks=tuple(remarks),
        may_wait=max(rank.exposed_share for rank in ranks.values()) < LITTLE,
        exchanged_bytes=size,
        steps_per_exchange=every,
        exposed_s={name: rank.exposed_s for name, rank in ranks.items()},
    )


def _exchanges(
    moved: Mapping[str, Sequence[Moved]], groups: AbstractSet[Group], numbers: Sequence[int]
) -> tuple[int | None, int]:
    """Return the bytes of an exchange of gradients, if they are known, and the steps to the next.

    Raises:
        ConfigError: there is one exchange in several steps.
    """
    sizes = np.array([[reduced(step, groups) for step in steps] for steps in moved.values()])
    if not sizes.any():
        seen = [[any(one.reduces for one in step) for step in steps] for steps in moved.values()]
        [at] = np.nonzero(np.any(seen, axis=0))
    else:
        [at] = np.nonzero(sizes.max(axis=0) >= MUCH * sizes.max())
    if len(at) == 1 < len(numbers):
        raise ConfigError(
            f"{next(iter(moved))}: of {len(numbers)} steps only ProfilerStep#{numbers[at[0]]}"
            " exchanges gradients; profile two exchanges at least, to know how often they are."
        )
    every = round((at[-1] - at[0]) / (len(at) - 1)) if len(at) > 1 else 1
    known = sizes[:, at][sizes[:, at] > 0]
    return round(float(np.median(known))) if known.size else None, every


def _duplicate_text(number: int, path: Path, first: Path, name: str) -> str:
    if path == first:
        return f"{path}: ProfilerStep#{number} is there twice."
    return (
        f"{path}: ProfilerStep#{number} is there twice, first in {first}: by their names, or what"
        f" they say, both are of {name}. Name each file after its rank: rank0.json, rank1.json."
    )


def _common_steps(ranks: Mapping[str, ProfiledRank]) -> list[int]:
    """Return the numbers of the steps until the first rank stops; all ranks must have these."""
    end = min(max(rank.steps) for rank in ranks.values())
    numbers = sorted({n for rank in ranks.values() for n in rank.steps if n <= end})
    for name, rank in ranks.items():
        for number in numbers:
            if number not in rank.steps:
                other = next(rank for rank in ranks if number in ranks[rank].steps)
                raise ConfigError(
                    f"{name}: ProfilerStep#{number} is missing, which {other} has; profile all"
                    " ranks with the same schedule."
                )
    return numbers


def _remarks(ranks: Mapping[str, ProfiledRank], numbers: Sequence[int]) -> Iterator[str]:
    last = max(max(rank.steps) for rank in ranks.values())
    stopped = [name for name, rank in ranks.items() if max(rank.steps) < last]
    if stopped:
        yield (
            f"{listed(stopped)} stopped before ProfilerStep#{last}, the last step of others, so"
            f" only steps up to {numbers[-1]} are used."
        )
    gaps = sum(after != before + 1 for before, after in pairwise(numbers))
    if gaps:
        yield (
            f"The profiler paused {gaps} time{'s' * (gaps > 1)} between steps {numbers[0]} and"
            f" {numbers[-1]}: the steps around a pause are taken to follow each other."
        )
    if all(rank.spans_us for rank in ranks.values()):
        yield from _apart(ranks)
    shares = [rank.exposed_share for rank in ranks.values()]
    if max(shares) > 0:
        span = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(shares), max(shares))))
        yield (
            f"Ranks did nothing but communicate for {span} of their time, mostly waiting for"
            " others; step times do not include it."
        )


def _apart(ranks: Mapping[str, ProfiledRank]) -> Iterator[str]:
    """Say which two ranks are furthest from running at the same time."""
    begins = {name: min(begin for begin, _ in rank.spans_us) for name, rank in ranks.items()}
    ends = {name: max(end for _, end in rank.spans_us) for name, rank in ranks.items()}
    early, late = min(ends, key=ends.__getitem__), max(begins, key=begins.__getitem__)
    if begins[late] > ends[early]:
        yield (
            f"Ranks {early} and {late} did not run at the same time: {late} began its first step"
            f" {(begins[late] - ends[early]) * US:.3g} s after the last one of {early} had ended."
        )
