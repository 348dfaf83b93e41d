"""What the virtual engine costs: pushes per second, beside SimPy; with gradients, beside plain
torch; memory.

    pip install -e '.[bench]'                           SimPy
    python experiments/benchmarks/virtual.py            prints the tables
    python experiments/benchmarks/virtual.py --write    and writes results/virtual.md

Pushes per second are those of the whole engine (machine, clock, network, lines of the journal), in
processor seconds, without a record; and beside them those with one. What is compared takes turns
in each round, and a ratio is of one round.
"""

import gc
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from statistics import median
from tempfile import TemporaryDirectory

import simpy
import torch
from report import finished, interval, main, measured_on, tabulate

from raysync import config
from raysync.core.ids import WorkerId
from raysync.running.engines import engine_for
from raysync.running.run import run_in
from raysync.training.preparation import TrainingPlan, prepare
from raysync.virtual.engine import VirtualEngine

SIZES, PUSHES, ROUNDS = (8, 100, 1_000, 10_000), 100_000, 5
PARADIGMS = {"bsp": {}, "asp": {}, "ssp": {"staleness": 3}, "lagtuner": {}}
STALENESS, BATCH = 3, 32
LINK = {"link": {"latency_s": 0.01}, "server_bandwidth_bytes_per_s": 1e7, "update_s": 0.001}
"""A network that, beside a step of one second, is felt but is not the bottleneck of 8 workers."""
LENET = {
    "data": {
        "name": "synthetic",
        "parameters": {"shape": [3, 32, 32], "train": 4_000, "test": 500},
    },
    "model": "lenet",
    "workers": [{"name": "w", "count": 8, "step_s": 0.1, "jitter": {"sigma": 0.1}}],
    "evaluation": {"marks": 1},
    "engine": "virtual",
    "batch_size": BATCH,
}
GRADIENTS, EVALUATIONS = (304, 2_400), 2
MEMORY_RUN = """
import sys; sys.path.insert(0, {here!r})
import virtual; print(virtual.recorded_peak_mib({folder!r}))
"""


def begin() -> float:
    """Return the processor seconds so far, once what the runs before have left is collected:
    otherwise the next one pays for it, up to 0.2 s after one of 10,000 workers.
    """
    gc.collect()
    return time.process_time()


def timing_task(paradigm: str, workers: int, pushes: int = PUSHES, **more: object) -> TrainingPlan:
    """Return a task with exponential step times of mean one second, in which nothing is trained."""
    group = {
        "name": "w",
        "count": workers,
        "step_s": 1.0,
        "jitter": {"distribution": "exponential"},
    }
    return prepare(
        config.validate(
            {
                "engine": "virtual",
                "timing": "only",
                "batch_size": 1,
                "workload": {"samples": pushes},
                "workers": [group],
                "paradigm": {"name": paradigm, **PARADIGMS[paradigm]},
                **more,
            }
        )
    )


def virtual_run(training: TrainingPlan) -> tuple[float, float]:
    """Return the processor seconds and virtual seconds of a run without a record."""
    began = begin()
    for lines in VirtualEngine().run(training, training.experiment.paradigm.make()):
        last = lines[-1]
    return time.process_time() - began, last.at


def scale() -> str:
    """Tabulate the pushes per second of each paradigm at each size."""
    rows = []
    for paradigm in PARADIGMS:
        tasks = {workers: timing_task(paradigm, workers) for workers in SIZES}
        rates: dict[int, list[float]] = {workers: [] for workers in SIZES}
        for _ in range(ROUNDS):
            for workers, training in tasks.items():
                rates[workers].append(PUSHES / virtual_run(training)[0])
        ratios = [
            large / small for small, large in zip(rates[SIZES[0]], rates[SIZES[-1]], strict=True)
        ]
        rows.append(
            {
                "paradigm": paradigm,
                **{f"{workers:,} workers": f"{median(rates[workers]):,.0f}" for workers in SIZES},
                f"ratio of {SIZES[-1]:,} to {SIZES[0]}": interval(ratios),
                f"best of {SIZES[0]}": f"{max(rates[SIZES[0]]):,.0f}",
            }
        )
    return tabulate(rows)


