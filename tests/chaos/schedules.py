"""Runs in virtual time that are lost and resumed at random moments, by the thousand.

    python -m tests.chaos.schedules --schedules 1000 --first 0

Hypothesis draws clusters, faults, lost servers, restarts, a paradigm, perhaps in others, when
checkpoints are taken, and from which of them the run goes on after a loss. The number of the first
schedule is the seed of a batch. Two ways of going on are checked:

    exact    as raysync resumes a run in virtual time: from there on, journal and trained weights
             are those of the run that was never interrupted
    cut      as it resumes one on Ray, where iterations under way are computed again: the oracles of
             `tests.chaos` hold; under BSP the weights are those of the run that was never
             interrupted, bit by bit, unless workers were lost

Where a model is trained, the server dies or freezes up to three times, on the way to a cut and
behind it. A failure is shown as the smallest schedule that has it.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from hypothesis import HealthCheck, given, seed, settings, strategies as st

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Left
from raysync.core.journal import Checkpointed, Entry, Line, Remark, Resumed, decode, encode, header
from raysync.engine import driver as driver_module
from raysync.engine.server_log import log_bytes
from raysync.engine.topology import SERVER
from raysync.paradigms import rebuild
from raysync.training.preparation import TrainingPlan, prepare
from raysync.virtual.engine import VirtualEngine, driver_of
from raysync.virtual.virtual_processes import ProcessEnd
from tests.builders.paradigms import LOCAL_VARIANTS, NESTED_OR_LOCAL, VARIANTS
from tests.builders.plans import BYTES, plans
from tests.builders.virtual import DATA, SMALL, interrupted, weights_of, with_statistics
from tests.chaos.oracles import judge_journal

BSP = {"name": "bsp"}
SYNCHRONOUS = [BSP, BSP | {"exchange": "all-reduce"}, {"name": "local"}]
STAGED = {"name": "decoupled", "modules": 2, "groups": 2}
ALONE = [{"name": name, **more} for name, more in (VARIANTS | LOCAL_VARIANTS).values()]
NESTED = [
    spec
    for label, spec in NESTED_OR_LOCAL.items()
    if "local" not in label or not ("hybrid" in label or "k-batch" in label)  # refused
]
PARADIGMS = st.one_of(*map(st.sampled_from, (SYNCHRONOUS, ALONE, NESTED, [*ALONE, STAGED])))
WIRES = ("float32", "float32", "bf16", "int8", {"name": "top-k", "fraction": 0.3})
SHARES = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3)
COUNTED = ("failures", "exact", "cut", "trained", "resumed exactly", "resumed from a cut",
           "BSP weights bit-equal", "events", "workers lost", "servers lost")  # fmt: skip
"""What is counted, by the columns of the results."""


class Schedule(NamedTuple):
    """Settings of an experiment, when its server ends, and when the run is lost."""

    settings: dict[str, Any]
    paradigm: dict[str, Any]
    deaths: list[ProcessEnd]
    is_exact: bool
    shares: list[float]


class Breaks(logging.Handler):
    """A run that breaks by a bug is a failure, though its journal says how it ended."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]


@st.composite
def schedules(draw: Any) -> Schedule:
    """Draw a schedule; half of the synchronous ones train a model, and a fifth of the others."""
    paradigm, plan = draw(PARADIGMS), draw(plans())
    trains = draw(st.sampled_from([False] * (1 if paradigm in SYNCHRONOUS else 4) + [True]))
    is_exact = paradigm == STAGED or draw(st.booleans())
    cluster = plan["cluster"]
    if paradigm == STAGED:
        plan["workers"] = [{"name": "a", "count": 4, "step_s": 1, "jitter": {"sigma": 0.4}}]
        plan["faults"] = []
        plan["cluster"] = {"step_deadline_s": 1e6}
    elif "exchange" not in paradigm:
        cluster["wire"] = draw(st.sampled_from(WIRES))
        workers = sum(group["count"] for group in plan["workers"])
        cluster["min_workers"] = draw(st.sampled_from([1, 1, draw(st.integers(1, workers))]))
    cluster["server_log_bytes"] = draw(st.sampled_from([1, 20 * BYTES, 2**30]))
    plan["workload"] = {"samples": draw(st.integers(10, 120)) * (4 if trains else 1)}
    plan["checkpoint"] = draw(
        st.one_of(
            st.builds(lambda s: {"every_s": s}, st.floats(0.2, 9)),
            st.builds(lambda share: {"every_progress": share}, st.floats(0.02, 0.4)),
        )
        if is_exact
        else st.just({"every_s": 1e6})  # the cuts are asked for
    )
    if "local" in repr(paradigm):
        plan["local"] = draw(st.sampled_from([{"lr": 0.05}, {"optimizer": "adamw", "lr": 0.01}]))
    plan |= {"engine": "virtual", "batch_size": 1, "timing": "only"}
    deaths: list[ProcessEnd] = []
    if trains:
        learns = {"update": {"lr": 0.1, "momentum": 0.9}, "evaluation": {"marks": 4}}
        plan |= {"batch_size": 4, "timing": "with-gradients", "keep": "best", **learns}
        if not is_exact and cluster["restarts"]["attempts"]:
            ends = st.builds(ProcessEnd, st.floats(0, 15), freezes=st.booleans())
            deaths = sorted(draw(st.lists(ends, min_size=1, max_size=3)), key=lambda end: end.at)
    return Schedule(plan, paradigm, deaths, is_exact, draw(SHARES))


