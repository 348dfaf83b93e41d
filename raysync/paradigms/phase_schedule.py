"""Sync-Switch's timing policy: the current phase, and the finished part of its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysync.errors import ConfigError

ROUNDING = 1e-9  # of the sum of the shares


@dataclass
class PhaseSchedule:
    """The phases in order, each until its share of the work is applied under it."""

    phases: list[str]
    shares: list[float]  # the share of the workload, for each phase but the last
    index: int = 0  # the phase whose share is being done
    standing_in: bool = False  # the next phase is in force instead; its updates count for neither
    samples: int = 0  # the samples applied under the phase since it began

    @property
    def running_index(self) -> int:
        return self.next_index if self.standing_in else self.index

    @property
    def phase(self) -> str:
        return self.phases[self.running_index]

    @property
    def is_last(self) -> bool:
        return self.index == len(self.shares)

    @property
    def next_index(self) -> int:
        return self.first_from(self.index + 1)

    def first_from(self, index: int) -> int:
        """Skip phases whose share is 0."""
        while index < len(self.shares) and self.shares[index] == 0:
            index += 1
        return index

    def completes_share(self, samples: int, workload_samples: int | None) -> bool:
        """Count an update of so many samples; return whether it completes the phase's share."""
        if self.standing_in:
            return False
        self.samples += samples
        ends_run = sum(self.shares[: self.index + 1]) > 1 - ROUNDING
        if self.is_last or workload_samples is None or ends_run:
            return False
        return self.samples >= self.shares[self.index] * workload_samples - 0.5  # samples are whole

    @property
    def switch_reason(self) -> str:
        """Why the phase ends, for a person."""
        return f"{self.phase} has done its {100 * self.shares[self.index]:g} % of the work"

    def begin(self, index: int, *, stand_in: bool) -> None:
        """Begin or resume the share of a phase, or let the next phase stand in for it."""
        self.samples = self.samples if index == self.index else 0
        self.index, self.standing_in = index, stand_in


def schedule_of(phases: Sequence[str], shares: Sequence[float], where: str) -> PhaseSchedule:
    """Build a schedule; a ConfigError refuses shares that do not fit the phases, or exceed 1."""
    if len(phases) < 2:
        raise ConfigError(f"{where}: then: name at least one phase that follows the first.")
    if len(shares) != len(phases) - 1:
        raise ConfigError(
            f"{where}: fraction: {len(shares)} for {len(phases) - 1} switches; "
            "give one for each phase but the last."
        )
    if sum(shares) > 1 + ROUNDING:
        raise ConfigError(f"{where}: fraction: {' + '.join(map(str, shares))} is more than 1.")
    schedule = PhaseSchedule([*phases], [*shares])
    schedule.index = schedule.first_from(0)
    return schedule
