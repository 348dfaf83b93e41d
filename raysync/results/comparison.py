"""What the runs of a scenario are compared by: the rules, and the one function that applies them.

A run did its work, reached what it was to reach, was cut, diverged, or broke (`RunEnd`). Broken
runs are no results: they are named, and count nowhere. Three questions are asked of the others.

*Time to the target.* A run has a value if it met the target, also if it was cut, or ended at the
target, afterwards. It has missed it if it did its whole work or diverged without it. A run that was
cut or ended before that has missed it only if it went on longer than every run that met it; else
nobody knows, and it is left out.

*Time of the whole work.* Only runs that did their work have a value; the others as above.

*Quality of the last model.* Runs that a signal, the sweep's time budget or its scheduler ended are
left out. The others are compared if all did the whole work, or if one setting ended all of them at
the same work (`stop.when` with progress or samples) or at the same time (`stop.after_s`). A
diverged run has missed it. Otherwise models of unequal work would be compared: there is no leader.

Paradigms are compared over the seeds in which all of them have a result, or over all where there
are none, and how surely one leads is judged by pairs over the common seeds of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from raysync.config.goal import OF_WORK
from raysync.record.run_end import SCHEDULER, RunEnd

Basis = Literal["time to the target", "whole work", "equal work", "equal time"]
Cause = Literal["", "no result", "unequal ends"]
OF_EQUAL_WORK = tuple(f"stop.when.{name}" for name in OF_WORK)
OF_EQUAL_TIME = ("stop.after_s", "stop.when.seconds")


@dataclass(frozen=True)
class Repeat:
    """One run, as far as it is compared."""

    paradigm: str
    seed: int
    end: RunEnd
    target_s: float | None = None  # when it met the target; None: it did not, or there is none
    final: float | None = None  # the quality of its last model
    # what could end it early, by its settings: only equal limits end runs at equal work
    limit: str = ""


@dataclass(frozen=True)
class Compared:
    """The values of a comparison."""

    basis: Basis
    # paradigm -> seed -> value; None: it could have one, and has none; absent: left out
    values: Mapping[str, Mapping[int, float | None]]
    left_out: tuple[Repeat, ...] = ()
    cause: Cause = ""  # why nothing is compared; "": something is
    limit: RunEnd | None = None  # with equal work or time: the end of one of the runs

    @property
    def common_seeds(self) -> set[int]:
        """The seeds in which each paradigm with results has one; all, if there are none."""
        of_paradigms = [set(seeds) for seeds in self.values.values() if seeds]
        common = set.intersection(*of_paradigms) if of_paradigms else set()
        return common or set().union(*of_paradigms)


def by_target(repeats: Sequence[Repeat]) -> Compared:
    """Compare the times to the target."""
    return _by_time("time to the target", [(repeat, repeat.target_s) for repeat in repeats])


def by_whole_work(repeats: Sequence[Repeat]) -> Compared:
    """Compare the times of the whole work."""
    return _by_time(
        "whole work",
        [(repeat, repeat.end.seconds if repeat.end.kind == "done" else None) for repeat in repeats],
    )


def _by_time(basis: Basis, timed: Sequence[tuple[Repeat, float | None]]) -> Compared:
    results = [(repeat, time) for repeat, time in timed if repeat.end.kind != "broken"]
    times = [time for _, time in results if time is not None]
    values = _no_values(repeat for repeat, _ in timed)
    left_out = [repeat for repeat, _ in timed if repeat.end.kind == "broken"]
    for repeat, time in results:
        is_over = repeat.end.kind in ("done", "diverged")
        went_on_longer = bool(times) and repeat.end.seconds >= max(times)
        if time is not None or is_over or went_on_longer:
            values[repeat.paradigm][repeat.seed] = time
        else:
            left_out.append(repeat)
    return Compared(basis, values, tuple(left_out), "" if times else "no result")


def by_quality(repeats: Sequence[Repeat]) -> Compared:
    """Compare the last models, at equal work or at equal time."""
    pool = [repeat for repeat in repeats if _is_result(repeat)]
    left_out = tuple(repeat for repeat in repeats if not _is_result(repeat))
    trained = [repeat for repeat in pool if repeat.end.kind != "diverged"]
    basis, limit = _basis(trained)
    values = _no_values(repeats)
    if basis is None:
        return Compared("whole work", values, left_out, "unequal ends")
    for repeat in pool:
        value = None if repeat.end.kind == "diverged" else repeat.final
        values[repeat.paradigm][repeat.seed] = value
    return Compared(basis, values, left_out, "" if trained else "no result", limit=limit)


def _is_result(repeat: Repeat) -> bool:
    """Whether its own settings ended the run, and nobody outside."""
    return not repeat.end.is_left_off and repeat.end.by != SCHEDULER


def _basis(trained: Sequence[Repeat]) -> tuple[Basis | None, RunEnd | None]:
    """Return what makes models comparable, and the end of a run if an early one does."""
    if all(repeat.end.kind == "done" for repeat in trained):
        return "whole work", None
    first = trained[0]
    if any((repeat.end.by, repeat.limit) != (first.end.by, first.limit) for repeat in trained):
        return None, None
    if first.end.by in OF_EQUAL_WORK:
        return "equal work", first.end
    if first.end.by in OF_EQUAL_TIME:
        return "equal time", first.end
    return None, None


def _no_values(repeats: Iterable[Repeat]) -> dict[str, dict[int, float | None]]:
    return {repeat.paradigm: {} for repeat in repeats}
