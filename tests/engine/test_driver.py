"""The driver: whole runs in a world where things go wrong, without a tensor. See also `scripts`."""

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import event, given, settings, strategies as st

from raysync import config
from raysync.config import ParadigmChoice
from raysync.core.decisions import Apply, Drop, Release, Suspend
from raysync.core.events import Joined, Left, Pushed
from raysync.core.journal import Ended, Entry, Evaluation, Remark
from raysync.core.metrics import PrimaryMetric
from raysync.core.paradigm import Paradigm
from raysync.emulation.fault_plan import FaultPlan
from raysync.engine.evaluations import TRIES
from raysync.engine.kept_models import KeptModels
from raysync.engine.messages import (
    ApplyCall,
    EvaluateCall,
    ForgetCall,
    PublishCall,
    StateDictCall,
    StepCall,
)
from raysync.errors import ProtocolViolation
from raysync.paradigms import make
from raysync.paradigms.asp import ASP
from raysync.paradigms.bsp import BSP
from raysync.step_fault import StepFault
from raysync.training.preparation import prepare
from tests.builders.messages import tells
from tests.builders.paradigms import VARIANTS, lead_bound
from tests.builders.plans import plans
from tests.builders.virtual import DATA, TIMING, deep, of, replayed, slot_of
from tests.engine.world import Incidents, driver_in, run_in
from tests.virtual.checker import Checker

ROOT = Path(__file__).parents[2]
JITTER = {"distribution": "lognormal", "sigma": 0.3}
THREE = [{"name": "w", "count": 3, "step_s": 0.5, "jitter": JITTER}]
GLOBAL = {
    "name": "hybrid",
    "k": 2,
    "staleness_tolerance": 1,
    "pull_interval": 3,
    "snapshot": "global",
}
COMES_BACK = {"kind": "crash", "worker": "w-0", "at_clock": 2, "rejoin_after_s": 1.0}
NO_DEADLINE = {"step_deadline_s": 1e6}


def task_of(**given):
    defaults = {"workers": THREE, "workload": {"samples": 60}, "evaluation": {"marks": 4}}
    return prepare(config.validate(TIMING | defaults | given), deep, DATA)


def rule_of(training):
    return training.experiment.paradigm.make()


def decided(lines, kind):
    return [
        decision
        for entry in of(lines, Entry)
        for decision in entry.decisions
        if isinstance(decision, kind)
    ]


def named(paradigm):
    return paradigm if isinstance(paradigm, str) else paradigm["name"]


# ---- what is unknown, or cannot be carried out ----


@dataclass
class Resizing(Paradigm):
    """Decides what needs workers with the whole network, and does not say so in `demands`."""

    name = "resizing"

    def on_push(self, roster, push):
        return [Apply((push,)), Release(push[0], batch_size=5)]

    def on_leave(self, roster, worker):
        return []

    def explain(self, roster, worker):
        return "never"


def test_what_a_topology_cannot_carry_out_is_told_in_one_line():
    name = "tests.engine.test_driver:Resizing"
    whole = task_of(paradigm=name)
    *_, ended = run_in(whole, rule_of(whole))[1]
    assert ended.status == "finished", ended
    cut = task_of(
        workers=[{"count": 4}],
        paradigm={"name": "decoupled", "modules": 2, "groups": 2, "sync": name},
    )
    *_, ended = run_in(cut, rule_of(cut))[1]
    assert re.search(r"decoupled: sync: it decided Release\(\.\.\., batch_size=5\)", ended.error)
    assert "\n" not in ended.error


# ---- what is wrong, and where ----


@dataclass
class Careless(ASP):
    """Releases a stranger, or asks the roster for one."""

    asks: bool = False

    def on_join(self, roster, worker):
        return roster.lead("nobody") if self.asks else [Release("nobody")]


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (False, r"\S*test_driver\.py:\d+: Careless.on_join releases 'nobody'.* answered {event}"),
        (True, r"KeyError: 'nobody' at {event}, in \S*test_driver\.py:\d+"),
    ],
)
def test_what_a_paradigm_does_wrong_names_its_own_line_and_the_event(asks, says):
    event = Joined(at=0.0, worker="w-0#1")
    [ended] = run_in(task_of(), Careless(asks))[1]
    assert ended.status == "failed"
    assert re.fullmatch(says.format(event=re.escape(str(event))), ended.error), ended.error


