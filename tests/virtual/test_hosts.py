"""Workers that share the cores of a host, against a pencil and against an event loop that knows
only the journal.
"""

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from raysync.core.events import Pushed
from raysync.errors import ConfigError
from raysync.virtual.backend import End
from raysync.virtual.engine import driver_of
from raysync.virtual.reenactment import reenact, snapshot
from tests.builders.virtual import busy, churn, entries, learn, push_times, run, timed, weights_of

ONE_CORE = {"name": "box", "cores": 1}


def on_box(*step_s, cores=1, **settings):
    """Workers a-0, b-0, ... of those step times on one host."""
    workers = [
        {"name": name, "step_s": seconds, "host": {"name": "box", "cores": cores}}
        for name, seconds in zip("abcd", step_s, strict=False)
    ]
    return timed(workers=workers, **{"workload": {"samples": 8}, **settings})


def test_those_who_wait_leave_their_core_to_those_who_compute():
    """One core, 1 s and 3 s under BSP: half a core each for 2 s, then the slow one has it alone
    for the 2 s that are left of its 3. A round takes the 4 s that there are to compute.
    """
    lines = run(on_box(1, 3, workload={"samples": 4}), "bsp")
    assert push_times(lines) == {"a-0": [2, 6], "b-0": [4, 8]}
    assert busy(lines)["a-0#1", 1] == 2, "seconds of computing, as its process sees them"
    assert busy(lines)["b-0#1", 1] == 4


def test_under_asp_nobody_waits_so_each_has_half_a_core():
    lines = run(on_box(1, 3, workload={"samples": 4}), "asp")
    assert push_times(lines) == {"a-0": [2, 4, 6], "b-0": [6]}


@pytest.mark.parametrize(("cores", "round_s"), [(1, 3.0), (1.5, 2.0), (2, 1.5), (3, 1.0), (8, 1.0)])
def test_three_workers_of_one_second_on_some_cores(cores, round_s):
    """A step takes 3 / cores seconds, and never less than alone."""
    lines = run(on_box(1, 1, 1, cores=cores, workload={"samples": 6}), "bsp")
    assert push_times(lines)["c-0"] == pytest.approx([round_s, 2 * round_s], abs=1e-12)


def test_a_worker_takes_as_many_cores_as_its_cpus():
    """3 + 1 cores of 2: both at half their speed; then the slow one alone takes 3 of 2: at 2/3.

    a ends at 2 s, having done 1 s; b has done 1 of its 3 s, and needs 2 / (2 / 3) s more.
    """
    host = {"name": "box", "cores": 2}
    training = timed(
        workers=[
            {"name": "a", "step_s": 1, "host": host},
            {"name": "b", "step_s": 3, "host": host, "cpus": 3},
        ],
        workload={"samples": 2},
    )
    assert push_times(run(training, "bsp")) == {"a-0": [2], "b-0": [pytest.approx(5)]}


def test_weights_under_way_take_no_core():
    """A pull of 1 s: b begins to compute at 1 s, when a has done 1 of its 2 s. Then both go at half
    speed: a is done at 3 s, b has done 1 of its 2 s then, and is done at 4 s.
    """
    training = timed(
        workers=[
            {"name": "a", "step_s": 2, "host": ONE_CORE},
            {"name": "b", "step_s": 2, "host": ONE_CORE, "link": {"latency_s": 1}},
        ],
        workload={"samples": 2},
    )
    assert push_times(run(training, "bsp")) == {"a-0": [3], "b-0": [5]}, "1 s of upload"


def test_the_hosts_of_others_have_no_part_in_it():
    training = timed(
        workers=[
            {"name": "a", "count": 2, "step_s": 1, "host": ONE_CORE},
            {"name": "b", "step_s": 1, "host": {"name": "other", "cores": 1}},
            {"name": "c", "step_s": 1},
        ],
        workload={"samples": 4},
    )
    assert push_times(run(training, "bsp")) == {"a-0": [2], "a-1": [2], "b-0": [1], "c-0": [1]}


def test_a_worker_that_dies_leaves_its_core():
    """Both at half speed until 1 s; then b alone has 2.5 s of its 3 left."""
    faults = [{"kind": "kill", "workers": ["a-0"], "at_s": 1}]
    training = on_box(
        2, 3, workload={"samples": 1}, faults=faults, cluster={"restarts": {"attempts": 0}}
    )
    lines = run(training, "bsp")
    assert churn(lines) == [("Left", "a-0#1", 1)]
    assert push_times(lines) == {"b-0": [3.5]}
    crash = {"kind": "crash", "worker": "a-0", "at_s": 1, "rejoin_after_s": 1}
    lines = run(on_box(2, 3, workload={"samples": 2}, faults=[crash]), "asp")
    # From 2 s on both have half: b has 1.5 s left of its 3, and ends at 5 s; a then has 0.5 s left.
    assert push_times(lines) == {"b-0": [5], "a-0": [6]}