def check(schedule: Schedule, seen: Counter[str]) -> None:
    """Check a schedule, and count what happened.

    Raises:
        AssertionError: a promise is broken.
    """
    trains = schedule.settings["timing"] != "only"
    model = with_statistics if trains or schedule.paradigm == STAGED else SMALL
    training = prepare(config.validate(schedule.settings), model, DATA)
    choice = ParadigmChoice(**schedule.paradigm)
    seen["trained"] += trains
    seen["exact" if schedule.is_exact else "cut"] += 1
    (check_exact if schedule.is_exact else check_cut)(schedule, training, choice, seen)


def check_exact(
    schedule: Schedule, training: TrainingPlan, choice: ParadigmChoice, seen: Counter[str]
) -> None:
    """Go on from a checkpoint, and once more from one of that run."""
    whole = VirtualEngine()
    lines, checkpoints = lines_of(whole.run(training, choice.make()))
    count(lines, seen)
    for share in schedule.shares:
        if not checkpoints:
            break
        checkpoint = checkpoints[int(share * len(checkpoints))]
        cut = lines.index(Checkpointed(checkpoint.at, checkpoint.number)) + 1
        history = [decode(encode(line)) for line in lines[:cut]]
        engine = VirtualEngine()
        rest, checkpoints = lines_of(
            engine.run(training, choice.make(), None, from_file(checkpoint), partial(list, history))
        )
        seen["resumed exactly"] += 1
        assert [*map(encode, rest)] == [*map(encode, lines[cut:])], "other lines"
        assert engine.models == whole.models, "another model was kept"


def lines_of(reports: Any) -> tuple[list[Line], list[Checkpoint]]:
    """Return the lines and the checkpoints of a run."""
    reports = list(reports)
    lines = [line for each in reports if not isinstance(each, Checkpoint) for line in each]
    return lines, [each for each in reports if isinstance(each, Checkpoint)]


def from_file(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint as it is read from its folder."""
    return replace(checkpoint, state=json.loads(json.dumps(checkpoint.state)))


def check_cut(
    schedule: Schedule, training: TrainingPlan, choice: ParadigmChoice, seen: Counter[str]
) -> None:
    """Lose the run after some numbers of events, and go on from a cut each time."""

    # without a log of updates, a run that loses its server goes back to its checkpoint as a whole
    has_log = log_bytes(training.experiment, training.vector_bytes) > 0

    def coming() -> dict[str, Sequence[ProcessEnd]]:
        """The ends of the server after the latest checkpoint."""
        since = -1.0 if checkpoint is None else checkpoint.at
        ends = [end for end in schedule.deaths if end.at > since]
        return {SERVER: ends} if ends and has_log else {}

    lines: list[Line] = []
    checkpoint: Checkpoint | None = None
    pushes = training.workload_samples // training.experiment.batch_size
    for share in schedule.shares:
        more, following = interrupted(training, choice, int(share * pushes), checkpoint, coming())
        if following is None:
            break
        checkpoint = from_file(following)
        lines += [*more, Resumed(checkpoint.at, checkpoint.number)]
        seen["resumed from a cut"] += 1
    driver = driver_of(training, choice.make(), checkpoint, coming())
    lines += lines_of(driver.run())[0]
    count(lines, seen)
    texts = [header(choice.make(), training.workload_samples), *map(encode, lines)]
    found = judge_journal([text + "\n" for text in texts], partial(rebuild, trust=True))
    assert not any(found.values()), found
    roster = driver.topology.roster
    assert driver.status != "finished" or roster.samples_applied >= training.workload_samples
    if schedule.paradigm in SYNCHRONOUS and driver.backend.computes and not lost(lines):
        undisturbed = driver_of(training, choice.make())
        if not lost(lines_of(undisturbed.run())[0]):
            seen["BSP weights bit-equal"] += 1
            assert torch.equal(weights_of(driver), weights_of(undisturbed)), "other weights"


def lost(lines: Sequence[Line]) -> int:
    """Count the workers that were lost on the way, or left."""
    return sum(isinstance(line, Entry) and isinstance(line.event, Left) for line in lines)


def count(lines: Sequence[Line], seen: Counter[str]) -> None:
    seen["events"] += sum(isinstance(line, Entry) for line in lines)
    seen["workers lost"] += lost(lines)
    seen["servers lost"] += sum(
        isinstance(line, Remark) and " and recovered after " in line.text for line in lines
    )


def check_batch(first: int, size: int) -> dict[str, Any]:
    """Check a batch of schedules, and return its row of the results."""
    seen, began = Counter[str](), time.monotonic()
    breaks, log = Breaks(), logging.getLogger(driver_module.__name__)
    log.addHandler(breaks)
    every = list(HealthCheck)
    drawn = given(schedules())(lambda schedule: check(schedule, seen))
    limits = settings(max_examples=size, database=None, deadline=None, suppress_health_check=every)
    try:
        seed(first)(limits(drawn))()
    except Exception:
        seen["failures"] += 1
        traceback.print_exc()
    finally:
        log.removeHandler(breaks)
    minutes = round((time.monotonic() - began) / 60, 1)
    counts = {name: seen[name] for name in COUNTED}
    return {"first": first, "schedules": size, **counts, "minutes": minutes}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=1000, help="how many in a batch")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--batches", type=int, default=1, help="how many batches")
    parser.add_argument("--write", type=Path, help="add a row for each batch to this file (CSV)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for batch in range(arguments.batches):
        row = check_batch(arguments.first + batch * arguments.schedules, arguments.schedules)
        print(json.dumps(row), flush=True)
        if file := arguments.write:
            pd.DataFrame([row]).to_csv(file, mode="a", index=False, header=not file.exists())


if __name__ == "__main__":
    main()
