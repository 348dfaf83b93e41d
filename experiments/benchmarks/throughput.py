"""Gradients per second of five workers on a small model: raysync over shared memory, its default on
one node, and over Ray's object store; Ray's own parameter-server example; and the floor.

    python experiments/benchmarks/throughput.py            prints the tables
    python experiments/benchmarks/throughput.py --write    and writes results/throughput.md

All compute as many gradients of the convnet on synthetic data of MNIST's shape: 5 workers x 600
iterations of 128 samples. The floor is a plain torch loop, one process per core, that
exchanges nothing. Five such loops, one for each worker, show what it costs that they share the
cores; and five that wait for one another after each gradient what a barrier leaves, if nothing else
is done at it. The example is that of Ray's documentation ("Parameter server"), its two loops
and its state dict of arrays, in as few lines. They take turns, and each turn gives a ratio.
"""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np
import psutil
import ray
import torch
import torch.multiprocessing as mp
from report import finished, interval, main, markdown, measured_on
from torch.nn.functional import cross_entropy

from raysync import config
from raysync.cluster.session import Session
from raysync.running.run import run_in
from raysync.training.models.builtin import convnet
from raysync.training.preparation import TrainingPlan, prepare

WORKERS, ITERATIONS, BATCH, LR, TURNS = 5, 600, 128, 0.01, 6
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


class Speed(NamedTuple):
    """What was measured of some gradients."""

    rate: float
    """Gradients per second, which falls where others use the machine."""
    processor_ms: float
    """The time that processors spent on one, all processes together."""


def timed(
    loop: Loop, gradients: int, start: object, spent_s: object, barrier: object = None
) -> None:
    """Pass the barrier `start` when the loop is warm, and when it has made the gradients; add what
    they took to the processor's seconds. Another barrier is passed after each gradient.
    """
    for _ in range(20):
        loop.step()
    start.wait()
    began = time.process_time()
    for _ in range(gradients):
        loop.step()
        if barrier is not None:
            barrier.wait()
    with spent_s.get_lock():
        spent_s.value += time.process_time() - began
    start.wait()


def floor_process(gradients: int, barrier: object, start: object, spent_s: object) -> None:
    """Run one process of the floor."""
    timed(Loop(), gradients, start, spent_s, barrier)


def speed_of(works: list[tuple], gradients: int) -> Speed:
    """Return the speed of processes.

    Args:
        works: the function of each and its arguments; `start` and `spent_s` are its last ones.
        gradients: of all together.
    """
    context = mp.get_context("spawn")
    start, spent_s = context.Barrier(len(works) + 1), context.Value("d", 0.0)
    processes = [
        context.Process(target=work, args=(*given, start, spent_s)) for work, given in works
    ]
    for process in processes:
        process.start()
    start.wait()
    began = time.perf_counter()
    start.wait()
    took = time.perf_counter() - began
    for process in processes:
        process.join()
    return Speed(gradients / took, 1000 * spent_s.value / gradients)


def processors_s() -> float:
    """Return the seconds that processors have spent on the processes below this one."""
    spent = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


def floor(processes: int, *, waits: bool = False) -> Speed:
    """Return the speed without any exchange.

    Args:
        processes: their number.
        waits: whether each gradient ends at a barrier.
    """
    each = GRADIENTS // processes
    barrier = mp.get_context("spawn").Barrier(processes) if waits else None
    return speed_of([(floor_process, (each, barrier))] * processes, each * processes)


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


def example(synchronous: bool) -> Speed:
    """Return the speed of the example's loop, after a few gradients that start the actors."""
    server, workers = ExampleServer.remote(), [ExampleWorker.remote() for _ in range(WORKERS)]
    loop = example_synchronous if synchronous else example_asynchronous
    loop(server, workers, 2 * WORKERS)
    spent_s, began = processors_s(), time.perf_counter()
    loop(server, workers, GRADIENTS)
    took, spent_s = time.perf_counter() - began, processors_s() - spent_s
    for actor in (server, *workers):
        ray.kill(actor)
    return Speed(GRADIENTS / took, 1000 * spent_s / GRADIENTS)


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


