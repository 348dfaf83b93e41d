"""Runs that share cores on a real clock: for how long, by counting each second."""

from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from raysync.results.overlap import LEAST_SHARE, shared_shares
from raysync.results.ranking import rank
from raysync.results.sentences import answer
from tests.builders.messages import tells

NOON = datetime.fromisoformat("2026-01-02T12:00:00+01:00")
CORES = {"a": 2, "b": 4}


def record(start, length, processes, trains_for=None):
    """A run that began so many seconds after noon; machine -> its processes there."""
    places = {"controller": {"host": "a", "cores": 2}}
    for host, count in processes.items():
        for number in range(count):
            places[f"{host}-{number}"] = {"host": host, "cores": CORES[host]}
    began = (NOON + timedelta(seconds=start)).isoformat(timespec="seconds")
    seconds = {"wall_seconds": float(length), "seconds": float(trains_for or length)}
    return SimpleNamespace(environment={"requested": began, "places": places}, summary=seconds)


RUNS = st.tuples(
    st.integers(0, 20),
    st.integers(1, 20),
    st.dictionaries(st.sampled_from("ab"), st.integers(1, 4), min_size=1),
)


@given(st.lists(RUNS, max_size=5))
def test_each_second_with_more_processes_than_cores_is_counted(runs):
    shares = shared_shares([record(*run) for run in runs])
    for own, (start, length, processes) in enumerate(runs):
        shared_s = 0
        for second in range(start, start + length):
            others = [
                each
                for number, each in enumerate(runs)
                if number != own and each[0] <= second < each[0] + each[1]
            ]
            foreign = {host: sum(each[2].get(host, 0) for each in others) for host in processes}
            shared_s += any(
                count and processes[host] + count > CORES[host] for host, count in foreign.items()
            )
        share = shared_s / length
        assert shares[own] == pytest.approx(share) if share >= LEAST_SHARE else shares[own] is None


def test_only_the_training_of_a_run_counts_but_others_disturb_it_while_they_start():
    early, late = record(0, 10, {"a": 2}), record(0, 20, {"a": 2}, trains_for=8)
    assert shared_shares([early, late]) == [1.0, None]


def test_what_a_record_does_not_say_is_not_guessed():
    silent = record(0, 10, {"a": 2})
    silent.environment["places"] = {name: {} for name in silent.environment["places"]}
    virtual = SimpleNamespace(environment={"requested": "2026"}, summary={"wall_seconds": 3.0})
    assert shared_shares([silent, virtual, record(0, 10, {"a": 2})]) == [None] * 3


def test_a_lead_of_runs_that_measured_each_other_is_not_clear(made):
    times = {"bsp": (20, 42, 57), "asp": (10, 20, 30)}
    summaries = {
        label: [
            {"time_to_target_s": time, "seconds": 100.0, "final_accuracy": 0.9} for time in each
        ]
        for label, each in times.items()
    }
    collection = made(summaries)
    assert rank(collection).times.leader.sure == "clear"
    for run in collection.runs[:2]:
        object.__setattr__(run, "shared_share", 0.7)
    ranking = rank(collection)
    assert (ranking.times.leader.name, ranking.times.leader.sure) == ("asp", "side by side")
    assert tells(answer(ranking), "2 of 6 70% sweep.concurrent: 1")
