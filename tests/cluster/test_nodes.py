"""Nodes that are lost, added and drained: what Ray tells of them, and a cluster that changes."""

from math import ceil
from types import SimpleNamespace

import pytest

from raysync.cluster import node_watch
from raysync.cluster.node_watch import (
    PLACED_S,
    UNKNOWN,
    NodeView,
    NodeWatch,
    WorkerNodes,
    draining_nodes,
)
from raysync.cluster.ray_private import names
from raysync.engine.members import DRAINED
from tests.builders.processes import said_by
from tests.fakes.calls import Views

BUNDLES = {"w-0": 1, "w-1": 2, "w-2": 3}
ON_TWO = NodeView({1: "a", 2: "a", 3: "b"}, {"a": 1, "b": 4})


@pytest.mark.parametrize(
    ("view", "availability"),
    [
        (ON_TWO, "free"),
        (UNKNOWN, "free"),
        (None, "busy"),
        (NodeView({1: ""}, {"a": 1}), "none"),
        (NodeView({1: "a"}, {"b": 1}), "none"),
        (NodeView({1: "a"}, {"a": 1}, {"a"}), "none"),
        (NodeView({1: "a"}, {"a": 1, "b": 1}, {"b"}), "free"),
        (NodeView({1: ""}, {"a": 1}, placing=[1]), "busy"),
        (NodeView({1: "a"}, {"a": 1}, placing=[2]), "free"),
    ],
    ids=[
        *("there", "not known", "asked for", "not placed", "dead", "drained"),
        *("another is drained", "being placed", "another is being placed"),
    ],
)
def test_a_worker_is_available_if_its_bundle_has_a_lasting_node(view, availability):
    assert WorkerNodes(Views(view), BUNDLES).availability("w-0#2") == availability


@pytest.mark.parametrize("ends", ["started", "lost"])
def test_the_workers_of_a_node_start_in_turns_at_its_cores(ends):
    nodes = WorkerNodes(Views(ON_TWO), BUNDLES)
    nodes.starting("w-0#2")
    assert [nodes.availability(f"w-{index}#2") for index in (1, 2)] == ["busy", "free"]
    getattr(nodes, ends)("w-0#2")
    assert nodes.availability("w-1#2") == "free"


def test_what_was_known_when_a_worker_was_lost_is_asked_again():
    views = Views(ON_TWO)
    WorkerNodes(views, BUNDLES).lost("w-0#1")
    assert views.refreshed == 1


def test_each_worker_of_a_drained_node_is_reported_once():
    views, told = Views(), []
    nodes = WorkerNodes(views, BUNDLES)
    present = ["w-0#1", "w-1#1", "w-2#1"]
    for view in (None, ON_TWO, NodeView(ON_TWO.bundles, ON_TWO.cores, {"a"})):
        views.view = view
        nodes.report(present, told.append, never)
    assert told == ["w-0#1", "w-1#1"]
    views.view = NodeView({1: "b", 2: "a", 3: "b"}, ON_TWO.cores, {"a", "b"})
    nodes.report(["w-0#2", "w-1#1"], told.append, never)
    assert told == ["w-0#1", "w-1#1", "w-0#2"]


def test_each_server_of_a_drained_node_is_reported_once_for_each_node():
    """Its process may have come back elsewhere, on a node that is drained later."""
    views, told = Views(NodeView({0: "a", 1: "c", 2: "c"}, {}, {"b"})), []
    nodes = WorkerNodes(views, {"w-0": 2}, {"server": [0, 1]})
    for bundles, draining in [
        ({0: "a", 1: "b", 2: "c"}, {"b"}),
        ({0: "a", 1: "b", 2: "c"}, {"b"}),
        ({0: "a", 1: "c", 2: "c"}, {"a", "b"}),
        ({1: "c", 2: "c"}, {"a", "b"}),  # the bundle of the first is being placed again
    ]:
        views.view = NodeView(bundles, {}, draining)
        nodes.report(["w-0#1"], told.append, never)
    assert told == ["server", "server"]