def test_an_event_that_cannot_have_happened_is_named_with_its_error():
    training = task_of()
    driver = driver_in(training, rule_of(training), Incidents([]))
    driver.start()
    event = Left(at=0.0, worker="nobody")
    with pytest.raises(ProtocolViolation) as raised:
        driver.handle(event, {})
    [note] = raised.value.__notes__
    assert re.fullmatch(rf"at {re.escape(str(event))}, in \S+machine\.py:\d+", note)


# ---- what is computed on what ----


@pytest.mark.parametrize(
    "update", [{}, {"delay_compensation": "constant"}], ids=["", "compensated"]
)
@pytest.mark.parametrize(
    "paradigm",
    [
        {"name": "hybrid", "k": 2, "staleness_tolerance": "inf", "pull_interval": 3},
        {"name": "k-batch-async", "k": 3},
        {"name": "sync-switch", "fraction": 0.5},
        "bsp",
    ],
    ids=named,
)
def test_an_update_knows_what_each_gradient_was_computed_on(paradigm, update):
    """Staleness, phase, progress, who is still there and, if delays are compensated, the very
    weights; also without a pull, and after a crash."""
    crashes = [COMES_BACK, {"kind": "crash", "worker": "w-1", "at_s": 2.2, "rejoin_after_s": 1.0}]
    training = task_of(paradigm=paradigm, update=update, faults=crashes)
    driver, lines = run_in(training, rule_of(training))
    server = driver.backend.servers["server"]
    base = {
        (one.event.worker, one.event.clock): one.event.base
        for one in of(lines, Entry)
        if isinstance(one.event, Pushed)
    }
    members, samples, number = set(), 0, 0
    for entry in of(lines, Entry):
        if isinstance(entry.event, Joined | Left):
            members ^= {entry.event.worker}
        for apply in (one for one in entry.decisions if isinstance(one, Apply)):
            if number == len(server.plans):
                break  # behind the last update that was carried out
            plan, vectors = server.plans[number], server.vectors[number]
            pushes = sorted(apply.pushes)  # by slots, whichever arrived first
            computed_on = [base[push] for push in pushes]
            assert vectors == computed_on * (2 if update else 1)
            assert plan.staleness == [number - version for version in computed_on]
            assert (plan.phase, plan.version, plan.progress) == (
                apply.phase,
                number + 1,
                samples / 60,
            )
            assert plan.workers == [worker if worker in members else None for worker, _ in pushes]
            assert plan.members == len(members)
            number, samples = number + 1, samples + len(apply.pushes)
    assert number == len(server.plans) > 10
    assert any(any(plan.staleness) for plan in server.plans) == (paradigm != "bsp")
    assert any(None in plan.workers for plan in server.plans) or paradigm != "bsp"
    if named(paradigm) == "sync-switch":
        assert {plan.phase for plan in server.plans} == {"bsp", "asp"}


@pytest.mark.parametrize("leaves", [0, 1, 2])
def test_an_update_knows_how_many_workers_take_part(leaves):
    """At least one: also if its last worker has left."""
    workers = [{"name": "w0", "step_s": 0.5}, {"name": "w1", "step_s": 2}]
    crashes = [
        {"kind": "crash", "worker": f"w{index}-0", "at_s": at_s, "rejoin_after_s": 5}
        for index, at_s in enumerate([0.7, 1.0][:leaves])
    ]
    training = task_of(paradigm="bsp", workers=workers, faults=crashes)
    driver, _ = run_in(training, rule_of(training))
    first = driver.backend.servers["server"].plans[0]
    assert first.workers[0] == (None if leaves else "w0-0#1")
    assert first.members == max(1, 2 - leaves)


