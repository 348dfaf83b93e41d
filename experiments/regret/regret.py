"""The regret of SSP and LagTuner beside the bounds of LagTuner's Theorems 1 and 2.

    python experiments/regret/regret.py     writes results/regret.csv and results/regret.runs.csv
    python experiments/regret/picture.py    draws regret.png from them

R(T) is the sum of the losses of the first T pushes, each at the stale weights that its gradient was
computed on, less the sum of the same losses at w*_T, the best fixed weights in the ball for just
these T batches. T counts pushes in the order in which they were applied. Every run is computed a
second time here, in plain NumPy, from nothing but the order of its pushes and their `base`: the
losses must be the recorded ones, and gradients and weights are measured on the way.
"""

import os
import platform
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from math import log, sqrt
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from comparator import Array, Objective, best_in_ball
from threadpoolctl import threadpool_limits

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import finished  # noqa: E402

import raysync  # noqa: E402
from raysync import config  # noqa: E402
from raysync.config import Experiment, ParadigmChoice  # noqa: E402
from raysync.core.decisions import Note  # noqa: E402
from raysync.core.ids import WorkerId  # noqa: E402
from raysync.core.journal import Entry  # noqa: E402
from raysync.training.models.convex import LIPSCHITZ_OF_UNIT_NORM as L  # noqa: E402
from raysync.training.preparation import TrainingPlan, prepare  # noqa: E402

MARKS = [250 * 2**doubling for doubling in range(7)]
"""The T at which regret is measured."""
OTHER_RADII = (1.0, 100.0)
"""SSP(3) is measured in balls of these radii, too."""


def staleness_bound(choice: ParadigmChoice) -> int:
    """Return s of the theorems: where the paradigm keeps none, LagTuner's s_U, so that all have
    step sizes of one family.
    """
    parameters = choice.make().parameters()
    return int(parameters.get("staleness", parameters.get("s_upper", 15)))


def described(choice: ParadigmChoice, seed: int, radius: float, folder: str) -> Experiment:
    """Return the experiment with the step size that belongs to the paradigm and the radius."""
    base = config.load(HERE / "regret.yaml", [f"seed={seed}", f"output={folder}"])
    sigma = radius / sqrt(2 * (staleness_bound(choice) + 1) * base.worker_count)
    update = base.update.model_copy(update={"lr": sigma, "project_radius": radius})
    return base.model_copy(update={"paradigm": choice, "update": update})


def features(training: TrainingPlan) -> Array:
    """Return (x, 1) / |(x, 1)| of every training sample, (N, D): the model computes the same from
    its input.
    """
    x = (
        training.data.samples(training.data.train_x)
        .numpy()
        .astype(np.float64)
        .reshape(len(training.data.train_x), -1)
    )
    x = np.hstack([x, np.ones((len(x), 1))])
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def again(
    training: TrainingPlan, x: Array, pushes: pd.DataFrame, batches: list[Array]
) -> Iterator[tuple[float, float, float]]:
    """Repeat projected SGD in float64; yield for each push its loss, the norm of its gradient, and
    |w| after its update.
    """
    update = training.experiment.update
    history = deque(
        [np.zeros(training.data.classes * x.shape[1])], maxlen=int(pushes.staleness.max()) + 1
    )
    for count, (indices, staleness) in enumerate(zip(batches, pushes.staleness, strict=True), 1):
        even = np.full(len(indices), 1 / len(indices))
        batch = Objective(x[indices], training.data.train_y[indices], training.data.classes, even)
        loss, gradient = batch(history[-1 - staleness])
        w = history[-1] - update.lr / sqrt(count) * gradient
        w *= min(1.0, update.project_radius / np.linalg.norm(w))
        history.append(w)
        yield loss, float(np.linalg.norm(gradient)), float(np.linalg.norm(w))


