"""Who goes where: the rules by themselves, and fake nodes with different labels, types and GPU
counts.
"""

import os

import pytest
from hypothesis import given, strategies as st

from raysync import config
from raysync.cluster.actors.threads import LEAST_ELEMENTS, Threads, fair_threads, with_shared_cores
from raysync.cluster.placement import (
    Bundle,
    ClusterNode,
    choose_selectors,
    infeasible_reason,
    matches,
    plan,
    total,
)
from raysync.cluster.session import server_threads
from tests.builders.messages import tells
from tests.builders.processes import said_by

LONG = 10**9
"""Elements that any number of threads is worth."""
TWO_NODES = [
    ClusterNode({"CPU": 10.1, "GPU": 1}, {"zone": "a"}),
    ClusterNode({"CPU": 10.1}, {"zone": "b"}),
]


def asked(*groups, **cluster):
    return plan(
        config.validate(
            {"workers": list(groups), "cluster": {"server_cpus": 0, "evaluator_cpus": 0} | cluster}
        )
    )


@pytest.mark.parametrize(
    ("groups", "who"),
    [
        ([{"name": "a", "cpus": 10}, {"name": "b", "cpus": 9}], None),
        ([{"name": "a", "cpus": 11}], "worker group 'a'"),
        ([{"name": "a", "count": 2, "cpus": 8}, {"name": "b", "cpus": 5}], "worker group 'b'"),
        ([{"name": "a", "gpus": 1}, {"name": "b", "gpus": 1}], "worker group 'b'"),
        ([{"name": "a", "gpus": 2}], "worker group 'a'"),
        ([{"name": "a", "count": 2, "cpus": 4}, {"name": "b", "count": 4, "cpus": 3}], None),
        (
            [
                {"name": "a", "cpus": 8},
                {"name": "b", "count": 3, "cpus": 4, "label_selector": {"zone": "b"}},
            ],
            "worker group 'b'",
        ),
        (
            [
                {"name": "a", "cpus": 8, "label_selector": {"zone": "b"}},
                {"name": "b", "count": 2, "cpus": 7},
            ],
            "worker group 'b'",
        ),
        ([{"name": "a", "gpus": 1, "label_selector": {"zone": "b"}}], "worker group 'a'"),
        ([{"name": "a", "gpus": 1, "label_selector": {"zone": "!b"}}], None),
        ([{"name": "a", "resources": {"tpu": 1}}], "worker group 'a'"),
    ],
)
def test_infeasible_groups_are_named(groups, who):
    """The sixth fits as 4 + 3 + 3 twice, which laying out the largest first would not find."""
    assert infeasible_reason(asked(*groups).bundles, TWO_NODES) == who


amounts = st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.integers(1, 4), min_size=1)
labels = st.dictionaries(st.sampled_from(["zone", "kind"]), st.sampled_from(["a", "b"]))


@given(st.lists(st.builds(ClusterNode, amounts, labels), min_size=1, max_size=3), st.data())
def test_a_valid_layout_is_never_called_infeasible(nodes, data):
    """Bundles that are cut out of the nodes fit, whatever their order and their labels."""
    bundles = []
    for node in nodes:
        for _ in range(data.draw(st.integers(0, 3))):
            left = {
                name: amount
                - total(b.resources for b, home in bundles if home is node).get(name, 0)
                for name, amount in node.resources.items()
            }
            piece = {name: data.draw(st.integers(0, int(amount))) for name, amount in left.items()}
            selector = data.draw(st.sampled_from([{}, node.labels]))
            if any(piece.values()):
                bundles.append(
                    (
                        Bundle(
                            "it",
                            {name: amount for name, amount in piece.items() if amount},
                            selector,
                        ),
                        node,
                    )
                )
    order = data.draw(st.permutations(bundles))
    assert infeasible_reason([bundle for bundle, _ in order], nodes) is None


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({}, True),
        ({"zone": "a"}, True),
        ({"zone": "b"}, False),
        ({"zone": "!a"}, False),
        ({"zone": "!b"}, True),
        ({"zone": "in(a,b)"}, True),
        ({"zone": "in(b,c)"}, False),
        ({"zone": "!in(b,c)"}, True),
        ({"zone": "!in(a,c)"}, False),
        ({"none": "a"}, False),
        ({"none": "!a"}, True),
        ({"none": "!in(a,b)"}, True),
        ({"zone": "a", "kind": "x"}, False),
    ],
)
def test_label_selectors_are_read_as_ray_reads_them(selector, fits):
    """As measured with Ray 2.60: a label that a node lacks meets every negation."""
    assert matches({"zone": "a", "kind": "y"}, selector) is fits


