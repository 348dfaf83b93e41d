"""Rounds whose workers exchange their gradients among themselves, against closed forms and against
the same rounds through a server.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import pytest
import torch

from raysync import config
from raysync.config import STANDARD_COMPARISON, ParadigmChoice
from raysync.core.decisions import Apply, Release
from raysync.core.events import Pushed
from raysync.decoupled.plan import check
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.paradigms.bsp import BSP
from raysync.training.preparation import prepare
from raysync.virtual.all_reduce import faster_s, ring_s, tree_s
from raysync.virtual.engine import driver_of
from tests.builders.messages import naming, tells
from tests.builders.plans import BYTES
from tests.builders.virtual import (
    DATA,
    SMALL,
    busy,
    entries,
    learn,
    push_times,
    run,
    timed,
    weights_of as newest,
)

RING = {"name": "bsp", "exchange": "ring"}


def made(paradigm):
    parameters = dict(paradigm)
    return make(parameters.pop("name"), **parameters)


LINK = {"latency_s": 0.25, "bandwidth_bytes_per_s": BYTES}


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("exchange", ["ring", "tree", "all-reduce"])
def test_a_round_is_a_step_the_exchange_and_every_workers_own_update(workers, exchange):
    """A vector takes 1 s, the latency is 0.25 s. Ring: n - 1 steps there and back, each of 1/n
    vector. Tree: as many levels as it takes to double from 1 to n, there and back.
    """
    levels = next(level for level in range(9) if 2**level >= workers)
    ring = sum(1 / workers + 0.25 for _ in range(2 * (workers - 1)))
    tree = sum(1 + 0.25 for _ in range(2 * levels))
    exchange_s = {"ring": ring, "tree": tree, "all-reduce": min(ring, tree)}[exchange]
    training = timed(
        workers=[{"count": workers, "step_s": 1}],
        network={
            "link": LINK,
            "update_s": 2,
            "update_bytes_per_s": BYTES / 3,
            "server_bandwidth_bytes_per_s": 1e-3,  # there is no server, so no such link
        },
        cluster={"server_shards": 2},
        workload={"samples": 3 * workers},
    )
    lines = run(training, "bsp", exchange=exchange)
    cycle_s = 1 + exchange_s + 2 + 3
    for times in push_times(lines).values():
        assert times == pytest.approx([1 + number * cycle_s for number in range(3)], rel=1e-12)
    assert lines[-1].at == pytest.approx(3 * cycle_s, rel=1e-12)
    assert set(busy(lines).values()) == {1}


def test_short_vectors_go_over_a_tree_and_long_ones_over_a_ring():
    assert faster_s(16, 8, 0.01, 1e6) == tree_s(16, 8, 0.01, 1e6) < ring_s(16, 8, 0.01, 1e6)
    assert faster_s(16, 1e8, 0.01, 1e6) == ring_s(16, 1e8, 0.01, 1e6) < tree_s(16, 1e8, 0.01, 1e6)


def test_the_slowest_link_of_the_round_sets_the_pace():
    """The far worker has a link of its own, 1 s and half the bandwidth; a fault adds 2 s to its
    second step, and from 30 s on it is gone.
    """
    far = {"latency_s": 1, "bandwidth_bytes_per_s": BYTES / 2}
    training = timed(
        workers=[
            {"name": "near", "count": 2, "step_s": 1},
            {"name": "far", "step_s": 1, "link": far},
        ],
        network={"link": LINK},
        faults=[
            {"kind": "latency", "workers": ["far"], "added_s": 2, "clocks": [1, 2]},
            {"kind": "crash", "worker": "far-0", "at_s": 22},
        ],
        workload={"samples": 3 + 3 + 2},
    )
    first = 4 / 3 * 2 + 4 * 1.25
    second = 4 / 3 * 2 + 4 * 3.25
    times = push_times(run(training, "bsp", exchange="ring"))
    assert times["near-0"] == pytest.approx([1, 2 + first, 3 + first + second])
    assert len(times["far-0"]) == 2


@pytest.mark.parametrize("exchange", ["ring", "tree", "all-reduce"])
def test_the_arithmetic_is_that_of_bsp(exchange):
    settings = {
        "engine": "virtual",
        "workers": [{"count": 3, "step_s": 1}, {"name": "slow", "step_s": 2}],
        "network": {"link": LINK, "update_s": 0.5},
        "update": {"lr": 0.05, "momentum": 0.9, "clip_norm": 1.0},
        "workload": {"samples": 4 * 8 * 6},
        "batch_size": 8,
    }
    training = prepare(config.validate(settings), SMALL, DATA)
    through_server, first = learn(training, "bsp")
    among_workers, second = learn(training, "bsp", exchange=exchange)
    assert torch.equal(newest(first), newest(second))
    losses = [
        [entry.report.loss for entry in entries(lines, Pushed)]
        for lines in (through_server, among_workers)
    ]
    assert sorted(losses[0]) == sorted(losses[1])
    assert through_server[-1].at != among_workers[-1].at


@pytest.mark.parametrize(
    "wrapper",
    [{"name": "balanced"}, {"name": "ringmaster", "staleness": 0}],
    ids=lambda it: it["name"],
)
def test_a_wrapper_passes_the_exchange_on(wrapper):
    """Two workers, of 1 s each; a vector takes 1 s and the latency is 0.25 s: over a ring of two,
    2 x (1/2 + 1/4) s.
    """
    training = timed(
        workers=[{"count": 2, "step_s": 1}],
        network={"link": LINK},
        workload={"samples": 8},
        batch_size=1,
    )
    lines = run(training, ParadigmChoice.model_validate(wrapper | {"paradigm": RING}))
    assert lines[-1].at == pytest.approx(4 * (1 + 1.5), rel=1e-12)


def check_of(paradigm, engine):
    check(config.validate({"engine": engine}), made(paradigm))


@pytest.mark.parametrize(
    ("engine", "paradigm", "names"),
    [
        ("ray", RING, "bsp: exchange: ring:"),
        ("ray", {"name": "balanced", "paradigm": RING}, "balanced: exchange: ring:"),
        ("ray", {"name": "ringmaster", "paradigm": RING}, "ringmaster: exchange: ring:"),
        ("virtual", {"name": "decoupled", "modules": 2, "sync": RING}, "decoupled: sync: exchange"),
        ("virtual", {"name": "asp", "exchange": "ring"}, "asp exchange"),
        ("virtual", {"name": "ssp", "staleness": 3, "exchange": "ring"}, "ssp exchange"),
        ("virtual", {"name": "sync-switch", "first": RING}, "sync-switch exchange"),
        ("virtual", {"name": "sync-switch", "then": [RING]}, "sync-switch exchange"),
        ("virtual", {"name": "bsp", "exchange": "rin"}, "bsp exchange"),
    ],
    ids=str,
)
def test_who_has_no_rounds_or_no_collective_refuses_it_by_name(engine, paradigm, names):
    """Ray, stages, and paradigms without rounds or with phases."""
    with pytest.raises(ConfigError, match=naming(names)):
        check_of(paradigm, engine)


def test_it_stands_in_the_default_comparison_where_links_are_described():
    link = {"bandwidth_bytes_per_s": 1e8}
    described = {"engine": "virtual", "network": {"link": link}}
    labels = [choice.label for choice in config.validate(described).paradigms]
    assert labels == [
        "bsp",
        "bsp(exchange=all-reduce)",
        *(choice.label for choice in STANDARD_COMPARISON[1:]),
    ]
    of_group = {"engine": "virtual", "workers": [{"count": 2, "link": link}]}
    assert len(config.validate(of_group).paradigms) == 6
    for other in (
        {"engine": "virtual"},
        {"network": {"link": link}},
        {"engine": "virtual", "network": {"update_s": 1}},
        {"engine": "virtual", "workers": [{"link": link}]},
    ):
        assert config.validate(other).paradigms == STANDARD_COMPARISON
    assert len(config.validate(described | {"paradigms": ["asp"]}).paradigms) == 1


def test_a_round_goes_on_with_a_gradient_that_a_checkpoint_kept():
    """The run is resumed from a cut between the two pushes of its second round: the exchange takes
    as long as that of the other rounds, though one gradient comes from the server's file.
    """
    training = prepare(
        config.validate(
            {
                "engine": "virtual",
                "batch_size": 4,
                "workers": [{"name": "near", "step_s": 1}, {"name": "far", "step_s": 2}],
                "network": {"link": {"latency_s": 0.25}},
                "workload": {"samples": 24},
            }
        ),
        lambda: torch.nn.Linear(3, 4),
        DATA,
    )
    whole = driver_of(training, made(RING))
    expected = [line for lines in whole.run() for line in lines]
    cut = driver_of(training, made(RING))
    cut.start()
    while not cut.checkpoints:
        is_there = (len(cut.topology.roster.buffered), cut.topology.server.version) == (1, 1)
        if is_there and not cut.checkpointer.is_pending:
            cut.checkpointer.request()
        cut.backend.wait()
    [checkpoint] = cut.checkpoints
    assert len(checkpoint.state["pushed"]) == 1
    resumed = driver_of(training, made(RING), checkpoint)
    lines = [line for lines in resumed.run() for line in lines]
    rounds_s = [
        [later - at for at, later in pairwise(push_times(each)["far-0"])]
        for each in (expected, lines)
    ]
    assert rounds_s == [pytest.approx([2.5] * 2), pytest.approx([2.5])]
    assert torch.equal(newest(resumed), newest(whole))


@dataclass
class Partial(BSP):
    """BSP by ring; the round of a part of the workers, if `k` is below their number."""

    name: ClassVar[str] = "partial"
    exchange: Literal["ring"] = "ring"
    k: int = 2
    tells: bool = False
    halves: bool = False

    def pushes_per_update(self, workers, phase=""):
        return self.k if self.tells else None

    def on_push(self, roster, push):
        if len(roster.buffered) < min(self.k, len(roster.members)):
            return []
        pushes = tuple(roster.buffered)
        parts = (pushes[:1], pushes[1:]) if self.halves else (pushes,)
        return [*map(Apply, parts), *map(Release, roster.held)]


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"k": 3}, None),
        ({"k": 3, "tells": True}, None),
        ({"k": 2, "tells": True}, ConfigError),
        ({"k": 2}, "w-"),
        ({"k": 1}, "w-"),
        ({"k": 3, "halves": True}, "1 of 3"),
    ],
)
def test_an_update_of_a_part_of_the_members_is_refused(parameters, error):
    training = timed(
        workers=[{"name": "w", "count": 3, "step_s": 1}],
        workload={"samples": 30},
        network={"link": {"latency_s": 0.1}},
    )
    rule = f"{__name__}:Partial"
    if error is ConfigError:
        with pytest.raises(ConfigError, match=naming("partial 2 3")):
            run(training, rule, **parameters)
        return
    *_, ended = run(training, rule, **parameters)
    assert ended.status == ("failed" if error else "finished")
    assert error is None or tells(ended.error, f"Partial.on_push {error}")
