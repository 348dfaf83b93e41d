"""Gradients per second of five workers on a small model: raysync over both of its transports, Ray's
own parameter-server example, and the floor.

    python experiments/benchmarks/throughput.py            prints the tables
    python experiments/benchmarks/throughput.py --write    and puts them into README.md

All compute as many gradients of the convnet on synthetic data of MNIST's shape: 5 workers x 200
iterations of 128 samples. The floor is a plain torch loop, one process per core, that
exchanges nothing. The example is that of Ray's documentation ("Parameter server"), its two loops
and its state dict of arrays, in as few lines. They take turns, and each turn gives a ratio.
"""

import os
import tempfile
import time
from statistics import median

import numpy as np
import ray
import torch
import torch.multiprocessing as mp
from report import finished, interval, main, markdown, measured_on
from torch.nn.functional import cross_entropy

from raysync import config
from raysync.cluster.session import Session
from raysync.runner import run_in
from raysync.training.models import convnet
from raysync.training.preparation import TrainingPlan, prepare

WORKERS, ITERATIONS, BATCH, LR, TURNS = 5, 200, 128, 0.01, 3
GRADIENTS = WORKERS * ITERATIONS


class Loop:
    """A worker in plain torch: it computes the gradient of the next batch."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = convnet((1, 28, 28), 10)
        self.x, self.y = torch.randn(10_000, 1, 28, 28), torch.randint(10, (10_000,))

    def step(self) -> None:
        """Go forward and backward; the gradient stays in the model."""
        batch = torch.randint(10_000, (BATCH,))
        self.model.zero_grad()
        loss = cross_entropy(self.model(self.x[batch]), self.y[batch])
        loss.backward()
        loss.item()


# ---- the floor ----


def timed(loop: Loop, gradients: int, start: object) -> None:
    """Pass the barrier `start` when the loop is warm, and when it has made the gradients."""
    for _ in range(20):
        loop.step()
    start.wait()
    for _ in range(gradients):
        loop.step()
    start.wait()


def floor_process(gradients: int, start: object) -> None:
    """Run one process of the floor."""
    timed(Loop(), gradients, start)


def rate_of(works: list[tuple], gradients: int) -> float:
    """Return the gradients per second of processes.

    Args:
        works: the function of each and its arguments; a barrier is its last one.
        gradients: of all together.
    """
    context = mp.get_context("spawn")
    start = context.Barrier(len(works) + 1)
    processes = [context.Process(target=work, args=(*given, start)) for work, given in works]
    for process in processes:
        process.start()
    start.wait()
    began = time.perf_counter()
    start.wait()
    took = time.perf_counter() - began
    for process in processes:
        process.join()
    return gradients / took


def floor() -> float:
    """Return the gradients per second without any exchange."""
    cores = os.cpu_count()
    each = GRADIENTS // cores
    return rate_of([(floor_process, (each,))] * cores, each * cores)


# ---- Ray's example ----


@ray.remote(num_cpus=0)
class ExampleServer:
    """`ParameterServer` of the example."""

    def __init__(self) -> None:
        self.model = convnet((1, 28, 28), 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)

    def apply_gradients(self, *gradients: list[np.ndarray]) -> dict[str, torch.Tensor]:
        """Sum the gradients, and step."""
        summed = [np.stack(parts).sum(axis=0) for parts in zip(*gradients, strict=True)]
        self.optimizer.zero_grad()
        for parameter, gradient in zip(self.model.parameters(), summed, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        self.optimizer.step()
        return self.get_weights()

    def get_weights(self) -> dict[str, torch.Tensor]:
        """Return the state dict."""
        return {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}


@ray.remote(num_cpus=0)
class ExampleWorker:
    """`DataWorker` of the example."""

    def __init__(self) -> None:
        self.loop = Loop()

    def compute_gradients(self, weights: dict[str, torch.Tensor]) -> list[np.ndarray]:
        """Compute the gradients at these weights."""
        self.loop.model.load_state_dict(weights)
        self.loop.step()
        return [parameter.grad.numpy() for parameter in self.loop.model.parameters()]


def example(synchronous: bool) -> float:
    """Return the gradients per second of the example's loop, after a few that start the actors."""
    server, workers = ExampleServer.remote(), [ExampleWorker.remote() for _ in range(WORKERS)]
    loop = example_synchronous if synchronous else example_asynchronous
    loop(server, workers, 2 * WORKERS)
    began = time.perf_counter()
    loop(server, workers, GRADIENTS)
    took = time.perf_counter() - began
    for actor in (server, *workers):
        ray.kill(actor)
    return GRADIENTS / took


