"""How far workers are ahead of each other, counting those alone that take part."""

from __future__ import annotations

from collections import Counter


class Leads:
    """The pace of each worker that takes part, and its lead over the slowest of them, in clocks.

    The machine's roster keeps a suspended worker at the pace at which it was suspended, so the
    leads that it counts grow without limit while the others go on. Here such a worker is left out
    from its suspension up to its next release, and then it enters as a newcomer does: at the pace
    of the slowest. Where nobody is suspended, the leads are the roster's own.
    """

    def __init__(self) -> None:
        self._paces: dict[str, int] = {}
        self._population = Counter[int]()
        self._slow = 0

    def __getitem__(self, worker: str) -> int:
        return self._paces[worker] - self._slow

    def of_all(self) -> dict[str, int]:
        """Worker -> its lead, of those that take part."""
        return {worker: pace - self._slow for worker, pace in self._paces.items()}

    def enter(self, worker: str) -> None:
        """It has joined, or has been released; this changes nothing for one that takes part."""
        if worker not in self._paces:
            self._paces[worker] = self._slow
            self._population[self._slow] += 1

    def leave(self, worker: str) -> None:
        """It has left, or is suspended."""
        if worker in self._paces:
            self._vacate(self._paces.pop(worker))

    def push(self, worker: str) -> None:
        """It has finished an iteration; that of a suspended worker counts for nothing."""
        if worker in self._paces:
            pace = self._paces[worker]
            self._paces[worker] = pace + 1
            self._population[pace + 1] += 1
            self._vacate(pace)

    def rebase(self) -> None:
        """A switch makes every lead 0."""
        self._paces = dict.fromkeys(self._paces, self._slow)
        self._population = Counter({self._slow: len(self._paces)} if self._paces else {})

    def _vacate(self, pace: int) -> None:
        """One worker less is at that pace: the slowest pace may rise."""
        self._population[pace] -= 1
        if self._population[pace]:
            return
        del self._population[pace]
        if not self._population:
            self._slow = pace
        while self._population and self._slow not in self._population:
            self._slow += 1