def measure(choice: ParadigmChoice, seed: int, radius: float) -> tuple[list[dict], dict]:
    """Measure one run: its regret at each mark, and facts about the whole of it."""
    torch.set_num_threads(1)  # a tiny model
    with TemporaryDirectory() as folder, threadpool_limits(1):
        experiment = described(choice, seed, radius, folder)
        record, training = finished(raysync.run(experiment)), prepare(experiment)
        pushes = record.pushes.query("outcome == 'applied'").sort_values("version")
        granted = [
            decision.values["extra"]
            for line in record.journal()
            if isinstance(line, Entry)
            for decision in line.decisions
            if isinstance(decision, Note) and decision.kind == "controller"
        ]
        rows, facts = analysed(training, pushes)
        common = {
            "paradigm": choice.label,
            "s": staleness_bound(choice),
            "radius": radius,
            "seed": seed,
        }
        summary = {
            key: record.summary[key]
            for key in ("lead_max", "staleness_mean", "staleness_max", "final_accuracy")
        }
        calls = {"extra_mean": np.mean(granted), "extra_max": max(granted)} if granted else {}
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
    }
    return [common | row for row in rows], common | facts | summary | calls | about


def analysed(training: TrainingPlan, pushes: pd.DataFrame) -> tuple[list[dict], dict]:
    """Return the regret at the marks, and the values that the theorems' constants bound."""
    x, update, size = features(training), training.experiment.update, training.experiment.batch_size
    source = {slot: training.batches(slot) for slot in training.groups}
    batches = [
        source[WorkerId(worker).slot].indices(clock, size)
        for worker, clock in zip(pushes.worker, pushes.clock, strict=True)
    ]
    losses, gradients, norms = map(np.array, zip(*again(training, x, pushes, batches), strict=True))
    radius, kappa = (
        update.project_radius,
        2 * (staleness_bound(training.experiment.paradigm) + 1) * len(training.groups),
    )
    delays, rows = delay_bound(pushes, update.lr, sqrt(2) * radius), []
    for mark in MARKS:
        weights = np.bincount(np.concatenate(batches[:mark]), minlength=len(x)) / (mark * size)
        best = best_in_ball(
            Objective(x, training.data.train_y, training.data.classes, weights), radius
        )
        rows.append(
            {
                "T": mark,
                "regret": pushes.loss[:mark].sum() - mark * best.value,
                "gap": mark * best.gap,  # the regret is at most that much larger
                "bound": 4 * sqrt(2) * radius * L * sqrt(kappa * mark),
                "delay_bound": delays[mark - 1],
                "never_learning": mark * (log(training.data.classes) - best.value),
                "lead_max": pushes.lead[:mark].max(),
                "best_norm": np.linalg.norm(best.w),
            }
        )
    return rows, {
        "sigma": update.lr,
        "gradient_max": gradients.max(),
        "norm_max": norms.max(),
        "loss_error_max": np.abs(losses - pushes.loss).max(),
    }


def delay_bound(pushes: pd.DataFrame, sigma: float, f: float) -> Array:
    """Return the bound that the proof gives for the measured delays, at each T, for any paradigm.

    F^2 / eta_T + L^2 / 2 sum of eta_t (projected SGD without delays), and for each push L^2 times
    the sum of the step sizes of the updates that its weights lacked, as each of those moved the
    weights by at most eta L.
    """
    eta = sigma / np.sqrt(np.arange(1, len(pushes) + 1))
    steps = np.concatenate([[0.0], np.cumsum(eta)])
    lacked = steps[pushes.version - 1] - steps[pushes.base]
    return f**2 / eta + L**2 * (np.cumsum(eta) / 2 + np.cumsum(lacked))


def main() -> None:
    """Measure every paradigm with every seed, and write the files."""
    experiment = config.load(HERE / "regret.yaml")
    ssp = next(choice for choice in experiment.paradigms if choice.label == "ssp(staleness=3)")
    settings = [(choice, experiment.update.project_radius) for choice in experiment.paradigms]
    settings += [(ssp, radius) for radius in OTHER_RADII]
    tasks = [(choice, seed, radius) for choice, radius in settings for seed in experiment.seeds]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        measured = list(pool.map(measure, *zip(*tasks, strict=True)))
    regret, runs = (
        pd.DataFrame([row for rows, _ in measured for row in rows]),
        pd.DataFrame([facts for _, facts in measured]),
    )
    for frame, name in ((regret, "regret.csv"), (runs, "regret.runs.csv")):
        frame.to_csv(HERE / "results" / name, index=False, float_format="%.7g")


if __name__ == "__main__":
    main()
