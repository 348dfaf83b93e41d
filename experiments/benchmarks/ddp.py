"""One BSP round of two workers against the same step under torch's DistributedDataParallel with
gloo.

    python experiments/benchmarks/ddp.py            prints the table
    python experiments/benchmarks/ddp.py --write    and writes results/ddp.md

The model is the convnet with a dummy parameter, so that a step computes little and sends 0.1, 2.5
or 25 million numbers each way; raysync sends them over both of its transports. DDP runs in two
processes of one thread; raysync with two workers and one server, one thread each. A round is the
median time from update to update; all take turns, and each turn gives the ratios.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from padded import Padded
from report import finished, interval, main, measured_on, tabulate
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from raysync import config
from raysync.cluster.session import Session
from raysync.running.run import run_in
from raysync.training.preparation import prepare

ROUNDS_OF = {100_000: 1500, 2_500_000: 300, 25_000_000: 40}
"""Parameters -> rounds of one measurement: so many that in most of them the memory of gradients has
been used before. (The server's log holds up to 1 GiB, or 512 updates.)"""
TURNS, BATCH, LR = 3, 128, 0.01


def ddp_worker(rank: int, folder: str, padding: int, rounds: int) -> None:
    """Run one of the two processes; the first one writes the seconds of a round."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = DistributedDataParallel(Padded(padding))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = torch.randn(10_000, 1, 28, 28), torch.randint(10, (10_000,))
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        batch = torch.randint(10_000, (BATCH,))
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        took.append(time.perf_counter() - began)
    if rank == 0:
        Path(folder, "seconds").write_text(str(median(took)))
    dist.destroy_process_group()


def ddp_round_s(padding: int, rounds: int) -> float:
    """Return the seconds of a DDP step."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(ddp_worker, (folder, padding, rounds), nprocs=2)
        return float(Path(folder, "seconds").read_text())


def raysync_round_s(session: Session, transport: str, padding: int, rounds: int) -> float:
    """Return the seconds from update to update."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = config.validate(
            {
                "data": {"name": "synthetic", "test_samples": 100},
                "batch_size": BATCH,
                "workers": [{"count": 2}],
                "workload": {"iterations_per_worker": rounds},
                "evaluation": {"marks": 1},
                "update": {"lr": LR},
                "cluster": {"transport": transport},
                "output": folder,
            }
        )
        record = finished(
            run_in(
                session,
                prepare(experiment, model=Padded(padding)),
                config.ParadigmChoice(name="bsp"),
            )
        )
        updates_s = record.pushes.applied_at_s.drop_duplicates().sort_values()
        return float(updates_s.diff().median())


def measure() -> str:
    """Measure, and return the table."""
    rows = []
    with Session() as session:
        for padding, rounds in ROUNDS_OF.items():
            contenders = {
                transport: partial(raysync_round_s, session, transport)
                for transport in ("auto", "object-ref")
            } | {"DDP": ddp_round_s}
            for transport in ("auto", "object-ref"):  # starts the actors
                contenders[transport](padding, 10)
            times = {name: [] for name in contenders}
            for turn in range(TURNS):
                for name in list(contenders)[:: 1 if turn % 2 else -1]:
                    times[name].append(contenders[name](padding, rounds))
            of_ddp = [
                interval([a / b for a, b in zip(times[name], times["DDP"], strict=True)])
                for name in ("auto", "object-ref")
            ]
            medians = [f"{1000 * median(values):.1f}" for values in times.values()]
            rows.append(
                {
                    "parameters": f"{padding / 1e6:g} M",
                    "raysync, ms a round": medians[0],
                    "by references": medians[1],
                    "DDP with gloo, ms a step": medians[2],
                    "raysync / DDP": of_ddp[0],
                    "by references / DDP": of_ddp[1],
                }
            )
            print(rows[-1], flush=True)
    return (
        f"{tabulate(rows)}\n\n{TURNS} turns; medians, and the median ratios with their 95 %"
        f" intervals. {measured_on()}"
    )


if __name__ == "__main__":
    main(__file__, __doc__, measure)
