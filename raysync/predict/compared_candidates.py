"""Candidates on the same workers: how fast each is, what it costs, and what would change that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from raysync.errors import ConfigError
from raysync.predict.candidates import Candidate
from raysync.predict.diagnosis import Diagnosis, diagnose
from raysync.predict.intervals import Interval, ratio
from raysync.predict.processes import pool
from raysync.predict.remedies import WIRE, growth, takes_wire
from raysync.predict.setting import Setting
from raysync.predict.simulation import Simulation, simulate

Show = Callable[[int, int], None]
"""Receives the number of candidates that are through, and of all."""
Result = TypeVar("Result")
HOUR_S = 3600.0
FEWEST_PUSHES = 200_000
"""With fewer, of all candidates together, one process is faster than several."""


class Subject(Protocol):
    """What is simulated: an experiment, or measured ranks."""

    def setting(self, candidate: Candidate) -> Setting:
        """Return a candidate with as much work as shows its pace.

        Raises:
            ConfigError: the workers cannot have it.
        """

    @property
    def whole_samples(self) -> int:
        """The work that seconds and hours are of."""

    @property
    def names(self) -> Mapping[str, str]:
        """Slot of a worker -> its name for the user."""


@dataclass(frozen=True)
class Prediction:
    """What one candidate would do."""

    candidate: Candidate
    seconds: float
    samples_per_s: Interval
    """Applied samples, of all workers together."""
    computing_fraction: float
    """The share of the workers' time in which they compute what is applied."""
    wait_fraction: Interval
    """The share of the workers' time between push and release."""
    staleness_mean: Interval
    staleness_max: int
    """The largest staleness of an applied push, in versions."""
    lead_mean: float
    lead_max: int
    """The largest lead at a release, in clocks ahead of the slowest."""
    update_samples: float
    """The samples of an update, mean: more than under BSP where batches are larger, or where
    workers make local steps."""
    dropped: int
    """Pushes that were computed and not applied."""
    lost_worker_hours: Interval
    """Waiting, and computing what was dropped, of all workers in the whole workload."""
    worker_hours: float
    waiting: Mapping[str, float]
    """Worker -> the share of its time that it waits."""
    applied: Mapping[str, int]
    """Worker -> its pushes that were not dropped."""
    shares: Mapping[str, int]
    """Worker -> the samples of its last step."""

    @property
    def label(self) -> str:
        return self.candidate.label


@dataclass(frozen=True)
class Change:
    """What another cluster would do to one of the best candidates."""

    what: str
    candidate: Candidate
    samples_per_s: float


@dataclass(frozen=True)
class ComparedCandidates:
    predictions: tuple[Prediction, ...]
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    """Label -> what limits one of the best, where something could."""
    changes: tuple[Change, ...] = ()

    @property
    def by_rate(self) -> list[Prediction]:
        return sorted(self.predictions, key=lambda one: -one.samples_per_s.value)

    @property
    def best(self) -> list[Prediction]:
        """The fastest, and the fastest without stale gradients if that is another one."""
        first, *others = self.by_rate
        fresh = [one for one in (first, *others) if not one.staleness_max]
        return [first, fresh[0]] if fresh and fresh[0] is not first else [first]

    @property
    def plain(self) -> Prediction | None:
        """What most trainers do."""
        return next((one for one in self.predictions if one.candidate.is_synchronous), None)

    @property
    def followed(self) -> list[Prediction]:
        """The best, and what most trainers do."""
        plain = [] if self.plain is None else [self.plain]
        return list({one.label: one for one in (*self.best, *plain)}.values())

    def get(self, label: str) -> Prediction:
        return next(one for one in self.predictions if one.label == label)


def predict_all(
    subject: Subject, candidates: Sequence[Candidate], processes: int, show: Show
) -> list[Prediction]:
    """Simulate candidates; all are checked before the first one begins.

    Args:
        subject: the workers and their work.
        candidates: with different labels.
        processes: as many as may simulate.
        show: see `Show`.

    Raises:
        ConfigError: the workers cannot have one of the candidates, or it fails.
        RunFailed: a process was lost, by want of memory for example.
    """
    settings = [subject.setting(candidate) for candidate in candidates]
    predictions = []
    for candidate, setting, result in zip(
        candidates, settings, simulations(settings, processes), strict=True
    ):
        predictions.append(_prediction(subject, candidate, setting, result))
        show(len(predictions), len(candidates))
    return predictions


