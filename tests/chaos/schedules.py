"""Runs in virtual time that are lost and resumed at random moments, by the thousand.

    python -m tests.chaos.schedules --schedules 1000 --first 0
    python -m tests.chaos.schedules --seed 4711          one of them, with its traceback

A schedule is drawn from its number alone: workers, links, faults (slow and late workers, crashes,
kills), lost servers, restarts, `min_workers`, a paradigm, when checkpoints are taken, and from
which of them the run goes on after a loss, once or twice. Two ways of going on are checked:

    exact    as raysync resumes a run in virtual time: from there on, journal and trained weights
             are those of the run that was never interrupted
    cut      as it resumes one on Ray, where iterations under way are computed again: the oracles of
             `tests.chaos` hold; under BSP the weights are those of the run that was never
             interrupted, bit by bit, unless workers were lost

Of every `TRAINS_EVERY` schedules one trains a model (of BSP every third); the others have its times
alone. A server has something to lose where a model is trained: there it dies or freezes up to three
times, on the way to a cut and behind it, and comes back with its log or its latest snapshot. A
failure is printed with the number that reproduces it.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Left
from raysync.core.journal import (
    Checkpointed,
    Ended,
    Entry,
    Line,
    Remark,
    Resumed,
    decode,
    encode,
    header,
)
from raysync.engine import driver as driver_module
from raysync.engine.driver import Driver
from raysync.engine.topology import SERVER
from raysync.errors import ConfigError, RunFailed
from raysync.paradigms import rebuild
from raysync.paradigms.registry import make_inner
from raysync.randomness import hashed_seed, uniform
from raysync.training.preparation import TrainingPlan, prepare
from raysync.virtual import virtual_backend
from raysync.virtual.engine import VirtualEngine, driver_of
from raysync.virtual.virtual_processes import ProcessEnd
from tests.builders.virtual import DATA, weights_of
from tests.chaos.oracles import failed, judge_journal

TRAINS_EVERY, BSP_TRAINS_EVERY = 20, 3
BYTES = 64
"""Of a vector of the model: 12 weights and 4 biases of 4 bytes."""
SSP = {"name": "ssp", "staleness": 1}
HYBRID = {"name": "hybrid", "k": 2, "staleness_tolerance": 1, "pull_interval": 2}
GLOBAL = HYBRID | {"staleness_tolerance": "inf", "snapshot": "global"}
BSP = {"name": "bsp"}
LOCAL_BSP = {"name": "local", "paradigm": "bsp", "steps": 3}
PARADIGMS: list[dict[str, Any]] = [
    *(BSP, BSP, BSP),  # three shares, since more is promised of it
    {"name": "asp"},
    {"name": "ssp", "staleness": 0},
    {"name": "ssp", "staleness": 2},
    {"name": "lagtuner", "s_lower": 1, "s_upper": 4},
    {"name": "lagtuner", "s_lower": 0, "s_upper": 3, "predict": "wait"},
    {"name": "lagtuner", "s_lower": 1, "s_upper": 4, "bound": "literal"},
    {"name": "hybrid-sync"},
    {"name": "hybrid-async"},
    HYBRID,
    GLOBAL,
    {"name": "k-sync", "k": 2},
    {"name": "k-async", "k": 3},
    {"name": "k-batch-sync", "k": 3},
    {"name": "k-batch-async", "k": 3},
    {"name": "backup-workers", "backups": 1},
    {"name": "ringmaster", "paradigm": "asp", "staleness": 1},
    {"name": "ringmaster", "paradigm": SSP, "staleness": 2},
    {"name": "ringmaster", "paradigm": "bsp", "staleness": 0},
    {"name": "sync-switch", "fraction": 0.3},
    {"name": "sync-switch", "first": "asp", "then": "bsp", "fraction": 0.2},
    {"name": "sync-switch", "first": SSP, "then": HYBRID, "fraction": 0.2},
    {"name": "sync-switch", "online": "greedy", "fraction": 0.5, "window": 1, "windows": 1},
    {"name": "sync-switch", "online": "elastic", "fraction": 0.5, "window": 1, "windows": 1},
    {"name": "decoupled", "modules": 2, "groups": 2},
    {"name": "balanced", "paradigm": "bsp"},
    {"name": "balanced", "paradigm": SSP, "smoothing": 0.6, "hysteresis": 0},
    {"name": "balanced", "paradigm": HYBRID, "multiple": 2},
    {"name": "bsp", "exchange": "all-reduce"},
    {"name": "quorum", "k": 2, "grace_s": 0.3},
    {"name": "quorum", "k": 1, "grace_s": 1.0, "late": "drop"},
    LOCAL_BSP,
    {"name": "local", "paradigm": "asp", "steps": 4},
    {"name": "local", "paradigm": {"name": "quorum", "k": 1, "grace_s": 1.0}, "steps": 3},
    {"name": "local", "paradigm": SSP, "steps": 6, "by": "speed"},
]  # fmt: skip
QUICK = {"fraction": 0.4, "window": 1, "windows": 1, "margin": 0.0}
WRAPPERS: list[Callable[[dict[str, Any]], dict[str, Any]]] = [
    lambda inner: {"name": "local", "steps": 3, "paradigm": inner},
    lambda inner: {"name": "ringmaster", "staleness": 0, "paradigm": inner},
    lambda inner: {"name": "ringmaster", "staleness": 2, "paradigm": inner},
    lambda inner: {"name": "balanced", "hysteresis": 0.0, "paradigm": inner},
    lambda inner: {"name": "sync-switch", "first": inner, "fraction": 0.4},
    lambda inner: {"name": "sync-switch", "then": inner, "fraction": 0.4},
    lambda inner: {"name": "sync-switch", "first": inner, "online": "elastic", **QUICK},
    lambda inner: {"name": "sync-switch", "then": inner, "online": "greedy", **QUICK},
]
"""Each puts a paradigm into another one."""
RELEASES_WITHOUT_WEIGHTS = {
    "hybrid",
    "hybrid-sync",
    "hybrid-async",
    "k-batch-sync",
    "k-batch-async",
}
"""These cannot have local steps."""
WIRES = ("float32", "float32", "bf16", "int8", {"name": "top-k", "fraction": 0.3})
COUNTED = (
    "failures",
    "exact",
    "cut",
    "trained",
    "resumed exactly",
    "resumed from a cut",
    "BSP weights bit-equal",
    "events",
    "workers lost",
    "servers lost",
    "runs finished",
    "runs failed",
)
"""What is counted, by the columns of the results."""


class Failed(Exception):
    """A schedule whose run broke a promise."""


class Breaks(logging.Handler):
    """A run that breaks by a bug is a failure, though its journal says how it ended."""

    def emit(self, record: logging.LogRecord) -> None:
        """Fail at what the driver logs.

        Raises:
            Failed: always.
        """
        raise Failed(record.getMessage()) from (record.exc_info or (None, None))[1]


class Draws:
    """Draws that depend on the number of a schedule alone."""

    def __init__(self, schedule: int) -> None:
        self._schedule, self._count = schedule, 0

    def unit(self) -> float:
        """Draw from (0, 1)."""
        self._count += 1
        return uniform(self._schedule, "chaos", clock=self._count)

    def between(self, low: float, high: float) -> float:
        """Draw a real number."""
        return low + (high - low) * self.unit()

    def whole(self, low: int, high: int) -> int:
        """Draw a whole number, both ends included."""
        return low + int((high - low + 1) * self.unit())

    def one_of(self, *values: Any) -> Any:
        """Draw one of several values."""
        return values[self.whole(0, len(values) - 1)]


# ---- what a schedule is ----


def workers(draws: Draws) -> list[dict[str, Any]]:
    """Draw one to three groups of workers."""
    jitters = [{}, {"sigma": 0.4}, {"distribution": "exponential"}]
    return [
        {
            "name": name,
            "count": draws.whole(1, 3),
            "step_s": draws.one_of(0.5, 1, 1, 2.5),
            "jitter": draws.one_of(*jitters),
            "link": {
                "latency_s": draws.one_of(0, 0.1),
                "bandwidth_bytes_per_s": draws.one_of(None, 4 * BYTES),
            },
            "start_s": draws.one_of(0, 0, 1.5),
        }
        for name in "abc"[: draws.whole(1, 3)]
    ]


def network(draws: Draws) -> dict[str, Any]:
    """Draw the server's link, and how long it takes for an update."""
    return {
        "link": {"latency_s": draws.one_of(0, 0.05)},
        "server_bandwidth_bytes_per_s": draws.one_of(None, 10 * BYTES, BYTES),
        "update_s": draws.one_of(0, 0.2),
        "update_bytes_per_s": draws.one_of(None, 20 * BYTES),
    }