@pytest.mark.parametrize(
    ("resource", "selectors", "chosen", "who"),
    [
        ("gpus", [["c", "in(a,b)"], ["a"]], ["in(a,b)", "a"], "worker group 'second'"),
        ("cpus", [["a", "b"], ["a", "b"]], ["a", "b"], None),
    ],
    ids=["the first that can be had, or the first of all", "beside those who chose before"],
)
def test_a_group_takes_the_first_selector_with_which_all_so_far_fit(
    resource, selectors, chosen, who
):
    """Zone a has one GPU, and 8 CPUs fit into each zone once."""
    amount = {"gpus": 1, "cpus": 8}[resource]
    groups = [
        {
            "name": name,
            resource: amount,
            "label_selector": {"zone": first},
            "fallback_label_selectors": [{"zone": zone} for zone in others] or [{}],
        }
        for name, (first, *others) in zip(("first", "second"), selectors, strict=True)
    ]
    none = {"server_cpus": 0, "evaluator_cpus": 0}
    made = choose_selectors(config.validate({"workers": groups, "cluster": none}), TWO_NODES)
    assert [made.bundles[index].labels["zone"] for index in made.workers] == chosen
    assert infeasible_reason(made.bundles, TWO_NODES) == who


BIG, SMALL = [(4, 1), (0, 1), (1, 2)], [(0.5, 1), (1, 1)]
ON_GPU = {"server_gpus": 0.2, "server_cpus": 2}
LEAST = (0.001, 0)


@pytest.mark.parametrize(
    ("groups", "cluster", "bundles", "homes", "gpus"),
    [
        ([(0.25, 2)], {"server_cpus": 2, "server_shards": 2, "evaluator_gpus": 0},
         [(2, 0), (2, 0), LEAST, (1, 0.25), (1, 0.25)], [0, 1, 2, 3, 4], [0, 0, 0.25, 0.25]),
        (BIG, {"evaluator_cpus": 3}, [LEAST, (1, 4), (1, 0), (1, 1), (1, 1)],
         [0, 3, 1, 2, 3, 4], [0, 0.1, 4, 0, 0.9, 1]),
        (BIG, {"evaluator_cpus": 3, "server_placement": "with-workers"},
         [(1, 4), (1, 0), (1, 1), (1, 1)], [0, 2, 0, 1, 2, 3], [0, 0.1, 4, 0, 0.9, 1]),
        (SMALL, ON_GPU, [(3, 0.5), (1, 1)], [0, 0, 0, 1], [0.2, 0.1, 0.2, 1]),
        (SMALL, ON_GPU | {"evaluator_gpus": 0}, [LEAST, (3, 0.5), (1, 1)], [1, 0, 1, 2],
         [0.2, 0, 0.3, 1]),
        (SMALL, ON_GPU | {"evaluator_gpus": 0.3}, [(0, 0.3), (3, 0.5), (1, 1)], [1, 0, 1, 2],
         [0.2, 0.3, 0.3, 1]),
        ([(1, 1)], {"evaluator_gpus": 0}, [LEAST, LEAST, (1, 1)], [0, 1, 2], [0, 0, 1]),
        ([(1, 1)], {"evaluator_gpus": 0.5}, [LEAST, (0, 0.5), (1, 1)], [0, 1, 2], [0, 0.5, 1]),
        ([(2, 1)], {}, [LEAST, LEAST, (1, 2)], [0, 1, 2], [0, 0, 2]),
        ([(0, 1)], {}, [LEAST, LEAST, (1, 0)], [0, 1, 2], [0, 0, 0]),
        ([(0.1, 1)], {}, [LEAST, (1, 0.1)], [0, 1, 1], [0, 0.05, 0.05]),
        ([(0, 2)], {"server_cpus": 2, "server_shards": 3, "server_placement": "with-workers"},
         [LEAST, (5, 0), (3, 0)], [1, 2, 1, 0, 1, 2], [0, 0, 0, 0]),
    ],
)  # fmt: skip
def test_every_actor_has_a_bundle_and_its_part_of_a_gpu_there(
    groups, cluster, bundles, homes, gpus
):
    """Groups are (GPUs, count), bundles (CPUs, GPUs), homes the bundles of servers, evaluator and
    workers. A GPU is shared with the first worker, or the first that has no more than one.
    """
    workers = [
        {"name": f"w{index}", "gpus": each, "count": count}
        for index, (each, count) in enumerate(groups)
    ]
    everything = asked(*workers, **cluster)
    resources = [bundle.resources for bundle in everything.bundles]
    assert [(each.get("CPU", 0), each.get("GPU", 0)) for each in resources] == bundles
    assert [*everything.servers, everything.evaluator, *everything.workers] == homes
    slots = enumerate(config.validate({"workers": workers}).slots().values())
    of_workers = [everything.gpus(number, group) for number, group in slots]
    assert [everything.server_gpus, everything.evaluator_gpus, *of_workers] == pytest.approx(gpus)
    assert total(resources).get("GPU", 0) == pytest.approx(sum(gpus)), "none is asked for twice"


@given(
    st.integers(1, 200),
    st.integers(1, 20),
    st.integers(1, 8),
    st.sampled_from(["apart", "with-workers"]),
)
def test_servers_have_their_share_of_the_cores_and_that_of_a_worker_that_waits(
    cores, workers, shards, placement
):
    threads = server_threads(
        asked({"count": workers}, server_shards=shards, server_placement=placement), cores
    )
    share = cores / (workers + shards + 1)
    assert threads == 1 or threads * shards <= share * (shards + 1)
    assert (threads + 1) * shards > share * (shards + 1), "and no less"


