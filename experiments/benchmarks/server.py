"""What one update costs the server, beside the same formulas written down in plain torch.

    python experiments/benchmarks/server.py            prints the table
    python experiments/benchmarks/server.py --write    and writes results/server.md

The plain side is the obvious program: torch's optimizer as it comes, the weighted mean as a sum,
and each correction as its formula, with a fresh vector for each result. Nothing else runs: no Ray,
no copies to and from bytes. In each round both sides make one update on the same gradients, one
after the other, in one thread; the processor's time counts, with that of the kernel for pages.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from report import interval, main, markdown, measured_on
from torch import Tensor

from raysync.config import Update
from raysync.training.server.apply_plan import ApplyPlan
from raysync.training.server.parameter_store import ParameterStore
from raysync.training.server.staleness_correction import EPSILON

SIZES, PUSHES, ROUNDS, SAMPLES, BEHIND, LR = (11_000_000, 25_000_000), (1, 4, 8), 7, 32, 3, 1e-3
UPDATES = {
    "SGD": {},
    "SGD, weight decay": {"weight_decay": 1e-4},
    "SGD, weight decay, momentum": {"weight_decay": 1e-4, "momentum": 0.9},
    "AdamW": {"optimizer": "adamw", "weight_decay": 0.01},
    "SGD, clipped": {"clip_norm": 1.0},
    "SGD, by staleness": {"staleness_scaling": "inverse"},
    "DC-ASGD, constant": {"delay_compensation": "constant"},
    "DC-ASGD, adaptive": {"delay_compensation": "adaptive"},
}


class Plain:
    """The update by its formulas."""

    def __init__(self, initial: Tensor, update: Update) -> None:
        self.parameter, self.update = torch.nn.Parameter(initial.clone()), update
        if update.optimizer.name == "sgd":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
                [self.parameter], LR, momentum=update.momentum, weight_decay=update.weight_decay
            )
        else:
            self.optimizer = torch.optim.AdamW(
                [self.parameter], LR, weight_decay=update.weight_decay
            )
        self.mean_square: Tensor | float = 0.0

    def apply(self, gradients: list[Tensor], base: Tensor) -> None:
        """Make one update, from gradients that are equally stale."""
        corrected = [self.corrected(gradient, base) for gradient in gradients]
        self.parameter.grad = corrected[0]
        if len(corrected) > 1:
            self.parameter.grad = sum(SAMPLES * each for each in corrected) / (
                SAMPLES * len(corrected)
            )
        if self.update.clip_norm is not None:
            self.parameter.grad = self.parameter.grad.clone()  # the arrived gradient is read-only
            torch.nn.utils.clip_grad_norm_([self.parameter], self.update.clip_norm)
        self.optimizer.step()

    def corrected(self, gradient: Tensor, base: Tensor) -> Tensor:
        """Return a gradient corrected by delay compensation and staleness."""
        compensation, strength = self.update.delay_compensation, 0.0
        if compensation is not None:
            strength = compensation.strength
            if compensation.name == "adaptive":
                decay = compensation.decay
                self.mean_square = decay * self.mean_square + (1 - decay) * gradient * gradient
                strength = strength / torch.sqrt(self.mean_square + EPSILON)
            gradient = gradient + strength * gradient * gradient * (self.parameter.detach() - base)
        return gradient / BEHIND if self.update.staleness_scaling.name == "inverse" else gradient


def processor_s(work: Callable[[], object]) -> float:
    """Return the processor seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def compared(
    settings: dict, vectors: list[Tensor], base: Tensor, pushes: int
) -> list[tuple[float, float]]:
    """Return the processor seconds of an update here and in plain torch, for each round but the
    first.
    """
    update = Update(lr=LR, lr_scaling="none", **settings)
    store, plain = ParameterStore(base, len(base), update), Plain(base, update)
    gradients = vectors[:pushes]
    bases = [base] * pushes if update.delay_compensation is not None else ()
    plan = ApplyPlan([None] * pushes, [SAMPLES] * pushes, 0.0, "", [BEHIND] * pushes, version=1)

    def ours() -> None:
        store.apply(plan, [*gradients, *bases])
        store.publish()

    seconds = [
        (processor_s(ours), processor_s(lambda: plain.apply(gradients, base)))
        for _ in range(1 + ROUNDS)
    ]
    apart = torch.linalg.vector_norm(store.publish() - plain.parameter.detach())
    assert apart < 1e-5 * torch.linalg.vector_norm(base), "they do not compute the same"
    return seconds[1:]


def measure() -> str:
    """Measure, and return the table."""
    torch.set_num_threads(1)
    rows = {(name, pushes): [name, pushes] for name in UPDATES for pushes in PUSHES}
    for size in SIZES:
        base, *vectors = torch.randn(
            1 + max(PUSHES), size, generator=torch.Generator().manual_seed(0)
        )
        for (name, pushes), row in rows.items():
            seconds = compared(UPDATES[name], vectors, base, pushes)
            row += [f"{1000 * median(side):.0f}" for side in zip(*seconds, strict=True)]
            row.append(interval([ours / plain for ours, plain in seconds]))
            print(size, row, flush=True)
    header = ["update", "pushes"]
    for size in SIZES:
        header += [f"{size / 1e6:g} M: ms", "plain torch, ms", "ratio"]
    note = f"{ROUNDS} rounds in turns; medians, and the median ratio with its 95 % interval. "
    return f"{markdown(header, rows.values())}\n\n{note}{measured_on()}"


if __name__ == "__main__":
    main(__file__, __doc__, measure)