def fault(draws: Draws, slots: Sequence[str]) -> dict[str, Any]:
    """Draw a fault: half of them take a worker away."""
    kind = draws.one_of("crash", "kill", "slow-down", "latency")
    if kind == "crash":
        when = draws.one_of({"at_s": draws.between(0, 25)}, {"at_clock": draws.whole(0, 15)})
        back = draws.one_of({}, {"rejoin_after_s": 0}, {"rejoin_after_s": 0.3})
        return {"kind": kind, "worker": draws.one_of(*slots), **when, **back}
    if kind == "kill":
        when = draws.one_of({"at_s": draws.between(0, 12)}, {"mean_gap_s": 4, "end_s": 12})
        return {"kind": kind, "count": draws.whole(1, min(3, len(slots))), **when}
    first = draws.whole(0, 15)
    window = draws.one_of(
        {"start_s": draws.between(0, 20), "lasts_s": draws.between(0.1, 10)},
        {"clocks": [first, first + draws.whole(1, 5)]},
        {"mean_gap_s": 3, "lasts_s": 1, "end_s": 18},
    )
    size = {"factor": draws.one_of(1.5, 3, 8)} if kind == "slow-down" else {"added_s": 0.7}
    return {"kind": kind, **size, **window}


def settings_of(draws: Draws, choice: dict[str, Any], *, trains: bool) -> dict[str, Any]:
    """Draw an experiment, whatever the paradigm of its workers."""
    staged = is_staged(choice)
    if staged:
        groups = [{"name": "a", "count": 4, "step_s": 1, "jitter": {"sigma": 0.4}}]
    else:
        groups = workers(draws)
    slots = [f"{group['name']}-{n}" for group in groups for n in range(group["count"])]
    pushes = draws.whole(10, 120)
    batch = 4 if trains else 1
    allowed = {"slow-down", "latency", *(() if staged else ("crash", "kill"))}
    drawn = [fault(draws, slots) for _ in range(draws.whole(0, 5))]
    learns = {"update": {"lr": 0.1, "momentum": 0.9}, "evaluation": {"marks": 4}, "keep": "best"}
    more: dict[str, Any] = {}
    if "local" in names_of(choice):
        more["local"] = draws.one_of({"lr": 0.05}, {"optimizer": "adamw", "lr": 0.01})
    wire = "float32" if staged or "exchange" in repr(choice) else draws.one_of(*WIRES)
    return {
        "engine": "virtual",
        "timing": "with-gradients" if trains else "only",
        "seed": draws.whole(0, 1000),
        "batch_size": batch,
        "workload": {"samples": pushes * batch},
        "workers": groups,
        "network": network(draws),
        "faults": [each for each in drawn if each["kind"] in allowed],
        "cluster": {
            "server_shards": 1 if staged else draws.whole(1, 3),
            "step_deadline_s": 1e6,
            "restarts": {"attempts": draws.one_of(0, 6, 6)},
            "server_log_bytes": draws.one_of(1, 20 * BYTES, 2**30),
            "wire": wire,
            "min_workers": 1 if staged else draws.one_of(1, 1, draws.whole(1, len(slots))),
        },
        "checkpoint": draws.one_of(
            {"every_s": draws.between(0.2, 9)}, {"every_progress": draws.between(0.02, 0.4)}
        ),
        **(learns if trains else {}),
        **more,
    }