def ours(session: Session, training: TrainingPlan, paradigm: str) -> Speed:
    """Return the speed of a run, from the first release to the last publication; its processors'
    time has the start of the run in it, too, but not that of actors: a short run before it has
    them started that its transport needs.
    """
    choice = config.ParadigmChoice(name=paradigm)
    run_in(session, replace(training, workload_samples=WORKERS * BATCH), choice)
    spent_s = processors_s()
    record = finished(run_in(session, training, choice))
    spent_s, pushes = processors_s() - spent_s, record.summary["pushes"]
    return Speed(pushes / record.summary["seconds"], 1000 * spent_s / pushes)


def measure() -> str:
    """Measure, and return the tables."""
    with tempfile.TemporaryDirectory() as output, Session() as session:
        default, by_refs = (plan(output, each, WORKERS) for each in ("auto", "object-ref"))
        contenders = {
            "the floor": lambda: floor(os.cpu_count()),
            "five loops": lambda: floor(WORKERS),
            "five loops with a barrier": lambda: floor(WORKERS, waits=True),
            "raysync, bsp": lambda: ours(session, default, "bsp"),
            "raysync, asp": lambda: ours(session, default, "asp"),
            "raysync, bsp, object references": lambda: ours(session, by_refs, "bsp"),
            "raysync, asp, object references": lambda: ours(session, by_refs, "asp"),
            "Ray's example, synchronous": lambda: example(synchronous=True),
            "Ray's example, asynchronous": lambda: example(synchronous=False),
        }
        ours(session, by_refs, "bsp")  # starts the cluster that the example joins
        speeds = taking_turns(contenders, TURNS)
    against = [
        [f"{ours} / {theirs}", *compared(speeds[ours], speeds[theirs])]
        for ours, theirs in (
            ("raysync, bsp", "five loops with a barrier"),
            ("raysync, asp", "five loops"),
            ("raysync, bsp, object references", "Ray's example, synchronous"),
            ("raysync, asp, object references", "Ray's example, asynchronous"),
            ("raysync, bsp", "raysync, bsp, object references"),
            ("raysync, asp", "raysync, asp, object references"),
        )
    ]
    about = f"{TURNS} turns; medians, and median ratios with their 95 % intervals. {measured_on()}"
    ratios_of = markdown(["", "ratio", "in processors' time"], against)
    return f"{table_of(speeds, 'the floor')}\n\n{ratios_of}\n\n{about}"


def taking_turns(contenders: dict[str, Callable[[], Speed]], turns: int) -> dict[str, list[Speed]]:
    """Return the speeds of contenders that take turns."""
    speeds: dict[str, list[Speed]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name in list(contenders)[:: 1 if turn % 2 else -1]:
            speeds[name].append(contenders[name]())
        print({name: f"{each[-1].rate:.0f}" for name, each in speeds.items()}, flush=True)
    return speeds


def table_of(speeds: dict[str, list[Speed]], ceiling: str) -> str:
    """Return a table of speeds beside that of a ceiling."""
    rows = [
        [
            name,
            f"{median(each.rate for each in values):.0f}",
            f"{median(each.processor_ms for each in values):.2f}",
            *(["", ""] if name == ceiling else compared(values, speeds[ceiling])),
        ]
        for name, values in speeds.items()
    ]
    of = f"of {ceiling}"
    header = ["", "gradients/s", "ms of processor a gradient", of, f"{of}, in processors' time"]
    return markdown(header, rows)


def compared(ours: list[Speed], theirs: list[Speed]) -> list[str]:
    """Return the ratio of rates, and how many times less the processors spend."""
    return [
        interval(ratios([each.rate for each in ours], [each.rate for each in theirs])),
        interval(
            ratios([each.processor_ms for each in theirs], [each.processor_ms for each in ours])
        ),
    ]


def ratios(dividends: list[float], divisors: list[float]) -> list[float]:
    """Return the ratios turn by turn."""
    return [top / bottom for top, bottom in zip(dividends, divisors, strict=True)]


if __name__ == "__main__":
    main(__file__, __doc__, measure)
