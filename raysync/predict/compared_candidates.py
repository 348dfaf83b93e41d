"""Candidates on the same workers: how fast each is, what it costs, and what would change that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from raysync.errors import ConfigError
from raysync.predict.candidates import Candidate
from raysync.predict.diagnosis import Diagnosis, diagnose
from raysync.predict.intervals import Interval, ratio
from raysync.predict.processes import map_on
from raysync.predict.setting import Setting
from raysync.predict.simulation import Simulation, simulate
from raysync.predict.variations import WIRE, other_clusters, takes_wire

Show = Callable[[int, int], None]  # receives the number of candidates that are through, and of all
HOUR_S = 3600.0
# with fewer, of all candidates together, one process is faster than several
FEWEST_PUSHES = 200_000


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
    samples_per_s: Interval  # applied samples, of all workers together
    # the share of the workers' time in which they compute what is applied
    computing_fraction: float
    wait_fraction: Interval  # the share of the workers' time between push and release
    staleness_mean: Interval
    staleness_max: int  # the largest staleness of an applied push, in versions
    lead_mean: float
    lead_max: int  # the largest lead at a release, in clocks ahead of the slowest
    # the samples of an update, mean: more than under BSP where batches are larger, or where workers
    # make local steps
    update_samples: float
    dropped: int  # pushes that were computed and not applied
    # waiting, and computing what was dropped, of all workers in the whole workload
    lost_worker_hours: Interval
    worker_hours: float
    waiting: Mapping[str, float]  # worker -> the share of its time that it waits
    applied: Mapping[str, int]  # worker -> its pushes that were not dropped
    shares: Mapping[str, int]  # worker -> the samples of its last step

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
    # label -> what limits one of the best, where something could
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
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


def compare(
    subject: Subject,
    candidates: Sequence[Candidate],
    refined: Callable[[Sequence[Prediction]], Iterable[Candidate]],
    processes: int,
    show: Show,
) -> ComparedCandidates:
    """Simulate candidates, find what limits the best, and what other clusters would do to them.

    Args:
        subject: the workers and their work.
        candidates: with different labels; all are checked before the first one begins.
        refined: from their predictions to further candidates.
        processes: as many as may simulate.
        show: see `Show`.

    Raises:
        ConfigError: the workers cannot have one of the candidates, or it fails.
        RunFailed: a process was lost, by want of memory for example.
    """
    predictions = _predict_all(subject, candidates, processes, show)
    predictions += _predict_all(subject, list(refined(predictions)), processes, show)
    compared = ComparedCandidates(tuple(predictions))
    diagnoses = {
        one.label: found
        for one in compared.followed
        if (found := diagnose(subject.setting(one.candidate), whole=True)) is not None
    }
    return replace(compared, diagnoses=diagnoses, changes=_changes(subject, compared, processes))


def with_wire(subject: Subject, predictions: Sequence[Prediction]) -> Iterator[Candidate]:
    """Yield the best candidates, and BSP, with smaller pushes where these save time."""
    for one in ComparedCandidates(tuple(predictions)).followed:
        setting = subject.setting(one.candidate)
        if setting.has_server and takes_wire(setting.experiment):
            yield replace(one.candidate, wire=WIRE)


def _predict_all(
    subject: Subject, candidates: Sequence[Candidate], processes: int, show: Show
) -> list[Prediction]:
    settings = [subject.setting(candidate) for candidate in candidates]
    results = map_on(_useful(processes, settings), _simulated, settings)
    predictions = []
    for candidate, setting, result in zip(candidates, settings, results, strict=True):
        predictions.append(_prediction(subject, candidate, setting, result))
        show(len(predictions), len(candidates))
    return predictions


def _changes(subject: Subject, compared: ComparedCandidates, processes: int) -> tuple[Change, ...]:
    varied = [
        (one.candidate, other)
        for one in compared.best
        for other in other_clusters(subject.setting(one.candidate))
    ]
    settings = [other.setting for _, other in varied]
    took = map_on(_useful(processes, settings), Setting.seconds, settings)
    return tuple(
        Change(other.what, candidate, other.setting.samples / seconds)
        for (candidate, other), seconds in zip(varied, took, strict=True)
        if seconds
    )


def _useful(processes: int, settings: Sequence[Setting]) -> int:
    """Return how many processes simulate in the shortest time."""
    return processes if sum(setting.pushes for setting in settings) >= FEWEST_PUSHES else 1


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
