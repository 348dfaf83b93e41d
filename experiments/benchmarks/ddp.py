"""One BSP round of two workers against the same step under torch's DistributedDataParallel with
gloo.

    python experiments/benchmarks/ddp.py            prints the table
    python experiments/benchmarks/ddp.py --write    and puts it into README.md beside this file

The model is the convnet with a dummy parameter, so that a step computes little and sends 0.1, 2.5
or 25 million numbers each way. DDP runs in two processes of one thread; raysync with two workers
and one server, one thread each. A round is the median time from update to update; the two take
turns, and each pair gives one ratio.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from padded import Padded
from report import finished, interval, main, markdown, measured_on
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from raysync import config
from raysync.cluster.session import Session
from raysync.runner import run_in
from raysync.training.preparation import prepare

ROUNDS_OF = {100_000: 200, 2_500_000: 100, 25_000_000: 40}
"""Parameters -> rounds of one measurement."""
PAIRS, BATCH, LR = 7, 128, 0.01


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


def raysync_round_s(session: Session, padding: int, rounds: int) -> float:
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
            # a first run touches the object store's pages for the first time
            raysync_round_s(session, padding, rounds)
            pairs = [
                (raysync_round_s(session, padding, rounds), ddp_round_s(padding, rounds))
                for _ in range(PAIRS)
            ]
            ours, theirs = (1000 * median(times) for times in zip(*pairs, strict=True))
            rows.append(
                [
                    f"{padding / 1e6:g} M",
                    f"{ours:.1f}",
                    f"{theirs:.1f}",
                    interval([a / b for a, b in pairs]),
                ]
            )
            print(rows[-1], flush=True)
    table = markdown(
        ["parameters", "raysync, ms a round", "DDP with gloo, ms a step", "ratio"], rows
    )
    return (
        f"{table}\n{PAIRS} interleaved pairs; medians, and the median ratio with its 95 % interval."
        f" {measured_on()}"
    )


if __name__ == "__main__":
    main(__file__, __doc__, measure)