def test_a_worker_that_freezes_leaves_its_core_and_is_missed_at_the_deadline():
    """a freezes at 1 s, half of its step done; b has 2.5 of its 3 s left then, alone."""
    training = on_box(
        1, 3, workload={"samples": 1}, cluster={"step_deadline_s": 4, "restarts": {"attempts": 0}}
    )
    driver = driver_of(training, training.experiment.make(training.experiment.paradigm))
    driver.backend._ends["a-0#1"] = [End(1.0, freezes=True)]
    driver.backend._fails = True
    lines = [line for lines in driver.run() for line in lines]
    [(_, worker, at)] = churn(lines)
    assert (worker, 4 <= at <= 6) == ("a-0#1", True)
    assert push_times(lines) == {"b-0": [3.5]}


def processor_sharing(rounds, cores):
    """When each worker ends in BSP rounds without other costs: exact, event by event."""
    now, ends = Fraction(0), []
    for seconds in rounds:
        left = dict(enumerate(map(Fraction, seconds)))
        round_ends = {}
        while left:
            pace = min(Fraction(1), Fraction(cores) / len(left))
            first = min(left.values())
            now += first / pace
            for worker in [worker for worker, rest in left.items() if rest == first]:
                round_ends[worker] = now
                del left[worker]
            left = {worker: rest - first for worker, rest in left.items()}
        ends.append(round_ends)
    return ends


@given(
    st.lists(
        st.lists(st.floats(0.01, 3), min_size=3, max_size=3).map(tuple), min_size=1, max_size=4
    ),
    st.sampled_from([0.5, 1, 2, 2.5, 3]),
)
def test_rounds_end_when_an_independent_loop_says(rounds, cores):
    host = {"name": "box", "cores": cores}
    workers = [
        {"name": name, "trace": list(trace), "host": host}
        for name, trace in zip("abc", zip(*rounds, strict=True), strict=True)
    ]
    training = timed(workers=workers, workload={"samples": 3 * len(rounds)})
    times = push_times(run(training, "bsp"))
    for number, ends in enumerate(processor_sharing(rounds, cores)):
        for worker, at in ends.items():
            slot = f"{'abc'[worker]}-0"
            assert times[slot][number] == pytest.approx(float(at), rel=1e-9, abs=1e-9)


@given(
    st.lists(st.sampled_from([0.3, 1, 2.5]), min_size=2, max_size=4),
    st.sampled_from([1, 2]),
    st.sampled_from(["asp", "ssp", "bsp"]),
)
def test_no_more_is_computed_than_there_are_cores(step_s, cores, paradigm):
    """What all have computed by the end is at most cores x seconds, and as much if all compute all
    the time, as under ASP, but for the steps under way.
    """
    lines = run(on_box(*step_s, cores=cores, workload={"samples": 40}), paradigm)
    work = sum(step_s["abcd".index(entry.event.worker[0])] for entry in entries(lines, Pushed))
    there = min(cores, len(step_s)) * lines[-1].at
    assert work <= there + 1e-9
    if paradigm == "asp":
        assert work >= there - sum(step_s)


def test_gradients_are_computed_and_a_run_goes_on_from_its_middle():
    """Trained on a shared core; and reenacted from two places, bit for bit."""
    settings = {
        "timing": "with-gradients",
        "batch_size": 4,
        "workload": {"samples": 80},
        "evaluation": {"marks": 2},
    }
    training = on_box(1, 3, 2, cores=1, **settings)
    paradigm = training.experiment.make(training.experiment.paradigms[2])
    whole, driver = learn(training, training.experiment.paradigms[2])
    assert len({entry.event.busy_s for entry in entries(whole, Pushed)}) > 2
    began = driver_of(training, paradigm)
    began.start()
    for _ in range(2):
        for _ in range(13):
            began.backend.wait()
        state, data = snapshot(began)
        again = driver_of(training, training.experiment.make(training.experiment.paradigms[2]))
        reenact(again, state, data, began.lines)
        lines = [*began.lines, *(line for lines in again.run() for line in lines)]
        assert lines == whole
        assert (weights_of(again) == weights_of(driver)).all()


def test_one_host_has_one_number_of_cores_and_stages_share_none():
    two = [{"name": "a", "host": ONE_CORE}, {"name": "b", "host": {"name": "box", "cores": 2}}]
    with pytest.raises(ConfigError, match="host 'box' has 1 cores in one group and 2 in another"):
        timed(workers=two)
    training = timed(workers=[{"name": "a", "count": 2, "host": ONE_CORE}])
    assert training.remarks == (
        "The 2 workers on host 'box' share its 1 core: while all compute, a step takes 2 times as"
        " long.",
    )
    assert not timed(workers=[{"count": 2, "host": {"name": "box", "cores": 2}}]).remarks