def recorded_s(training: TrainingPlan) -> float:
    """Return the processor seconds of a run with its record."""
    began = begin()
    with TemporaryDirectory() as folder, engine_for(training.experiment) as engine:
        placed = training.experiment.model_copy(
            update={"output": config.validate({"output": folder}).output}
        )
        run_in(engine, replace(training, experiment=placed), training.experiment.paradigm)
    return time.process_time() - began


def with_record() -> str:
    """Tabulate SSP without and with its record: journal, rows of pushes, and measures."""
    rows = []
    for workers in (SIZES[0], SIZES[-1]):
        training = timing_task("ssp", workers)
        without, recorded = [], []
        for _ in range(ROUNDS):
            without.append(virtual_run(training)[0])
            recorded.append(recorded_s(training))
        ratios = [after / before for before, after in zip(without, recorded, strict=True)]
        rows.append(
            {
                "SSP(3), workers": f"{workers:,}",
                "without a record, pushes/s": f"{PUSHES / median(without):,.0f}",
                "with it, pushes/s": f"{PUSHES / median(recorded):,.0f}",
                "seconds, ratio": interval(ratios),
            }
        )
    return tabulate(rows)


class SimPySSP:
    """Workers with exponential step times under an SSP bound, as one would write them for SimPy.

    `bare`: steps and the bound alone. `network`: each push takes the server's shared link, the
    server's time for an update and the link back, each a resource of capacity one; workers that can
    go on are released when the update is done.
    """

    def __init__(self, workers: int, network: bool, vector_bytes: int) -> None:
        self.env = simpy.Environment()
        self.clocks, self.at_clock = [0] * workers, {0: workers}
        self.slow = self.pushes = 0
        self.waiting: dict[int, list[simpy.Event]] = {}
        self.done = self.env.event()
        self.transfer_s = vector_bytes / LINK["server_bandwidth_bytes_per_s"]
        self.up, self.server, self.down = (simpy.Resource(self.env) for _ in range(3))
        for worker in range(workers):
            self.env.process(self.work(worker, network))

    def work(self, worker: int, network: bool) -> Iterator[simpy.Event]:
        """Run one worker."""
        while True:
            yield self.env.timeout(random.expovariate(1.0))
            if network:
                yield from self.through(self.up, self.transfer_s, LINK["link"]["latency_s"])
                yield from self.through(self.server, LINK["update_s"], 0.0)
            self.push(worker)
            if self.clocks[worker] - self.slow > STALENESS:
                released = self.env.event()
                self.waiting.setdefault(self.clocks[worker], []).append(released)
                yield released
            if network:
                yield from self.through(self.down, self.transfer_s, LINK["link"]["latency_s"])

    def through(
        self, shared: simpy.Resource, taken_s: float, latency_s: float
    ) -> Iterator[simpy.Event]:
        """Take a shared resource for a while."""
        with shared.request() as turn:
            yield turn
            yield self.env.timeout(taken_s)
        if latency_s:
            yield self.env.timeout(latency_s)

    def push(self, worker: int) -> None:
        """Count a push, and release the workers that can go on."""
        clock = self.clocks[worker]
        self.clocks[worker] = clock + 1
        self.at_clock[clock] -= 1
        self.at_clock[clock + 1] = self.at_clock.get(clock + 1, 0) + 1
        self.pushes += 1
        if self.pushes == PUSHES:
            self.done.succeed()
        while not self.at_clock[self.slow]:
            self.slow += 1
            for released in self.waiting.pop(self.slow + STALENESS, ()):
                released.succeed()


def simpy_run(workers: int, network: bool, vector_bytes: int) -> tuple[float, float]:
    """Return processor seconds and virtual seconds."""
    random.seed(0)
    began = begin()
    model = SimPySSP(workers, network, vector_bytes)
    model.env.run(until=model.done)
    return time.process_time() - began, model.env.now


def beside_simpy() -> str:
    """Tabulate SSP here and in SimPy."""
    rows = []
    for network in (False, True):
        for workers in (SIZES[0], SIZES[-1]):
            training = timing_task("ssp", workers, **({"network": LINK} if network else {}))
            ours, theirs = [], []
            for _ in range(ROUNDS):
                ours.append(virtual_run(training))
                theirs.append(simpy_run(workers, network, training.vector_bytes))
            ratios = [
                simpy_s / our_s for (our_s, _), (simpy_s, _) in zip(ours, theirs, strict=True)
            ]
            raysync, simpy_ = (
                f"{PUSHES / median([seconds for seconds, _ in runs]):,.0f}"
                for runs in (ours, theirs)
            )
            rows.append(
                {
                    "SSP(3)": "with links and server" if network else "bare",
                    "workers": f"{workers:,}",
                    "raysync, pushes/s": raysync,
                    "SimPy, pushes/s": simpy_,
                    "ratio": interval(ratios),
                    "raysync, per virtual s": f"{PUSHES / ours[0][1]:,.1f}",
                    "SimPy, per virtual s": f"{PUSHES / theirs[0][1]:,.1f}",
                }
            )
    return tabulate(rows)


