"""A run that goes on from a cut is the one that was never interrupted: line for line, bit for
bit.
"""

import json

import pytest
import torch
from hypothesis import event, given, settings, strategies as st
from torch import nn

from raysync import config
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Evaluation, Remark, decode, encode
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.record.journal_file import checkpoint_line
from raysync.training.preparation import prepare
from raysync.virtual import virtual_backend
from raysync.virtual.engine import VirtualEngine, driver_of
from raysync.virtual.reenactment import reenact, snapshot
from tests.builders.messages import naming
from tests.builders.paradigms import SWITCHES, VARIANTS
from tests.builders.plans import plans
from tests.builders.virtual import DATA, timed, weights_of

pytestmark = pytest.mark.usefixtures("one_thread")

OURS = "tests.builders.paradigms:"
PARADIGMS = (
    VARIANTS
    | {label: ("sync-switch", parameters) for label, parameters in SWITCHES.items()}
    | {name: (OURS + name, {}) for name in ("Ticking", "Sticky", "Twice", "Patient")}
)


def cuts(most):
    return st.lists(st.integers(0, most), min_size=1, max_size=2)


class Case:
    """An experiment that can be run again and again."""

    def __init__(self, training, name, **parameters):
        self.training, self.name, self.parameters = training, name, parameters

    def driver(self):
        return driver_of(self.training, make(self.name, **self.parameters))

    def run(self, events=()):
        """The lines of a run, its driver, and snapshots after so many events, with the number of
        lines before each.
        """
        driver, lines, taken, events = self.driver(), [], [], sorted(events, reverse=True)
        wait = driver.backend.wait

        def look_and_wait():
            while events and events[-1] <= driver.backend.processed and not driver.status:
                events.pop()
                taken.append((snapshot(driver), len(lines) + len(driver.lines)))
            wait()

        driver.backend.wait = look_and_wait
        for report in driver.run():
            lines += report
        return lines, driver, taken

    def resumed(self, state, data, before):
        driver = self.driver()
        state = json.loads(json.dumps(state))
        reenact(driver, state, data, [decode(encode(line)) for line in before])
        return driver


def texts(lines):
    return [encode(line) for line in lines]


def check(case, events):
    """Cut a run after so many events, and go on from each cut; returns the run's lines."""
    lines, whole, taken = case.run(events)
    for (state, data), count in taken:
        driver = case.resumed(state, data, lines[:count])
        assert texts(rest_of(driver)) == texts(lines[count:])
        if driver.backend.computes:
            same(driver, whole)
    return lines


def rest_of(driver):
    return lines_of(driver.run())


def lines_of(reports):
    return [line for report in reports if isinstance(report, list) for line in report]


def same(driver, whole):
    assert [each.data for each in driver.models] == [each.data for each in whole.models]
    for server in driver.topology.servers:
        assert torch.equal(weights_of(driver, server.actor), weights_of(whole, server.actor))