def test_a_lost_node_is_told_once_with_all_that_were_on_it():
    """Also with a worker that was lost before Ray knew why, and with what is elsewhere by now."""
    views, told = Views(), []
    nodes = WorkerNodes(views, BUNDLES, {"server": [0]})
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2"}
    for workers, bundles, alive in [
        (["w-0#1", "w-1#1", "w-2#1"], {0: "b", 1: "a", 2: "a", 3: "b"}, {"a": 1, "b": 1}),
        (["w-1#1", "w-2#1"], {0: "b", 1: "a", 2: "a", 3: "b"}, {"a": 1, "b": 1}),
        (["w-1#1", "w-2#1"], {0: "b", 1: "", 2: "b", 3: "b"}, {"b": 1}),
        (["w-0#2", "w-1#2", "w-2#1"], {0: "b", 1: "b", 2: "b", 3: "b"}, {"b": 1}),
        (["w-0#2"], {0: "c", 1: "c", 2: "c", 3: "c"}, {"c": 1}),
    ]:
        views.view = NodeView(bundles, alive, addresses=addresses)
        nodes.report(workers, never, lambda node, on: told.append((node, sorted(on))))
    views.view = UNKNOWN
    nodes.report([], never, lambda *lost: told.append(lost))
    assert told == [("10.0.0.1", ["w-0", "w-1"]), ("10.0.0.2", ["server", "w-0", "w-1", "w-2"])]


def never(*what):
    raise AssertionError(what)


class FakeWatch:
    """A watch that looks when it is told to, and the Ray that it asks."""

    def __init__(self, monkeypatch):
        self.looks, self.view = [], ON_TWO
        monkeypatch.setattr(node_watch, "repeat", lambda look, *_: self.looks.append(look))
        monkeypatch.setattr(node_watch, "view_of", lambda group: self._answer())
        self.watch = NodeWatch(None)
        self.meanwhile = lambda: None

    def _answer(self):
        self.meanwhile()
        if isinstance(self.view, Exception):
            raise self.view
        return self.view

    def look(self):
        self.looks[0]()


def test_a_view_that_was_asked_for_before_a_loss_is_not_taken(monkeypatch):
    fake = FakeWatch(monkeypatch)
    fake.look()
    assert fake.watch.view is ON_TWO
    fake.meanwhile = fake.watch.refresh
    fake.look()
    assert fake.watch.view is None
    fake.meanwhile = lambda: None
    fake.look()
    assert fake.watch.view is ON_TWO


def test_only_after_a_while_is_a_bundle_known_to_have_no_place(monkeypatch):
    """When its node is lost Ray is about to place it anew, and no look may come between."""
    fake, seen = FakeWatch(monkeypatch), []
    monkeypatch.setattr(node_watch, "now_s", lambda: len(seen))
    for node in ["a", "", "gone", "", "b", "", *[""] * ceil(PLACED_S)]:
        fake.view = NodeView({1: node, 2: "b"}, {"a": 1, "b": 1})
        fake.watch.refresh()
        fake.look()
        seen.append(WorkerNodes(fake.watch, BUNDLES).availability("w-0#2"))
        assert WorkerNodes(fake.watch, BUNDLES).availability("w-1#2") == "free", "it has its node"
    waits = ["busy"] * ceil(PLACED_S)
    assert seen == ["free", *["busy"] * 3, "free", *waits, "none"]


def test_a_ray_that_tells_nothing_of_its_nodes_is_said_once_and_holds_up_nothing(
    monkeypatch, caplog
):
    fake = FakeWatch(monkeypatch)
    fake.view = TypeError("no such argument")
    fake.look()
    fake.look()
    assert fake.watch.view is UNKNOWN
    assert [record.message for record in caplog.records] == [
        "Ray does not report the state of its nodes: no such argument"
    ]


def test_under_a_ray_without_the_function_no_node_is_drained(monkeypatch):
    private = SimpleNamespace(state=SimpleNamespace(state=object()))
    monkeypatch.setattr(names, "ray", SimpleNamespace(_private=private))
    assert not draining_nodes()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(170)
def test_workers_follow_the_nodes_of_a_cluster():
    """A node with two workers is lost, another is added, that is drained, and a third is added."""
    said = said_by("tests.cluster.changing_nodes")
    assert said["over"] == ["well"]
    left = {worker: (why, after_s) for worker, why, after_s in said["left"]}
    assert left.keys() == {f"spot-{index}#{life}" for index in range(2) for life in (1, 2)}
    for index in range(2):
        assert left[f"spot-{index}#1"][0] != DRAINED
        why, after_s = left[f"spot-{index}#2"]
        assert (why, after_s < 0.15) == (DRAINED, True), "as its step of 0.3 s is over"
    assert sorted(text.partition(" ")[0] for text in said["remark"] if "resources" in text) == [
        f"spot-{index}#{life}" for index in range(2) for life in (2, 3)
    ], "each tells once that it waits, and has joined with its only attempt"
    remarks = [text.split() for text in said["remark"] if text.startswith("The run ")]
    assert [words[2].rstrip(":") for words in remarks] == ["waits", "continues"] * 2
    assert said["applied"] == said["pushed"], "what has arrived counts, whatever became of its node"