@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from("ab")), min_size=1, max_size=20),
    st.integers(1, 64),
)
def test_actors_have_the_threads_they_asked_for_or_their_share_of_their_node(bundles, there):
    """A node may have fewer cores than it declares, or more than its container may use."""
    asked, nodes = zip(*bundles, strict=True)
    cores = {"a": 16, "b": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: set(range(there)), raising=False)
        threads = [each.base_count() for each in fair_threads(asked, nodes, cores)]
        assert Threads(3).base_count() == 3
    for node in cores:
        spread = [
            count
            for least, at, count in zip(asked, nodes, threads, strict=True)
            if at == node and count > least
        ]
        assert sum(spread) <= min(cores[node], there)
    for least, node, count in zip(asked, nodes, threads, strict=True):
        assert count >= least
        assert (count + 1) * nodes.count(node) > min(cores[node], there)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab")), min_size=1, max_size=8),
    st.integers(1, 64),
    st.integers(0, 20),
)
def test_servers_share_the_cores_of_their_node_for_updates(servers, there, workers):
    """Which changes nothing for an update of one gradient."""
    own, nodes = zip(*servers, strict=True)
    cores = {"a": 16, "b": 3}
    bundles = [*nodes, *"a" * workers]
    before = fair_threads([*own, *[1] * workers], bundles, cores)[: len(own)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: set(range(there)), raising=False)
        after = with_shared_cores(before, nodes, cores)
        assert [each.base_count() for each in after] == [each.base_count() for each in before]
        for each, node in zip(after, nodes, strict=True):
            share = min(cores[node], there) // nodes.count(node)
            assert each.update_count(1, LONG) == each.base_count()
            assert each.update_count(2, LONG) == max(each.base_count(), share)
            assert each.update_count(2, 3 * LEAST_ELEMENTS - 1) == max(
                1, min(2, each.update_count(2, LONG))
            )
            assert each.update_count(2, LEAST_ELEMENTS) == 1
        assert [each.update_count(2, LONG) for each in before] == [
            each.base_count() for each in before
        ]
        assert [Threads(3, 16).base_count(), Threads(3, 16).update_count(2, LONG)] == [3, 3]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(170)
def test_fake_nodes(tmp_path):
    said = said_by("tests.cluster.fake_nodes", tmp_path)
    placed = said["placed"]
    assert [(name, node) for name, node, *_ in placed] == [
        ("server-0", "head"),
        ("server-1", "head"),
        ("evaluator", placed[2][1]),
        ("type-0", "fast"),
        ("type-1", "fast"),
        ("label-0", "slow"),
        ("resource-0", "slow"),
        ("fallback-0", "fast"),
        ("server-0", "slow"),
        ("server-1", "fast"),
        ("evaluator", placed[10][1]),
        ("a-0", "slow"),
        ("b-0", "fast"),
        ("server-0", "fast"),
        ("evaluator", placed[14][1]),
        ("near-0", "fast"),
        ("far-0", "slow"),
    ]
    [transports] = said["transports"]
    assert transports["near-0"] == "shared-memory"
    assert {transports[name] for name in ("server-0", "evaluator", "far-0")} == {"object-ref"}
    gpus = {name: numbers for name, _, numbers, _ in placed}
    assert gpus["type-0"] == gpus["type-1"], "halves of one GPU"
    assert len(gpus["type-0"]) == 1
    assert len(set(gpus["label-0"])) == 2
    assert {name: devices for name, *_, devices in placed}["label-0"] == ["cpu", "cpu"], (
        "a replica a GPU; torch sees none"
    )

    [[finished, impossible]] = said["swept"]
    assert (finished[0], finished[2]["w-0"]) == ("finished", "slow"), (
        "a trial's actors go where its groups say"
    )
    assert impossible[0] == "failed", "and do not wait for ever"
    assert tells(impossible[1], "together")

    [told] = said["told"]
    assert tells(told, "'fallback' zone=a:")
    assert sum("torch on its node sees none" in sentence for sentence in told) == 4

    [refused] = said["refused"]
    shared = refused["shared memory across nodes"]
    assert shared.startswith("cluster.transport: shared-memory: these workers are on other nodes")
    assert "far-0" in shared
    for name, facts in {
        "no such label": "'west' zone=west 3 profile=fast zone=a zone=west",
        "too many for label": "'greedy' 4 'greedy' 1 CPU 1 GPU profile=fast 3 3 GPU",
        "no such type": "'new' NEW-1 3 NEW-1",
        "no such resource": "'odd' 1 tpu 3 2 nvlink",
        "does not pack": "3 'pairs' 1 CPU 2 GPU 3",
    }.items():
        assert refused[name].startswith("cluster: "), refused
        assert tells(refused[name], facts), refused[name]
        assert len(refused[name].splitlines()) <= 2
    assert all(kind in refused["no such type"] for kind in ("FAST-1", "SLOW-1"))
    assert said["left"] == [[10, 6, 2]], "everything was given back"
