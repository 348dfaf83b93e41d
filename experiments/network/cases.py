"""The cases that are measured on hosts and predicted in virtual time, and the rows of runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import finished  # noqa: E402

from raysync.record.reader import RunRecord  # noqa: E402

EXPERIMENT = HERE / "network.yaml"
WORKERS = 3
"""They are on the hosts 2, 3, 4."""
FAST, SLOW = 100e6, 25e6
EQUAL = (FAST,) * 4
"""The rates of the hosts' links, each way, in bit/s."""
LABELS = ("bsp", "asp", "ssp(staleness=3)", "hybrid(k=2, staleness_tolerance=2, pull_interval=2)")
BARRIER_AND_NONE = LABELS[:2]
SHARDS = (
    "cluster.server_shards=2",
    "cluster.server_placement=with-workers",
    "cluster.server_label_selector={}",
)


@dataclass(frozen=True)
class Case:
    """An experiment on hosts with links of some rates."""

    megabytes: int
    """The size of a vector, about."""
    rates: tuple[float, ...] = EQUAL
    labels: Sequence[str] = LABELS
    more: tuple[str, ...] = ()
    """Further settings."""
    jitter: float = 0.0

    @property
    def profile(self) -> Path:
        """What `raysync calibrate` has measured on its hosts, with vectors of 4 MB at least."""
        rates = "-".join(f"{rate / 1e6:.0f}" for rate in self.rates)
        shards = "-shards" if self.more else ""
        return HERE / "results" / "profiles" / f"{max(4, self.megabytes)}MB-{rates}{shards}.yaml"

    @property
    def settings(self) -> list[str]:
        """What the case sets in the experiment file. A step lasts as long as a vector takes over a
        link alone; the smaller the vector, the more iterations.
        """
        width, step_s, iterations = {1: (463, 0.09, 40), 4: (963, 0.35, 20), 12: (1694, 1.0, 8)}[
            self.megabytes
        ]
        steps = [f"workers.{index}.step_s={step_s}" for index in range(WORKERS)]
        jitter = [f"workers.{index}.jitter.sigma={self.jitter}" for index in range(WORKERS)]
        return [
            f"model.hidden=[{width}, {width}]",
            f"workload.iterations_per_worker={iterations}",
            *steps,
            *(jitter if self.jitter else []),
            *self.more,
        ]


CASES = {
    "equal, 4 MB": Case(4),
    "equal, 12 MB": Case(12, labels=BARRIER_AND_NONE),
    "equal, 1 MB": Case(1, labels=BARRIER_AND_NONE),
    "one slow link, 4 MB": Case(4, rates=(FAST, FAST, FAST, SLOW)),
    "two shards with workers, 4 MB": Case(4, more=SHARDS),
    "uneven steps, 4 MB": Case(4, labels=BARRIER_AND_NONE, jitter=0.2),
}
KEPT = (
    "throughput_samples_per_s",
    "wait_fraction",
    "transfer_fraction",
    "busy_fraction",
    "server_fraction",
    "staleness_mean",
    "staleness_max",
    "samples",
    "updates",
    "seconds",
    "wall_seconds",
)


def row(case: str, turn: int, record: RunRecord) -> dict[str, object]:
    """Return the row of a run.

    Raises:
        ValueError: it did not finish.
    """
    summary = finished(record).summary
    values = {name: summary[name] for name in KEPT}
    rounded = {key: f"{value:.6g}" for key, value in values.items() if value is not None}
    about = {"case": case, "paradigm": record.config.paradigm.label, "turn": turn}
    return about | dict.fromkeys(KEPT, "") | rounded