@dataclass
class Benching(ASP):
    name = "benching"

    def on_push(self, roster, push):
        decided = super().on_push(roster, push)
        benched = [] if roster.suspended else [Suspend("w-0#1", "too slow")]
        return [*benched, *(one for one in decided if getattr(one, "worker", "") != "w-0#1")]


def test_suspended_workers_do_not_take_part():
    training = task_of(paradigm="tests.engine.test_driver:Benching")
    driver, _ = run_in(training, rule_of(training))
    assert {plan.members for plan in driver.backend.servers["server"].plans} == {2}


@dataclass
class Weighing(BSP):
    name = "weighing"

    def on_push(self, roster, push):
        decided = super().on_push(roster, push)
        if decided:
            weights = tuple(1.0 + 2 * int(slot_of(worker)[-1]) for worker, _ in roster.buffered)
            decided[0] = Apply(decided[0].pushes, weights=weights)
        return decided


def test_weights_go_to_the_server_with_their_pushes():
    """Which arrive in another order than that of the slots."""
    training = task_of(paradigm="tests.engine.test_driver:Weighing")
    driver, lines = run_in(training, rule_of(training))
    assert any(apply.weights != (1.0, 3.0, 5.0) for apply in decided(lines, Apply))
    plans = driver.backend.servers["server"].plans
    assert plans
    assert all(plan.weights == [1.0, 3.0, 5.0] for plan in plans)


def test_only_an_affected_step_is_sent_its_fault():
    faults = [
        {"kind": "latency", "workers": ["w-1"], "clocks": [3, 5], "added_s": 0.2},
        {"kind": "slow-down", "clocks": [4, 6], "factor": 3},
    ]
    training = task_of(faults=faults)
    driver, _ = run_in(training, make("bsp"))
    asked = FaultPlan(training.experiment)
    steps = [
        (who.partition("#")[0], message)
        for _, who, message in driver.backend.calls
        if isinstance(message, StepCall)
    ]
    for slot, message in steps:
        fault = asked.at_step(slot, message.batch, 0.0)
        assert message == StepCall(message.batch, 1, fault)
    assert ("w-1", StepCall(4, 1, StepFault(3.0, 0.2))) in steps
    assert len(steps) > 50


# ---- the evaluator ----

SLOW = "evaluations take 0.1 s"


@pytest.mark.parametrize(
    "ends",
    [
        ["dies at 0"],
        ["freezes at 0"],
        ["dies at 4", "freezes at 4.3"],
        ["freezes at 7"],
        ["dies at 0", "dies at 0", "freezes at 4", "freezes at 5"],
    ],
)
def test_an_evaluator_that_fails_repeats_its_evaluation(ends):
    """None is missing, none is made twice, and they tell the same."""
    training = task_of(evaluation={"marks": 8, "deadline_s": 30.0})
    _, whole = run_in(training, make("bsp"), SLOW)
    driver, lines = run_in(training, make("bsp"), SLOW, *(f"evaluator {end}" for end in ends))
    assert lines[-1].status == "finished"
    assert of(lines, Evaluation) == of(whole, Evaluation)
    calls = [type(message) for _, actor, message in driver.backend.calls if actor == "evaluator"]
    assert calls == [EvaluateCall] * (9 + len(ends)) + [StateDictCall]
    remarks = [line.text for line in of(lines, Remark)]
    assert len(remarks) == len(ends) == driver.backend.restarts
    assert all("is restarted, and then its evaluation is repeated" in text for text in remarks)
    assert any("no answer for 30 s" in text for text in remarks) == ("freezes" in str(ends))


@pytest.mark.parametrize("end", ["dies at 2.5", "freezes at 2.5"])
def test_nothing_is_published_for_an_evaluator_that_was_given_up(end):
    training = task_of(
        workers=[{"name": "w", "step_s": 1}], evaluation={"marks": 30, "deadline_s": 1.0}
    )
    driver, lines = run_in(
        training, make("asp"), "evaluations take 0.25 s", *[f"evaluator {end}"] * TRIES
    )
    assert lines[-1].status == "finished"
    *_, last = of(lines, Remark)
    assert len(of(lines, Remark)) == TRIES
    assert tells(last.text, " ".join(f"{mark / 30:g}" for mark in range(2, 31)))
    assert not driver.models
    published = [at for at, _, each in driver.backend.calls if isinstance(each, PublishCall)]
    assert published[-1] <= last.at < 8 < lines[-1].at