@pytest.fixture(scope="module")
def single_steps():
    """Where nothing is computed, many events are processed at once: let cuts be between any two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual_backend, "REPORT_EVERY", 1)
        yield


@settings(max_examples=40)
@given(plans(), st.sampled_from(sorted(PARADIGMS)), st.integers(20, 150), cuts(400))
@pytest.mark.usefixtures("single_steps")
def test_times_are_the_same_under_every_paradigm(plan, label, pushes, events):
    name, parameters = PARADIGMS[label]
    lines = check(Case(timed(**plan, workload={"samples": pushes}), name, **parameters), events)
    event(lines[-1].status)


def net(dropout=0.2):
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 4)
    )


def sequence():
    """Of which each stage has batch-norm, and draws."""
    first, *others = (net() for _ in range(3))
    return nn.Sequential(first, *(nn.Sequential(nn.Linear(4, 3), each) for each in others))


WORKERS = [
    {"name": "a", "count": 2, "step_s": 1, "jitter": {"sigma": 0.4}},
    {"name": "b", "count": 2, "step_s": 2.5, "link": {"latency_s": 0.3}},
]
FAULTS = [
    {"kind": "crash", "worker": "b-0", "at_s": 7.3, "rejoin_after_s": 3},
    {"kind": "crash", "worker": "a-1", "at_clock": 4, "rejoin_after_s": 0.5},
    {"kind": "slow-down", "factor": 3, "mean_gap_s": 6, "lasts_s": 4},
]


def learns(module, **settings):
    training = {
        "engine": "virtual",
        "batch_size": 8,
        "workers": WORKERS,
        "workload": {"samples": 280},
        "update": {"lr": 0.1, "momentum": 0.9},
        "evaluation": {"marks": 5},
        "network": {"update_s": 0.1, "server_bandwidth_bytes_per_s": 2000},
        "keep": "best",
    }
    return prepare(config.validate(training | settings), module, DATA)


UPDATES = [
    {"lr": 0.1, "momentum": 0.9, "delay_compensation": "adaptive"},
    {"lr": 0.01, "optimizer": "adamw", "staleness_scaling": "inverse"},
    {"lr": 0.1, "momentum": 0.9, "momentum_ramp": {"name": "linear", "over": 0.5}, "clip_norm": 1},
]


@settings(max_examples=15)
@given(
    st.sampled_from(sorted(PARADIGMS)),
    st.sampled_from(UPDATES),
    st.sampled_from([[], FAULTS]),
    st.sampled_from([None, {"patience": 2}]),
    cuts(110),
)
def test_weights_are_the_same_under_every_paradigm(label, update, faults, stop, events):
    name, parameters = PARADIGMS[label]
    case = Case(learns(net, update=update, faults=faults, stop=stop), name, **parameters)
    lines = check(case, events)
    event(lines[-1].status)


DECOUPLED = st.fixed_dictionaries(
    {"modules": st.integers(1, 3), "groups": st.integers(1, 2)},
    optional={
        "weights": st.just("latest"),
        "shrink": st.just(0.5),
        "mix": st.just("weight"),
        "mix_every": st.just(2),
        "locked": st.just(True),
    },
)


def test_a_run_without_a_server_goes_on():
    task = learns(net, faults=FAULTS)
    check(Case(task, "bsp", exchange="all-reduce"), [1, 20, 47, 90])


@settings(max_examples=8)
@given(DECOUPLED, cuts(200))
def test_weights_are_the_same_in_stages(parameters, events):
    count = parameters["modules"] * parameters["groups"]
    workers = [
        {"count": count, "step_s": 0.1, "jitter": {"sigma": 0.3}, "link": {"latency_s": 0.01}}
    ]
    training = learns(
        sequence, workers=workers, batch_size=4, workload={"samples": 80}, evaluation={"marks": 3}
    )
    check(Case(training, "decoupled", **parameters), events)


def test_a_cut_by_an_event_of_the_run():
    """It is one of those that are reenacted, and meets the same moment."""
    case, taken = Case(learns(net), "asp"), []

    def begun():
        driver = case.driver()
        driver.backend.schedule(5.0, cut, driver)
        return driver

    def cut(driver):
        if not driver.backend.is_reenacting:
            taken.append((snapshot(driver), len(driver.lines)))

    whole, again = begun(), begun()
    whole.start()
    while whole.is_running:
        whole.backend.wait()
    [lines] = whole.run()
    [((state, data), count)] = taken
    reenact(again, state, data, lines[:count])
    assert again.backend.now == 5.0
    assert texts(rest_of(again)) == texts(lines[count:])
    same(again, whole)


def test_the_engine_goes_on_from_each_of_its_checkpoints():
    training = learns(net, checkpoint={"every_s": 2, "every_progress": 0.3})
    reports = list(VirtualEngine().run(training, make("ssp")))
    lines = lines_of(reports)
    checkpoints = [each for each in reports if isinstance(each, Checkpoint)]
    assert len(checkpoints) > 3
    for checkpoint in checkpoints:
        cut = lines.index(checkpoint_line(checkpoint)) + 1
        again = VirtualEngine()
        rest = list(again.run(training, make("ssp"), None, checkpoint, lambda n=cut: lines[:n]))
        assert texts(lines_of(rest)) == texts(lines[cut:])
        following = [each for each in rest if isinstance(each, Checkpoint)]
        assert following == [each for each in checkpoints if each.number > checkpoint.number]


def test_other_times_of_checkpoints_are_refused():
    training = learns(net, checkpoint={"every_s": 2})
    reports = VirtualEngine().run(training, make("bsp"))
    checkpoint = next(each for each in reports if isinstance(each, Checkpoint))
    other = learns(net, checkpoint={"every_s": 3})
    with pytest.raises(ConfigError, match=naming("checkpoint:")):
        VirtualEngine().run(other, make("bsp"), None, checkpoint)


def test_a_run_that_takes_another_course_is_refused():
    case, other = (Case(learns(net, seed=seed), "asp") for seed in (0, 1))
    lines, _, [(taken, count)] = case.run([50])
    with pytest.raises(ConfigError, match=naming("journal version")):
        other.resumed(*taken, lines[:count])
    with pytest.raises(ConfigError, match=r"the journal has (\d+) events, but (?!\1)\d+ happened"):
        case.resumed(*taken, lines[: count - 1])


@pytest.mark.parametrize(
    ("stop", "why"),
    [
        ({"after_s": 1}, "1 s are over"),
        ({"patience": 1, "min_delta": 0.9}, "accuracy was not better than"),
    ],
    ids=["after_s", "patience"],
)
def test_a_run_goes_on_with_a_stop_that_it_would_have_met_before(stop, why):
    """It stops as soon as it goes on, or at its next evaluation."""
    case = Case(learns(net), "ssp")
    lines, _, [((state, data), count)] = case.run([160])
    assert sum(isinstance(line, Evaluation) for line in lines[:count]) > 2
    at = case.resumed(state, data, lines[:count]).backend.now
    again = Case(learns(net, stop=stop), "ssp").driver()
    reenact(again, state, data, lines[:count], at)
    rest = rest_of(again)
    [remark] = [line for line in rest if isinstance(line, Remark)]
    assert remark.text.startswith(f"The run stops early: {why}")
    assert rest[-1].status == "finished"
    assert at < rest[-1].at < lines[-1].at
