"""Sync-Switch's timing policy: which of several protocols is in force, and what is done of its
share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysync.errors import ConfigError

ROUNDING = 1e-9
"""By so much may shares miss their sum."""


@dataclass
class Turns:
    """Protocols that take turns, each until its share of the work has been applied under it.

    The next one may stand in for the one whose turn it is: what is applied then counts for neither.
    """

    labels: list[str]
    """The protocols' names, in their order."""
    shares: list[float]
    """Of the workload, for each protocol but the last, which does the rest."""
    phase: int = 0
    """Which protocol's share is being done."""
    standing_in: bool = False
    """Whether the next protocol runs in place of this one."""
    samples: int = 0
    """Applied under this protocol in this phase."""

    @property
    def running(self) -> int:
        """Which protocol is in force."""
        return self.following if self.standing_in else self.phase

    @property
    def label(self) -> str:
        """The name of the protocol in force."""
        return self.labels[self.running]

    @property
    def is_last(self) -> bool:
        """Whether no switch comes any more."""
        return self.phase == len(self.shares)

    @property
    def following(self) -> int:
        """The next protocol that has something to do."""
        return self.first_from(self.phase + 1)

    def first_from(self, phase: int) -> int:
        """The first protocol from there on that has something to do."""
        while phase < len(self.shares) and self.shares[phase] == 0:
            phase += 1
        return phase

    def count(self, samples: int, workload_samples: int | None) -> bool:
        """Count an update of so many samples; says whether it completes the share."""
        if self.standing_in:
            return False
        self.samples += samples
        ends = sum(self.shares[: self.phase + 1]) > 1 - ROUNDING
        if self.is_last or workload_samples is None or ends:
            return False
        return self.samples >= self.shares[self.phase] * workload_samples - 0.5  # samples are whole

    @property
    def done(self) -> str:
        """Why the next protocol's turn comes after the share of this one, for a person."""
        return f"{self.label} has done its {100 * self.shares[self.phase]:g} % of the work"

    def begin(self, phase: int, *, stand_in: bool) -> None:
        """Make it that protocol's turn, or let the one after it stand in."""
        self.samples = self.samples if phase == self.phase else 0
        self.phase, self.standing_in = phase, stand_in


def turns_of(labels: Sequence[str], shares: Sequence[float], where: str) -> Turns:
    """Build the turns of those protocols, at the first that has something to do.

    Raises:
        ConfigError: the shares are not as many as the switches, or more than the whole work.
    """
    if len(labels) < 2:
        raise ConfigError(f"{where}: then: at least one protocol comes after the first.")
    if len(shares) != len(labels) - 1:
        raise ConfigError(
            f"{where}: fraction: {len(shares)} for {len(labels) - 1} switches; "
            "give one for each protocol but the last."
        )
    if sum(shares) > 1 + ROUNDING:
        raise ConfigError(f"{where}: fraction: {' + '.join(map(str, shares))} is more than 1.")
    turns = Turns([*labels], [*shares])
    turns.phase = turns.first_from(0)
    return turns
