"""Sync-Switch's timing policy: which of several phases is in force, and how much of its share is
done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysync.errors import ConfigError

ROUNDING = 1e-9
"""The sum of the shares may differ from 1 by this much."""


@dataclass
class PhaseSchedule:
    """The phases follow one another, each after its share of the work has been applied under it.

    The next phase can stand in for the one whose share is being done: what is then applied counts
    for neither.
    """

    phases: list[str]
    """The names of the phases, in their order."""
    shares: list[float]
    """The share of the workload of each phase but the last, which does the rest."""
    index: int = 0
    """The index of the phase whose share is being done."""
    standing_in: bool = False
    """Whether the next phase is in force in its place."""
    samples: int = 0
    """The samples that were applied under this phase since it began."""

    @property
    def running(self) -> int:
        """The index of the phase in force."""
        return self.following if self.standing_in else self.index

    @property
    def phase(self) -> str:
        """The name of the phase in force."""
        return self.phases[self.running]

    @property
    def is_last(self) -> bool:
        """Whether no switch follows."""
        return self.index == len(self.shares)

    @property
    def following(self) -> int:
        """The index of the next phase whose share is not 0."""
        return self.first_from(self.index + 1)

    def first_from(self, index: int) -> int:
        """Return the index of the first phase, from that one on, whose share is not 0."""
        while index < len(self.shares) and self.shares[index] == 0:
            index += 1
        return index

    def count(self, samples: int, workload_samples: int | None) -> bool:
        """Count an update of so many samples, and return whether it completes the share."""
        if self.standing_in:
            return False
        self.samples += samples
        ends = sum(self.shares[: self.index + 1]) > 1 - ROUNDING
        if self.is_last or workload_samples is None or ends:
            return False
        return self.samples >= self.shares[self.index] * workload_samples - 0.5  # samples are whole

    @property
    def done(self) -> str:
        """The reason for the switch that ends the share of this phase, for a person."""
        return f"{self.phase} has done its {100 * self.shares[self.index]:g} % of the work"

    def begin(self, index: int, *, stand_in: bool) -> None:
        """Begin or resume the share of that phase, or let the next phase stand in for it."""
        self.samples = self.samples if index == self.index else 0
        self.index, self.standing_in = index, stand_in


def schedule_of(phases: Sequence[str], shares: Sequence[float], where: str) -> PhaseSchedule:
    """Build the schedule of these phases; it begins at the first whose share is not 0.

    Raises:
        ConfigError: the number of shares is not the number of switches, or their sum is above 1.
    """
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
