"""When things happen, against what a pencil says. Times of virtual runs are exact, so they are
compared exactly.
"""

import pytest

from raysync.core.events import Left, Pushed
from raysync.paradigms import make
from raysync.virtual.engine import driver_of
from raysync.virtual.virtual_processes import ProcessEnd
from tests.builders.plans import BYTES
from tests.builders.virtual import (
    busy,
    churn,
    cut_task,
    decoupled,
    entries,
    push_times,
    run,
    timed,
    times_of,
)

UNEQUAL = [{"name": "fast", "step_s": 1}, {"name": "slow", "step_s": 3}]


@pytest.mark.parametrize(
    ("paradigm", "pushes", "fast", "slow"),
    [
        # A round takes as long as the slow one's step.
        ({"name": "bsp"}, 8, [1, 4, 7, 10], [3, 6, 9, 12]),
        # Nobody waits.
        ({"name": "asp"}, 8, [1, 2, 3, 4, 5, 6], [3, 6]),
        # fast starts its step c as soon as slow has pushed c - 1 of its own: c = 2 at 3 s, c = 3 at
        # 6 s.
        ({"name": "ssp", "staleness": 1}, 9, [1, 2, 4, 7, 10], [3, 6, 9, 12]),
        # As SSP(1) up to 7 s: until then slow has not pushed twice when fast asks. At 7 s (lead 2)
        # S_p = 7, 10, 13 and S_n = 9, 12, 15: r* = 1. At 8 s (lead 3, so r <= 1) S_p = 8, 9 meets
        # S_n = 9: r* = 1. At 9 s, after slow's push, S_p = 9, 10 and S_n = 12: r* = 1. At 10 s the
        # lead is 4, above s_upper: held until it is 1, when slow pushes at 18 s.
        (
            {"name": "lagtuner", "bound": "hard", "s_lower": 1, "s_upper": 3},
            14,
            [1, 2, 4, 7, 8, 9, 10, 19],
            [3, 6, 9, 12, 15, 18],
        ),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else None,
)
def test_two_workers_of_constant_speed(paradigm, pushes, fast, slow):
    training = timed(workers=UNEQUAL, workload={"samples": pushes})
    lines = run(training, paradigm.pop("name"), **paradigm)
    assert push_times(lines) == {"fast-0": fast, "slow-0": slow}
    assert (lines[-1].status, lines[-1].at) == ("finished", max(fast[-1], slow[-1]))


def test_groups_with_batches_of_their_own():
    """Equal devices of 1 s + 0.5 s a sample: 2 samples take 2 s, 6 take 4 s; the memory is full.

    A round of BSP takes 4 s and has 8 samples; under ASP each pushes at its own pace, and the run
    ends with the push at 8 s that brings the 16 samples.
    """
    device = {"fixed_s": 1, "per_sample_s": 0.5}
    training = timed(
        batch_size=6,
        workers=[
            {"name": "large", "max_batch": 6, **device},
            {"name": "small", "batch_size": 2, **device},
        ],
        workload={"iterations_per_worker": 2},
    )
    assert training.workload_samples == 16
    rounds = run(training, "bsp")
    assert push_times(rounds) == {"large-0": [4, 8], "small-0": [2, 6]}
    assert [entry.event.samples for entry in entries(rounds, Pushed)] == [2, 6, 2, 6]
    assert push_times(run(training, "asp")) == {"large-0": [4, 8], "small-0": [2, 4, 6]}


@pytest.mark.parametrize("paradigm", ["bsp", "asp", "ssp", "lagtuner"])
def test_a_cycle_is_compute_two_ways_and_the_update(paradigm):
    """Latency 0.25 s and 0.125 s, the slower of two bandwidths (64 bytes in 0.5 s), 2 s an update
    and 1 s to read it.
    """
    training = timed(
        workers=[{"step_s": 1, "link": {"latency_s": 0.125, "bandwidth_bytes_per_s": 10 * BYTES}}],
        network={
            "link": {"latency_s": 0.25, "bandwidth_bytes_per_s": 2 * BYTES},
            "update_s": 2,
            "update_bytes_per_s": BYTES,
        },
        workload={"samples": 4},
    )
    way_s, server_s = 0.375 + 0.5, 2 + 1
    lines = run(training, paradigm)
    cycle_s = 1 + 2 * way_s + server_s
    assert push_times(lines) == {"worker-0": [2 * way_s + 1 + n * cycle_s for n in range(4)]}
    assert lines[-1].at == 2 * way_s + 1 + 3 * cycle_s + server_s, "the end is the last publication"
    assert set(busy(lines).values()) == {1}


def test_weights_that_stay_published_are_there_while_an_update_goes_on():
    """Every second update is published: 10 s of waiting after those, none after the others, which
    the next one waits for.
    """
    training = timed(workers=[{"step_s": 1}], network={"update_s": 10}, workload={"samples": 6})
    lines = run(training, "hybrid", pull_interval=2, snapshot="global")
    assert push_times(lines) == {"worker-0": [1, 12, 13, 33, 34, 54]}
    assert lines[-1].at == 64
    assert push_times(run(training, "hybrid")) == {"worker-0": [1 + 11 * n for n in range(6)]}


def test_sixteen_that_push_at_once_take_the_servers_link_sixteen_times_as_long():
    times = times_of(
        "bsp",
        48,
        workers=[{"count": 16, "step_s": 1}],
        network={"server_bandwidth_bytes_per_s": BYTES, "share_sigma": 0},
    )

    for turn in range(16):
        assert times[f"worker-{turn}"] == [33 * number + 16 + 1 + 16 for number in range(3)]


def test_uploads_do_not_disturb_downloads():
    """A vector takes 4 s, and both download the first until 8 s. a's second download and b's first
    upload (13 s to 17 s) go past each other.
    """
    found = times_of(
        "asp",
        3,
        workers=[{"name": "a", "step_s": 1}, {"name": "b", "step_s": 5}],
        network={"server_bandwidth_bytes_per_s": BYTES / 4, "share_sigma": 0},
    )
    assert found == {"a-0": [13, 22], "b-0": [17]}


def test_a_slow_link_of_ones_own_delays_nobody_else():
    """Its own link is the slower one; the server's has room for both."""
    far = {"latency_s": 1, "bandwidth_bytes_per_s": BYTES / 2}
    training = timed(
        workers=[
            {"name": "near", "step_s": 1, "link": {"bandwidth_bytes_per_s": 2 * BYTES}},
            {"name": "far", "step_s": 1, "link": far},
        ],
        network={"server_bandwidth_bytes_per_s": 2.5 * BYTES, "share_sigma": 0},
        workload={"samples": 8},
    )
    lines = run(training, "asp")
    far_at = 2 + 1 + 1 + 2 + 1
    assert push_times(lines) == {"near-0": [2, 4, 6, 8, 10, 12], "far-0": [far_at, 14]}
    [first, _] = [e.event for e in entries(lines, Pushed) if e.event.worker == "far-0#1"]
    assert (first.computed_at, first.at, first.busy_s) == (4, far_at, 1)


def test_an_update_waits_for_the_one_before_it():
    """Two gradients arrive at 1 s; each update takes 2 s: the second one's weights are there at 5
    s.
    """
    found = times_of("asp", 4, workers=[{"count": 2, "step_s": 1}], network={"update_s": 2})
    assert found == {"worker-0": [1, 3 + 1], "worker-1": [1, 5 + 1]}


def test_under_bsp_an_update_reads_all_gradients_and_waits_for_the_last():
    training = timed(
        workers=[{"name": "a", "step_s": 1}, {"name": "b", "step_s": 1, "link": {"latency_s": 3}}],
        network={"update_s": 0.5, "update_bytes_per_s": BYTES},
        workload={"samples": 4},
    )
    updated_at = 3 + 1 + 3 + 0.5 + 2  # b pulls, computes and uploads; then two gradients are read
    assert push_times(run(training, "bsp")) == {
        "a-0": [1, updated_at + 1],
        "b-0": [7, updated_at + 7],
    }


@pytest.mark.parametrize(
    ("servers", "placement", "first", "other"),
    [
        (1, "apart", 8, 8),
        (2, "apart", 4, 4),  # each server carries half of each vector
        (4, "apart", 2, 2),
        (2, "with-workers", 2, 2),  # half of each vector stays at home
        (4, "with-workers", 1, 1),  # four servers at two workers: each has two of them
        (1, "with-workers", 0, 4),  # the server's own worker sends nothing over the network
    ],
)
def test_servers_share_the_bytes_and_those_at_home_do_not_travel(servers, placement, first, other):
    """Two workers at once, a vector in 4 s over a server's link."""
    found = times_of(
        "bsp",
        2,
        workers=[{"count": 2, "step_s": 1}],
        network={"server_bandwidth_bytes_per_s": BYTES / 4, "share_sigma": 0},
        cluster={"server_shards": servers, "server_placement": placement},
    )
    assert found == {"worker-0": [first + 1 + first], "worker-1": [other + 1 + other]}


def test_a_worker_beside_the_only_server_has_no_latency_to_it():
    found = times_of(
        "asp",
        3,
        workers=[{"step_s": 1, "link": {"latency_s": 1, "bandwidth_bytes_per_s": BYTES}}],
        cluster={"server_placement": "with-workers"},
    )
    assert found == {"worker-0": [1, 2, 3]}


def test_servers_at_workers_share_the_slowest_link_of_those():
    """Three workers, servers at the first two, the second with a link of 8 s a vector: it carries
    half a vector for one of the hosts, and half of each vector of the third.
    """
    rates = {"a": BYTES * 8, "b": BYTES / 8, "c": None}
    found = times_of(
        "bsp",
        3,
        workers=[
            {"name": name, "step_s": 1, "link": {"bandwidth_bytes_per_s": rate}}
            for name, rate in rates.items()
        ],
        cluster={"server_shards": 2, "server_placement": "with-workers"},
        network={"share_sigma": 0},
    )
    assert list(found.values()) == [[8 + 1 + 8]] * 3


def test_servers_read_their_parts_of_a_gradient_at_the_same_time():
    found = times_of(
        "asp",
        2,
        workers=[{"step_s": 1}],
        network={"update_s": 0.5, "update_bytes_per_s": BYTES},
        cluster={"server_shards": 4},
    )
    assert found == {"worker-0": [1, 1 + 0.5 + 0.25 + 1]}


SLOW = [
    ({"step_s": 8}, [], [8, 16]),
    ({"step_s": 2, "speed": 0.25}, [], [8, 16]),
    ({"fixed_s": 4, "per_sample_s": 4}, [], [8, 16]),
    ({"trace": [2, 6]}, [], [2, 8]),
    ({"step_s": 2, "jitter": {"distribution": "empirical", "samples": [1, 7]}}, [], None),
    (
        {"step_s": 2},
        [{"kind": "slow-down", "workers": ["b"], "factor": 4, "clocks": [1, 2]}],
        [2, 10],
    ),
    ({"step_s": 2, "link": {"latency_s": 3}}, [], [8, 16]),
]


@pytest.mark.parametrize(("worker", "faults", "pushes"), SLOW)
@pytest.mark.parametrize("paradigm", ["bsp", "asp"])
def test_a_step_that_is_known_to_be_long_does_not_count_as_frozen(paradigm, worker, faults, pushes):
    """Whatever makes it long: the deadline is what a step may take beyond that."""
    training = timed(
        workers=[{"name": "a", "step_s": 1}, {"name": "b", **worker}],
        cluster={"step_deadline_s": 1.0},
        faults=faults,
        workload={"samples": 12 if paradigm == "bsp" else 30},
    )
    lines = run(training, paradigm)
    assert churn(lines) == []
    assert lines[-1].status == "finished"
    if pushes is not None:
        assert push_times(lines)["b-0"][:2] == pushes


def test_stages_that_are_known_to_be_slow_do_not_count_as_frozen():
    training = cut_task(2, 1, timing="only", workers=[{"count": 2, "step_s": 120}])
    lines = decoupled(training, 2, 1, locked=True)
    assert lines[-1].status == "finished"
    assert not [line for line in entries(lines, Left) if not line.report.done]


@pytest.mark.parametrize("step_s", [0.5, 120])
def test_a_worker_that_freezes_is_missed_a_deadline_after_its_step_was_due(step_s):
    training = timed(
        workers=[{"name": "a", "step_s": 1}, {"name": "b", "step_s": step_s}],
        cluster={"step_deadline_s": 7.5, "restarts": {"attempts": 0}},
        workload={"samples": 200},
    )
    ends = {"b-0#1": [ProcessEnd(0.25, freezes=True)]}
    driver = driver_of(training, make("bsp"), ends=ends)
    [(_, worker, at)] = churn([line for lines in driver.run() for line in lines])
    assert worker == "b-0#1"
    assert step_s + 7.5 <= at <= step_s + 2 * 7.5 + 1


def test_speed_divides_what_step_s_or_a_trace_says_and_jitter_multiplies_it():
    training = timed(
        workers=[
            {"name": "a", "step_s": 3, "speed": 2},
            {"name": "b", "trace": [3, 6], "speed": 3},
            {"name": "c", "step_s": 3, "jitter": {"distribution": "none", "sigma": 1}},
        ],
        workload={"samples": 6},
    )
    steps = busy(run(training, "bsp"))
    for clock, expected in enumerate([[1.5, 1, 3], [1.5, 2, 3]]):
        assert [steps[f"{name}-0#1", clock] for name in "abc"] == expected


def test_workers_of_one_trace_begin_at_different_places():
    training = timed(workers=[{"count": 2, "trace": [1, 2, 3, 4, 5]}], workload={"samples": 12})
    steps = busy(run(training, "bsp"))
    assert [steps["worker-0#1", clock] for clock in range(6)] == [1, 2, 3, 4, 5, 1]
    assert [steps["worker-1#1", clock] for clock in range(6)] == [3, 4, 5, 1, 2, 3], (
        "the second of two: half the way"
    )


@pytest.mark.parametrize("engine_s", [1, 1000])
def test_a_slow_link_is_slow_and_nobody_is_lost(engine_s):
    """A vector takes 1,000 s each way, far beyond what silence a real machine is granted; so does a
    step, or an update.
    """
    training = timed(
        workers=[{"count": 2, "step_s": engine_s, "link": {"bandwidth_bytes_per_s": BYTES / 1000}}],
        network={"update_s": engine_s},
        cluster={"step_deadline_s": 2},
        workload={"samples": 4},
    )
    lines = run(training, "bsp")
    assert not entries(lines, Left)
    first = 1000 + engine_s + 1000
    assert push_times(lines)["worker-0"] == [first, 2 * first + engine_s]