def paradigm_of(draws: Draws) -> dict[str, Any]:
    """Draw a paradigm; where it may be in another one, it is in one or two half of the time."""
    spec: dict[str, Any] = draws.one_of(*PARADIGMS)
    for _ in range(draws.one_of(0, 0, 1, 2)):
        around = draws.one_of(*WRAPPERS)(spec)
        if "local" in (names := names_of(around)) and names & RELEASES_WITHOUT_WEIGHTS:
            continue
        with suppress(ConfigError):
            make_inner(around, "a schedule")
            spec = around
    return spec


def names_of(choice: dict[str, Any]) -> set[str]:
    """Return the name of a paradigm, and those of the ones within it."""
    inner = (value for value in choice.values() if isinstance(value, dict))
    return {choice["name"]}.union(*map(names_of, inner))


def is_staged(choice: dict[str, Any]) -> bool:
    """Say whether the network is cut in stages, whose workers cannot be lost."""
    return choice["name"] == "decoupled"


def layers() -> nn.Sequential:
    """Return the model of the runs that train, and of those in stages."""
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))


# ---- going on exactly ----


def lines_of(
    reports: Iterable[list[Line] | Checkpoint],
) -> tuple[list[Line], dict[int, Checkpoint]]:
    """Return the lines of a run, and its checkpoints by their numbers."""
    lines: list[Line] = []
    checkpoints: dict[int, Checkpoint] = {}
    for report in reports:
        if isinstance(report, Checkpoint):
            checkpoints[report.number] = report
        else:
            lines += report
    return lines, checkpoints