def example_synchronous(server: object, workers: list, gradients: int) -> None:
    """Run the example's first loop."""
    weights = server.get_weights.remote()
    for _ in range(gradients // len(workers)):
        computed = [worker.compute_gradients.remote(weights) for worker in workers]
        weights = server.apply_gradients.remote(*computed)
    ray.get(weights)


def example_asynchronous(server: object, workers: list, gradients: int) -> None:
    """Run the example's second loop."""
    weights = server.get_weights.remote()
    computing = {worker.compute_gradients.remote(weights): worker for worker in workers}
    for _ in range(gradients):
        [ready], _ = ray.wait(list(computing))
        worker = computing.pop(ready)
        weights = server.apply_gradients.remote(ready)
        computing[worker.compute_gradients.remote(weights)] = worker
    ray.get([weights, *computing])


# ---- raysync ----


def plan(output: str, transport: str, workers: int) -> TrainingPlan:
    """Return what is trained over a transport, with records in that folder."""
    return prepare(
        config.validate(
            {
                "model": "convnet",
                "data": {"name": "synthetic", "test_samples": 200},
                "workers": [{"count": workers}],
                "batch_size": BATCH,
                "workload": {"iterations_per_worker": ITERATIONS},
                "evaluation": {"marks": 1},
                "update": {"lr": LR},
                "cluster": {"transport": transport},
                "output": output,
            }
        )
    )


def ours(session: Session, training: TrainingPlan, paradigm: str) -> float:
    """Return the gradients per second of a run, from the first release to the last publication."""
    record = finished(run_in(session, training, config.ParadigmChoice(name=paradigm)))
    return record.summary["pushes"] / record.summary["seconds"]


def measure() -> str:
    """Measure, and return the tables."""
    with tempfile.TemporaryDirectory() as output, Session() as session:
        by_refs, shared = (plan(output, each, WORKERS) for each in ("object-ref", "shared-memory"))
        contenders = {
            "the floor": floor,
            "raysync, bsp": lambda: ours(session, by_refs, "bsp"),
            "raysync, asp": lambda: ours(session, by_refs, "asp"),
            "raysync, bsp, shared memory": lambda: ours(session, shared, "bsp"),
            "raysync, asp, shared memory": lambda: ours(session, shared, "asp"),
            "Ray's example, synchronous": lambda: example(synchronous=True),
            "Ray's example, asynchronous": lambda: example(synchronous=False),
        }
        ours(session, by_refs, "bsp")  # to start the actors
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(TURNS):
            for name in list(contenders)[:: 1 if turn % 2 else -1]:
                rates[name].append(contenders[name]())
            print(
                *(f"{name} {values[-1]:.0f}" for name, values in rates.items()),
                sep=", ",
                flush=True,
            )
    of_floor = {
        name: interval(ratios(values, rates["the floor"])) for name, values in rates.items()
    }
    rows = [
        [name, f"{median(values):.0f}", "" if name == "the floor" else of_floor[name]]
        for name, values in rates.items()
    ]
    against = [
        [f"{ours} / {theirs}", interval(ratios(rates[ours], rates[theirs]))]
        for ours, theirs in (
            ("raysync, bsp", "Ray's example, synchronous"),
            ("raysync, asp", "Ray's example, asynchronous"),
            ("raysync, bsp, shared memory", "raysync, bsp"),
            ("raysync, asp, shared memory", "raysync, asp"),
        )
    ]
    return (
        markdown(["", "gradients/s", "of the floor"], rows)
        + "\n"
        + markdown(["", "ratio"], against)
        + f"\n{TURNS} turns; medians, and median ratios with their 95 % intervals. {measured_on()}"
    )


def ratios(dividends: list[float], divisors: list[float]) -> list[float]:
    """Return the ratios turn by turn."""
    return [top / bottom for top, bottom in zip(dividends, divisors, strict=True)]


if __name__ == "__main__":
    main(__file__, __doc__, measure)
