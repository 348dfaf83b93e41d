"""Limits in time of what the driver waits for, and how actors start, without a cluster."""

import sys
from threading import Event
from types import SimpleNamespace

import pytest
import typer
from hypothesis import given, strategies as st
from ray.exceptions import ActorDiedError, RayError

from raysync.cli import main
from raysync.cluster import actor_group, clock, session
from raysync.cluster.actor_group import START_DEADLINE_S, Starting
from raysync.cluster.clock import within
from raysync.errors import RunFailed
from tests.builders.messages import naming
from tests.fakes.nodes import Nodes


@pytest.fixture
def for_ever():
    """A call that does not come back before the end of the test."""
    released = Event()
    yield released.wait
    released.set()


def test_a_call_comes_back_or_its_limit_does(for_ever):
    assert within(5, lambda: "an answer") == "an answer"
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        within(0.01, for_ever)
    with pytest.raises(RayError, match="exit status 1"):
        within(5, lambda: sys.exit(1))


def test_what_is_stuck_is_known_as_long_as_it_is(for_ever, monkeypatch, capsys):
    """A process whose call of Ray's never ended ends with its own status, and without Ray's end."""
    statuses = []
    monkeypatch.setattr("os._exit", statuses.append)
    commands = typer.Typer()
    commands.command()(lambda: None)
    monkeypatch.setattr(sys, "argv", ["raysync"])
    with pytest.raises(SystemExit):
        main(commands)
    assert not statuses
    with pytest.raises(TimeoutError):
        within(0.01, for_ever)
    with pytest.raises(SystemExit):
        main(commands)
    assert statuses == [0]


def test_the_time_in_which_the_caller_is_suspended_does_not_count(for_ever, monkeypatch):
    """After Ctrl-Z and fg, one wait has run out, however long that was; the answer comes with the
    next.
    """
    came, waits = Event(), []

    def wait(futures, timeout):
        waits.append(timeout)
        if len(waits) == 2:
            came.set()
            futures[0].result()

    monkeypatch.setattr(clock, "wait", wait)
    assert within(3, came.wait) is True
    assert waits == [1, 1]


def test_a_controller_that_is_silent_has_failed(for_ever, monkeypatch):
    def stream():
        yield ["a line"]
        yield []  # a sign of life
        for_ever()

    monkeypatch.setattr(session, "ray", SimpleNamespace(get=lambda reference: reference))
    monkeypatch.setattr(session, "SILENCE_S", 0.01)
    reports = session._reports(stream())
    assert [next(reports), next(reports)] == [["a line"], []]
    with pytest.raises(RunFailed, match=naming("controller 0.01 s:")):
        next(reports)


def test_a_controller_that_died_has_failed(monkeypatch):
    def get(reference):
        raise ActorDiedError

    monkeypatch.setattr(session, "ray", SimpleNamespace(get=get))
    with pytest.raises(RunFailed, match="the controller: "):
        next(session._reports(iter(["a report"])))


@given(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=20), st.integers(1, 5), st.integers(1, 5)
)
def test_no_node_starts_more_at_once_than_it_has_cores(nodes, cores_a, cores_b):
    """And none is left out; the time that they have grows with how often a node's cores are
    taken.
    """
    ray, cores, told = Nodes(), {"a": cores_a, "b": cores_b}, []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(actor_group, "ray", ray)
        patched.setattr(actor_group, "NOTIFY_EVERY_S", 0.0)
        begins = Starting(cores, nodes, len(nodes), told.append)
        actors = [
            begins.start(node, lambda node=node: ray.actor(node), is_worker=True) for node in nodes
        ]
        begins.finish()
    assert len(actors) == len(nodes)
    assert not ray.under_way
    assert all(most <= cores[node] for node, most in ray.most.items())
    turns = max(-(-nodes.count(node) // cores[node]) for node in set(nodes))
    assert begins.deadline_s == turns * START_DEADLINE_S
    assert told == [
        f"{ready} of {len(nodes)} workers are ready." for ready in range(1, len(nodes) + 1)
    ]


def test_an_actor_that_does_not_start_is_not_waited_for_longer_than_its_deadline(
    for_ever, monkeypatch
):
    ray = Nodes()
    monkeypatch.setattr(
        actor_group, "ray", SimpleNamespace(wait=lambda *_, **__: for_ever(), get=ray.get)
    )
    monkeypatch.setattr(actor_group, "START_DEADLINE_S", 0.01)
    begins = Starting({"a": 1}, ["a"], 1, print)
    begins.start("a", lambda: ray.actor("a"))
    with pytest.raises(TimeoutError):
        begins.finish()
