"""Gradients per second of two asynchronous workers: raysync under ASP, and Hogwild.

    python experiments/benchmarks/hogwild.py            prints the table
    python experiments/benchmarks/hogwild.py --write    and writes results/hogwild.md

Hogwild (Niu et al. 2011) is the ceiling for asynchronous training on one machine: two processes
step on one model in shared memory, as in PyTorch's example, without a server, a lock, a version or
a record. Both compute as many gradients of the convnet as `throughput.py` has for two workers.
"""

import tempfile

import torch
from report import main, measured_on
from throughput import (
    ITERATIONS,
    LR,
    Loop,
    Speed,
    ours,
    plan,
    speed_of,
    table_of,
    taking_turns,
    timed,
)

from raysync.cluster.session import Session

WORKERS, TURNS = 2, 6


class Stepping(Loop):
    """A worker that steps on a shared model as soon as it has a gradient."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(self) -> None:
        """Go forward and backward, and step."""
        super().step()
        self.optimizer.step()


def hogwild_process(model: torch.nn.Module, gradients: int, start: object, spent_s: object) -> None:
    """Run one of the processes; see `throughput.timed`."""
    timed(Stepping(model), gradients, start, spent_s)


def hogwild() -> Speed:
    """Return the speed of Hogwild."""
    model = Loop().model
    model.share_memory()
    return speed_of(
        [(hogwild_process, (model, ITERATIONS)) for _ in range(WORKERS)], ITERATIONS * WORKERS
    )


def measure() -> str:
    """Measure, and return the table."""
    with tempfile.TemporaryDirectory() as output, Session() as session:
        default, by_refs = (plan(output, each, WORKERS) for each in ("auto", "object-ref"))
        contenders = {
            "Hogwild": hogwild,
            "raysync, asp": lambda: ours(session, default, "asp"),
            "raysync, asp, object references": lambda: ours(session, by_refs, "asp"),
        }
        speeds = taking_turns(contenders, TURNS)
    about = f"{TURNS} turns; medians, and median ratios with their 95 % intervals. {measured_on()}"
    return f"{table_of(speeds, 'Hogwild')}\n\n{about}"


if __name__ == "__main__":
    main(__file__, __doc__, measure)