def with_gradients() -> str:
    """Tabulate runs beside the same gradients in a plain loop: the same batches, forward and
    backward, nothing else. A short run tells what beginning and ending it costs, a long one what a
    gradient does.
    """
    torch.set_num_threads(1)
    rows = []
    for gradients in GRADIENTS:
        training = prepare(config.validate(LENET | {"workload": {"samples": gradients * BATCH}}))
        ratios, whole, plain = [], [], []
        for _ in range(ROUNDS):
            run_s, pushes = _whole_run(training)
            whole.append(run_s)
            plain.append(_plain_loop(training, pushes, EVALUATIONS))
            ratios.append(whole[-1] / plain[-1])
        rows.append(
            {
                "gradients": f"{len(pushes):,}",
                "processor seconds": f"{median(whole):.2f}",
                "the same in a plain loop": f"{median(plain):.2f}",
                "ratio": interval(ratios),
                "ms more a gradient": (
                    f"{(median(whole) - median(plain)) / len(pushes) * 1000:.2f}"
                ),
            }
        )
    return (
        f"{tabulate(rows)}\n\nlenet, batches of {BATCH}, BSP, 8 workers, {EVALUATIONS}"
        " evaluations, a record, one thread."
    )


def _whole_run(training: TrainingPlan) -> tuple[float, list[tuple[str, int]]]:
    """Return the processor seconds of a run with its record, and the worker and the clock of each
    push.
    """
    with TemporaryDirectory() as folder, engine_for(training.experiment) as engine:
        placed = training.experiment.model_copy(
            update={"output": config.validate({"output": folder}).output}
        )
        began = begin()
        pushes = finished(
            run_in(engine, replace(training, experiment=placed), training.experiment.paradigm)
        ).pushes
        return time.process_time() - began, list(zip(pushes.worker, pushes.clock, strict=True))


def _plain_loop(training: TrainingPlan, pushes: list[tuple[str, int]], evaluations: int) -> float:
    """Return the processor seconds of the same batches, forward and backward, and evaluations."""
    module, data = training.build(), training.data
    batches = {slot: training.reader(slot) for slot in training.groups}
    began = begin()
    for worker, clock in pushes:
        x, y = batches[WorkerId(worker).slot].read(clock, [BATCH])[0]
        module.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
    module.eval()
    with torch.no_grad():
        for _ in range(evaluations):
            module(data.samples(data.test_x))
    return time.process_time() - began


def recorded_peak_mib(folder: str) -> str:
    """Measure peak memory and seconds of a recorded run of a million pushes of 10,000 workers; this
    takes a process of its own.
    """
    training = timing_task("ssp", SIZES[-1], pushes=1_000_000, output=folder)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    with engine_for(training.experiment) as engine:
        record = finished(run_in(engine, training, training.experiment.paradigm))
    size = sum(file.stat().st_size for file in record.path.iterdir()) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"10,000 workers, SSP(3), a million pushes with their record ({size:,.0f} MiB on disk):\n"
        f"peak {ceil(peak):,} MiB, of which {ceil(base):,} before the run (Python, torch), "
        f"in {time.perf_counter() - began:.0f} s."
    )


def memory() -> str:
    """Measure the memory of a large recorded run."""
    with TemporaryDirectory() as folder:
        here = str(__file__).rpartition("/")[0]
        code = MEMORY_RUN.format(here=here, folder=folder)
        return subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.rstrip()


def measure() -> str:
    """Measure, and return all tables."""
    about = f"{PUSHES:,} pushes, {ROUNDS} rounds. {measured_on()}"
    parts = (scale, with_record, beside_simpy, with_gradients, memory)
    return "\n\n".join([*(part() for part in parts), about])


if __name__ == "__main__":
    main(__file__, __doc__, measure)