def with_wire(subject: Subject, predictions: Sequence[Prediction]) -> Iterator[Candidate]:
    """Yield the best candidates, and BSP, with smaller pushes where these save time."""
    for one in ComparedCandidates(tuple(predictions)).followed:
        setting = subject.setting(one.candidate)
        if setting.has_server and takes_wire(setting.experiment):
            yield replace(one.candidate, wire=WIRE)


def compare(
    subject: Subject, predictions: Sequence[Prediction], processes: int
) -> ComparedCandidates:
    """Find what limits the best, and what other clusters would do to them."""
    compared = ComparedCandidates(tuple(predictions))
    diagnoses = {
        one.label: found
        for one in compared.followed
        if (found := diagnose(subject.setting(one.candidate))) is not None
    }
    changes = tuple(_changes(subject, compared.best, processes))
    return replace(compared, diagnoses=diagnoses, changes=changes)


def simulations(settings: Sequence[Setting], processes: int) -> Iterator[Simulation]:
    """Yield what came out of each setting, in their order."""
    yield from _each(_simulated, settings, processes)


def _each(
    function: Callable[[Setting], Result], settings: Sequence[Setting], processes: int
) -> Iterator[Result]:
    """Yield what a function returns of each setting, on several processes if that is faster."""
    processes = min(processes, len(settings))
    if processes < 2 or sum(setting.pushes for setting in settings) < FEWEST_PUSHES:
        yield from map(function, settings)
        return
    with pool(processes) as executor:
        yield from executor.map(function, settings)


def _simulated(setting: Setting) -> Simulation:
    found = simulate(setting.training, setting.choice)
    if found.summary["status"] != "finished":
        error = found.summary["error"]
        raise ConfigError(f"--paradigm {setting.choice.label}: the run failed: {error}.")
    return found


def _prediction(
    subject: Subject, candidate: Candidate, setting: Setting, result: Simulation
) -> Prediction:
    summary, blocks, workers = result.summary, result.blocks, setting.experiment.worker_count
    part_s, samples = summary["seconds"], summary["samples"]
    seconds = part_s * subject.whole_samples / setting.samples
    waiting_s = workers * part_s * summary["wait_fraction"]
    busy_s = sum(life["busy_s"] for life in summary["per_worker"])
    applied_s = busy_s - (result.lost_s - waiting_s)
    lost = ratio(result.lost_s / samples, blocks, "lost_s", "samples")
    names = subject.names
    return Prediction(
        candidate=candidate,
        seconds=seconds,
        samples_per_s=ratio(summary["throughput_samples_per_s"], blocks, "samples", "seconds"),
        computing_fraction=applied_s / (workers * part_s),
        wait_fraction=ratio(waiting_s / part_s, blocks, "wait_s", "seconds").times(1 / workers),
        staleness_mean=ratio(summary["staleness_mean"], blocks, "staleness", "applied"),
        staleness_max=summary["staleness_max"],
        lead_mean=result.lead_mean,
        lead_max=summary["lead_max"],
        update_samples=samples / summary["updates"],
        dropped=summary["dropped"],
        lost_worker_hours=lost.times(samples * (seconds / part_s) / HOUR_S),
        worker_hours=workers * seconds / HOUR_S,
        waiting={names[slot]: share for slot, share in result.waiting.items()},
        applied={names[slot]: count for slot, count in result.applied.items()},
        shares={names[slot]: size for slot, size in result.shares.items()},
    )


def _changes(subject: Subject, best: Iterable[Prediction], processes: int) -> Iterator[Change]:
    changed = [
        (one.candidate, what, setting)
        for one in best
        for what, setting in growth(subject.setting(one.candidate))
        if setting is not None
    ]
    settings = [setting for _, _, setting in changed]
    took = _each(Setting.seconds, settings, processes)
    for (candidate, what, setting), seconds in zip(changed, took, strict=True):
        if seconds:
            yield Change(what, candidate, setting.samples / seconds)
