"""Measure goodput while the server is lost, on the virtual clock: results/servers.csv.

    python experiments/goodput/servers.py        measures (some minutes)

The server's process dies after exponential gaps. Each paradigm of servers.yaml runs with each mean
gap, and with each way to go on:

    log            the server comes back with its latest snapshot and the updates since
    checkpoint N   there is no log: the run goes on from its latest checkpoint, one every N seconds
    nothing        there is no checkpoint either: the run begins anew

Each loss costs `AWAY_S` until processes are there again. Goodput is the samples in the model after
`SECONDS`, by second and worker.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import raysync
from raysync import config
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Ended
from raysync.engine.topology import SERVER
from raysync.errors import RunLost
from raysync.randomness import uniform
from raysync.training.preparation import prepare
from raysync.virtual import virtual_backend
from raysync.virtual.engine import driver_of
from raysync.virtual.virtual_processes import ProcessEnd

HERE = Path(__file__).parent
SECONDS, AWAY_S, SEEDS = 300.0, 11.0, range(5)
MEAN_GAPS_S = (30, 100, 300)
LOG, NOTHING = "log", "nothing"
INTERVALS_S = (10, 60)


@dataclass
class Life:
    """One start of the run, and how it ended."""

    lost_at: float | None
    """Seconds since the first start, on the clock on the wall; None: it was not lost."""
    samples: int
    """In the model, at its end or after `SECONDS`."""
    checkpoint: Checkpoint | None


def deaths(seed: int, mean_gap_s: float) -> Iterator[float]:
    """Yield the lengths of the server's lives, in seconds."""
    number = 0
    while True:
        yield inf if mean_gap_s == inf else -mean_gap_s * log(uniform(seed, "life", clock=number))
        number += 1


def life_of(
    setting: config.Experiment,
    name: str,
    ends: list[ProcessEnd],
    began_s: float,
    checkpoint: Checkpoint | None,
) -> Life:
    """Run until the server is lost for good, or the time is over.

    Args:
        setting: of the run.
        name: of the paradigm.
        ends: when the server dies, on the clock on the wall.
        began_s: when this life begins, on that clock.
        checkpoint: what it goes on from.
    """
    since = 0.0 if checkpoint is None else checkpoint.at
    shifted = [ProcessEnd(end.at - began_s + since) for end in ends]
    choice = next(choice for choice in setting.paradigms if choice.name == name)
    training = prepare(setting, lambda: nn.Linear(3, 2), DATA)
    driver = driver_of(training, choice.make(), checkpoint, {SERVER: shifted} if ends else {})
    latest, samples, is_lost = checkpoint, 0, False
    try:
        for lines in driver.run():
            if driver.checkpoints:
                latest = driver.checkpoints[-1]
                driver.checkpoints.clear()
            if driver.backend.now - since + began_s >= SECONDS:
                break
            samples = driver.topology.roster.samples_applied
            end = lines[-1] if lines else None
            is_lost = isinstance(end, Ended) and end.status == "failed"  # without a checkpoint
    except RunLost:
        is_lost = True
    return Life(driver.backend.now - since + began_s if is_lost else None, samples, latest)


def samples_in(name: str, way: str, seed: int, mean_gap_s: float) -> tuple[int, int]:
    """Return the samples in the model after `SECONDS`, and how often the server was lost."""
    lives = deaths(seed, mean_gap_s)
    if way == LOG:
        ends, at = [], next(lives)
        while at < SECONDS:
            ends.append(ProcessEnd(at))
            at += AWAY_S + next(lives)
        setting = setting_of(seed, f"cluster.restarts.backoff_s={AWAY_S}")
        return life_of(setting, name, ends, 0.0, None).samples, len(ends)
    every = [] if way == NOTHING else [f"checkpoint.every_s={way.split()[1]}"]
    setting = setting_of(seed, "cluster.server_log_bytes=0", *every)
    began_s, checkpoint, losses = 0.0, None, 0
    while True:
        end_s = began_s + next(lives)
        life = life_of(
            setting, name, [ProcessEnd(end_s)] if end_s < SECONDS else [], began_s, checkpoint
        )
        if life.lost_at is None:
            return life.samples, losses
        losses += 1
        began_s, checkpoint = life.lost_at + AWAY_S, life.checkpoint
        if began_s >= SECONDS:  # what the checkpoint has is all that there is
            state = checkpoint.state["progress"] if checkpoint else 0.0
            return round(state * setting.workload.samples), losses


def setting_of(seed: int, *changes: str) -> config.Experiment:
    """Return the experiment with changes."""
    return config.load(HERE / "servers.yaml", [f"seed={seed}", *changes])


_X = torch.randn(96, 3, generator=torch.Generator().manual_seed(0)).numpy()
DATA = raysync.data_set("points", (_X, (_X[:, 0] > 0) * 1), (_X[:16], (_X[:16, 0] > 0) * 1))


def measure() -> pd.DataFrame:
    """Return the rows of all runs."""
    ways = [LOG, *(f"checkpoint {every}" for every in INTERVALS_S), NOTHING]
    rows = []
    for choice in config.load(HERE / "servers.yaml").paradigms:
        for gap in (*MEAN_GAPS_S, inf):
            for way in ways if gap < inf else [LOG]:
                for seed in SEEDS:
                    samples, losses = samples_in(choice.name, way, seed, gap)
                    row = {"paradigm": choice.name, "mean_gap_s": gap, "way": way, "seed": seed}
                    rows.append(row | {"losses": losses, "goodput": samples / SECONDS / 8})
                print(choice.name, gap, way, pd.DataFrame(rows[-len(SEEDS) :]).goodput.mean())
    return pd.DataFrame(rows)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    virtual_backend.REPORT_EVERY = 1  # so that a run is looked at after each event
    measure().round(6).to_csv(HERE / "results" / "servers.csv", index=False)