# ---- the models that are kept ----

SAVING = ["evaluations take 0.5 s", "saving a model takes 1 s"]


def kept(driver):
    """Which model -> the versions of the weights, a server each, that it was made of."""
    return {model.which: yaml.safe_load(model.data) for model in driver.models}


@pytest.mark.parametrize("keep", ["final", "best", "none"])
@pytest.mark.parametrize("paradigm", ["asp", {"name": "decoupled", "modules": 2, "groups": 2}])
def test_the_weights_of_the_last_evaluation_are_kept_and_of_equals_the_first(keep, paradigm):
    four = [{"name": "w", "count": 4, "step_s": 0.5, "jitter": JITTER}]
    training = task_of(workers=four, paradigm=paradigm, evaluation={"marks": 3}, keep=keep)
    driver, lines = run_in(training, rule_of(training), *SAVING)
    evaluated = [
        inputs for _, message, inputs in driver.backend.log if isinstance(message, EvaluateCall)
    ]
    expected = {"final": evaluated[-1], "best": evaluated[0]}
    wanted = {"final": ["final"], "best": ["final", "best"], "none": []}[keep]
    assert kept(driver) == {which: expected[which] for which in wanted}
    assert len(evaluated) == 4
    assert evaluated[0] != evaluated[-1]
    assert not of(lines, Remark)


@pytest.mark.parametrize("keep", ["final", "best"])
@pytest.mark.parametrize(
    "ends", [["dies"], ["freezes"], ["dies", "freezes"], ["dies", "freezes", "dies"]]
)
def test_an_evaluator_that_fails_as_it_saves_a_model_saves_it_again(ends, keep):
    training = task_of(evaluation={"marks": 3, "deadline_s": 5.0}, keep=keep)
    calls = run_in(training, make("bsp"), *SAVING)[0].backend.calls
    begins = next(at for at, _, message in calls if isinstance(message, StateDictCall))
    happens = [f"evaluator {how} at {begins + 0.5}" for how in ends]
    driver, lines = run_in(training, make("bsp"), *SAVING, *happens)
    last, remarks = of(lines, Evaluation)[-1], [line.text for line in of(lines, Remark)]
    assert (lines[-1].status, last.mark) == ("finished", 1)
    told = [text for text in remarks if "restarted, and then the model is saved" in text]
    assert told == remarks[:2]
    assert len(remarks) == len(ends)
    if len(ends) == TRIES:
        names = "final" if keep == "final" else "final and best"
        assert remarks[-1].endswith(f"is given up: the run leaves no {names} model.")
        assert not driver.models
    else:
        assert kept(driver)["final"] == [last.version]


def test_a_model_that_cannot_be_saved_does_not_undo_the_training():
    training = task_of(evaluation={"marks": 1})
    over = run_in(training, make("bsp"), *SAVING)[0].backend.now
    raises = f"evaluator raises an error from {over} on"
    driver, lines = run_in(training, make("bsp"), *SAVING, raises)
    [remark] = of(lines, Remark)
    assert tells(remark.text, "ValueError: user's")
    assert lines[-1].status == "finished"
    assert not driver.models


@given(st.lists(st.floats(width=16), min_size=1, max_size=6), st.booleans())
def test_the_best_model_is_the_first_of_those_with_the_best_value(values, higher_is_better):
    primary = PrimaryMetric("accuracy", "max" if higher_is_better else "min")
    models = KeptModels("best", primary)
    for number, value in enumerate(values):
        models.update((number,), value)
    saved = {}
    while models.next_weights is not None:
        saved_weights = models.next_weights
        models.save(b"")
        saved[models.saved[-1].which] = saved_weights
    known = [value for value in values if value == value]
    assert saved.pop("final") == (len(values) - 1,)
    best = (max if higher_is_better else min)(known, default=None)
    assert saved == ({"best": (values.index(best),)} if known else {})


# ---- random worlds ----


