"""The norm of the gradient of a decoupled run, update by update.

    python experiments/decoupled/gradient_norm.py    writes results/gradient-norm.csv

Every run is computed a second time here, without stages, mailboxes or events: the gradient of batch
b is that of the whole network in which stage k has the weights that its update b - max(1, 2(K - k))
left. The largest difference of the losses from the recorded ones is kept; on the way the gradient
of the loss over all training samples is measured, at the present weights of all stages.
"""

import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import finished  # noqa: E402

import raysync  # noqa: E402
from raysync import config  # noqa: E402
from raysync.config import Schedule  # noqa: E402
from raysync.core.ids import WorkerId  # noqa: E402
from raysync.decoupled.plan import parts_of  # noqa: E402
from raysync.paradigms.decoupled import Decoupled  # noqa: E402
from raysync.programs.building import reader_of, spec_of  # noqa: E402
from raysync.training.preparation import TrainingPlan, prepare  # noqa: E402

MARKS = [250 * 2**doubling for doubling in range(6)]
"""The norm is kept after these updates."""
EVERY = 50
"""The updates between two measurements of the norm."""
CONSTANT = 0.05
"""The constant step to compare with."""


def again(
    training: TrainingPlan, paradigm: Decoupled
) -> Iterator[tuple[list[float], float, float]]:
    """Train by the formula; yield for each update the losses of its batches, its step, and
    |gradient|^2 (nan: not measured).
    """
    spec, update = spec_of(training, paradigm), training.experiment.update
    size, parts = (
        training.experiment.batch_size,
        parts_of(training.model, spec.experiment.seed, paradigm),
    )
    whole = nn.Sequential(*parts)
    delays = [max(1, 2 * (paradigm.modules - module)) for module in range(1, paradigm.modules + 1)]
    histories = [
        deque([list(part.parameters())], maxlen=delay)
        for part, delay in zip(parts, delays, strict=True)
    ]
    everything, labels = (
        training.data.samples(training.data.train_x),
        torch.from_numpy(training.data.train_y),
    )
    first = [name for (_, stage), (name, _) in spec.topology.slots.items() if stage == 1]
    draws = [reader_of(spec, slot, training.model) for slot in first]
    for batch in range(1, spec.topology.batches // paradigm.groups + 1):
        step = update.lr / sqrt(batch) if update.schedule.name == "inverse-sqrt" else update.lr
        stale = [history[0] for history in histories]
        computed = [gradient_at(whole, stale, *each.read(batch - 1, [size])[0]) for each in draws]
        for index, history in enumerate(histories):
            replicas = zip(*(gradients[index] for _, gradients in computed), strict=True)
            means = [torch.stack(each).mean(dim=0) for each in replicas]
            history.append(
                [weight - step * mean for weight, mean in zip(history[-1], means, strict=True)]
            )
        norm2 = float("nan")
        if batch % EVERY == 0:
            _, full = gradient_at(whole, [history[-1] for history in histories], everything, labels)
            norm2 = sum(float((each**2).sum()) for part in full for each in part)
        yield [loss for loss, _ in computed], step, norm2


def gradient_at(
    whole: nn.Sequential, weights: list[list[Tensor]], x: Tensor, y: Tensor
) -> tuple[float, list[list[Tensor]]]:
    """Return the loss of a batch and its gradient by the weights of each stage."""
    flat = [weight.detach().requires_grad_() for part in weights for weight in part]
    names = [name for name, _ in whole.named_parameters()]
    loss = cross_entropy(functional_call(whole, dict(zip(names, flat, strict=True)), (x,)), y)
    gradients = iter(torch.autograd.grad(loss, flat))
    return loss.item(), [[next(gradients) for _ in part] for part in weights]


def measure(modules: int, schedule: str, seed: int) -> list[dict]:
    """Measure one run: at each mark |gradient|^2, its smallest value so far, and its mean so far,
    weighted by the steps.
    """
    torch.set_num_threads(1)  # a tiny model
    with TemporaryDirectory() as folder:
        base = config.load(
            HERE / "gradient-norm.yaml",
            [
                f"seed={seed}",
                f"output={folder}",
                f"paradigm.modules={modules}",
                f"workers.0.count={2 * modules}",
            ],
        )
        lr = base.update.lr if schedule == "inverse-sqrt" else CONSTANT
        update = base.update.model_copy(update={"schedule": Schedule(name=schedule), "lr": lr})
        experiment = base.model_copy(update={"update": update})
        training = prepare(experiment)
        pushes = finished(raysync.run(experiment)).pushes
    of_last = pushes[
        pushes.worker.map(lambda worker: WorkerId(worker).stage) == modules
    ].sort_values(["clock", "worker"])
    recorded = of_last.groupby("clock").loss.mean()
    rows, measured, weights, error = [], [], [], 0.0
    for batch, (losses, step, norm2) in enumerate(again(training, experiment.paradigm.make()), 1):
        error = max(error, abs(sum(losses) / len(losses) - recorded[batch - 1]))
        if norm2 == norm2:
            measured.append(norm2)
            weights.append(step)
        if batch in MARKS:
            mean = sum(w * n for w, n in zip(weights, measured, strict=True)) / sum(weights)
            rows.append(
                {
                    "modules": modules,
                    "schedule": schedule,
                    "seed": seed,
                    "updates": batch,
                    "norm2": measured[-1],
                    "smallest": min(measured),
                    "weighted_mean": mean,
                    "loss_error_max": error,
                }
            )
    return rows


def main() -> None:
    """Measure with and without delays, with and without diminishing steps, and write the file."""
    seeds = config.load(HERE / "gradient-norm.yaml").seeds
    runs = [
        (modules, schedule, seed)
        for modules in (1, 4)
        for schedule in ("inverse-sqrt", "constant")
        for seed in seeds
    ]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        measured = pool.map(measure, *zip(*runs, strict=True))
    rows = [row for each in measured for row in each]
    pd.DataFrame(rows).to_csv(
        HERE / "results" / "gradient-norm.csv", index=False, float_format="%.6g"
    )


if __name__ == "__main__":
    main()