def texts_of(lines: Iterable[Line]) -> list[str]:
    """Return the lines of a journal as they stand in its file."""
    return [encode(line) + "\n" for line in lines]


def before(lines: Sequence[Line], checkpoint: Checkpoint) -> list[Line]:
    """Return the lines up to a cut, as they are read from a file."""
    cut = lines.index(Checkpointed(checkpoint.at, checkpoint.number))
    return [decode(encode(line)) for line in lines[: cut + 1]]


def from_file(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint as it is read from its folder."""
    state = json.loads(json.dumps(checkpoint.state))
    return replace(checkpoint, state=state)


def check_exact(
    draws: Draws, training: TrainingPlan, choice: ParadigmChoice, seen: Counter[str]
) -> None:
    """Go on from a random checkpoint, and once more from one of that run.

    Raises:
        Failed: something is not as in the run that was never interrupted.
    """
    whole = VirtualEngine()
    lines, checkpoints = lines_of(whole.run(training, choice.make()))
    look(lines, seen)
    for _ in range(draws.whole(1, 2)):
        if not checkpoints:
            break
        checkpoint = checkpoints[draws.one_of(*checkpoints)]
        history = before(lines, checkpoint)
        engine = VirtualEngine()
        stream = engine.run(
            training, choice.make(), None, from_file(checkpoint), partial(list, history)
        )
        rest, checkpoints = lines_of(stream)
        seen["resumed exactly"] += 1
        if texts_of(rest) != texts_of(lines[len(history) :]):
            raise Failed(f"exact: other lines than {len(history)} ff. from {checkpoint.number}")
        if engine.models != whole.models:  # the best and the final one: none where nothing trains
            raise Failed(f"exact: another model was kept from {checkpoint.number}")


# ---- going on from a cut ----


def check_cut(
    draws: Draws, training: TrainingPlan, choice: ParadigmChoice, seen: Counter[str]
) -> None:
    """Lose the run up to three times after a random number of events, and go on from a cut.

    Raises:
        Failed: an oracle found something.
    """
    lines, checkpoint = [], None
    afters = [
        draws.whole(0, training.workload_samples // training.experiment.batch_size)
        for _ in range(draws.whole(1, 3))
    ]
    ends = deaths(draws, training)
    for after in afters:
        more, following = interrupted(training, choice, after, checkpoint, ends)
        if following is None:
            break
        checkpoint = from_file(following)
        lines += [*more, Resumed(checkpoint.at, checkpoint.number)]
        seen["resumed from a cut"] += 1
    if checkpoint is None:
        return
    driver = driver_of(training, choice.make(), checkpoint, still_to_come(ends, checkpoint))
    lines += [line for report in driver.run() for line in report]
    look(lines, seen)
    texts = [header(choice.make(), training.workload_samples) + "\n", *texts_of(lines)]
    if found := failed(judge_journal(texts, rebuild)):
        raise Failed(f"cut: {found[0].oracle}: {found[0].failure}")
    roster = driver.topology.roster
    if driver.status == "finished" and roster.samples_applied < training.workload_samples:
        raise Failed(f"cut: finished with {roster.samples_applied} samples")
    if is_synchronous(choice) and driver.backend.computes and not lost(lines):
        compare_with_undisturbed(driver, training, choice, seen)


def is_synchronous(choice: ParadigmChoice) -> bool:
    """Say whether it is BSP, perhaps with local steps."""
    return choice.name == "bsp" or {"name": choice.name, **choice.parameters} == LOCAL_BSP


def deaths(draws: Draws, training: TrainingPlan) -> list[ProcessEnd]:
    """Draw when the server is lost, and how, of a run in which it can come back."""
    experiment = training.experiment
    if experiment.timing == "only" or not experiment.cluster.restarts.attempts:
        return []
    times = sorted(draws.between(0, 15) for _ in range(draws.whole(1, 3)))
    return [ProcessEnd(at, freezes=draws.one_of(True, False, False)) for at in times]


def still_to_come(
    ends: Sequence[ProcessEnd], checkpoint: Checkpoint | None
) -> dict[str, Sequence[ProcessEnd]]:
    """Return what a run that goes on from a checkpoint has before it."""
    coming = [end for end in ends if checkpoint is None or end.at > checkpoint.at]
    return {SERVER: coming} if coming else {}


def compare_with_undisturbed(
    driver: Driver, training: TrainingPlan, choice: ParadigmChoice, seen: Counter[str]
) -> None:
    """Compare the weights with those of a run under BSP that was never interrupted.

    Raises:
        Failed: they differ.
    """
    undisturbed = driver_of(training, choice.make())
    whole = [line for report in undisturbed.run() for line in report]
    if lost(whole):
        return
    seen["BSP weights bit-equal"] += 1
    if not torch.equal(weights_of(driver), weights_of(undisturbed)):
        raise Failed("cut: other weights")


def interrupted(
    training: TrainingPlan,
    choice: ParadigmChoice,
    after: int,
    checkpoint: Checkpoint | None,
    ends: Sequence[ProcessEnd],
) -> tuple[list[Line], Checkpoint | None]:
    """Run up to a cut that is asked for after so many events; return the lines up to there, and the
    checkpoint; None: the run was over before.
    """
    driver = driver_of(training, choice.make(), checkpoint, still_to_come(ends, checkpoint))
    number = driver.checkpointer.number
    with suppress(RunFailed):
        driver.start()
        while driver.is_running and not driver.checkpoints:
            if not after:
                driver.checkpointer.request()
            after -= 1
            driver.backend.wait()
    if not driver.checkpoints:
        return driver.lines, None
    found = driver.checkpoints[-1]
    assert found.number > number, "an old checkpoint"
    cut = driver.lines.index(Checkpointed(found.at, found.number))
    return driver.lines[: cut + 1], found


def lost(lines: Sequence[Line]) -> bool:
    """Say whether a worker was lost on the way, or left."""
    return any(isinstance(line, Entry) and isinstance(line.event, Left) for line in lines)


def look(lines: Sequence[Line], seen: Counter[str]) -> None:
    """Count what happened."""
    events = [line for line in lines if isinstance(line, Entry)]
    seen["events"] += len(events)
    seen["workers lost"] += sum(isinstance(line.event, Left) for line in events)
    seen["servers lost"] += sum(
        isinstance(line, Remark) and " and recovered after " in line.text for line in lines
    )
    end = lines[-1]
    assert isinstance(end, Ended), f"a journal that ends with {end}"
    seen[f"runs {end.status}"] += 1


# ---- many ----


def check(number: int, seen: Counter[str]) -> None:
    """Check one schedule.

    Raises:
        Exception: it found something.
    """
    draws = Draws(number)
    parameters = paradigm_of(draws)
    is_bsp = parameters["name"] == "bsp" or parameters == LOCAL_BSP
    every = BSP_TRAINS_EVERY if is_bsp else TRAINS_EVERY
    trains = hashed_seed(number, "trains") % every == 0
    settings = settings_of(draws, parameters, trains=trains)
    is_exact = is_staged(parameters) or draws.one_of(True, False)
    if not is_exact:
        settings["checkpoint"] = {"every_s": 1e6}  # the cuts are asked for
    model = layers if trains or is_staged(parameters) else nn.Linear(3, 4)
    training = prepare(config.validate(settings), model, DATA)
    choice = ParadigmChoice(**parameters)
    seen["trained"] += trains
    seen["exact" if is_exact else "cut"] += 1
    (check_exact if is_exact else check_cut)(draws, training, choice, seen)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=1000, help="how many in a batch")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--batches", type=int, default=1, help="how many batches")
    parser.add_argument("--seed", type=int, help="check this schedule alone")
    parser.add_argument("--write", help="add a row for each batch to this file (CSV)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger(driver_module.__name__).addHandler(Breaks())
    virtual_backend.REPORT_EVERY = 1  # so that cuts are between any two events
    if arguments.seed is not None:
        seen: Counter[str] = Counter()
        check(arguments.seed, seen)
        print(dict(seen))
        return
    for batch in range(arguments.batches):
        row = row_of(arguments.first + batch * arguments.schedules, arguments.schedules)
        print(json.dumps(row), flush=True)
        if arguments.write:
            file = Path(arguments.write)
            pd.DataFrame([row]).to_csv(file, mode="a", index=False, header=not file.exists())


def row_of(first: int, count: int) -> dict[str, Any]:
    """Check a batch of schedules, and return its row of the results."""
    seen: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(first, first + count):
        try:
            check(number, seen)
        except Exception:
            seen["failures"] += 1
            error = traceback.format_exc().splitlines()[-1]
            print(f"schedule {number} (--seed {number}): {error}", flush=True)
    counts = {name: seen[name] for name in COUNTED}
    minutes = round((time.monotonic() - began) / 60, 1)
    return {"first": first, "schedules": count, **counts, "minutes": minutes}


if __name__ == "__main__":
    main()