def incidents(workers, *others):
    """What may at_step the processes of a run."""
    at = st.floats(0.1, 20).map(lambda at: round(at, 2))
    ends = st.builds(
        "{} {} at {}".format,
        st.sampled_from([*workers, *others]),
        st.sampled_from(["dies", "freezes"]),
        at,
    )
    pushes = st.builds("{}@{}".format, st.sampled_from(workers), st.integers(0, 9))
    late = st.builds("gradient {} takes {} s".format, pushes, st.sampled_from([0.25, 3.0]))
    lost = st.builds("gradient {} is lost".format, pushes)
    starts = st.builds(
        "{} takes {} s to start".format,
        st.sampled_from(workers),
        st.sampled_from([0.5, 8.0, 130.0]),
    )
    fails = st.builds("{} does not start".format, st.sampled_from(workers))
    return st.lists(st.one_of(ends, ends, ends, late, lost, starts, fails), max_size=10)


@settings(max_examples=40)
@given(plans(), st.sampled_from(list(VARIANTS)), st.data())
def test_a_run_ends_under_any_faults_and_every_push_is_accounted_for(plan, paradigm, data):
    """Without a fault of the server it fails only when too few workers are there and too few are to
    come; and its journal replays.
    """
    name, parameters = VARIANTS[paradigm]
    lives = [
        f"{group['name']}-{index}#{life}"
        for group, life in product(plan["workers"], (1, 1, 2, 3))
        for index in range(group["count"])
    ]
    restarts = data.draw(
        st.fixed_dictionaries(
            {"attempts": st.integers(0, 3), "backoff_s": st.sampled_from([0, 0.25, 1.5, 50])}
        )
    )
    min_workers = data.draw(st.integers(1, sum(group["count"] for group in plan["workers"])))
    plan["cluster"] |= NO_DEADLINE | {"restarts": restarts, "min_workers": min_workers}
    training, choice = task_of(**plan), ParadigmChoice(name=name, **parameters)
    happens = data.draw(incidents(lives, "evaluator", "server"))
    driver, lines = run_in(training, choice.make(), "evaluations take 0.3 s", *happens)
    event(lines[-1].status)
    checker = Checker(name, lead_bound(name, parameters), 60)
    for entry in of(lines, Entry):
        checker.feed(entry)
    again = replayed(training, lines, choice)
    assert again.difference is None
    roster = again.machine.roster
    assert roster.received == roster.applied + roster.dropped + len(roster.buffered)
    left = [entry.event.worker for entry in of(lines, Entry) if isinstance(entry.event, Left)]
    assert [
        message.worker for _, _, message in driver.backend.calls if isinstance(message, ForgetCall)
    ] == left
    assert [worker for worker in driver.backend.killed if worker in left] == left
    assert not {drop.push for drop in decided(of(lines, Entry)[:-1], Drop)} & driver.backend.held
    [ended] = of(lines, Ended)
    assert ended.status in ("finished", "failed")
    assert driver.members.unproven.keys() <= roster.live.keys()
    assert not driver.members.coming or ended.error.startswith("server: ")
    if ended.status == "failed":
        has_server = not any(line.startswith("server") for line in happens)
        gone = "every worker is gone; " if min_workers == 1 else "too few workers: "
        assert ended.error.startswith(gone if has_server else (gone, "server: "))
        if has_server:
            assert len(roster.members) < min_workers
            assert driver.backend.held >= set(roster.buffered)
            assert driver.inflight.workers <= roster.computing.keys()
    else:
        assert of(lines, Evaluation)[-1:] == [] or checker.samples >= 60
        assert not driver.is_running


def test_what_a_server_is_known_to_have_done_is_forgotten():
    """A step that answers shows it; no evaluation does here, for there is no evaluator."""
    training = task_of()
    driver, lines = run_in(training, make("asp"), *["evaluator dies at 0"] * TRIES)
    assert lines[-1].status == "finished"
    assert len(driver.backend.servers["server"].plans) == 60
    updates = [call for _, call in driver.backend.live.values() if isinstance(call, ApplyCall)]
    assert len(updates) <= 6
