"""What the description of a network means in seconds: closed forms, with the pencil beside them,
and an event loop that shares no code with ours.
"""

import pytest
import yaml
from hypothesis import assume, given, settings, strategies as st

from raysync import config
from raysync.config import ParadigmChoice
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.training.preparation import prepare
from raysync.virtual.engine import driver_of
from tests.builders.messages import naming
from tests.builders.plans import BYTES
from tests.builders.virtual import TIMING, cut_task, push_times, run, timed, times_of
from tests.virtual.network_oracle import Cluster

ONE = [{"step_s": 1}]
TWO = [{"name": "a", "step_s": 1}, {"name": "b", "step_s": 1}]


def times(paradigm="asp", samples=3, workers=ONE, **described):
    return times_of(paradigm, samples, workers, **described)


@pytest.mark.parametrize(
    ("network", "pull_s", "push_s"),
    [
        ({"link": {"bandwidth_bytes_per_s": BYTES / 2}}, 2, 2),
        ({"server_bandwidth_bytes_per_s": BYTES}, 1, 1),
        # There, and there and back for each round trip: 5 ways of 0.5 s, and one.
        ({"link": {"latency_s": 0.5}, "pull_round_trips": 2}, 2.5, 0.5),
        ({"push_s": 0.5}, 0, 0.5),
        ({"nodes": [{"name": "n", "workers": ["worker"],
                     "link": {"latency_s": 0.5, "bandwidth_bytes_per_s": BYTES}}]}, 1.5, 1.5),
        # Row: from, column: to. The worker is in x, the server in y: down from y to x.
        ({"regions": {"names": ["x", "y"], "server": "y",
                      "bandwidth_bytes_per_s": [[None, BYTES], [BYTES / 2, None]],
                      "latency_s": [[9, 0.25], [0.5, 9]]}}, 2.5, 1.25),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)  # fmt: skip
def test_one_worker_takes_its_pull_its_step_and_its_push(network, pull_s, push_s):
    workers = [{"step_s": 1, **({"region": "x"} if "regions" in network else {})}]
    cycle_s = pull_s + 1 + push_s
    assert times(workers=workers, network=network) == {
        "worker-0": [cycle_s, 2 * cycle_s, 3 * cycle_s]
    }


def test_a_fault_adds_its_latency_to_each_way_of_a_round_trip():
    """Three ways of 0.5 s until the weights are there, a step, and one way of its push."""
    found = times(
        network={"pull_round_trips": 1}, faults=[{"kind": "latency", "added_s": 0.5}], samples=2
    )
    assert found == {"worker-0": [3, 6]}


def test_the_coordinator_takes_pushes_in_one_after_another_in_the_order_of_arrival():
    """a computes for 1 s and is taken in for 0.5 s: 1.5 s, 3 s, and it is there again at 4 s. b
    pulls for 1.5 s, computes until 2.5 s and is there at 4 s too. It was sent first, so it is taken
    in first, until 4.5 s, and a until 5 s.
    """
    workers = [{"name": "b", "step_s": 1, "link": {"latency_s": 1.5}}, {"name": "a", "step_s": 1}]
    assert times(workers=workers, samples=4, network={"push_s": 0.5}) == {
        "a-0": [1.5, 3, 5],
        "b-0": [4.5],
    }


def test_updates_go_on_while_the_coordinator_takes_pushes_in():
    """Three push at 1 s, are taken in at 1.5, 2 and 2.5 s, and updated at 2, 2.5 and 3 s."""
    found = times(workers=[{"count": 3, "step_s": 1}], samples=6,
                  network={"push_s": 0.5, "update_s": 0.5})  # fmt: skip
    assert found == {"worker-0": [1.5, 3.5], "worker-1": [2, 4], "worker-2": [2.5, 4.5]}


def test_workers_of_a_node_share_its_link_and_nobody_else_does():
    """A vector takes the node 2 s: a and b together 4 s; c nothing."""
    node = {"name": "n", "workers": ["a", "b"], "link": {"bandwidth_bytes_per_s": BYTES / 2}}
    workers = [*TWO, {"name": "c", "step_s": 1}]
    equal = times("bsp", workers=workers, network={"nodes": [node], "share_sigma": 0})
    assert equal == {"a-0": [4 + 1 + 4], "b-0": [4 + 1 + 4], "c-0": [1]}


def test_shares_are_unequal_where_transfers_of_different_hosts_meet():
    """All pull from one host, so all compute at the same time: the last push comes when all fit."""
    network = {"server_bandwidth_bytes_per_s": BYTES, "share_sigma": 0.5}
    ends = [end for [end] in times("bsp", 4, [{"count": 4, "step_s": 1}], network=network).values()]
    assert max(ends) == pytest.approx(4 + 1 + 4)
    assert len(set(ends)) == 4


def test_a_server_on_a_node_is_at_home_for_all_its_workers():
    """The only server is with a; b is on its node, and c outside, over its link of 2 s a vector."""
    node = {"name": "n", "workers": ["a", "b"], "link": {"bandwidth_bytes_per_s": BYTES / 2}}
    found = times("bsp", workers=[*TWO, {"name": "c", "step_s": 1}], network={"nodes": [node]},
                  cluster={"server_placement": "with-workers"})  # fmt: skip
    assert found == {"a-0": [1], "b-0": [1], "c-0": [2 + 1 + 2]}


def switching(samples, fraction, phases):
    """When two workers of 1 s push, under BSP and then under ASP."""
    choice = ParadigmChoice(name="sync-switch", fraction=fraction)
    workers, network = [{"count": 2, "step_s": 1}], {"phases": phases}
    return times_of(choice, samples, workers, network=network, paradigm="sync-switch")


def test_each_phase_has_its_network():
    """BSP for half of eight pushes: rounds of two that the coordinator takes in, 1 s each, in 1 + 2
    s. Then ASP: 1 s a push and 0.25 s an update, which are one after the other.
    """
    phases = {"bsp": {"push_s": 1}, "asp": {"update_s": 0.25, "push_s": 0}}
    assert switching(8, 0.5, phases) == {"worker-0": [2, 5, 7, 8.25], "worker-1": [3, 6, 7, 8.5]}


@pytest.mark.parametrize("phases", [{}, {"asp": {"push_s": 1}}])
def test_values_are_delivered_where_a_later_phase_may_have_ways(phases):
    training = timed(paradigm="sync-switch", network={"phases": phases})
    assert driver_of(training, make("sync-switch")).backend.transit.delivers == bool(phases)


def test_what_was_pushed_before_a_switch_does_not_travel_again_after_it():
    """BSP's network takes no time; with ASP each way takes 1 s. Nothing is sent twice."""
    phases = {"asp": {"link": {"latency_s": 1}}}
    assert switching(6, 1 / 3, phases) == {"worker-0": [1, 4, 7], "worker-1": [1, 4, 7]}


def test_a_vector_has_a_size_without_a_model():
    """12.5 MB over 125 MB/s: 0.1 s each way."""

    def must_not_be_built():
        raise AssertionError("a model is built")

    experiment = config.validate(
        TIMING
        | {
            "workers": ONE,
            "workload": {"samples": 2},
            "network": {"vector_bytes": 12_500_000, "link": {"bandwidth_bytes_per_s": 1.25e8}},
        }
    )
    training = prepare(experiment, model=must_not_be_built)
    assert push_times(run(training, "asp")) == {"worker-0": pytest.approx([1.2, 2.4])}


def test_values_go_from_stage_to_stage_over_their_regions():
    """1 s of latency from x to y, 2 s back, the servers in x: the first batch comes 1 s later to
    the second stage, whose gradients come 2 s later to its server and to the first stage.
    """
    regions = {
        "names": ["x", "y"],
        "server": "x",
        "bandwidth_bytes_per_s": [[1e30, 1e30], [1e30, 1e30]],
        "latency_s": [[0, 1], [2, 0]],
    }

    def first(network, *places):
        workers = [
            {"name": name, "step_s": 1} | place for name, place in zip("ab", places, strict=True)
        ]
        training = cut_task(2, 1, **(TIMING | {"workers": workers, "network": network}))
        return [pushes[0] for pushes in push_times(run(training, **CUT)).values()]

    without = first({}, {}, {})
    there = first({"regions": regions}, {"region": "x"}, {"region": "y"})
    assert there == pytest.approx([at + 1 + 2 for at in without])


CUT = {"paradigm": "decoupled", "modules": 2, "groups": 1}
SQUARE = {"names": ["x", "y"], "server": "x", "bandwidth_bytes_per_s": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": {"regions": SQUARE | {"bandwidth_bytes_per_s": [[1, 2]]}}}, "1 rows for 2"),
        ({"network": {"regions": SQUARE | {"bandwidth_bytes_per_s": [[1, 2], [3]]}}},
         "'y' 1 2 regions"),
        ({"network": {"regions": SQUARE | {"latency_s": [[0]]}}}, "latency_s: 1 rows"),
        ({"network": {"regions": SQUARE}}, "region:"),
        ({"network": {"regions": SQUARE | {"server": "z"}}}, "unknown region 'z'"),
        ({"network": {"regions": SQUARE}, "workers": [{"region": "z"}]}, "unknown region 'z'"),
        ({"network": {"regions": SQUARE | {"server": None}}, "workers": [{"region": "x"}]},
         "regions.server:"),
        ({"network": {"regions": SQUARE | {"bandwidth_bytes_per_s": [[1, 2], [None, 4]]}},
          "workers": [{"region": "y"}]}, "link 'y' 'x'"),
        ({"network": {"regions": SQUARE | {"server": None}},
          "workers": [{"name": "a", "region": "x"}, {"name": "b", "region": "y"}],
          "cluster": {"server_placement": "with-workers", "server_shards": 2}}, "in 2 regions"),
        ({"workers": [{"region": "x"}]}, "network.regions"),
        ({"network": {"nodes": [{"name": "n", "workers": ["wroker"]}]}}, "'worker'"),
        ({"network": {"nodes": [{"name": "n", "workers": ["worker", "worker-0"]},
                                {"name": "m", "workers": ["worker-0"]}]}}, "'n' already"),
        ({"network": {"vector_bytes": 8}}, "step_s per_sample_s"),
        ({"network": {"vector_bytes": 8}, "timing": "with-gradients"}, "timing:"),
        ({"network": {"phases": {"asp": {}}}}, "phases"),
        ({"network": {"phases": {"bps": {}}}, "paradigm": "sync-switch"}, "'bps'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(settings, message):
    with pytest.raises(ConfigError, match=naming(message)):
        config.validate(TIMING | settings)


@pytest.mark.parametrize("network", [{"vector_bytes": 8}, {"phases": {"bsp": {"push_s": 1}}}])
def test_a_network_in_stages_refuses_what_it_cannot_hold(network):
    workers = [{"count": 2, "step_s": 1}]
    settings = {"workers": workers, "network": network, "paradigms": ["sync-switch"]}
    training = cut_task(2, 1, **(TIMING | settings))
    with pytest.raises(ConfigError, match=rf"network\.{next(iter(network))}"):
        run(training, **CUT)


def test_halos_asynchronous_step_is_computing_and_two_transfers():
    """The worker of region 3 with speed 0.827, of 0.907 at most: 0.238391 x 0.907 / 0.827 s, and
    twice 281.7 MB over 0.202 Gbit/s.
    """
    size = 281_702_400
    settings = TIMING | {"profile": "halos-4x4", "workload": {"samples": 2000}}
    settings.pop("workers", None)
    experiment = config.parse(
        yaml.safe_dump(settings), [f"network.vector_bytes={size}"], source="x.yaml"
    )
    found = push_times(run(prepare(experiment), "asp"))
    cycle_s = 0.238391 * 0.907 / 0.827 + 2 * size * 8 / 0.202e9
    assert found["region3-a-0"][:2] == pytest.approx([cycle_s, 2 * cycle_s], rel=1e-5)


seconds = st.floats(0.01, 3)
rates = st.floats(BYTES / 3, BYTES * 20)
links = st.fixed_dictionaries(
    {"latency_s": seconds, "bandwidth_bytes_per_s": st.one_of(st.none(), rates)}
)


@st.composite
def described(draw):
    names = "abcd"[: draw(st.integers(1, 4))]
    placement = draw(st.sampled_from(["apart", "apart", "with-workers"]))
    regions = placement == "apart" and draw(st.booleans())
    square = st.lists(st.lists(rates, min_size=2, max_size=2), min_size=2, max_size=2)
    groups = [
        {
            "name": name,
            "count": draw(st.integers(1, 3)),
            # Workers of one group differ in nothing: ties are broken as both loops break them.
            "step_s": draw(seconds),
            "link": draw(links),
            "region": draw(st.sampled_from("xy")) if regions else None,
        }
        for name in names
    ]
    nodes = draw(st.lists(st.lists(st.sampled_from(names), min_size=1, unique=True), max_size=2))
    taken = set()
    hosts = []
    for number, of in enumerate(nodes):
        if free := [name for name in of if name not in taken]:
            taken |= set(free)
            hosts.append({"name": f"n{number}", "workers": free, "link": draw(links)})
    network = {
        "link": draw(links),
        "server_bandwidth_bytes_per_s": draw(st.one_of(st.none(), rates)),
        "nodes": hosts,
        "share_sigma": 0,
        "regions": {"names": ["x", "y"], "server": draw(st.sampled_from("xy")),
                    "bandwidth_bytes_per_s": draw(square), "latency_s": draw(square)}
        if regions else None,
        "pull_round_trips": draw(st.integers(0, 2)),
        "push_s": draw(st.one_of(st.just(0.0), seconds)),
        "update_s": draw(st.one_of(st.just(0.0), seconds)),
        "update_bytes_per_s": draw(st.one_of(st.none(), rates)),
    }  # fmt: skip
    servers = {
        "server_shards": draw(st.integers(1, 4)),
        "server_placement": placement,
        "step_deadline_s": 1e6,
    }
    return {"workers": groups, "network": network, "cluster": servers}


def by_group(pushes):
    """The times of the pushes of each group: its workers are equal, and may change places where
    they push at one time.
    """
    groups = {}
    for name, times in pushes.items():
        if times:
            groups.setdefault(name[0], []).extend(times)
    return {name: sorted(times) for name, times in groups.items()}


@pytest.mark.parametrize("paradigm", ["bsp", "asp"])
@given(cluster=described())
@settings(max_examples=80, deadline=None)
def test_an_independent_loop_finds_the_same_times(paradigm, cluster):
    count = 4 * sum(group["count"] for group in cluster["workers"])
    training = timed(workload={"samples": count}, **cluster)
    oracle = Cluster(cluster, BYTES)
    expected = oracle.run(paradigm, count)
    assume(paradigm == "bsp" or not oracle.tied)
    found = by_group(push_times(run(training, paradigm)))
    assert {
        name: pytest.approx(each, rel=1e-9) for name, each in by_group(expected).items()
    } == found


@pytest.mark.parametrize("times_as_wide", [4, 40, None])
def test_no_transfer_is_faster_than_its_own_link(times_as_wide):
    """Rounds of 1 s down, 1 s and 1 s up, with shares as unequal as by default; at 4 the server's
    link is as wide as all others.
    """
    workers = [{"count": 4, "step_s": 1, "link": {"bandwidth_bytes_per_s": BYTES}}]
    network = {"server_bandwidth_bytes_per_s": times_as_wide and times_as_wide * BYTES}
    training = timed(workers=workers, network=network, workload={"samples": 40})
    assert run(training, "bsp")[-1].at == pytest.approx(10 * 3)


@given(st.lists(st.floats(0.2, 5), min_size=1, max_size=6), st.floats(0.5, 20), st.floats(0.1, 1.5))
def test_a_transfer_takes_its_own_time_at_least_and_all_share_what_there_is(own, shared, sigma):
    """A round of BSP: none ends before its own link allows, and the last not before the shared one
    does; it is no later than if one after another had their slower link alone.
    """
    workers = [
        {"name": f"w{n}", "step_s": 1, "link": {"bandwidth_bytes_per_s": rate * BYTES}}
        for n, rate in enumerate(own)
    ]
    network = {"server_bandwidth_bytes_per_s": shared * BYTES, "share_sigma": sigma}
    training = timed(workers=workers, network=network, workload={"samples": len(own)})
    pushed = push_times(run(training, "bsp"))
    for n, rate in enumerate(own):
        assert pushed[f"w{n}-0"][0] >= 1 + 2 / rate - 1e-9
    last = max(at for [at] in pushed.values())
    assert last >= 1 + 2 * len(own) / shared - 1e-9
    assert last <= 1 + 2 * sum(1 / min(rate, shared) for rate in own) + 1e-9
